//! A manager next to an application that has a device, a queue and buffers of its own.
#![cfg(not(any(loom, transload_local)))]

use crate::adapter;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use transload::hal::{Advice, ErrorClass, ImportError, Owner};
use transload::{
    AllocSpec, Buffer, Error, Event, GuardError, IntoInnerReason, Place, Request, TransferManager,
};
use transload_wgpu::Wgpu;

/// The application: lanes of numbers, and a shader that is slow on purpose.
struct Application {
    device: wgpu::Device,
    queue: wgpu::Queue,
    pipeline: wgpu::ComputePipeline,
    manager: TransferManager,
}

const LANES: usize = 64;
/// Four in each pass of the loop: llvmpipe ends a shader's loops after 65535.
const ROUNDS: u32 = 4 * 60_000;
const SHADER: &str = "
@group(0) @binding(0) var<storage, read_write> lanes: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var lane = lanes[id.x];
    for (var count = 0u; count < 60000u; count++) { lane = next(next(next(next(lane)))); }
    lanes[id.x] = lane;
}

fn next(lane: u32) -> u32 { return lane * 1664525u + 1013904223u; }
";

/// The shader's result for a number.
fn shaded(lane: u32) -> u32 {
    (0..ROUNDS).fold(lane, |lane, _| {
        lane.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
    })
}

fn lanes(lane: u32) -> Vec<u8> {
    lane.to_le_bytes().repeat(LANES)
}

fn open() -> Option<(wgpu::Device, wgpu::Queue)> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    let opened = adapters.first().map(transload_wgpu::open_device);
    if opened.is_none() {
        adapter::skip();
    }
    Some(opened?.unwrap())
}

impl Application {
    fn new() -> Option<Application> {
        let (device, queue) = open()?;
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(SHADER.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let manager = TransferManager::builder().host().build().unwrap();
        let lent = Wgpu::with_devices([(device.clone(), queue.clone())]);
        manager.register_backend(lent).unwrap();
        Some(Application {
            device,
            queue,
            pipeline,
            manager,
        })
    }

    fn buffer(&self, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("the application's"),
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    /// Adopts an object of the application.
    fn adopt(&self, object: impl Owner) -> Result<Buffer, Error> {
        // SAFETY: the borrowed device made the object.
        unsafe { self.manager.adopt_native(gpu(), object) }
    }

    fn lanes_buffer(&self) -> wgpu::Buffer {
        self.buffer(lanes(0).len() as u64, ALL)
    }

    /// Submits the shader over the buffer.
    fn shade(&self, buffer: &wgpu::Buffer) -> wgpu::SubmissionIndex {
        let bind_group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry {
                binding: 0,
                resource: buffer.as_entire_binding(),
            }],
        });
        let mut encoder = self
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &bind_group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        self.queue.submit([encoder.finish()])
    }
}

const ALL: wgpu::BufferUsages = wgpu::BufferUsages::COPY_SRC
    .union(wgpu::BufferUsages::COPY_DST)
    .union(wgpu::BufferUsages::STORAGE);

fn gpu() -> Place {
    "wgpu:0".parse().unwrap()
}

#[test]
fn an_adopted_buffer_is_one_memory_with_its_clones_and_comes_back() {
    let Some(app) = Application::new() else {
        return;
    };
    let manager = &app.manager;
    let theirs = app.lanes_buffer();
    let one = app.adopt(theirs.clone()).unwrap();
    let same = app.adopt(theirs.clone()).unwrap();
    assert!(one.native::<wgpu::Buffer>() == Some(&theirs));
    assert!(one.slice(4..8).unwrap().native::<wgpu::Buffer>() == Some(&theirs));
    // A reader of the one buffer waits for a writer of the other, which was submitted before.
    let event = manager.event();
    let src = manager.adopt(lanes(7)).unwrap();
    let dst = manager.adopt(lanes(0)).unwrap();
    let write = manager.submit(&Request::new(&src, &one).after(&event));
    let read = manager.copy(&same, &dst);
    assert!(!read.is_over(), "it overtook");
    event.set();
    read.wait().unwrap();
    write.wait().unwrap();
    assert!(*dst.read().unwrap() == lanes(7));
    // The application owns the buffer again, although `same` refers to it too: both are handles of one buffer.
    let view = one.clone();
    let busy = one.into_inner::<wgpu::Buffer>().unwrap_err();
    assert_eq!(busy.reason, IntoInnerReason::InUse);
    drop(busy);
    assert!(view.into_inner::<wgpu::Buffer>().unwrap() == theirs);
}

#[test]
fn the_host_copies_at_once_to_mapped_memory_whose_buffer_the_application_never_had() {
    let Some(application) = Application::new() else {
        return;
    };
    let Application { queue, manager, .. } = &application;
    let Ok(place) = "wgpu:0/mapped".parse() else {
        unreachable!("it is a place");
    };
    let Ok(there) = manager.allocate(place, AllocSpec::bytes(4096)) else {
        return;
    };
    // wgpu numbers submissions, and shows the number in the text of its type.
    let submitted = || format!("{:?}", queue.submit([]));
    let next = |text: &str| {
        let digits = text
            .chars()
            .filter(char::is_ascii_digit)
            .collect::<String>();
        digits.parse::<u64>().unwrap() + 1
    };
    let copies = |bytes: [u8; 4096]| {
        let before = submitted();
        manager.copy_from_slice(&bytes, &there).unwrap();
        assert_eq!(manager.read_to_vec(&there).unwrap(), bytes);
        (next(&before), next(&submitted()) - 1)
    };
    // The first copies wait for the proofs of their links.
    copies([6; 4096]);
    let (next_one, found) = copies([7; 4096]);
    assert_eq!(found, next_one, "a submission was made in between");
    // From here on the application can use the buffer, and its own commands may be under way.
    let _ = there.native::<wgpu::Buffer>().unwrap();
    let (next_one, found) = copies([8; 4096]);
    assert!(found > next_one, "no submission was made in between");
}

#[test]
fn what_cannot_be_adopted_is_refused_with_its_reason() {
    let Some(app) = Application::new() else {
        return;
    };
    let write_only = app.buffer(64, wgpu::BufferUsages::COPY_DST);
    let error = app.adopt(write_only).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller);
    assert!(error.to_string().contains("COPY_SRC"), "{error}");
    // A copy cannot reach a part of a word.
    let error = app.adopt(app.buffer(65_537, ALL)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller);
    assert!(error.to_string().contains("65537"), "{error}");
    let error = app.adopt(7u32).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
    let cpu = "cpu:0".parse().unwrap();
    // SAFETY: the manager refuses the object, and so does not use it.
    let error = unsafe { app.manager.adopt_native(cpu, app.lanes_buffer()) }.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
    // An empty buffer is allowed, too.
    let empty = app.adopt(app.buffer(0, ALL)).unwrap();
    assert!(empty.is_empty());
    let nothing = app.manager.adopt(Vec::<u8>::new()).unwrap();
    assert_eq!(
        app.manager.copy(&nothing, &empty).wait().unwrap().bytes(),
        0
    );
}

#[test]
fn a_device_that_two_managers_have_lends_each_buffer_to_one() {
    let Some(app) = Application::new() else {
        return;
    };
    let others = [
        (app.device.clone(), app.queue.clone()),
        open().expect("there was an adapter before"),
    ];
    let [(_, _), (stranger, _)] = &others;
    let stranger = stranger.clone();
    let other = TransferManager::builder().host().build().unwrap();
    // The manager distinguishes a device of another instance, although it has the same numbers.
    let [this, that] = others;
    other
        .register_backend(Wgpu::with_devices([that, this]))
        .unwrap();
    let wgpu = other.backend::<Wgpu>().unwrap();
    let named = |device: &wgpu::Device| wgpu.id_of(device).unwrap().to_string();
    assert_eq!([named(&stranger), named(&app.device)], ["wgpu:0", "wgpu:1"]);

    let theirs = app.lanes_buffer();
    let adopted = app.adopt(theirs.clone()).unwrap();
    let allocated = app.manager.allocate(gpu(), transload::AllocSpec::bytes(64));
    let allocated = allocated.unwrap();
    let own = allocated.native::<wgpu::Buffer>().unwrap().clone();
    for buffer in [theirs.clone(), own] {
        // SAFETY: the device of that place made the object.
        let taken = unsafe { other.adopt_native("wgpu:1".parse().unwrap(), buffer) };
        let error = taken.unwrap_err();
        assert!(
            matches!(error, Error::Import(ImportError::Claimed { .. })),
            "{error}"
        );
    }
    drop(adopted);
    // SAFETY: as above.
    unsafe { other.adopt_native("wgpu:1".parse().unwrap(), theirs) }.unwrap();
}

/// wgpu-core panics where two threads poll a device at once and the wait of one of them times out; wgpu-core then drops
/// callbacks uncalled.
#[test]
fn a_device_is_polled_by_one_thread_of_the_library_at_a_time() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let Some(app) = Application::new() else {
        return;
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        hook(info);
    }));
    let is_over = AtomicBool::new(false);
    let [asked, called] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        // The application asks for mappings, and the library's threads call back.
        scope.spawn(|| {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            while !is_over.load(Ordering::Acquire) {
                let buffer = app.buffer(64, usage);
                let called = Arc::clone(&called);
                asked.fetch_add(1, Ordering::SeqCst);
                buffer.map_async(wgpu::MapMode::Read, .., move |_| {
                    called.fetch_add(1, Ordering::SeqCst);
                });
                app.queue.submit([]);
            }
        });
        // Allocations poll the device, and so does the thread that waits for the device.
        scope.spawn(|| {
            let wgpu = app.manager.backend::<Wgpu>().unwrap();
            while !is_over.load(Ordering::Acquire) {
                let spec = transload::AllocSpec::bytes(64);
                drop(app.manager.allocate(gpu(), spec).unwrap());
                let index = app.queue.submit([]);
                wgpu.when_done(&app.device, index, || ()).unwrap();
            }
        });
        let there = app.adopt(app.lanes_buffer()).unwrap();
        for round in 0..300u32 {
            app.manager.copy_from_slice(&lanes(round), &there).unwrap();
            let limited = app
                .manager
                .copy(&there, &there)
                .wait_timeout(Duration::from_micros(50));
            drop(limited);
        }
        is_over.store(true, Ordering::Release);
    });
    app.device
        .poll(wgpu::PollType::wait_indefinitely())
        .unwrap();
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
    assert_eq!(called.load(Ordering::SeqCst), asked.load(Ordering::SeqCst));
}

#[test]
fn a_callback_that_runs_while_commands_are_submitted_submits_a_copy() {
    let Some(app) = Application::new() else {
        return;
    };
    let [src, dst, other] = [(); 3].map(|()| app.adopt(app.lanes_buffer()).unwrap());
    app.manager.copy_from_slice(&lanes(7), &src).unwrap();
    for _ in 0..20 {
        let (tell, told) = mpsc::channel();
        let (manager, from, to) = (app.manager.clone(), src.clone(), other.clone());
        app.queue.submit([]);
        app.device
            .poll(wgpu::PollType::wait_indefinitely())
            .unwrap();
        // wgpu calls back when it next polls the device; the next submission does so.
        app.queue.on_submitted_work_done(move || {
            tell.send(manager.copy(&from, &to)).unwrap();
        });
        app.manager.copy(&src, &dst).wait().unwrap();
        let mut inner = told.recv_timeout(Duration::from_secs(600)).unwrap();
        let waited = inner.wait_timeout(Duration::from_secs(600));
        assert!(matches!(waited, Some(Ok(_))), "{waited:?}");
    }
    let mut bytes = lanes(0);
    app.manager.copy_into_slice(&other, &mut bytes).unwrap();
    assert_eq!(bytes, lanes(7));
}

thread_local! {
    static OWN: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Sets an event and then drops a buffer, in the destructor of a thread-local value.
struct Last {
    event: Event,
    _buffer: Buffer,
}

impl Drop for Last {
    fn drop(&mut self) {
        self.event.set();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_ends_starts_transfers_of_others_and_frees_its_buffers() {
    const LEN: usize = 16 << 20;
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let Some(app) = Application::new() else {
        return;
    };
    let [src, dst] = [(); 2].map(|()| app.adopt(app.lanes_buffer()).unwrap());
    let host = app.manager.adopt(vec![7u8; LEN]).unwrap();
    let mut first = None;
    for _ in 0..20 {
        let event = app.manager.event();
        let (tell, told) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let last = thread::spawn({
            let (manager, host, event) = (app.manager.clone(), host.clone(), event.clone());
            move || {
                // Thread-locals are dropped in the opposite order of their first use: this one after wgpu's.
                OWN.with(|own| {
                    let buffer = manager.allocate(gpu(), AllocSpec::bytes(LEN as u64));
                    let _buffer = buffer.unwrap();
                    manager.copy(&host, &_buffer).wait().unwrap();
                    *own.borrow_mut() = Some(Last { event, _buffer });
                });
                tell.send(()).unwrap();
                goes_on.recv().unwrap();
            }
        });
        told.recv().unwrap();
        let copies = [(); 3].map(|()| {
            let request = Request::new(&src, &dst).after(&event);
            app.manager.submit(&request)
        });
        go_on.send(()).unwrap();
        last.join().unwrap();
        for copy in copies {
            copy.wait().unwrap();
        }
        first.get_or_insert_with(resident);
    }
    let more = resident().saturating_sub(first.unwrap());
    assert!(more < 8 * LEN, "{more} more bytes are resident");
}

#[test]
fn hints_that_mean_nothing_to_an_adapter_are_left_undone() {
    let Some(app) = Application::new() else {
        return;
    };
    let adopted = app.adopt(app.lanes_buffer()).unwrap();
    app.manager.prefetch(&adopted, gpu()).unwrap();
    app.manager.advise(&adopted, Advice::MostlyRead).unwrap();
}

#[test]
fn a_staging_slot_is_shown_to_nobody() {
    let Some(app) = Application::new() else {
        return;
    };
    for memory in ["wgpu:0/upload", "wgpu:0/readback"] {
        let spec = transload::AllocSpec::bytes(64).for_staging();
        let slot = app.manager.allocate(memory.parse().unwrap(), spec).unwrap();
        let error = slot.read().unwrap_err();
        assert!(matches!(error, GuardError::NotExclusive { .. }), "{error}");
        assert!(slot.try_write().is_err() && pollster::block_on(slot.read_async()).is_err());
    }
}

#[test]
fn transfers_and_submissions_see_what_was_there_before_them() {
    let Some(app) = Application::new() else {
        return;
    };
    let manager = &app.manager;
    let theirs = app.lanes_buffer();
    let adopted = app.adopt(theirs.clone()).unwrap();
    // This buffer belongs to the manager; the application uses it through its handle.
    let allocated = manager
        .allocate(gpu(), transload::AllocSpec::bytes(adopted.len()))
        .unwrap();
    let native = allocated.native::<wgpu::Buffer>().unwrap();
    for (buffer, handle) in [(&adopted, &theirs), (&allocated, native)] {
        for round in 0..3 {
            // The copy is over, so the next submission sees its bytes.
            manager.copy_from_slice(&lanes(round), buffer).unwrap();
            app.shade(handle);
            // The submission precedes the copy in the queue, so the copy sees its writes.
            let mut found = lanes(0);
            manager.copy_into_slice(buffer, &mut found).unwrap();
            assert!(found == lanes(shaded(round)), "round {round}");
        }
    }
}

#[test]
fn a_transfer_of_other_memory_starts_after_a_submission() {
    let Some(app) = Application::new() else {
        return;
    };
    let manager = &app.manager;
    let wgpu = manager.backend::<Wgpu>().unwrap();
    let theirs = app.lanes_buffer();
    for round in 0..5u8 {
        let index = app.shade(&theirs);
        let shaded = manager.event();
        wgpu.when_done(&app.device, index.clone(), shaded.setter())
            .unwrap();
        let (src, dst) = (
            manager.adopt(vec![round; 100]).unwrap(),
            manager.adopt(vec![0xFF_u8; 100]).unwrap(),
        );
        // No part of this transfer uses the adapter.
        let transfer = manager.submit(&Request::new(&src, &dst).after(&shaded));
        transfer.wait().unwrap();
        assert!(shaded.is_set());
        let over = app.device.poll(wgpu::PollType::Wait {
            submission_index: Some(index),
            timeout: Some(Duration::ZERO),
        });
        assert!(over.is_ok(), "it did not wait: {over:?}");
        assert!(*dst.read().unwrap() == [round; 100]);
    }
}

#[test]
fn the_application_may_poll_its_device_all_the_time() {
    let Some(app) = Application::new() else {
        return;
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                app.device.poll(wgpu::PollType::Poll).unwrap();
            }
        });
        for round in 0..20u8 {
            let sent = vec![round; 1_000_003];
            let there = app.adopt(app.buffer(1_000_004, ALL)).unwrap();
            let there = there.slice(..1_000_003).unwrap();
            let src = app.manager.adopt(sent.clone()).unwrap();
            let up = app.manager.copy(&src, &there);
            // One transfer is awaited as a future; a thread waits for the other.
            pollster::block_on(up).unwrap();
            let mut found = vec![0; sent.len()];
            app.manager.copy_into_slice(&there, &mut found).unwrap();
            assert!(found == sent, "round {round}");
        }
        is_over.store(true, Ordering::Release);
    });
}
