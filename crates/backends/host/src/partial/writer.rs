//! Which process writes a partial file, as the file's name says it.

use std::fmt;
use std::time::SystemTime;

/// A process of one boot of one machine.
///
/// A container is a machine of its own, which lives in one boot: its host name and machine number may be those of its
/// image, and so of any number of containers elsewhere. So is a space of time, which shifts when processes began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Writer {
    machine: u64,
    boot: u64,
    process: u32,
    /// When the process began, in the system's ticks since the boot: another process may get its number later.
    begin: u64,
}

impl Writer {
    /// Reads the name's text.
    pub(super) fn parse(text: &str) -> Option<Writer> {
        let mut parts = text.split('-');
        let mut number = || {
            let part = parts.next()?;
            let is_hex = !part.is_empty() && part.bytes().all(|of| of.is_ascii_hexdigit());
            is_hex.then(|| u64::from_str_radix(part, 16).ok())?
        };
        let writer = Writer {
            machine: number()?,
            boot: number()?,
            process: number()?.try_into().ok()?,
            begin: number()?,
        };
        parts.next().is_none().then_some(writer)
    }

    /// Returns whether the process has ended for certain, as this process sees it: it is of this machine, and of an earlier
    /// boot, or its number is free or another process's. `written` is when the file was last written: where two machines
    /// have one number and one name by mistake, one of them may write now.
    pub(super) fn has_ended(&self, this: &Writer, written: Option<SystemTime>) -> bool {
        if self.machine != this.machine {
            return false;
        }
        match self.boot == this.boot {
            true => system::has_ended(self.process, self.begin),
            false => written
                .zip(system::boot_time())
                .is_some_and(|(written, boot)| written < boot),
        }
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Writer {
            machine,
            boot,
            process,
            begin,
        } = self;
        write!(f, "{machine:016x}-{boot:016x}-{process:x}-{begin:x}")
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime};

    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    use super::Writer;

    impl Writer {
        /// Returns this process; `None` where the system does not tell all of it.
        pub(in super::super) fn this() -> Option<Writer> {
            let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
            let name = fs::read("/proc/sys/kernel/hostname").ok()?;
            let number = { ["/etc/machine-id", "/var/lib/dbus/machine-id"].iter() }
                .find_map(|path| fs::read(path).ok().filter(|number| number.len() > 1));
            let process = std::process::id();
            // Without a `/proc` of its own, a container sees the numbers that another space gives.
            if fs::read_link("/proc/self").ok()?.as_os_str() != process.to_string().as_str() {
                return None;
            }
            let space = |kind| Some(fs::metadata(format!("/proc/self/ns/{kind}")).ok()?.ino());
            let spaces = [space("pid")?, space("time").unwrap_or(FIRST_SPACES[1])];
            let machine = match &number {
                Some(number) if spaces == FIRST_SPACES => hash(&[number, &name]),
                _ => {
                    let [pid, time] = spaces.map(u64::to_le_bytes);
                    hash(&[&number.unwrap_or_default(), &name, &boot, &pid, &time])
                }
            };
            Some(Writer {
                machine,
                boot: hash(&[&boot]),
                process,
                begin: begin("self")?,
            })
        }
    }

    /// The numbers of the system's first spaces of processes (`PROC_PID_INIT_INO`) and of time (`PROC_TIME_INIT_INO`). Each
    /// container has another one of processes.
    const FIRST_SPACES: [u64; 2] = [0xEFFF_FFFC, 0xEFFF_FFFA];

    pub(super) fn has_ended(process: u32, begin: u64) -> bool {
        let Some(pid) = Pid::from_raw(process as i32) else {
            return false;
        };
        match test_kill_process(pid) {
            Err(Errno::SRCH) => true,
            // Where the system hides it, it may be the one.
            _ => self::begin(&process.to_string()).is_some_and(|other| other != begin),
        }
    }

    /// Returns when the process began: the 22nd word of its line, counted behind its name, which may have any characters.
    fn begin(process: &str) -> Option<u64> {
        let line = fs::read(format!("/proc/{process}/stat")).ok()?;
        let name_end = line.iter().rposition(|byte| *byte == b')')?;
        let words = str::from_utf8(&line[name_end + 1..]).ok()?;
        words.split_whitespace().nth(19)?.parse().ok()
    }

    pub(super) fn boot_time() -> Option<SystemTime> {
        let told = fs::read_to_string("/proc/stat").ok()?;
        let seconds = told.lines().find_map(|line| line.strip_prefix("btime "))?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.parse().ok()?))
    }

    /// FNV-1a, 64 bits, over the parts and a byte between them: names of files must mean the same for each version.
    fn hash(parts: &[&[u8]]) -> u64 {
        let bytes = parts.iter().flat_map(|part| part.iter().chain(&[0xFF]));
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// Elsewhere no process is known to have ended.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::time::SystemTime;

    use super::Writer;

    impl Writer {
        pub(in super::super) fn this() -> Option<Writer> {
            None
        }
    }

    pub(super) fn has_ended(_: u32, _: u64) -> bool {
        false
    }

    pub(super) fn boot_time() -> Option<SystemTime> {
        None
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// Runs this test again in each space, where the system and the user's rights allow that.
    #[test]
    fn a_process_in_a_space_of_its_own_is_of_another_machine_or_of_none() {
        const OUTER: &str = "TRANSLOAD_TEST_WRITER";
        const TEST: &str = "partial::writer::tests::a_process_in_a_space_of_its_own_is_of_another_machine_or_of_none";
        let this = Writer::this();
        if let Ok(told) = std::env::var(OUTER) {
            // Its number in `/proc` is another one there.
            assert!(this.is_none() || std::process::id() != 1);
            assert_ne!(this.map(|this| format!("{:x}", this.machine)), Some(told));
            return;
        }
        let outer = format!("{:x}", this.unwrap().machine);
        for space in ["--pid", "--time"] {
            let inside = |program: &std::path::Path, words: &[&str]| {
                let mut command = Command::new("unshare");
                command.args(["--map-root-user", "--fork", space]);
                command.arg(program).args(words).env(OUTER, &outer).output()
            };
            if inside("true".as_ref(), &[]).is_ok_and(|done| done.status.success()) {
                let test = std::env::current_exe().unwrap();
                let done = inside(&test, &["--exact", TEST]).unwrap();
                let told = String::from_utf8_lossy(&done.stdout);
                assert!(
                    done.status.success() && told.contains("1 passed"),
                    "{space}: {told}"
                );
            }
        }
    }

    #[test]
    fn a_process_has_ended_only_where_this_machine_knows_it() {
        let this = Writer::this().unwrap();
        assert_eq!(Writer::parse(&this.to_string()), Some(this));
        let boot = system::boot_time().unwrap();
        let (before, after) = (boot - Duration::from_secs(1), boot + Duration::from_secs(1));
        // No process has this number (`PID_MAX_LIMIT` is 2^22).
        let gone = Writer {
            process: 1 << 23,
            ..this
        };
        let reused = Writer {
            begin: this.begin + 1,
            ..this
        };
        let another_machine = Writer {
            machine: !this.machine,
            ..gone
        };
        let earlier = Writer {
            boot: !this.boot,
            ..this
        };
        for (writer, written, ended) in [
            (this, before, false),
            (gone, after, true),
            (reused, after, true),
            (another_machine, before, false),
            (earlier, before, true),
            // A machine of the same number and name writes it now.
            (earlier, after, false),
        ] {
            assert_eq!(
                writer.has_ended(&this, Some(written)),
                ended,
                "{writer} {written:?}"
            );
        }
        for text in ["", "1-2-3", "1-2-3-4-5", "1-2-+3-4", "1-2-100000000-4"] {
            assert_eq!(Writer::parse(text), None, "{text}");
        }
    }
}
