//! Commands and queries from tests, through one exported function.
//!
//! | command | what it does |
//! |---|---|
//! | `set NAME=VALUE` | sets a variable for this copy of the library, before its first use |
//! | `fault LINE` | orders faults: see `faults` |
//! | `now` | the modelled time, in nanoseconds |
//! | `step` | virtual time: goes to the next event; answers whether there was one |
//! | `advance NS` | virtual time: lets so much time pass |
//! | `semaphore binary` | makes a semaphore for every process with this double: answers a file descriptor |
//! | `semaphore timeline 7` | the same with a value; 0 without one |
//! | `counters` | every counter, a line each; bytes count when their copy is ordered |
//! | `calls` | how often each function was called, a line each |
//! | `leaks` | resources that were not freed, a line each |
//! | `notes` | misuse by clients that a real driver would punish, and internal failures, a line each |

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;
use std::panic;

use crate::engine::Clock;
use crate::state::{World, is_in_use, world};
use crate::{config, log, semaphore};

/// Executes a command, a text that ends with a zero. Writes as much of the answer as fits into `size` bytes, with a
/// zero at its end, and returns the length of the whole answer without it. An invalid or failed command answers with
/// the reason and returns its length as a negative number.
///
/// # Safety
/// `command` ends with a zero; `answer` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn transload_double_control(
    command: *const c_char,
    answer: *mut c_char,
    size: usize,
) -> c_int {
    let carried = if command.is_null() {
        Err("no command".into())
    } else {
        // SAFETY: the caller's text ends with a zero.
        let command = unsafe { CStr::from_ptr(command) };
        control(&command.to_string_lossy())
    };
    let (text, sign) = match carried {
        Ok(text) => (text, 1),
        // A reason must never have the length 0.
        Err(reason) => (reason + "\n", -1),
    };
    if !answer.is_null() && size > 0 {
        let kept = text.len().min(size - 1);
        for (index, byte) in text.bytes().take(kept).chain([0]).enumerate() {
            // SAFETY: at most `size` bytes are written.
            let at = unsafe { answer.add(index) };
            // SAFETY: as above.
            unsafe { at.write(byte as c_char) };
        }
    }
    sign * c_int::try_from(text.len()).unwrap_or(c_int::MAX)
}

/// Executes a command of [`transload_double_control`], for programs that are written in Rust.
///
/// # Errors
/// What is no command, or fails, with the reason.
pub fn control(command: &str) -> Result<String, String> {
    panic::catch_unwind(|| carry_out(command)).unwrap_or_else(|_| Err("it panicked".into()))
}

fn carry_out(command: &str) -> Result<String, String> {
    let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
    match word {
        "set" => {
            if is_in_use() {
                return Err(config::ConfigError::TooLate.to_string());
            }
            let (name, value) = rest.split_once('=').ok_or("set wants NAME=VALUE")?;
            config::set(name, value).map_err(|error| error.to_string())?;
            Ok(String::new())
        }
        "fault" => {
            world()
                .faults
                .order(rest)
                .map_err(|error| error.to_string())?;
            Ok(String::new())
        }
        "now" => Ok(world().engine.now_ns().to_string()),
        "step" => Ok(stepped(world())?.engine.step().to_string()),
        "advance" => {
            let ns = rest.parse().map_err(|_| "advance wants nanoseconds")?;
            stepped(world())?.engine.advance(ns);
            Ok(String::new())
        }
        "semaphore" => Ok(semaphore::make(rest)?.to_string()),
        "counters" => Ok(world().log.counters()),
        "calls" => Ok(log::calls()
            .iter()
            .fold(String::new(), |mut text, (name, count)| {
                // A string takes everything.
                let _ = writeln!(text, "{name} {count}");
                text
            })),
        "leaks" => Ok(world().state().leaks().join("\n")),
        "notes" => Ok(world().log.notes().join("\n")),
        _ => Err(format!(
            "`{word}` is no command; there are set, fault, now, step, advance, semaphore, counters, calls, leaks and notes"
        )),
    }
}

fn stepped(world: &World) -> Result<&World, &'static str> {
    match world.engine.clock() {
        Clock::Virtual => Ok(world),
        Clock::Real => Err("real time passes by itself"),
    }
}
