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
pub(crate) fn watch(_: crate::output::Form) {}

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
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    use signal_hook::flag;
    use signal_hook::iterator::Signals;
    use transload::host::signals::is_ignored;

    use super::{Partial, Unfinished, unfinished};
    use crate::failure::Failure;
    use crate::last_word::has_the_last_word;
    use crate::output::{Form, Output};

    /// The signals that ask a program to end, and their names.
    const ASKING: [(i32, &str); 3] = [(SIGHUP, "SIGHUP"), (SIGINT, "SIGINT"), (SIGTERM, "SIGTERM")];

    /// Makes the program handle those signals itself. If that fails, the system ends the program, as for
    /// SIGKILL; the next copy to the same place then removes what is left.
    ///
    /// A signal that is ignored stays ignored: `nohup` and shells in whose background a program runs ask for that.
    pub(crate) fn watch(form: Form) {
        let _ = try_watch(form);
    }

    fn try_watch(form: Form) -> io::Result<()> {
        // A write beyond the process's limit on files (`ulimit -f`) fails then, and does not end the program.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let asking = ASKING.map(|(signal, _)| signal);
        let asking = asking.into_iter().filter(|signal| !is_ignored(*signal));
        let asking: Vec<i32> = asking.collect();
        // Until a thread handles the signals, there is nothing to tidy.
        let hurry = Arc::new(AtomicBool::new(true));
        let hurried = Arc::clone(&hurry);
        let (give, take) = mpsc::channel::<Signals>();
        let watch = move || {
            for mut signals in take {
                for signal in signals.forever() {
                    stop(signal, form, &hurry);
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(watch)?;
        // Actions of a signal run in the order in which they were registered. This one comes first: after the thread
        // was woken it would take that thread's hurry for a second signal, and end it in the middle of its line.
        for signal in asking.iter().copied() {
            let hurry = Arc::clone(&hurried);
            flag::register_conditional_shutdown(signal, exit_code(signal).into(), hurry)?;
        }
        let signals = Signals::new(asking)?;
        hurried.store(false, Ordering::Release);
        // The thread waits for them as long as this end exists.
        let _ = give.send(signals);
        Ok(())
    }

    /// Ends the program, unless it is already ending and reporting that.
    fn stop(signal: i32, form: Form, hurry: &AtomicBool) {
        // Held to the end, so that no file is begun or put in its place from here on.
        let unfinished = unfinished();
        let named = ASKING.into_iter().find(|(asking, _)| *asking == signal);
        let stopped = Failure::Stopped {
            name: named.map_or("a signal", |(_, name)| name),
            told: remove(&unfinished),
            exit_code: exit_code(signal),
        };
        // Nothing is left to tidy: a second signal ends the program without waiting for a slow terminal.
        hurry.store(true, Ordering::Release);
        if !has_the_last_word() {
            return;
        }
        if !form.json && io::stderr().is_terminal() {
            // Clears a progress bar, if one is shown.
            let _ = Term::stderr().clear_line();
        }
        Output::new(form).failure(&stopped);
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
