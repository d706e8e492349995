//! The conformance suite over every adapter of this machine.
#![cfg(not(transload_local))]

mod common;

use std::sync::Arc;

use common::{Heard, LONG, opened, skip};
use transload_hal::MemoryKind;
use transload_hal::{
    AllocError, AllocSpec, Backend, BackendId, Buffer, DeviceKind, ErrorClass, HostSpan, MemoryId,
    Name, Op, Outcome, Part, StorageId, StorageInfo, Waited,
};
use transload_testkit::conformance::{self, Exceptions, Harness};
use transload_wgpu::Wgpu;

struct OfWgpu {
    backend: Wgpu,
    devices: Vec<(wgpu::Device, wgpu::Queue)>,
    /// The lengths of the suite's copies are multiples of this.
    unit: u64,
}

impl OfWgpu {
    fn new(devices: Vec<(wgpu::Device, wgpu::Queue)>) -> OfWgpu {
        OfWgpu {
            backend: Wgpu::with_devices(devices.iter().cloned()),
            devices,
            unit: 1,
        }
    }

    /// Reads the words around the range, through a buffer and a mapping of the test's own.
    fn words(&self, buffer: &Buffer, offset: u64, len: u64) -> Option<(u64, Vec<u8>)> {
        let native = buffer.native::<wgpu::Buffer>()?;
        let (device, queue) = &self.devices[buffer.memory().device.index as usize];
        let at = buffer.span().offset + offset;
        let first = at / 4 * 4;
        let size = (at + len).next_multiple_of(4) - first;
        let copy = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(native, first, &copy, 0, size);
        queue.submit([encoder.finish()]);
        copy.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
        device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let bytes = copy.get_mapped_range(..).unwrap().to_vec();
        Some((at - first, bytes))
    }
}

impl Harness for OfWgpu {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    /// Slots are allocated as the engine allocates them.
    fn make(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        if memory.device.kind == DeviceKind::CPU {
            return Ok(on_the_heap(memory, spec));
        }
        let spec = match memory.kind {
            MemoryKind::Device => *spec,
            _ => spec.for_staging(),
        };
        self.backend.allocate(memory, &spec)
    }

    fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        if let Some(span) = buffer.host(offset, bytes.len() as u64) {
            // SAFETY: the suite fills buffers that no operation uses, and keeps them alive.
            unsafe { HostSpan::of(bytes).copy_to(span) };
            return true;
        }
        let Some((lead, mut words)) = self.words(buffer, offset, bytes.len() as u64) else {
            return false;
        };
        let lead = lead as usize;
        words[lead..lead + bytes.len()].copy_from_slice(bytes);
        let Some(native) = buffer.native::<wgpu::Buffer>() else {
            return false;
        };
        let (device, queue) = &self.devices[buffer.memory().device.index as usize];
        let at = buffer.span().offset + offset - lead as u64;
        queue.write_buffer(native, at, &words);
        queue.submit([]);
        device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        true
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> bool {
        if out.is_empty() {
            return true;
        }
        if let Some(span) = buffer.host(offset, out.len() as u64) {
            // SAFETY: the suite reads buffers that no operation writes, and keeps them alive.
            unsafe { span.copy_to(HostSpan::of_mut(out)) };
            return true;
        }
        let Some((lead, words)) = self.words(buffer, offset, out.len() as u64) else {
            return false;
        };
        out.copy_from_slice(&words[lead as usize..lead as usize + out.len()]);
        true
    }

    fn sizes(&self) -> Vec<u64> {
        let whole = |len: &u64| len.is_multiple_of(self.unit);
        conformance::SIZES.into_iter().filter(whole).collect()
    }

    /// Yields the processor to the backend's threads.
    fn drive(&self) {
        std::thread::yield_now();
    }
}

/// Host memory as the engine would pass it, away from the start of a page.
fn on_the_heap(memory: MemoryId, spec: &AllocSpec) -> Buffer {
    let len = spec.len_bytes as usize;
    let align = spec.alignment as usize;
    let mut bytes = vec![0; len + align];
    let lead = bytes.as_ptr().align_offset(align);
    let host = HostSpan::of_mut(&mut bytes[lead..lead + len]);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes: spec.len_bytes,
        memory,
        backend: BackendId(Name::new("host").unwrap()),
        writable: true,
        host: Some(host),
    };
    // SAFETY: the vector's block stays where it is while the buffer owns the vector.
    unsafe { Buffer::new(info, Box::new(bytes)) }
}

/// The host backend serves the links of the host's own engine.
fn of_adapters(backend: &Wgpu) -> usize {
    let links = backend.inventory().links;
    links
        .iter()
        .filter(|link| link.id.engine.device.kind == DeviceKind::WGPU)
        .count()
}

#[test]
fn every_adapter_conforms() {
    let devices = opened();
    for (device, _) in &devices {
        println!("{:?}", device.adapter_info());
    }
    if devices.is_empty() {
        return skip("every_adapter_conforms: no Vulkan adapter is here");
    }
    let harness = OfWgpu::new(devices);
    assert!(of_adapters(&harness.backend) > 0);
    let report = conformance::run(&harness, &Exceptions::none());
    println!("{report}");
    report.assert_passed();
}

/// wgpu's own stand-in for an adapter, which every machine has.
fn noop() -> (wgpu::Device, wgpu::Queue) {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::NOOP));
    transload_wgpu::open_device(&adapters[0]).unwrap()
}

#[test]
fn the_stand_in_without_a_driver_conforms_in_whole_words() {
    let mut harness = OfWgpu::new(vec![noop()]);
    harness.unit = 4;
    let report = conformance::run(&harness, &Exceptions::none());
    println!("{report}");
    report.assert_passed();
}

/// The backend would believe that the shader ran, although no byte moved.
#[test]
fn a_device_that_computes_nothing_refuses_parts_of_words() {
    let harness = OfWgpu::new(vec![noop()]);
    let backend = &harness.backend;
    let own = backend.inventory().memories[0].id;
    let [src, dst] = [0, 1].map(|_| backend.allocate(own, &AllocSpec::bytes(64)).unwrap());
    assert!(harness.fill(&dst, 0, &[7; 64]));
    for (from, to, len) in [(0, 0, 3), (1, 0, 4), (0, 2, 8), (1, 1, 3)] {
        let part = |buffer, offset| Part {
            buffer,
            offset,
            len_bytes: len,
        };
        let ops = [Op::Copy {
            src: part(&src, from),
            dst: part(&dst, to),
        }];
        // SAFETY: no other code touches the two buffers, which outlive any command in flight.
        let error = unsafe { backend.submit(None, &ops, &[]) }.unwrap_err();
        assert_eq!(error.into_fault().class, ErrorClass::Unsupported);
    }
    let mut found = [0; 64];
    assert!(harness.read(&dst, 0, &mut found));
    assert_eq!(found, [7; 64]);
}

#[test]
fn every_adapter_has_a_uuid_of_its_own() {
    let devices = opened();
    if devices.is_empty() {
        return skip("every_adapter_has_a_uuid_of_its_own: no Vulkan adapter is here");
    }
    let devices = Wgpu::with_devices(devices).inventory().devices;
    let uuids = devices.iter().map(|device| device.uuid.unwrap());
    let different: std::collections::HashSet<_> = uuids.collect();
    assert_eq!(different.len(), devices.len(), "{devices:?}");
}

#[test]
fn a_device_that_is_gone_refuses_and_holds_nobody_up() {
    let Some((device, queue)) = opened().into_iter().next() else {
        return skip("a_device_that_is_gone: no Vulkan adapter is here");
    };
    let harness = OfWgpu::new(vec![(device.clone(), queue)]);
    let backend = &harness.backend;
    let own = backend.inventory().memories[0].id;
    let [src, dst] = [0, 1].map(|_| backend.allocate(own, &AllocSpec::bytes(64)).unwrap());
    device.destroy();
    let part = |buffer| Part {
        buffer,
        offset: 0,
        len_bytes: 64,
    };
    let ops = [Op::Copy {
        src: part(&src),
        dst: part(&dst),
    }];
    let heard = Arc::new(Heard::default());
    assert!(backend.attach(heard.clone()));
    // SAFETY: no other code touches the two buffers.
    match unsafe { backend.submit(None, &ops, &[]) } {
        Err(error) => assert_eq!(error.into_fault().class, ErrorClass::Lost),
        // A lost device may accept a command, and then do nothing.
        Ok(fence) => {
            assert_eq!(backend.wait(fence, LONG), Waited::Settled);
            let outcome = heard.0.lock().unwrap().remove(0);
            assert!(matches!(outcome, Outcome::Lost(_)), "{outcome:?}");
        }
    }
    let error = backend.allocate(own, &AllocSpec::bytes(64)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Lost, "{error}");
}

#[test]
fn a_view_inside_a_slot_leaves_the_rest_of_its_words_alone() {
    let Some(opened) = opened().into_iter().next() else {
        return skip("a_view_inside_a_slot: no Vulkan adapter is here");
    };
    let harness = OfWgpu::new(vec![opened]);
    let backend = &harness.backend;
    let gpu = backend.inventory().devices[0].id;
    let [own, readback] = [MemoryKind::Device, MemoryKind::Readback].map(|kind| gpu.memory(kind));
    let heard = Arc::new(Heard::default());
    assert!(backend.attach(heard.clone()));
    let src = harness.make(own, &AllocSpec::bytes(32)).unwrap();
    let slot = harness.make(readback, &AllocSpec::bytes(18)).unwrap();
    let sent: Vec<u8> = (0..32).map(|byte| byte + 100).collect();
    assert!(harness.fill(&src, 0, &sent));
    for (at, len) in [(2, 5), (1, 1), (3, 13), (0, 18), (7, 9), (13, 5)] {
        assert!(harness.fill(&slot, 0, &[7; 18]));
        let view = slot.slice(at, len).unwrap();
        let ops = [Op::Copy {
            src: Part {
                buffer: &src,
                offset: 3,
                len_bytes: len,
            },
            dst: Part {
                buffer: &view,
                offset: 0,
                len_bytes: len,
            },
        }];
        // SAFETY: no other code touches the two buffers, which outlive the wait.
        let fence = unsafe { backend.submit(None, &ops, &[]) }.unwrap();
        assert_eq!(backend.wait(fence, LONG), Waited::Settled);
        let mut found = [0; 18];
        assert!(harness.read(&slot, 0, &mut found));
        let mut wanted = [7; 18];
        wanted[at as usize..(at + len) as usize].copy_from_slice(&sent[3..3 + len as usize]);
        assert_eq!(found, wanted, "{len} bytes at {at}");
    }
    let outcomes = heard.0.lock().unwrap();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done));
}
