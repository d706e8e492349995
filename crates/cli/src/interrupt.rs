//! Ends the program when a signal asks for it (Ctrl-C, `kill`): it removes unfinished files, prints one line or
//! object about it, and exits with the signal's code.
//!
//! The signal may come while bytes move, while a disk is slow, or while no program reads the output. So a dedicated
//! thread ends the program and waits for none of them.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(unix)]
pub(crate) use signals::watch;

/// Does nothing: on this system the program handles no signals.
#[cfg(not(unix))]
pub(crate) fn watch(_json: bool) {}

/// Files that are being written, under temporary names.
#[derive(Debug)]
pub(crate) struct Unfinished {
    files: Vec<Partial>,
}

#[derive(Debug)]
struct Partial {
    #[cfg_attr(not(unix), allow(dead_code, reason = "only a signal names it"))]
    target: PathBuf,
    partial: PathBuf,
}

/// The unfinished files of this process. While they are held, no signal ends the program, and once
/// one does, they are held to the end.
pub(crate) fn unfinished() -> MutexGuard<'static, Unfinished> {
    static UNFINISHED: Mutex<Unfinished> = Mutex::new(Unfinished { files: Vec::new() });
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Unfinished {
    /// Adds the file that is to become `target`.
    pub(crate) fn add(&mut self, target: &Path, partial: &Path) {
        self.files.push(Partial {
            target: target.into(),
            partial: partial.into(),
        });
    }

    /// Removes a file that was placed or deleted.
    pub(crate) fn forget(&mut self, partial: &Path) {
        self.files.retain(|other| other.partial != partial);
    }
}

#[cfg(unix)]
mod signals {
    use std::fmt::Write;
    use std::io::IsTerminal;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::{fs, io, thread};

    use console::Term;
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag;
    use signal_hook::iterator::Signals;

    use super::{Partial, Unfinished, unfinished};
    use crate::failure::Failure;
    use crate::last_word::has_the_last_word;
    use crate::output::Output;

    /// Makes the program handle SIGINT and SIGTERM itself. If that fails, the system ends the program, as for
    /// SIGKILL; the next copy to the same place then removes what is left.
    pub(crate) fn watch(json: bool) {
        let _ = try_watch(json);
    }

    fn try_watch(json: bool) -> io::Result<()> {
        // Until a thread handles the signals, there is nothing to tidy.
        let hurry = Arc::new(AtomicBool::new(true));
        let hurried = Arc::clone(&hurry);
        let (give, take) = mpsc::channel::<Signals>();
        let watch = move || {
            for mut signals in take {
                for signal in signals.forever() {
                    stop(signal, json, &hurry);
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(watch)?;
        // Actions of a signal run in the order in which they were registered. This one comes first: after the thread
        // was woken it would take that thread's hurry for a second signal, and end it in the middle of its line.
        for signal in [SIGINT, SIGTERM] {
            let hurry = Arc::clone(&hurried);
            flag::register_conditional_shutdown(signal, exit_code(signal).into(), hurry)?;
        }
        let signals = Signals::new([SIGINT, SIGTERM])?;
        hurried.store(false, Ordering::Release);
        // The thread waits for them as long as this end exists.
        let _ = give.send(signals);
        Ok(())
    }

    /// Ends the program, unless it is already ending and reporting that.
    fn stop(signal: i32, json: bool, hurry: &AtomicBool) {
        // Held to the end, so that no file is begun or put in its place from here on.
        let unfinished = unfinished();
        let stopped = Failure::Stopped {
            name: if signal == SIGINT {
                "SIGINT"
            } else {
                "SIGTERM"
            },
            told: remove(&unfinished),
            exit_code: exit_code(signal),
        };
        // Nothing is left to tidy: a second signal ends the program without waiting for a slow terminal.
        hurry.store(true, Ordering::Release);
        if !has_the_last_word() {
            return;
        }
        if !json && io::stderr().is_terminal() {
            // Clears a progress bar, if one is shown.
            let _ = Term::stderr().clear_line();
        }
        Output::new(json).failure(&stopped);
        // Exit handlers and destructors of libraries would run while other threads are in them, as where a driver loads.
        signal_hook::low_level::exit(exit_code(signal).into());
    }

    /// Removes all files, and returns a text about it.
    fn remove(unfinished: &Unfinished) -> String {
        let mut told = String::new();
        for Partial { target, partial } in &unfinished.files {
            // Writing to a string cannot fail.
            let _ = match fs::remove_file(partial) {
                Ok(()) => write!(told, "; removed what there was of {}", target.display()),
                Err(error) => write!(told, "; {} is left: {error}", partial.display()),
            };
        }
        told
    }

    /// The exit code that a shell gives for a program ended by the signal.
    fn exit_code(signal: i32) -> u8 {
        128 + signal as u8
    }
}
