//! The one suite over the double of Metal.

use crate::common;

use common::{User, assert_clean, contents, metal, paged};
use objc2::rc::autoreleasepool;
use transload_hal::{
    AllocError, AllocSpec, Backend, Buffer, DeviceKind, HostSpan, MemoryId, MemoryKind,
};
use transload_metal::Metal;
use transload_metal_double::{Device, violations};
use transload_testkit::conformance::{self, Exceptions, Harness};

struct OfMetal(Metal);

impl OfMetal {
    fn user(&self, buffer: &Buffer) -> User {
        User::new(&self.0, buffer.memory().device)
    }
}

impl Harness for OfMetal {
    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    /// Memory of the processors' begins with a page, so that devices reach it.
    fn make(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        match memory.device.kind {
            DeviceKind::CPU => Ok(paged(memory, spec.len_bytes as usize)),
            _ => self.0.allocate(memory, spec),
        }
    }

    /// Fills by the harness's own commands, through a shared buffer of its own; of managed memory both copies.
    fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> bool {
        let is_shared = !matches!(
            buffer.memory().kind,
            MemoryKind::Device | MemoryKind::Managed
        );
        if is_shared && let Some(span) = buffer.host(offset, bytes.len() as u64) {
            // SAFETY: the suite fills buffers that no operation uses, and keeps them alive.
            unsafe { HostSpan::of(bytes).copy_to(span) };
            return true;
        }
        autoreleasepool(|_| {
            let user = self.user(buffer);
            // SAFETY: as above.
            let (of, start) = unsafe { self.0.native(buffer) }.unwrap();
            let (offset, len) = ((start + offset) as usize, bytes.len());
            // Whole words, with what lies around the bytes.
            let first = offset / 4 * 4;
            let room = (offset + len).next_multiple_of(4) - first;
            let between = user.buffer(room);
            user.copy((&of, first), (&between, 0), room);
            let inside = contents(&between).slice((offset - first) as u64, len as u64);
            // SAFETY: the buffer is the harness's own, and as long.
            unsafe { HostSpan::of(bytes).copy_to(inside.unwrap()) };
            user.copy((&between, 0), (&of, first), room);
            if buffer.memory().kind == MemoryKind::Managed {
                user.synchronize(&of);
            }
        });
        true
    }

    /// Reads the device's bytes.
    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> bool {
        let is_shared = !matches!(
            buffer.memory().kind,
            MemoryKind::Device | MemoryKind::Managed
        );
        if is_shared && let Some(span) = buffer.host(offset, out.len() as u64) {
            // SAFETY: the suite reads buffers that no operation writes, and keeps them alive.
            unsafe { span.copy_to(HostSpan::of_mut(out)) };
            return true;
        }
        autoreleasepool(|_| {
            let user = self.user(buffer);
            // SAFETY: as above.
            let (of, start) = unsafe { self.0.native(buffer) }.unwrap();
            let offset = (start + offset) as usize;
            let first = offset / 4 * 4;
            let room = (offset + out.len()).next_multiple_of(4) - first;
            let between = user.buffer(room);
            user.copy((&of, first), (&between, 0), room);
            let inside = contents(&between).slice((offset - first) as u64, out.len() as u64);
            // SAFETY: the buffer is the harness's own, and as long.
            unsafe { inside.unwrap().copy_to(HostSpan::of_mut(out)) };
        });
        true
    }

    /// Gives Metal's threads the processor.
    fn drive(&self) {
        std::thread::yield_now();
    }
}

fn conforms(devices: Vec<Device>) {
    let harness = OfMetal(metal(devices));
    let report = conformance::run(&harness, &Exceptions::none());
    println!("{report}");
    report.assert_passed();
    drop(harness);
    assert_eq!(violations(), []);
    assert_clean();
}

#[test]
fn a_device_with_the_hosts_memory_conforms() {
    conforms(vec![Device::unified()]);
}

#[test]
fn a_device_with_memory_of_its_own_conforms() {
    conforms(vec![Device::discrete()]);
}

#[test]
fn two_devices_conform() {
    conforms(vec![Device::unified(), Device::discrete()]);
}
