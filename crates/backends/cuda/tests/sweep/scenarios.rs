//! The steps while faults strike: each method of the backend, on one device and between two.

use transload_hal::{AllocSpec, DeviceId, DeviceKind, ExternalKind, MemoryId, MemoryKind};

use crate::run::{Behind, Run, Slot};

/// A few pages and some bytes, so that no buffer ends at a page or a word boundary.
const LEN: u64 = 10_007;

/// The number of bytes that most steps move.
const PART: u64 = 4_099;

/// The number of small copies in one submission.
pub(crate) const PIECES: u64 = 40;

/// Bytes of a row, and rows.
const ROWS: (u64, u64) = (63, 40);

const PINNED: MemoryId = DeviceId::CPU0.memory(MemoryKind::Pinned);

fn device(index: u32) -> DeviceId {
    DeviceId::new(DeviceKind::CUDA, index)
}

fn own(index: u32) -> MemoryId {
    device(index).memory(MemoryKind::Device)
}

/// There and back through one device, in lanes that wait for each other.
pub(crate) fn round_trip(run: &mut Run<'_>) {
    let [src, out] = [1, 2].map(|seed| host(run, seed));
    let [a, b] = [0; 2].map(|_| run.allocate(own(0), LEN));
    let poisoned = Behind::all(&[
        &run.copy((out, 0), (a, 0), LEN, &[]),
        &run.copy((out, 0), (b, 0), LEN, &[]),
    ]);
    let up = run.copy((src, 3), (a, 5), PART, &[&poisoned]);
    let within = run.copy((a, 5), (b, 7), PART, &[&up]);
    let _ = run.copy((b, 7), (out, 9), PART, &[&within]);
    run.wait();
}

/// Overlapping copies, rows at pitches, and host memory that is registered in place.
pub(crate) fn shapes(run: &mut Run<'_>) {
    let guest = run.register(PINNED, LEN as usize);
    run.fill(guest, 3);
    let out = host(run, 4);
    let [a, b] = [0; 2].map(|_| run.allocate(own(0), LEN));
    let filled = Behind::all(&[
        &run.copy((guest, 0), (a, 0), LEN, &[]),
        &run.copy((guest, 0), (b, 0), LEN, &[]),
    ]);
    let up = run.rows((out, 100), (a, 96), ROWS, &[&filled]);
    let over = run.copy((a, 0), (a, 50), PART, &[&up]);
    let within = run.rows((a, 96), (b, 80), ROWS, &[&over]);
    let _ = run.rows((b, 80), (guest, 70), ROWS, &[&within]);
    run.wait();
}

/// Many small copies in one submission, to a device and from it.
pub(crate) fn pieces(run: &mut Run<'_>) {
    let [src, out] = [8, 9].map(|seed| host(run, seed));
    let a = run.allocate(own(0), LEN);
    let filled = run.copy((out, 0), (a, 0), LEN, &[]);
    let up = run.pieces(src, a, (101, PIECES), &[&filled]);
    let _ = run.pieces(a, out, (51, PIECES), &[&up]);
    run.wait();
}

/// A device that the other scenarios hardly use.
pub(crate) fn elsewhere(run: &mut Run<'_>) {
    let [src, out] = [10, 11].map(|seed| host(run, seed));
    let a = run.allocate(own(1), LEN);
    let up = run.copy((src, 0), (a, 0), LEN, &[]);
    let _ = run.copy((a, 3), (out, 5), PART, &[&up]);
    run.wait();
}

/// From one device to the other and back.
pub(crate) fn peers(run: &mut Run<'_>) {
    run.connect(own(0), own(1));
    let [src, out] = [5, 6].map(|seed| host(run, seed));
    let [a, b] = [0, 1].map(|index| run.allocate(own(index), LEN));
    let poisoned = Behind::all(&[
        &run.copy((out, 0), (a, 0), LEN, &[]),
        &run.copy((out, 0), (b, 0), LEN, &[]),
    ]);
    let up = run.copy((src, 3), (a, 5), PART, &[&poisoned]);
    let there = run.copy((a, 5), (b, 7), PART, &[&up]);
    let rows = run.rows((b, 80), (a, 90), ROWS, &[&there]);
    let _ = run.copy((a, 0), (out, 0), LEN, &[&rows]);
    run.wait();
}

/// Memory that the driver migrates.
pub(crate) fn managed(run: &mut Run<'_>) {
    let src = host(run, 7);
    let a = run.allocate(own(0), LEN);
    let shared = run.allocate(device(0).memory(MemoryKind::Managed), LEN);
    let near = run.prefetch(shared, device(0), &[]);
    let up = run.copy((src, 0), (shared, 0), LEN, &[&near]);
    let within = run.copy((shared, 5), (a, 7), PART, &[&up]);
    let back = run.copy((a, 7), (shared, 9), PART / 2, &[&within]);
    let visible = run.make_visible(shared, &[&back]);
    let away = run.prefetch(shared, DeviceId::CPU0, &[&visible]);
    let _ = run.copy((shared, 0), (src, 0), PART, &[&away]);
    run.wait();
}

/// Memory that is exported in every way, and imported again.
pub(crate) fn exchange(run: &mut Run<'_>) {
    let guest = run.register(PINNED, LEN as usize);
    run.fill(guest, 8);
    let own = run.allocate_as(own(0), AllocSpec::bytes(LEN).for_sharing());
    let shared = run.allocate(device(0).memory(MemoryKind::Managed), LEN);
    run.pass(guest, ExternalKind::Host);
    run.pass(own, ExternalKind::DevicePointer);
    run.pass(own, ExternalKind::CudaIpc);
    run.pass(shared, ExternalKind::DevicePointer);
    let up = run.copy((guest, 0), (own, 0), LEN, &[]);
    let over = run.copy((own, 3), (shared, 5), PART, &[&up]);
    let _ = run.copy((shared, 5), (guest, 9), PART, &[&over]);
    run.wait();
}

/// Pinned memory filled with bytes.
fn host(run: &mut Run<'_>, seed: u8) -> Slot {
    let slot = run.allocate(PINNED, LEN);
    run.fill(slot, seed);
    slot
}
