//! The machine on which the figures were measured.

use std::fs;

use serde::Serialize;

/// The machine, the system and the source at the time of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// The processor's name.
    cpu: String,
    /// Processors that this process may use.
    cores: usize,
    numa_nodes: usize,
    memory_bytes: Option<u64>,
    /// The memory that the process may still allocate.
    available_bytes: Option<u64>,
    kernel: String,
    /// The kernel's setting: the word in brackets is in force.
    transparent_huge_pages: String,
    /// Runnable processes during the last minute before the run.
    load: Option<f64>,
    /// Seconds since 1970 when the run began.
    unix_s: u64,
}

impl Machine {
    pub(crate) fn describe() -> Machine {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let model = read("/proc/cpuinfo");
        let model = model.lines().find(|line| line.starts_with("model name"));
        let nodes = fs::read_dir("/sys/devices/system/node")
            .into_iter()
            .flatten();
        let nodes = nodes.filter_map(Result::ok).filter(|entry| {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node"));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        });
        Machine {
            cpu: model
                .and_then(|line| line.split_once(':'))
                .map_or_else(|| "unknown".into(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            numa_nodes: nodes.count().max(1),
            memory_bytes: meminfo("MemTotal:"),
            available_bytes: available_bytes(),
            kernel: read("/proc/sys/kernel/osrelease"),
            transparent_huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled"),
            load: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok()),
            unix_s: now.map_or(0, |since| since.as_secs()),
        }
    }
}

/// The commit that was built, which the build passes in `TRANSLOAD_COMMIT`.
pub(crate) fn commit() -> &'static str {
    option_env!("TRANSLOAD_COMMIT").unwrap_or("unknown: built without TRANSLOAD_COMMIT")
}

/// The bytes that this process may still allocate: the system's free memory, within the rest of its control group.
pub(crate) fn available_bytes() -> Option<u64> {
    let system = meminfo("MemAvailable:")?;
    // A container sees its own group at the root. The page cache counts as used there.
    let number = |path: &str| read(path).parse::<u64>().ok();
    let stat = read("/sys/fs/cgroup/memory.stat");
    let idle = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file "));
    let idle = idle.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    let limit = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current");
    let left = limit
        .zip(used)
        .map(|(limit, used)| (limit + idle).saturating_sub(used));
    Some(left.map_or(system, |left| left.min(system)))
}

fn meminfo(field: &str) -> Option<u64> {
    let text = read("/proc/meminfo");
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// A file of the kernel's; empty where there is none.
fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}
