//! Default costs, for machines that were not measured.
//!
//! They only rank routes against each other until a profile replaces them; no promise depends on them. Each is a round
//! figure for its kind of link, with the reason beside it.

use alloc::vec;

use crate::{Cost, Curve, LinkClass, MemoryKind, Piece};

/// Returns the cost of one pass over a link of that class.
pub const fn link_cost(class: LinkClass) -> Cost {
    match class {
        // One thread's memcpy past the caches of a server core: 10 to 12 GB/s; 100 ns to submit.
        LinkClass::Local => Cost::from_rate(100, 10_000_000_000),
        // NVLink 4 between two H100 moves some 375 GB/s of the 450 it is sold with (NVIDIA/nccl
        // issue 1264); launch and completion of a peer copy take some 10 µs.
        LinkClass::Fabric => Cost::from_rate(10_000, 300_000_000_000),
        // PCIe 4 x16 pinned: 24 to 26 of 32 GB/s. Completion of a small copy is seen after 10 µs.
        LinkClass::Pcie => Cost::from_rate(10_000, 24_000_000_000),
        // A PCIe 4 NVMe drive reads 5 to 7 GB/s; 50 µs are a drive's latency.
        LinkClass::Storage => Cost::from_rate(50_000, 5_000_000_000),
        // 10 Gbit/s Ethernet, with a round trip through two kernels.
        LinkClass::Network => Cost::from_rate(50_000, 1_200_000_000),
    }
}

/// Returns the cost of one pass of that many processors from memory to memory.
///
/// Up to two: one thread copies within its caches at 40 GB/s, after 50 ns to submit. From 2 MiB other threads take part,
/// which wake up in 5 µs. From 12 MiB, 3/8 of a last-level cache of 32 MiB, copies go past the caches at 15 GB/s (EPYC
/// and Xeon with 2 cores each, `examples/kernels.rs` of `transload-host`).
///
/// More: they belong to a server, where one thread copies at 20 GB/s (a Xeon with 16, as a virtual machine beside an
/// H100). From 2 MiB all take part, which wake up in 30 µs, and move 7.5 GB/s each, past the caches too, up to the
/// 40 GB/s that the 16 reached.
pub fn memory_cost(processors: u32) -> Curve {
    const GB: u64 = 1_000_000_000;
    let piece = |from_bytes, fixed_ns, bytes_per_second| Piece {
        from_bytes,
        cost: Cost::from_rate(fixed_ns, bytes_per_second),
    };
    let (alone, wake_ns, together, stream) = match processors {
        0..=2 => (40 * GB, 5_000, 40 * GB, 15 * GB),
        more => {
            let all = (u64::from(more.min(8)) * 15 * GB / 2).min(40 * GB);
            (20 * GB, 30_000, all, all)
        }
    };
    let pieces = vec![
        piece(0, 50, alone),
        piece(2 << 20, wake_ns, together),
        piece(12 << 20, wake_ns, stream),
    ];
    Curve {
        pieces,
        has_caches: true,
    }
}

/// Returns the cost of one pass of the processors to or from a file: that of the page cache, 20 µs for a thread to wake
/// and call the system, then 8 GB/s to read and 2 GB/s to write into fresh pages. A file that is not cached takes the
/// time of its drive.
pub const fn file_cost(writes: bool) -> Cost {
    Cost::from_rate(20_000, if writes { 2_000_000_000 } else { 8_000_000_000 })
}

/// Returns the cost of making a device's writes to a memory of that kind visible.
///
/// Where the program never had the buffer behind it, the backend knows that the device is done, and answers at once. Where
/// it had, the device's queue runs dry and a thread is told, as after a small copy over a bus. Managed memory costs as
/// much in any case: the host's access brings pages back from the device.
pub const fn visible_cost(kind: MemoryKind) -> Cost {
    match kind {
        MemoryKind::Mapped => Cost::new(300, 0),
        _ => Cost::new(10_000, 0),
    }
}

/// How much of the host's processors and memory bus an engine keeps busy, of 1024: all of them for the host's own
/// threads, and half for a software adapter. Its one thread takes a processor, and copies at half the rate that all
/// threads together reach (11 of 22 GB/s: 128 MiB on a Xeon with 2 cores).
pub const fn host_load(is_host: bool, is_software: bool) -> u16 {
    match (is_host, is_software) {
        (true, _) => 1024,
        (false, true) => 512,
        (false, false) => 0,
    }
}

/// Returns the largest chunk for a link of that class, in bytes; a power of two.
///
/// The planner may take smaller ones where they cost less. Longer chunks amortise submission,
/// shorter ones overlap sooner, hold less staging, and let a cancel or a failure stop sooner.
pub const fn max_chunk_bytes(class: LinkClass) -> u64 {
    const MIB: u64 = 1 << 20;
    match class {
        // 6 ms of one memcpy: submission is 1e-5 of that, and nothing is staged. Within a device: `LOCAL_CHUNK_BYTES`.
        LinkClass::Local => 64 * MIB,
        // 0.1 ms at 300 GB/s, ten launch latencies.
        LinkClass::Fabric => 32 * MIB,
        // 0.7 ms at 24 GB/s, seventy latencies; two slots in each direction still fit the budget.
        LinkClass::Pcie => 16 * MIB,
        // 1.6 ms at 5 GB/s; deeper queues gain nothing on page-cache hits.
        LinkClass::Storage => 8 * MIB,
        // 3.5 ms at 1.2 GB/s: the bandwidth-delay product of a local network is far below it.
        LinkClass::Network => 4 * MIB,
    }
}

/// The largest chunk of a copy within the memory of a device that has an engine of its own, in bytes; a power of two.
/// It takes 0.2 ms at 1.4 TB/s. In chunks of 64 MiB an H100 moved 1.27 TB/s, in one piece 1.42.
pub const LOCAL_CHUNK_BYTES: u64 = 256 << 20;

/// The smallest chunk that the planner considers, in bytes: below it the fixed cost of a submission
/// (10 µs) exceeds the time on a 24 GB/s bus (2.7 µs at 64 KiB).
pub const MIN_CHUNK_BYTES: u64 = 64 << 10;

/// The alignment of the parts of a slot that several transfers share, in bytes: a page. Drivers import and lock whole
/// pages, and no two threads then write one cache line.
pub const PART_ALIGNMENT_BYTES: u64 = 4096;

/// The most slots per ring: one fills, one drains, and the others keep both ends busy while either is late, or while
/// the thread that is told of an end has yet to wake. With three, 16 MiB over a link that is modelled at 4 GB/s took
/// 1.3 times as long as over the link alone, with four 1.07 times, with five no less (`cuda/staged-up-16MiB` of
/// `bench`).
///
/// A ring has more than one slot only where all slots of the transfer are at most half of those that the budget has
/// room for, rounded up: the engine keeps the other half for other devices.
pub const RING_SLOTS: u16 = 4;

/// Operations of one transfer that keep a link busy: the next is queued before one ends.
pub const LINK_DEPTH: u16 = 2;

/// The staging memory that the whole process may hold, in bytes, unless the builder says otherwise. Pinned memory is
/// missing elsewhere on the machine, so the default stays small: four 16 MiB slots.
pub const STAGING_BUDGET_BYTES: u64 = 64 << 20;
