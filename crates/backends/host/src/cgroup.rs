//! What the cgroups of the process let it use (`cgroups(7)`, and the kernel's `cgroup-v2` and `cgroup-v1/memory` pages).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A group's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    /// The most that it may use.
    pub(crate) limit_bytes: u64,
    /// What it can have more: up to the limit, and in place of files in the cache.
    pub(crate) available_bytes: u64,
}

impl Memory {
    /// Returns those of the groups that have a limit. Which groups there are is found out once.
    pub(crate) fn of_process() -> impl Iterator<Item = Memory> {
        static GROUPS: OnceLock<Vec<PathBuf>> = OnceLock::new();
        let limited = || {
            let mut groups = folders(Path::new("/"));
            groups.retain(|group| limit(group).is_some());
            groups
        };
        let groups = GROUPS.get_or_init(limited);
        groups.iter().filter_map(|group| Memory::of(group))
    }

    fn of(group: &Path) -> Option<Memory> {
        let limit_bytes = limit(group)?;
        let used = first(group, ["memory.current", "memory.usage_in_bytes"])?;
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let cached = |line: &str| {
            let (key, value) = line.split_once(' ')?;
            let is_cached = ["inactive_file", "active_file"].contains(&key);
            is_cached.then(|| value.parse::<u64>().ok()).flatten()
        };
        let cached: u64 = stat.lines().filter_map(cached).sum();
        Some(Memory {
            limit_bytes,
            available_bytes: limit_bytes.saturating_sub(used.saturating_sub(cached)),
        })
    }
}

/// The folders of the cgroups of this process and of those above them, of either version of cgroups. In a container the
/// topmost is its own, whatever it is called outside (`cgroups(7)`).
pub fn folders(root: &Path) -> Vec<PathBuf> {
    let mount = root.join("sys/fs/cgroup");
    let mut groups = Vec::new();
    let lines = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    for line in lines.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        // A path with `..` is outside the mount.
        let path = if path.contains("..") { "" } else { path };
        for controller in controllers.split(',') {
            let above = Path::new(path.trim_start_matches('/')).ancestors();
            groups.extend(above.map(|path| mount.join(controller).join(path)));
        }
    }
    groups
}

/// The most memory that a group may use, if it has a limit.
pub fn limit(group: &Path) -> Option<u64> {
    first(group, ["memory.max", "memory.limit_in_bytes"])
}

/// The number in a file of the newer version of cgroups, or in that of the older one.
fn first(group: &Path, files: [&str; 2]) -> Option<u64> {
    let number = |file| {
        fs::read_to_string(group.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    files.into_iter().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_the_cache_count_as_available() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        assert_eq!(Memory::of(folder.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "5000\n");
        write(
            "memory.stat",
            "anon 3000\nactive_file 500\ninactive_file 1500\nshmem 9\n",
        );
        assert_eq!(Memory::of(folder.path()), None);
        write("memory.max", "8000\n");
        let found = Memory::of(folder.path()).unwrap();
        assert_eq!((found.limit_bytes, found.available_bytes), (8000, 5000));
        write("memory.max", "1000\n");
        assert_eq!(Memory::of(folder.path()).unwrap().available_bytes, 0);
    }
}
