//! The machine on which the figures were measured.

use std::process::Command;

use serde::Serialize;

/// The machine, the system and the source at the time of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// The processor's name.
    pub(crate) cpu: String,
    /// Processors that this process may use.
    pub(crate) cores: usize,
    /// Bytes of the last-level cache, as Transload's tuning sees it.
    pub(crate) last_cache_bytes: usize,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) os: &'static str,
    pub(crate) kernel: String,
    /// The commit that was built, with `+` where files differed from it.
    pub(crate) commit: String,
    /// Runnable processes during the last minute before the run: a value above the count of cores
    /// means that other processes were at work too.
    pub(crate) load: Option<f64>,
    /// Seconds since 1970 when the run began.
    pub(crate) unix_s: u64,
}

impl Machine {
    pub(crate) fn describe() -> Machine {
        let device = transload_host::Host::new();
        let device = transload::Backend::inventory(&device).devices.pop();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Machine {
            cpu: device
                .as_ref()
                .map_or_else(String::new, |device| device.name.clone()),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            last_cache_bytes: transload_host::caches::Caches::detect().last_bytes,
            memory_bytes: device.and_then(|device| device.memory_bytes),
            os: std::env::consts::OS,
            kernel: said("uname", &["-r"]).unwrap_or_else(|| "unknown".into()),
            commit: commit(),
            load: load(),
            unix_s: now.map_or(0, |since| since.as_secs()),
        }
    }
}

fn commit() -> String {
    let Some(commit) = said("git", &["rev-parse", "HEAD"]) else {
        return "unknown".into();
    };
    let changed = said("git", &["status", "--porcelain", "--untracked-files=no"]);
    match changed {
        Some(files) if files.is_empty() => commit,
        _ => commit + "+",
    }
}

fn load() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// The output of a command, if it succeeds.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
