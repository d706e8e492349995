//! What a manager's transfers, engines and threads did, as a file for a viewer.

mod rows;

use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt::{self, Write};
use core::time::Duration;

use transload_core::{DeviceId, Instant, MemoryId};

use crate::engine::trace::Recorded;
use rows::{Group, Slice, Value};

/// What a manager did: one row for each copy engine, each staging slot, each thread, and each of the transfers that were
/// under way at once. [`TransferManager::take_trace`](crate::TransferManager::take_trace) makes it.
///
/// Its `Display` is a JSON document in the [Trace Event
/// Format](https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), which Perfetto and
/// `chrome://tracing` open. Times are in microseconds with three decimals, and start with the first event. Slices of one row
/// lie beside or within each other.
///
/// An engine is shown as if it did one operation at a time: a slice begins when the operation was submitted, or when the one
/// before it ended, and ends when the backend told its end. A slot's slices are its leases and, within them, its chunks: from
/// the submission that fills the slot until the end of the operation that empties it. What had not ended when the trace was
/// taken ends there, and has the argument `unfinished`.
#[derive(Debug, Default)]
pub struct Trace {
    recorded: Recorded,
    /// The devices that are simulated. Their rows say so.
    simulated: Vec<DeviceId>,
}

impl Trace {
    pub(crate) fn new(mut recorded: Recorded, simulated: Vec<DeviceId>) -> Trace {
        recorded.events.shrink_to_fit();
        Trace {
            recorded,
            simulated,
        }
    }

    /// Returns whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.recorded.events.is_empty()
    }

    /// Returns what went over each link, in the order of the first operation. Operations that failed, or had not ended when the
    /// trace was taken, and proofs do not count.
    pub fn hops(&self) -> Vec<Hop> {
        rows::hops(&self.recorded)
    }

    /// Returns how many events found no room. A trace has room for 65,536, which is some five for each chunk; it keeps the
    /// first ones.
    pub fn left_out(&self) -> u64 {
        self.recorded.left_out
    }
}

/// What went from one memory to another while a trace was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Hop {
    /// The memory that was read.
    pub src: MemoryId,
    /// The memory that was written.
    pub dst: MemoryId,
    /// The bytes: of a conversion, those before it.
    pub bytes: u64,
    /// How long at least one operation was under way. Hops overlap: together they may have been busy for longer than the
    /// transfers took.
    pub busy: Duration,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, start) = rows::of(&self.recorded, &self.simulated);
        let left_out = self.left_out();
        write!(
            f,
            r#"{{"displayTimeUnit":"ns","otherData":{{"left_out":{left_out}}},"traceEvents":["#
        )?;
        let next = Separator::default();
        for group in Group::ALL {
            write_label(f, &next, "process", (group, 0), group.name())?;
        }
        for (tid, row) in rows.iter().enumerate() {
            write_label(f, &next, "thread", (row.group, tid), &row.name)?;
        }
        for (tid, row) in rows.iter().enumerate() {
            for slice in &row.slices {
                writeln!(f, "{next}")?;
                write_slice(f, (row.group, tid), slice, start)?;
            }
        }
        f.write_str("\n]}\n")
    }
}

/// Names a row or a group of rows, and says where it stands.
fn write_label(
    f: &mut fmt::Formatter<'_>,
    next: &Separator,
    what: &str,
    (group, tid): (Group, usize),
    name: &str,
) -> fmt::Result {
    let (pid, name) = (group as usize, Escaped(name));
    let place = if what == "process" { pid } else { tid };
    write!(
        f,
        r#"{next}
{{"ph":"M","name":"{what}_name","pid":{pid},"tid":{tid},"args":{{"name":"{name}"}}}},
{{"ph":"M","name":"{what}_sort_index","pid":{pid},"tid":{tid},"args":{{"sort_index":{place}}}}}"#
    )
}

fn write_slice(
    f: &mut fmt::Formatter<'_>,
    (pid, tid): (Group, usize),
    slice: &Slice,
    start: Instant,
) -> fmt::Result {
    let (name, pid) = (Escaped(&slice.name), pid as u8);
    let ts = Micros(slice.begin.since_ns(start));
    let dur = Micros(slice.end.since_ns(slice.begin));
    write!(
        f,
        r#"{{"ph":"X","name":"{name}","pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur},"args":{{"#
    )?;
    let next = Separator::default();
    for (key, value) in &slice.args {
        write!(f, "{next}\"{key}\":")?;
        match value {
            Value::Number(number) => write!(f, "{number}")?,
            Value::Time(at) => write!(f, "{}", Micros(at.since_ns(start)))?,
            Value::Flag(flag) => write!(f, "{flag}")?,
            Value::Text(text) => write!(f, "\"{}\"", Escaped(text))?,
        }
    }
    f.write_str("}}")
}

/// Nothing before the first item, and then a comma.
#[derive(Default)]
struct Separator(Cell<bool>);

impl fmt::Display for Separator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.replace(true) { "," } else { "" })
    }
}

/// Nanoseconds, written as microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A text within the quotes of a JSON string.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '"' | '\\' => write!(f, "\\{letter}"),
            '\0'..='\x1f' => write!(f, "\\u{:04x}", letter as u32),
            _ => f.write_char(letter),
        })
    }
}
