//! A user's mistake with an adopted object gives an error that names the mistake and the object.
#![cfg(not(transload_local))]

mod common;

use std::sync::Arc;

use common::{Heard, adapters, opened, opened_with, part, run, skip};
use transload_hal::{AllocSpec, Backend, Buffer, ErrorClass, External, Op, Outcome};
use transload_wgpu::Wgpu;

struct Bench {
    device: wgpu::Device,
    backend: Wgpu,
    heard: Arc<Heard>,
}

impl Bench {
    fn new((device, queue): (wgpu::Device, wgpu::Queue)) -> Bench {
        let backend = Wgpu::with_devices([(device.clone(), queue)]);
        let heard = Arc::new(Heard::default());
        assert!(backend.attach(heard.clone()));
        Bench {
            device,
            backend,
            heard,
        }
    }

    fn of_user(&self, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("mine"),
            size: 64,
            usage: usage | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    }

    fn adopt(&self, buffer: &wgpu::Buffer) -> Buffer {
        let own = self.backend.inventory().memories[0].id;
        let external = External::object(buffer.clone());
        // SAFETY: the test touches the buffer only where it says so.
        unsafe { self.backend.import(own, external) }.unwrap()
    }

    /// A copy from the buffer and a copy to it are refused as the caller's mistake; later copies work.
    fn refused(&self, theirs: &Buffer, said: &str) {
        let own = self.backend.inventory().memories[0].id;
        let [a, b] = [0, 1].map(|_| {
            let spec = AllocSpec::bytes(64);
            self.backend.allocate(own, &spec).unwrap()
        });
        // Whole words, and bytes within words.
        for (from, len) in [(0, 64), (3, 5)] {
            for (src, dst) in [(theirs, &a), (&a, theirs)] {
                let (src, dst) = (part(src, 0, len), part(dst, from, len));
                let fault = run(&self.backend, &[Op::Copy { src, dst }]).unwrap_err();
                assert_eq!(fault.class, ErrorClass::Caller, "{fault}");
                let message = fault.to_string();
                assert!(
                    message.contains("'mine'") && message.contains(said),
                    "{message}"
                );
            }
        }
        let (src, dst) = (part(&a, 0, 64), part(&b, 0, 64));
        run(&self.backend, &[Op::Copy { src, dst }]).unwrap();
        let heard = self.heard.0.lock().unwrap();
        assert_eq!(heard.last(), Some(&Outcome::Done));
    }
}

#[test]
fn a_destroyed_buffer_is_the_callers_mistake() {
    let Some(opened) = opened().into_iter().next() else {
        return skip("a_destroyed_buffer: no Vulkan adapter is here");
    };
    let bench = Bench::new(opened);
    let buffer = bench.of_user(wgpu::BufferUsages::empty());
    let adopted = bench.adopt(&buffer);
    buffer.destroy();
    bench.refused(&adopted, "has been destroyed");
}

#[test]
fn a_mapped_buffer_is_the_callers_mistake() {
    let Some(opened) = opened_with(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS) else {
        return skip("a_mapped_buffer: no adapter maps buffers that are also copied to and from");
    };
    let bench = Bench::new(opened);
    let buffer = bench.of_user(wgpu::BufferUsages::MAP_READ);
    let adopted = bench.adopt(&buffer);
    buffer.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
    bench
        .device
        .poll(wgpu::PollType::wait_indefinitely())
        .unwrap();
    bench.refused(&adopted, "still mapped");
    buffer.unmap();
    let own = bench.backend.inventory().memories[0].id;
    let there = bench.backend.allocate(own, &AllocSpec::bytes(64)).unwrap();
    let (src, dst) = (part(&adopted, 0, 64), part(&there, 0, 64));
    run(&bench.backend, &[Op::Copy { src, dst }]).unwrap();
}

#[test]
fn a_buffer_of_another_device_is_the_callers_mistake() {
    let adapters = adapters();
    let Some(adapter) = adapters.first() else {
        return skip("a_buffer_of_another_device: no Vulkan adapter is here");
    };
    let [(device, queue), (other, _)] =
        [0, 1].map(|_| transload_wgpu::open_device(adapter).unwrap());
    let backend = Wgpu::with_devices([(device, queue)]);
    let buffer = other.create_buffer(&wgpu::BufferDescriptor {
        label: Some("mine"),
        size: 64,
        usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let own = backend.inventory().memories[0].id;
    let external = External::object(buffer);
    // SAFETY: no code touches the buffer.
    let error = unsafe { backend.import(own, external) }.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller, "{error}");
    assert!(error.to_string().contains("'mine'"), "{error}");
}
