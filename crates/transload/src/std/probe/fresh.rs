//! What a new allocation costs before its bytes move as fast as later ones: costs that no link has, because they occur
//! once.

use std::time::Duration;
#[cfg(not(browser))]
use std::time::Instant;

use transload_core::{DeviceId, MemoryId, MemoryKind, Topology};
use transload_hal::AllocSpec;

use super::sample::Interval;
#[cfg(browser)]
use crate::std::browser_clock::Instant;
use crate::{Buffer, Error, Request, TransferManager};

/// The costs of new memory. [`ProbeReport::fresh`](super::ProbeReport::fresh) lists them for each memory that a copy can
/// name.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FreshMemory {
    /// The memory.
    pub memory: MemoryId,
    /// The length of the allocation.
    pub bytes: u64,
    /// The time that the allocation takes: where memory is pinned or registered, that is in here.
    pub allocation: Interval,
    /// The time of the first copy into it beyond that of the second one, from 0 on: where pages are given or mapped when
    /// they are first touched, that is in here.
    pub first_use: Interval,
}

/// Large enough to be more than one huge page, small enough to be quick on any device.
const BYTES: u64 = 16 << 20;
const ROUNDS: usize = 7;
/// A memory into which this takes longer is left out.
const PATIENCE: Duration = Duration::from_secs(2);

/// Times new memory of each kind, in turn, as long as `may_go_on`. Leaves out what a model would answer for, and what cannot
/// be allocated.
pub(super) fn time(
    manager: &TransferManager,
    topology: &Topology,
    may_go_on: &mut dyn FnMut() -> bool,
) -> Vec<FreshMemory> {
    let heap = DeviceId::CPU0.memory(MemoryKind::Pageable);
    let Ok(src) = manager.allocate(heap.into(), AllocSpec::bytes(BYTES)) else {
        return Vec::new();
    };
    let is_real = |memory: MemoryId| {
        let device = topology.device(memory.device);
        device.is_some_and(|device| !device.simulated)
    };
    let memories = super::named(topology).filter(|memory| memory.max_alloc_bytes >= BYTES);
    let memories = memories
        .map(|memory| memory.id)
        .filter(|memory| is_real(*memory));
    let mut kinds: Vec<(MemoryId, Times)> =
        memories.map(|memory| (memory, Times::default())).collect();
    // The first round finds the driver and its own memory as no later one does.
    for round in 0..=ROUNDS {
        for (memory, times) in &mut kinds {
            if times.has_failed || !may_go_on() {
                continue;
            }
            match once(manager, &src, *memory) {
                Ok(_) if round == 0 => {}
                Ok([allocation_ns, first_use_ns]) => {
                    times.allocation_ns.push(allocation_ns);
                    times.first_use_ns.push(first_use_ns);
                }
                Err(_) => times.has_failed = true,
            }
        }
    }
    let fresh = kinds.into_iter().filter_map(|(memory, times)| {
        Some(FreshMemory {
            memory,
            bytes: BYTES,
            allocation: Interval::of(&times.allocation_ns)?,
            first_use: Interval::of(&times.first_use_ns)?,
        })
    });
    fresh.collect()
}

#[derive(Default)]
struct Times {
    allocation_ns: Vec<u64>,
    first_use_ns: Vec<u64>,
    has_failed: bool,
}

/// Allocates and copies twice. Returns the nanoseconds of the allocation, and by which the first copy took longer.
fn once(manager: &TransferManager, src: &Buffer, memory: MemoryId) -> Result<[u64; 2], Error> {
    // What was freed before is not new.
    manager.trim();
    let spec = AllocSpec::bytes(BYTES);
    let (dst, allocation_ns) = timed(|| manager.allocate(memory.into(), spec))?;
    let copy = || {
        let request = Request::new(src, &dst).deadline(manager.now() + PATIENCE);
        manager.submit(&request).wait()
    };
    let (_, first_ns) = timed(copy)?;
    let (_, second_ns) = timed(copy)?;
    Ok([allocation_ns, first_ns.saturating_sub(second_ns)])
}

fn timed<T, E>(f: impl FnOnce() -> Result<T, E>) -> Result<(T, u64), E> {
    let begin = Instant::now();
    let result = f()?;
    let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok((result, ns))
}
