//! The processors as the other backends see them, and the links over which they copy.

use alloc::vec::Vec;

use transload_core::defaults::{LINK_DEPTH, file_cost, link_cost, memory_cost};
use transload_core::{
    Access, BackendId, Curve, DeviceId, EngineId, Link, LinkClass, LinkId, MemoryId, MemoryKind,
    Name,
};

/// The backend of the processors.
pub const HOST: BackendId = BackendId(Name::constant("host"));

/// The engine of all copies by processors.
pub const HOST_ENGINE: EngineId = EngineId {
    device: DeviceId::CPU0,
    index: 0,
};

/// The kinds of host memory. Backends provide some of them.
pub const HOST_KINDS: [MemoryKind; 5] = [
    MemoryKind::Pageable,
    MemoryKind::Pinned,
    MemoryKind::Shared,
    MemoryKind::File,
    MemoryKind::Disk,
];

/// The kinds of host memory that have addresses, so that a device may reach them in place.
pub const GUEST_KINDS: [MemoryKind; 3] =
    [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Shared];

/// A memory that the processors reach, as the backend that provides it declares it to [`host_links`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostReach {
    /// The memory.
    pub memory: MemoryId,
    /// How the processors reach it.
    pub access: Access,
    /// Whether they copy out of it.
    pub is_read: bool,
    /// Whether they copy into it.
    pub is_written: bool,
}

impl HostReach {
    /// Declares a memory that the processors read and write.
    #[must_use]
    pub const fn both_ways(memory: MemoryId, access: Access) -> HostReach {
        HostReach {
            memory,
            access,
            is_read: true,
            is_written: true,
        }
    }
}

/// Builds the links of the processors' engine between the declared memories and host memory of `kinds`, and among the
/// declared memories.
///
/// Two memories of one device have no such link, because the device copies between them; the processors copy between
/// memories of their own. A link between two declared memories has the access that both declare, and is
/// [`Access::Native`] where these differ. A link that names a memory which no backend provides is left out of routes.
#[must_use]
pub fn host_links(declared: &[HostReach], kinds: &[MemoryKind]) -> Vec<Link> {
    let memory_cost = memory_cost(processors());
    let link = |src, dst, access| link(src, dst, access, &memory_cost);
    let mut links = Vec::new();
    for one in declared {
        for host in kinds.iter().map(|kind| DeviceId::CPU0.memory(*kind)) {
            if one.is_written {
                links.push(link(host, one.memory, one.access));
            }
            if one.is_read {
                links.push(link(one.memory, host, one.access));
            }
        }
        let device = one.memory.device;
        for other in declared {
            let is_apart = other.memory.device != device || device == DeviceId::CPU0;
            if is_apart && one.is_read && other.is_written {
                let access = match one.access == other.access {
                    true => one.access,
                    false => Access::Native,
                };
                links.push(link(one.memory, other.memory, access));
            }
        }
    }
    links
}

/// Returns the number of processors that this process may use, at least 1, and 1 where no system tells it.
#[must_use]
pub fn processors() -> u32 {
    #[cfg(feature = "std")]
    let count = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    #[cfg(not(feature = "std"))]
    let count = 1usize;
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn link(src: MemoryId, dst: MemoryId, access: Access, memory_cost: &Curve) -> Link {
    let is_file = src.kind.is_file() || dst.kind.is_file();
    let (class, cost) = match (src.kind, dst.kind) {
        (_, to) if to.is_file() => (LinkClass::Storage, file_cost(true).into()),
        (MemoryKind::Disk, _) => (LinkClass::Storage, link_cost(LinkClass::Storage).into()),
        (MemoryKind::File, _) => (LinkClass::Storage, file_cost(false).into()),
        _ => (LinkClass::Local, memory_cost.clone()),
    };
    Link {
        id: LinkId {
            src,
            dst,
            engine: HOST_ENGINE,
            access,
        },
        backend: HOST,
        class,
        cost,
        pitched: true,
        // A copy between memories takes as many threads as help; a second copy beside it would take some of them away.
        // A second copy from or to a file fills the gap between a drive's requests and the copies out of the page cache.
        depth: if is_file { LINK_DEPTH } else { 1 },
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};

    use super::*;

    fn names(declared: &[HostReach], kinds: &[MemoryKind]) -> Vec<String> {
        let links = host_links(declared, kinds);
        let name = |link: &Link| {
            let LinkId { src, dst, .. } = link.id;
            alloc::format!("{src} > {dst} {}", link.id.access.as_str())
        };
        links.iter().map(name).collect()
    }

    fn memory(name: &str) -> MemoryId {
        name.parse().unwrap()
    }

    #[test]
    fn processors_copy_between_devices_but_not_within_one() {
        let slot = |name: &str, is_read| HostReach {
            memory: memory(name),
            access: Access::Native,
            is_read,
            is_written: !is_read,
        };
        let mapped = |name| HostReach::both_ways(memory(name), Access::Import);
        let declared = [
            slot("wgpu:0/upload", false),
            slot("wgpu:0/readback", true),
            mapped("wgpu:0/mapped"),
            slot("wgpu:1/upload", false),
            mapped("wgpu:1/mapped"),
        ];
        let expected = [
            "cpu:0/file > wgpu:0/upload native",
            "wgpu:0/readback > cpu:0/file native",
            "wgpu:0/readback > wgpu:1/upload native",
            "wgpu:0/readback > wgpu:1/mapped native",
            "cpu:0/file > wgpu:0/mapped import",
            "wgpu:0/mapped > cpu:0/file import",
            "wgpu:0/mapped > wgpu:1/upload native",
            "wgpu:0/mapped > wgpu:1/mapped import",
            "cpu:0/file > wgpu:1/upload native",
            "cpu:0/file > wgpu:1/mapped import",
            "wgpu:1/mapped > cpu:0/file import",
            "wgpu:1/mapped > wgpu:0/upload native",
            "wgpu:1/mapped > wgpu:0/mapped import",
        ];
        assert_eq!(names(&declared, &[MemoryKind::File]), expected);
    }

    #[test]
    fn processors_copy_among_their_own_memories() {
        let own = |name| HostReach::both_ways(memory(name), Access::Native);
        let expected = [
            "cpu:0/pageable > cpu:0/pageable native",
            "cpu:0/pageable > cpu:0/shared native",
            "cpu:0/shared > cpu:0/pageable native",
            "cpu:0/shared > cpu:0/shared native",
        ];
        let declared = [own("cpu:0/pageable"), own("cpu:0/shared")];
        assert_eq!(names(&declared, &[]), expected);
    }

    #[test]
    fn whatever_backend_declares_a_memory_its_links_cost_the_same() {
        for name in ["cpu:0/pinned", "cuda:0/managed", "metal:0/mapped"] {
            let declared = HostReach::both_ways(memory(name), Access::Native);
            for link in host_links(&[declared], &HOST_KINDS) {
                let LinkId { src, dst, .. } = link.id;
                let (cost, depth) = match (src.kind, dst.kind) {
                    (_, to) if to.is_file() => (Curve::from(file_cost(true)), LINK_DEPTH),
                    (MemoryKind::File, _) => (Curve::from(file_cost(false)), LINK_DEPTH),
                    (MemoryKind::Disk, _) => (link_cost(LinkClass::Storage).into(), LINK_DEPTH),
                    _ => (memory_cost(processors()), 1),
                };
                let told = src.to_string() + " > " + &dst.to_string();
                assert_eq!((link.cost, link.depth), (cost, depth), "{told}");
            }
        }
    }
}
