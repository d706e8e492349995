//! The inventory is sound, and allocations have the requested properties.

use transload_hal::Topology;
use transload_hal::{AllocError, AllocSpec, ErrorClass, MemoryInfo};

use super::bench::{Bench, Case, CaseError, CaseResult, ensure, fail, nowhere, skip};

pub(super) fn cases(bench: &Bench<'_>) -> Vec<Case> {
    let mut cases = vec![
        Case::new("inventory/sound", "the backend", inventory),
        Case::new("allocate/unknown-memory", nowhere(), unknown),
    ];
    for info in bench.memories() {
        let on = |name, run: fn(&Bench<'_>, &MemoryInfo) -> CaseResult| {
            let of = info.clone();
            Case::new(name, info.id, move |bench| run(bench, &of))
        };
        cases.push(on("allocate/as-asked", as_asked));
        cases.push(on("allocate/alignment", alignment));
        cases.push(on("allocate/limits", limits));
        cases.push(on("allocate/apart", apart));
        cases.push(on("allocate/given-back", given_back));
    }
    cases
}

fn inventory(bench: &Bench<'_>) -> CaseResult {
    let seen = &bench.inventory;
    let one = bench.backend().inventory();
    ensure(bench.backend().inventory() == one, || {
        "two answers differ".into()
    })?;
    if let Err(error) = Topology::new().add(seen.clone()) {
        return fail(error);
    }
    for device in &seen.devices {
        ensure(device.backend == seen.backend, || {
            format!("{} names backend {}", device.id, device.backend)
        })?;
    }
    for memory in &seen.memories {
        let known = seen
            .devices
            .iter()
            .any(|device| device.id == memory.id.device);
        // Memory that devices bring to the host belongs to the processors, whose memories the host's backend lists.
        ensure(known || memory.id.device.is_host(), || {
            format!("{} is at no device listed", memory.id)
        })?;
        ensure(memory.backend == seen.backend, || {
            format!("{} names backend {}", memory.id, memory.backend)
        })?;
        ensure(!memory.staging || memory.host_addressable, || {
            format!("{} stages what the host cannot address", memory.id)
        })?;
    }
    for link in &seen.links {
        ensure(link.backend == seen.backend, || {
            format!("{:?} names backend {}", link.id, link.backend)
        })?;
        let own = |memory| seen.memories.iter().any(|info| info.id == memory);
        ensure(own(link.id.src) || own(link.id.dst), || {
            format!("{:?} joins two memories of others", link.id)
        })?;
    }
    Ok(())
}

fn unknown(bench: &Bench<'_>) -> CaseResult {
    let made = bench.backend().allocate(nowhere(), &AllocSpec::bytes(1));
    match made {
        Ok(_) => fail("allocated in a memory that does not exist"),
        Err(error) => caller(error.class(), &error),
    }
}

fn caller(class: ErrorClass, error: &dyn std::fmt::Display) -> CaseResult {
    ensure(class == ErrorClass::Caller, || {
        format!("{error} is of class {class:?}, not the caller's mistake")
    })
}

fn as_asked(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    for len in [0, 1, 7, 4096, 4097] {
        let buffer = bench.make(info.id, len)?;
        let got = buffer.info();
        ensure(buffer.len() == len, || {
            format!("asked for {len} bytes, got {}", buffer.len())
        })?;
        ensure(got.memory == info.id && got.backend == info.backend, || {
            format!("the buffer says {} of {}", got.memory, got.backend)
        })?;
        ensure(buffer.is_writable() && buffer.is_unique(), || {
            "a fresh buffer is read-only or shared".into()
        })?;
        if info.host_addressable {
            ensure(buffer.host(0, len).is_some(), || {
                "the host was to address it, and cannot".into()
            })?;
        }
    }
    Ok(())
}

fn alignment(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    bench.make(info.id, 1)?;
    for alignment in [1, 64, 4096] {
        let spec = AllocSpec::bytes(100).aligned(alignment);
        let buffer = match bench.harness.make(info.id, &spec) {
            Ok(buffer) => buffer,
            // A request beyond a memory's ability is refused with the limit.
            Err(AllocError::Alignment { limit, .. })
                if alignment > limit && limit >= info.alignment =>
            {
                continue;
            }
            Err(error) => return fail(error),
        };
        let start = buffer.host(0, 100).map(|span| span.addr());
        let asked = alignment.max(info.alignment);
        ensure(start.is_none_or(|start| start % asked == 0), || {
            format!("asked for alignment {asked}, got {start:#x?}")
        })?;
    }
    for alignment in [0, 3, 48] {
        let spec = AllocSpec::bytes(100).aligned(alignment);
        match bench.backend().allocate(info.id, &spec) {
            Ok(_) => return fail(format!("alignment {alignment} was accepted")),
            Err(error) if error.class() == ErrorClass::Unsupported => return skip(error),
            Err(error) => caller(error.class(), &error)?,
        }
    }
    Ok(())
}

fn limits(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    bench.make(info.id, 1)?;
    let past = info.max_alloc_bytes.saturating_add(1);
    for len in [past, u64::MAX - 1, u64::MAX] {
        if len <= info.max_alloc_bytes {
            continue;
        }
        match bench.backend().allocate(info.id, &AllocSpec::bytes(len)) {
            Ok(_) => return fail(format!("{len} bytes were allocated, past the limit")),
            Err(error) => {
                let class = error.class();
                let fits = matches!(
                    class,
                    ErrorClass::Caller | ErrorClass::Exhausted | ErrorClass::Unsupported
                );
                ensure(fits, || format!("{error} is of class {class:?}"))?;
            }
        }
    }
    bench.make(info.id, 1).map(drop)
}

fn apart(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    let mut ranges = Vec::new();
    let mut buffers = Vec::new();
    for len in [1u64, 64, 100, 4096] {
        let buffer = bench.make(info.id, len)?;
        let start = buffer.position();
        let id = buffer.storage_id();
        for &(other_id, other_start, other_len) in &ranges {
            let meet =
                id == other_id && start < other_start + other_len && other_start < start + len;
            ensure(!meet, || {
                format!("two live allocations share {id:?} at {start}")
            })?;
        }
        ranges.push((id, start, len));
        buffers.push(buffer);
    }
    Ok(())
}

/// Freed memory becomes available again: the case allocates twice the memory's size in total, up to a gibibyte.
fn given_back(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    let total = info.total_bytes.unwrap_or(u64::MAX);
    if total > 1 << 30 {
        return skip("the memory is too large to go through it twice");
    }
    let len = (total / 8).min(bench.max_alloc(info.id)).max(1);
    for round in 0..=2 * total / len {
        bench.make(info.id, len).map_err(|stop| match stop {
            CaseError::Skip(reason) if round > 0 => {
                CaseError::Fail(format!("after {round} rounds of {len} bytes: {reason}"))
            }
            stop => stop,
        })?;
    }
    Ok(())
}
