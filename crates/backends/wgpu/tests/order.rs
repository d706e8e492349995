//! The order relative to the user's own submissions, and devices that stay the user's.
#![cfg(not(transload_local))]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::{Heard, LONG, adapters, part, skip};
use transload_hal::MemoryKind;
use transload_hal::{
    AllocSpec, Backend, Buffer, ErrorClass, External, Fence, ImportError, MemoryInfo, Op, Outcome,
    SubmitError, Waited,
};
use transload_wgpu::{WatchError, Wgpu};

/// Devices of the first adapter, all of one instance.
fn devices<const N: usize>() -> Option<[(wgpu::Device, wgpu::Queue); N]> {
    let adapters = adapters();
    let Some(adapter) = adapters.first() else {
        let test = std::thread::current().name().unwrap_or("order").to_owned();
        skip(&format!("{test}: no Vulkan adapter is here"));
        return None;
    };
    Some(std::array::from_fn(|_| {
        transload_wgpu::open_device(adapter).unwrap()
    }))
}

/// Two buffers of the backend's device `at`.
fn pair(backend: &Wgpu, at: usize) -> [Buffer; 2] {
    let inventory = backend.inventory();
    let own = inventory.devices[at].id;
    let of_it = |memory: &&MemoryInfo| memory.id.device == own;
    let memory = inventory.memories.iter().find(of_it).unwrap().id;
    [0, 1].map(|_| backend.allocate(memory, &AllocSpec::bytes(64)).unwrap())
}

/// Submits a copy from the first buffer to the second.
fn copy(backend: &Wgpu, [src, dst]: &[Buffer; 2], after: &[Fence]) -> Result<Fence, SubmitError> {
    let ops = [Op::Copy {
        src: part(src, 0, 64),
        dst: part(dst, 0, 64),
    }];
    // SAFETY: no other code touches the buffers, and wgpu keeps them until its commands have ended.
    unsafe { backend.submit(None, &ops, after) }
}

fn settled(backend: &Wgpu, fence: Fence) {
    assert_eq!(backend.wait(fence, LONG), Waited::Settled);
}

/// Blocks the next submission to a queue until it is opened.
#[cfg(any(windows, target_os = "linux"))]
mod gate {
    use ash::vk;
    use wgpu::hal::api::Vulkan;

    pub(crate) struct Gate {
        device: wgpu::Device,
        semaphore: vk::Semaphore,
    }

    impl Gate {
        pub(crate) fn before_next(device: &wgpu::Device, queue: &wgpu::Queue) -> Gate {
            let mut timeline =
                vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
            let info = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
            // SAFETY: the code destroys nothing through it.
            let hal = unsafe { device.as_hal::<Vulkan>() }.unwrap();
            // SAFETY: the device has timeline semaphores, which wgpu's own fences are.
            let semaphore = unsafe { hal.raw_device().create_semaphore(&info, None) }.unwrap();
            drop(hal);
            // SAFETY: as above.
            let hal = unsafe { queue.as_hal::<Vulkan>() }.unwrap();
            hal.add_wait_semaphore(semaphore, Some(1), vk::PipelineStageFlags::TOP_OF_PIPE);
            Gate {
                device: device.clone(),
                semaphore,
            }
        }

        pub(crate) fn open(&self) {
            let info = vk::SemaphoreSignalInfo::default()
                .semaphore(self.semaphore)
                .value(1);
            // SAFETY: the code destroys nothing through it.
            let hal = unsafe { self.device.as_hal::<Vulkan>() }.unwrap();
            // SAFETY: the semaphore is the device's, and its value is 0.
            unsafe { hal.raw_device().signal_semaphore(&info) }.unwrap();
        }
    }

    impl Drop for Gate {
        fn drop(&mut self) {
            self.device
                .poll(wgpu::PollType::wait_indefinitely())
                .unwrap();
            // SAFETY: the code destroys nothing through it except the semaphore below.
            let hal = unsafe { self.device.as_hal::<Vulkan>() }.unwrap();
            // SAFETY: the submissions that waited for it are over.
            unsafe { hal.raw_device().destroy_semaphore(self.semaphore, None) };
        }
    }
}

#[cfg(any(windows, target_os = "linux"))]
#[test]
fn the_end_of_a_users_submission_is_told_and_not_before_it() {
    let Some([(device, queue)]) = devices() else {
        return;
    };
    let backend = Wgpu::with_devices([(device.clone(), queue.clone())]);
    let (tell, told) = mpsc::channel();
    let when_done = |index, what| {
        let tell = tell.clone();
        backend
            .when_done(&device, index, move || tell.send(what).unwrap())
            .unwrap();
    };
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage: wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let before = queue.submit([]);
    let gate = gate::Gate::before_next(&device, &queue);
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.clear_buffer(&buffer, 0, None);
    let gated = queue.submit([encoder.finish()]);
    // The test submits nothing from here on until the gate is open: some drivers would block the submission.
    when_done(before, "before");
    when_done(gated, "gated");
    // The first submission is over, and the second one cannot be.
    assert_eq!(told.recv_timeout(LONG), Ok("before"));
    assert!(told.try_recv().is_err());
    gate.open();
    assert_eq!(told.recv_timeout(LONG), Ok("gated"));
    settled(&backend, copy(&backend, &pair(&backend, 0), &[]).unwrap());
    when_done(queue.submit([]), "third");
    assert_eq!(told.recv_timeout(LONG), Ok("third"));
}

#[cfg(any(windows, target_os = "linux"))]
#[test]
fn an_adapter_does_not_block_for_the_fence_of_another_one() {
    let Some([one, other]) = devices() else {
        return;
    };
    let backend = Wgpu::with_devices([one.clone(), other]);
    let pairs = [0, 1].map(|at| pair(&backend, at));
    let gate = gate::Gate::before_next(&one.0, &one.1);
    let fence = copy(&backend, &pairs[0], &[]).unwrap();
    let error = copy(&backend, &pairs[1], &[fence]).unwrap_err();
    let fault = error.into_fault();
    assert_eq!(fault.class, ErrorClass::Unsupported, "{fault}");
    assert!(fault.to_string().contains("must be awaited"), "{fault}");
    gate.open();
    // In one queue the order is given anyway.
    let behind = copy(&backend, &pairs[0], &[fence]).unwrap();
    settled(&backend, fence);
    settled(&backend, copy(&backend, &pairs[1], &[fence]).unwrap());
    settled(&backend, behind);
}

#[test]
fn submissions_that_a_device_never_made_are_refused() {
    let Some([one, other]) = devices() else {
        return;
    };
    let backend = Wgpu::with_devices([one.clone()]);
    let called = Arc::new(AtomicBool::new(false));
    let watch = |device: &wgpu::Device, index| {
        let called = Arc::clone(&called);
        backend.when_done(device, index, move || called.store(true, Ordering::Release))
    };
    let mut last = other.1.submit([]);
    for _ in 0..20 {
        last = other.1.submit([]);
    }
    let error = watch(&one.0, last.clone()).unwrap_err();
    assert!(
        matches!(error, WatchError::UnknownSubmission { .. }),
        "{error}"
    );
    assert_eq!(error.class(), ErrorClass::Caller);
    println!("{error}");
    let error = watch(&other.0, last).unwrap_err();
    assert_eq!(error, WatchError::UnknownDevice { devices: 1 });
    assert_eq!(backend.id_of(&other.0), None);
    let index = one.1.submit([]);
    one.0.destroy();
    let lost = one.1.submit([]);
    let error = watch(&one.0, lost).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    assert!(watch(&one.0, index).is_err(), "its loss is known now");
    assert!(!called.load(Ordering::Acquire));
}

#[test]
fn a_lent_devices_callbacks_stay_the_users_and_its_loss_is_noticed() {
    let Some([(device, queue)]) = devices() else {
        return;
    };
    let (tell, told) = mpsc::channel();
    device.set_device_lost_callback(move |reason, _| tell.send(reason).unwrap());
    let backend = Wgpu::with_devices([(device.clone(), queue)]);
    let heard = Arc::new(Heard::default());
    assert!(backend.attach(heard.clone()));
    let pair = pair(&backend, 0);
    settled(&backend, copy(&backend, &pair, &[]).unwrap());
    device.destroy();
    settled(&backend, copy(&backend, &pair, &[]).unwrap());
    let outcomes = heard.0.lock().unwrap().clone();
    assert!(
        matches!(outcomes[..], [Outcome::Done, Outcome::Lost(_)]),
        "{outcomes:?}"
    );
    let error = copy(&backend, &pair, &[]).unwrap_err().into_fault();
    assert_eq!(error.class, ErrorClass::Lost, "{error}");
    // wgpu calls it at the next poll of the device.
    device.poll(wgpu::PollType::Poll).unwrap();
    assert_eq!(
        told.recv_timeout(LONG),
        Ok(wgpu::DeviceLostReason::Destroyed)
    );
}

#[test]
fn allocating_on_a_device_that_was_lost_unnoticed_says_so() {
    let Some([(device, queue)]) = devices() else {
        return;
    };
    let backend = Wgpu::with_devices([(device.clone(), queue)]);
    device.destroy();
    for memory in backend.inventory().memories {
        let spec = AllocSpec::bytes(64).for_staging();
        let error = backend.allocate(memory.id, &spec).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    }
}

#[test]
fn a_callback_of_the_users_that_panics_ends_nobodys_transfers() {
    let Some([(device, queue)]) = devices() else {
        return;
    };
    let backend = Wgpu::with_devices([(device.clone(), queue.clone())]);
    let heard = Arc::new(Heard::default());
    assert!(backend.attach(heard.clone()));
    let pair = pair(&backend, 0);
    for round in 1..=20 {
        queue.submit([]);
        // It runs on the thread that polls the device next, which is usually this backend's.
        queue.on_submitted_work_done(|| std::panic::resume_unwind(Box::new("the user's own")));
        let submitted =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| copy(&backend, &pair, &[])));
        let fence = match submitted.unwrap() {
            Ok(fence) => fence,
            // A panic in the submission counts as a refusal; then no command may be in flight.
            Err(error) => {
                let fault = error.into_fault();
                assert_eq!(fault.class, ErrorClass::Caller, "{fault}");
                assert!(device.poll(wgpu::PollType::Poll).unwrap().is_queue_empty());
                copy(&backend, &pair, &[]).unwrap()
            }
        };
        settled(&backend, fence);
        let outcomes = heard.0.lock().unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done));
        assert!(outcomes.len() >= round);
    }
}

#[test]
fn buffers_are_adopted_only_by_devices_that_users_can_have() {
    let backend = Wgpu::discover();
    let Some([(stranger, _)]) = devices() else {
        return;
    };
    let own = backend.inventory().memories[0].id;
    let make = |device: &wgpu::Device| {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 64,
            usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    };
    // SAFETY: no code touches the bytes, and the backend does not use an object that it refuses.
    let import = |object| unsafe { backend.import(own, object) };
    let error = import(External::object(make(&stranger))).unwrap_err();
    assert!(matches!(error, ImportError::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("with_devices"), "{error}");
    let (device, _) = backend.handles(own.device).unwrap();
    assert_eq!(backend.id_of(&device), Some(own.device));
    let adopted = import(External::object(make(&device))).unwrap();
    assert_eq!(adopted.len(), 64);
    let error = import(External::object("no buffer")).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
    let another = import(External::object(make(&device))).unwrap();
    assert_ne!(another.storage_id(), adopted.storage_id());
}

/// Host memory that a device writes belongs to the device until its commands have ended. The loss of the device may be
/// known long before: wgpu calls a device lost that its user destroys, or that ran out of memory.
#[cfg(any(windows, target_os = "linux"))]
#[test]
fn what_a_lost_device_still_does_is_not_told_before_it_has_ended() {
    let Some([(device, queue)]) = devices() else {
        return;
    };
    let backend = Wgpu::with_devices([(device.clone(), queue.clone())]);
    let heard = Arc::new(Heard::default());
    assert!(backend.attach(heard.clone()));
    let pair = pair(&backend, 0);
    let gate = gate::Gate::before_next(&device, &queue);
    let fence = copy(&backend, &pair, &[]).unwrap();
    device.destroy();
    // This call finds the loss.
    let found = backend.when_done(&device, queue.submit([]), || ());
    // The commands cannot have ended, however long the wait takes.
    let waited = backend.wait(fence, Duration::from_millis(300));
    let early = heard.0.lock().unwrap().clone();
    gate.open();
    settled(&backend, fence);
    assert_eq!(found.unwrap_err().class(), ErrorClass::Lost);
    assert_eq!((waited, &early[..]), (Waited::TimedOut, &[][..]));
    let outcomes = heard.0.lock().unwrap().clone();
    assert!(matches!(outcomes[..], [Outcome::Lost(_)]), "{outcomes:?}");
}

/// Two submissions use one slot, so the backend reports the first when the second has ended, too. A failure of the
/// second must not leave the first without a report.
#[cfg(any(windows, target_os = "linux"))]
#[test]
fn a_submission_whose_slot_is_lost_to_a_later_one_is_told() {
    let Some([(device, queue)]) = devices() else {
        return;
    };
    let backend = Wgpu::with_devices([(device.clone(), queue.clone())]);
    let heard = Arc::new(Heard::default());
    assert!(backend.attach(heard.clone()));
    let [src, _] = pair(&backend, 0);
    let slot = backend.inventory().devices[0]
        .id
        .memory(MemoryKind::Readback);
    let spec = AllocSpec::bytes(64).for_staging();
    let slot = backend.allocate(slot, &spec).unwrap();
    // The thread that serves the queue is kept from it until the device is gone.
    let gate = gate::Gate::before_next(&device, &queue);
    let gated = queue.submit([]);
    let (go_on, held) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let hold = move || {
        tell.send(()).unwrap();
        held.recv_timeout(LONG).unwrap();
    };
    backend.when_done(&device, gated, hold).unwrap();
    gate.open();
    told.recv_timeout(LONG).unwrap();
    let into = [src, slot];
    let fences = [0, 1].map(|_| copy(&backend, &into, &[]).unwrap());
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    device.destroy();
    go_on.send(()).unwrap();
    let waited = fences.map(|fence| backend.wait(fence, LONG));
    assert_eq!(waited, [Waited::Settled; 2]);
    let outcomes = heard.0.lock().unwrap().clone();
    assert!(
        matches!(outcomes[..], [Outcome::Lost(_), Outcome::Lost(_)]),
        "{outcomes:?}"
    );
}

/// The number of a submission.
fn number(index: &wgpu::SubmissionIndex) -> u64 {
    let text = format!("{index:?}");
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn independent_copies_share_a_submission_and_have_fences_of_their_own() {
    let Some([one]) = devices() else { return };
    let backend = Wgpu::with_devices([one.clone()]);
    let heard = Arc::new(Heard::default());
    assert!(backend.attach(heard.clone()));
    let [src, dst] = pair(&backend, 0);
    let link = { backend.inventory().links.into_iter() }
        .find(|link| link.id.src == src.memory() && link.id.dst == dst.memory());
    let ops: Vec<Op<'_>> = (0..16)
        .map(|place| Op::Copy {
            src: part(&src, place * 4, 4),
            dst: part(&dst, place * 4, 4),
        })
        .collect();
    let mut fences = Vec::new();
    let before = number(&one.1.submit([]));
    // SAFETY: no other code touches the buffers, and wgpu keeps them until its commands have ended.
    unsafe {
        backend.submit_each(link.unwrap().id, &ops, &mut |fence| {
            fences.push(fence.unwrap());
        });
    }
    assert_eq!(number(&one.1.submit([])) - before, 2, "one in between");
    let mut distinct = fences.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!((distinct.len(), fences.len()), (16, 16));
    fences
        .into_iter()
        .rev()
        .for_each(|fence| settled(&backend, fence));
    drop(backend);
    assert_eq!(*heard.0.lock().unwrap(), vec![Outcome::Done; 16]);
}

/// Commands that were handed over are not submitted again, whatever a callback of the user's does meanwhile: a copy within
/// its own bytes would change them twice.
#[test]
fn copies_that_share_a_submission_are_submitted_once() {
    let Some([(device, queue)]) = devices() else {
        return;
    };
    let backend = Wgpu::with_devices([(device, queue.clone())]);
    assert!(backend.attach(Arc::new(Heard::default())));
    let buffers = pair(&backend, 0);
    let memory = buffers[0].memory();
    let link = { backend.inventory().links.into_iter() }
        .find(|link| link.id.src == memory && link.id.dst == memory);
    let link = link.unwrap().id;
    let ops = buffers.each_ref().map(|buffer| Op::Copy {
        src: part(buffer, 0, 32),
        dst: part(buffer, 16, 32),
    });
    for _ in 0..20 {
        let before = number(&queue.submit([]));
        queue.on_submitted_work_done(|| std::panic::resume_unwind(Box::new("the user's own")));
        let mut told = Vec::new();
        // SAFETY: no other code touches the buffers, and wgpu keeps them until its commands have ended.
        unsafe { backend.submit_each(link, &ops, &mut |fence| told.push(fence)) };
        let refused = told.iter().filter(|fence| fence.is_err()).count();
        assert!([0, 2].contains(&refused), "{told:?}");
        for fence in told.into_iter().flatten() {
            settled(&backend, fence);
        }
        // To wait for what it handed over, the backend submits nothing, once or twice.
        let made = number(&queue.submit([])) - before - 1;
        assert!(made <= 3, "{made} submissions, {refused} refused");
    }
}
