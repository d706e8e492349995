//! Connecting, importing, exporting.

use transload_hal::{
    AllocSpec, Buffer, ErrorClass, External, ExternalKind, HostSpan, Link, MemoryInfo,
};

use super::bench::{Bench, Case, CaseResult, arrow, ensure, fail, nowhere, skip};

pub(super) fn cases(bench: &Bench<'_>) -> Vec<Case> {
    let mut cases = vec![
        Case::new("connect/unknown-memory", nowhere(), connect_unknown),
        Case::new("import/unknown-memory", nowhere(), import_unknown),
    ];
    for link in bench.links() {
        let of = link.clone();
        let run = move |bench: &Bench<'_>| connect(bench, &of);
        cases.push(Case::new("connect/idempotent", arrow(link), run));
    }
    for info in bench.memories() {
        let on = |name, run: fn(&Bench<'_>, &MemoryInfo) -> CaseResult| {
            let of = info.clone();
            Case::new(name, info.id, move |bench| run(bench, &of))
        };
        cases.push(on("import/host-block", import_host));
        cases.push(on("export/comes-back", export));
    }
    cases
}

fn connect(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let connect = || bench.backend().connect(link.id.src, link.id.dst);
    let first = match connect() {
        Ok(access) => access,
        Err(error) if error.class() == ErrorClass::Unsupported => return skip(error),
        Err(error) => return fail(error),
    };
    let listed = bench.links().iter().any(|other| {
        other.id.src == link.id.src && other.id.dst == link.id.dst && other.id.access == first
    });
    ensure(listed, || {
        format!("connected as {first:?}, which no link lists")
    })?;
    match connect() {
        Ok(second) => ensure(second == first, || {
            format!("connected as {first:?} and then as {second:?}")
        }),
        Err(error) => fail(format!("the second time: {error}")),
    }
}

fn connect_unknown(bench: &Bench<'_>) -> CaseResult {
    let Some(memory) = bench.memories().first() else {
        return skip("the backend has no memory");
    };
    match bench.backend().connect(memory.id, nowhere()) {
        Ok(_) => fail("connected to a memory that does not exist"),
        Err(error) => ensure(error.class() == ErrorClass::Unsupported, || {
            format!("{error} is of class {:?}", error.class())
        }),
    }
}

fn import_unknown(bench: &Bench<'_>) -> CaseResult {
    // SAFETY: the external owns the vector, and no other code touches it.
    let imported = unsafe { bench.backend().import(nowhere(), host_block(vec![0; 16])) };
    match imported {
        Ok(_) => fail("imported into a memory that does not exist"),
        Err(error) => ensure(error.class() == ErrorClass::Caller, || {
            format!("{error} is of class {:?}", error.class())
        }),
    }
}

fn host_block(mut bytes: Vec<u8>) -> External {
    External::Host {
        span: HostSpan::of_mut(&mut bytes),
        writable: true,
        owner: Box::new(bytes),
    }
}

/// The backend adopts a heap block in place, and gives it back.
fn import_host(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    // Half of the block is aligned to a page, for memories that need the alignment.
    let payload = bench.pattern(64);
    // SAFETY: as in `import_unknown`.
    let imported = unsafe { bench.backend().import(info.id, host_block(payload.clone())) };
    let buffer = match imported {
        Ok(buffer) => buffer,
        Err(error) => {
            let class = error.class();
            return match class {
                ErrorClass::Unsupported => skip(error),
                // The suite cannot provide an alignment that a heap block lacks.
                ErrorClass::Caller => skip(error),
                _ => fail(error),
            };
        }
    };
    ensure(buffer.len() == 64 && buffer.memory() == info.id, || {
        format!("imported as {buffer:?}")
    })?;
    bench.compare("the imported block", &bench.read(&buffer, 0, 64)?, &payload)?;
    match buffer.into_owner::<Vec<u8>>() {
        Ok(back) => bench.compare("what came back", &back, &payload),
        Err(_) => fail("the owner did not come back"),
    }
}

/// A buffer that is exported and imported again shows the same bytes under the same identity.
fn export(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    const KINDS: [ExternalKind; 8] = [
        ExternalKind::Host,
        ExternalKind::File,
        ExternalKind::OpaqueFd,
        ExternalKind::DmaBuf,
        ExternalKind::CudaIpc,
        ExternalKind::DevicePointer,
        ExternalKind::Win32,
        ExternalKind::Object,
    ];
    let mut offered = false;
    let mut reasons = String::from("nothing is exported");
    for kind in KINDS {
        let spec = AllocSpec::bytes(4096).for_sharing();
        let original = bench.make_of(info.id, &spec)?;
        let payload = bench.pattern(4096);
        bench.fill(&original, 0, &payload)?;
        // SAFETY: no operation is in flight.
        let external = match unsafe { bench.backend().export(&original, kind) } {
            Ok(external) => external,
            Err(error) if error.class() == ErrorClass::Unsupported => {
                reasons = error.to_string();
                continue;
            }
            Err(error) => return fail(error),
        };
        ensure(external.kind() == kind, || {
            format!("asked for {kind}, got {}", external.kind())
        })?;
        // SAFETY: the backend itself made the external, and no other code touches the bytes.
        let view = match unsafe { bench.backend().import(info.id, external) } {
            Ok(view) => view,
            Err(error) if error.class() == ErrorClass::Unsupported => {
                reasons = error.to_string();
                continue;
            }
            Err(error) => return fail(error),
        };
        offered = true;
        check_view(bench, kind, &original, &view, &payload)?;
    }
    if offered { Ok(()) } else { skip(reasons) }
}

fn check_view(
    bench: &Bench<'_>,
    kind: ExternalKind,
    original: &Buffer,
    view: &Buffer,
    payload: &[u8],
) -> CaseResult {
    ensure(view.storage_id() == original.storage_id(), || {
        format!("{kind}: a view of one memory has another identity")
    })?;
    ensure(view.position() == original.position(), || {
        format!("{kind}: a view of one memory has another position")
    })?;
    let len = payload.len() as u64;
    bench.compare(&kind.to_string(), &bench.read(view, 0, len)?, payload)?;
    let changed = bench.pattern(len);
    bench.fill(view, 0, &changed)?;
    let seen = bench.read(original, 0, len)?;
    bench.compare(
        &format!("{kind}, written through the view"),
        &seen,
        &changed,
    )
}
