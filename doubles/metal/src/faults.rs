//! Faults that tests order, with the time at which they strike.
//!
//! A fault is a line such as `oom@3`; several are put apart by semicolons. Counting starts when a fault is ordered. A
//! blit is one command of an encoder: a copy, a fill, a synchronization.

use std::ffi::CString;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::classes::error::Code;
use crate::gpu::WORLD;
use crate::machine::{DeviceState, made};
use crate::runtime::Selector;

/// Orders faults.
///
/// | fault | what happens |
/// |---|---|
/// | `oom` `oom@3` `oom@3+` | the next buffer or texture is refused; the third from now; the third and all after it |
/// | `blit=timeout@5` | the fifth blit fails with its command buffer: blits before it are done, those after it are not |
/// | `commit=internal@2` | the second command buffer that is committed fails, and does nothing |
/// | `removed@5` | at the fifth blit its device is gone: work in flight fails, and so does all later work |
/// | `nil=newSharedEvent@2` | the second message of this name answers nil, and does nothing |
/// | `none` | earlier orders are cancelled; damage that is done stays |
///
/// All but the last take a turn as `oom` does. Errors have the names of `MTLCommandBufferError`, written
/// `internal`, `timeout`, `page-fault`, `access-revoked`, `not-permitted`, `out-of-memory`, `invalid-resource`,
/// `memoryless`, `device-removed`, `stack-overflow`, or are numbers, known or not.
///
/// # Errors
/// At the first line that orders none; the ones before it are ordered then.
pub fn fault(lines: &str) -> Result<(), FaultError> {
    for line in lines.split(';').map(str::trim) {
        if !line.is_empty() {
            order(line)?;
            ANY.store(true, Ordering::Release);
        }
    }
    Ok(())
}

/// Removes the device at that place in the machine now, as when its cable is pulled: command buffers that are not over
/// fail, held or not, and later calls on it fail.
///
/// # Panics
/// When the machine has no such device.
pub fn remove(device: usize) {
    made().devices[device]
        .removed
        .store(true, Ordering::Release);
    WORLD.poke();
}

/// A line that orders no fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultError(String);

impl fmt::Display for FaultError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for FaultError {}

/// The end of a blit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Fails(Code),
    Removed,
}

#[derive(Debug)]
struct Ordered {
    allocations: Vec<(Turn, ())>,
    blits: Vec<(Turn, Fate)>,
    commits: Vec<(Turn, Code)>,
    messages: Vec<(Turn, usize)>,
}

/// The position of a fault among the next calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    left: u64,
    and_after: bool,
}

static ORDERED: Mutex<Ordered> = Mutex::new(Ordered {
    allocations: Vec::new(),
    blits: Vec::new(),
    commits: Vec::new(),
    messages: Vec::new(),
});

/// Whether there was ever one: messages are many and faults few.
static ANY: AtomicBool = AtomicBool::new(false);

fn ordered() -> Option<MutexGuard<'static, Ordered>> {
    ANY.load(Ordering::Acquire)
        .then(|| ORDERED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether this allocation is refused.
fn refuses_allocation() -> bool {
    ordered().is_some_and(|mut ordered| first(ordered.allocations.iter_mut()).is_some())
}

/// Whether a device has `len` bytes more.
pub(crate) fn has_room(device: &DeviceState, len: usize) -> bool {
    if refuses_allocation() {
        return false;
    }
    let allocated = device.allocated.load(Ordering::Relaxed);
    let total = allocated.checked_add(len as u64);
    !device.is_removed() && total.is_some_and(|total| total <= device.is.memory_bytes)
}

/// The end of this blit, if it is not executed.
pub(crate) fn fate_of_blit() -> Option<Fate> {
    first(ordered()?.blits.iter_mut())
}

/// How this command buffer fails, where it does.
pub(crate) fn fate_of_commit() -> Option<Code> {
    first(ordered()?.commits.iter_mut())
}

/// Whether this message answers nil.
pub(crate) fn silences(selector: Selector) -> bool {
    let Some(mut ordered) = ordered() else {
        return false;
    };
    let messages = ordered.messages.iter_mut();
    first(messages.filter(|(_, key)| *key == selector.key())).is_some()
}

/// Counts for all of them; the one that was ordered first decides.
fn first<'a, T: Copy + 'a>(ordered: impl Iterator<Item = &'a mut (Turn, T)>) -> Option<T> {
    let mut found = None;
    for (turn, what) in ordered {
        if turn.comes() {
            found = found.or(Some(*what));
        }
    }
    found
}

fn order(line: &str) -> Result<(), FaultError> {
    let (what, turn) = match line.split_once('@') {
        Some((what, turn)) => (what, Turn::parse(turn).ok_or_else(|| told(line, TURN))?),
        None => (line, Turn::NEXT),
    };
    let (what, value) = what.split_once('=').unwrap_or((what, ""));
    let code = || Code::parse(value).ok_or_else(|| told(line, CODE));
    let mut ordered = ORDERED.lock().unwrap_or_else(PoisonError::into_inner);
    match what {
        "oom" => ordered.allocations.push((turn, ())),
        "blit" => ordered.blits.push((turn, Fate::Fails(code()?))),
        "commit" => ordered.commits.push((turn, code()?)),
        "removed" => ordered.blits.push((turn, Fate::Removed)),
        "nil" => {
            let name = CString::new(value).ok().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| told(line, MESSAGE))?;
            ordered.messages.push((turn, Selector::named(&name).key()));
        }
        "none" => {
            ordered.allocations.clear();
            ordered.blits.clear();
            ordered.commits.clear();
            ordered.messages.clear();
        }
        _ => return Err(told(line, UNKNOWN)),
    }
    Ok(())
}

fn told(line: &str, why: &str) -> FaultError {
    FaultError(format!("`{line}`: {why}"))
}

impl Turn {
    const NEXT: Self = Self {
        left: 1,
        and_after: false,
    };

    fn parse(text: &str) -> Option<Self> {
        let (number, and_after) = match text.strip_suffix('+') {
            Some(number) => (number, true),
            None => (text, false),
        };
        let left = number.parse().ok().filter(|number| *number > 0)?;
        Some(Self { left, and_after })
    }

    /// Whether it is this one's turn.
    fn comes(&mut self) -> bool {
        match self.left {
            0 => false,
            1 => {
                self.left = u64::from(self.and_after);
                true
            }
            _ => {
                self.left -= 1;
                false
            }
        }
    }
}

const UNKNOWN: &str = "there are oom, blit, commit, removed, nil and none";
const TURN: &str = "`@` wants a number from 1, or one with a plus after it";
const CODE: &str = "wants an error of MTLCommandBufferError, as blit=timeout, or its number";
const MESSAGE: &str = "wants the name of a message, as nil=newCommandQueue";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_when_they_are_due() {
        let comes = |text: &str| {
            let mut turn = Turn::parse(text).unwrap();
            [(); 4].map(|()| turn.comes())
        };
        assert_eq!(comes("1"), [true, false, false, false]);
        assert_eq!(comes("3"), [false, false, true, false]);
        assert_eq!(comes("2+"), [false, true, true, true]);
    }

    #[test]
    fn what_orders_nothing_is_told() {
        let lines = [
            "oom@0", "oom@x", "blit", "blit=odd", "commit=", "nil", "nil=@2", "what",
        ];
        for line in lines {
            let error = fault(line).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{line}`: ")), "{error}");
        }
        assert_eq!(
            fault(" oom@2+ ; blit=page-fault; blit=99@3; ; nil=newEvent; none"),
            Ok(())
        );
        assert!(!refuses_allocation() && fate_of_blit().is_none());
    }
}
