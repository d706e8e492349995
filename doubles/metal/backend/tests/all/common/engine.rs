//! A manager over the double.

use transload::hal::{External, HostSpan};
use transload::{AllocSpec, Buffer, TransferManager};
use transload_metal_double::{Counters, Device, counters, settle};

use super::metal;

/// A manager of the host and these devices.
pub(crate) fn manager(devices: Vec<Device>) -> TransferManager {
    let manager = TransferManager::builder().host().build().unwrap();
    manager.register_backend(metal(devices)).unwrap();
    manager
}

pub(crate) fn allocate(manager: &TransferManager, place: &str, len: usize) -> Buffer {
    let spec = AllocSpec::bytes(len as u64);
    manager.allocate(place.parse().unwrap(), spec).unwrap()
}

/// Host memory that begins with a page, with these bytes.
pub(crate) fn paged(manager: &TransferManager, bytes: &[u8]) -> Buffer {
    let mut pages = memmap2::MmapMut::map_anon(bytes.len()).unwrap();
    pages.copy_from_slice(bytes);
    manager.adopt(pages).unwrap()
}

/// Host memory that begins anywhere but with a page.
pub(crate) fn odd(manager: &TransferManager, bytes: &[u8]) -> Buffer {
    let mut pages = memmap2::MmapMut::map_anon(bytes.len() + 64).unwrap();
    pages[64..].copy_from_slice(bytes);
    let external = External::Host {
        span: HostSpan::of_mut(&mut pages[64..]),
        writable: true,
        owner: Box::new(pages),
    };
    // SAFETY: the mapping stays in place while the buffer owns it, and no other code touches it.
    unsafe { manager.import("cpu:0".parse().unwrap(), external) }.unwrap()
}

/// The double's counts during `work`.
pub(crate) fn during(work: impl FnOnce()) -> Counters {
    settle();
    let before = counters();
    work();
    settle();
    counters().since(&before)
}

/// The bytes of a buffer, read through the engine.
pub(crate) fn read(manager: &TransferManager, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    manager.copy_into_slice(buffer, &mut bytes).unwrap();
    bytes
}
