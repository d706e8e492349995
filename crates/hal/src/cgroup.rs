//! What the cgroups of the process let it use (`cgroups(7)`, and the kernel's `cgroup-v2` and `cgroup-v1/memory` pages).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::vec::Vec;

/// A group's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    /// The most that it may use.
    pub(crate) limit_bytes: u64,
    /// What it can have more: up to the limit, and in place of what the system drops when memory runs short.
    pub(crate) available_bytes: u64,
    /// The most of the machine's swap that it may use beside its memory.
    pub(crate) swap_limit_bytes: u64,
    /// What it can have more of that.
    pub(crate) swap_available_bytes: u64,
}

impl Memory {
    /// Returns those of the groups that have a limit. Which groups there are is found out once.
    pub(crate) fn of_process() -> impl Iterator<Item = Memory> {
        static GROUPS: OnceLock<Vec<PathBuf>> = OnceLock::new();
        let groups = GROUPS.get().unwrap_or_else(|| {
            let mut groups = folders(Path::new("/"));
            groups.retain(|group| limit(group).is_some());
            // Found outside: a child of `fork` would wait for a thread that reads files inside.
            GROUPS.get_or_init(|| groups)
        });
        groups.iter().filter_map(|group| Memory::of(group))
    }

    fn of(group: &Path) -> Option<Memory> {
        let limit_bytes = limit(group)?;
        let used = first(group, ["memory.current", "memory.usage_in_bytes"])?;
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let available_bytes = limit_bytes.saturating_sub(held(used, &stat));
        let bytes = |file| first(group, [file]);
        let (swap_limit_bytes, swapped) = match bytes("memory.memsw.limit_in_bytes") {
            // The older version counts memory and swap together.
            Some(both) => {
                let both_used = bytes("memory.memsw.usage_in_bytes").unwrap_or(used);
                let limit = both.saturating_sub(limit_bytes);
                (limit, both_used.saturating_sub(used))
            }
            // Without a file, or with "max", there is no limit.
            None => (
                bytes("memory.swap.max").unwrap_or(u64::MAX),
                bytes("memory.swap.current").unwrap_or(0),
            ),
        };
        Some(Memory {
            limit_bytes,
            available_bytes,
            swap_limit_bytes,
            swap_available_bytes: swap_limit_bytes.saturating_sub(swapped),
        })
    }
}

/// What a group keeps of its memory when it runs short: all but files in the cache, and what the system can read again of
/// file systems. As the use does, it counts the groups below: in the older version of cgroups those are in lines of their
/// own.
fn held(used: u64, stat: &str) -> u64 {
    let of = |keys: [&str; 3]| {
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        let known = lines.filter(|(key, _)| keys.contains(key));
        let bytes = known.filter_map(|(_, value)| value.parse::<u64>().ok());
        bytes.reduce(u64::saturating_add)
    };
    let reclaimed = of(["total_inactive_file", "total_active_file", ""])
        .or_else(|| of(["inactive_file", "active_file", "slab_reclaimable"]));
    // The use was read before: files that another thread read since do not make room.
    let own = of(["total_rss", "total_shmem", ""]).or_else(|| of(["anon", "shmem", ""]));
    used.saturating_sub(reclaimed.unwrap_or(0))
        .max(own.unwrap_or(0))
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
    // The older version says "none" by the largest number of whole pages.
    const NONE: u64 = i64::MAX as u64 - (1 << 20);
    first(group, ["memory.max", "memory.limit_in_bytes"]).filter(|limit| *limit < NONE)
}

/// The number in a file of the newer version of cgroups, or in that of the older one.
fn first<const N: usize>(group: &Path, files: [&str; N]) -> Option<u64> {
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
            "anon 2900\nactive_file 500\ninactive_file 1500\nshmem 9\n",
        );
        assert_eq!(Memory::of(folder.path()), None);
        // What the older version says where there is none.
        write("memory.max", "9223372036854771712\n");
        assert_eq!(Memory::of(folder.path()), None);
        write("memory.max", "8000\n");
        let found = Memory::of(folder.path()).unwrap();
        assert_eq!((found.limit_bytes, found.available_bytes), (8000, 5000));
        // Most of these files came between the two looks.
        write("memory.current", "3100\n");
        let found = Memory::of(folder.path()).unwrap();
        assert_eq!(found.available_bytes, 8000 - 2909);
        write("memory.max", "1000\n");
        assert_eq!(Memory::of(folder.path()).unwrap().available_bytes, 0);
    }

    #[test]
    fn groups_below_and_swap_count_in_either_version() {
        let memory = |files: &[(&str, &str)]| {
            let folder = tempfile::tempdir().unwrap();
            for (file, text) in files {
                fs::write(folder.path().join(file), text).unwrap();
            }
            Memory::of(folder.path()).unwrap()
        };
        let newer = memory(&[
            ("memory.max", "8000"),
            ("memory.current", "7000"),
            (
                "memory.stat",
                "inactive_file 1000\nslab_reclaimable 2000\nslab_unreclaimable 4000\n",
            ),
            ("memory.swap.max", "500"),
            ("memory.swap.current", "200"),
        ]);
        let older = memory(&[
            ("memory.limit_in_bytes", "8000"),
            ("memory.usage_in_bytes", "7000"),
            (
                "memory.stat",
                "inactive_file 0\nactive_file 10\ntotal_inactive_file 1000\ntotal_active_file 2000\n",
            ),
            ("memory.memsw.limit_in_bytes", "8500"),
            ("memory.memsw.usage_in_bytes", "7200"),
        ]);
        let expected = Memory {
            limit_bytes: 8000,
            available_bytes: 4000,
            swap_limit_bytes: 500,
            swap_available_bytes: 300,
        };
        assert_eq!((newer, older), (expected, expected));
        let unlimited = [
            ("memory.max", "8"),
            ("memory.current", "0"),
            ("memory.swap.max", "max"),
        ];
        assert_eq!(memory(&unlimited).swap_available_bytes, u64::MAX);
    }
}
