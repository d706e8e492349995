//! Every call leaves the calling thread's contexts as they were: the user's own code goes on in them.

use crate::common;
use crate::common::own;
use crate::common::streams as theirs;

use std::sync::mpsc::channel;
use std::time::Duration;

use common::work::{Outcomes, copy, device, pinned};
use common::{assert_clean, control, driver, machine};
use own::Own;
use theirs::{destroy_context, own_context, stack};
use transload_cuda::Cuda;
use transload_cuda::raw::{CUcontext, Driver};
use transload_hal::{
    AllocSpec, Backend, Buffer, External, ExternalKind, HostSpan, MemoryKind, Outcome,
};

/// A thread with contexts, and the name of the present call.
struct Thread<'a> {
    driver: &'a Driver,
    contexts: Vec<CUcontext>,
}

impl Thread<'_> {
    #[track_caller]
    fn does<T>(&self, what: &str, act: impl FnOnce() -> T) -> T {
        let answer = act();
        assert_eq!(stack(self.driver), self.contexts, "{what}");
        answer
    }
}

/// Makes every call of a backend that begins and ends on this thread.
fn everything(thread: &Thread<'_>) {
    let driver = thread.driver;
    let cuda = thread.does("discover", || Cuda::with_driver(driver.clone()).unwrap());
    thread.does("inventory", || cuda.inventory());
    let outcomes = std::sync::Arc::new(Outcomes::default());
    assert!(thread.does("attach", || cuda.attach(outcomes.clone())));

    let spec = AllocSpec::bytes(4096);
    let managed = device(0).device.memory(MemoryKind::Managed);
    let allocate = |memory, spec: AllocSpec| {
        let what = format!("allocate {spec:?} in {memory}");
        thread.does(&what, || cuda.allocate(memory, &spec).unwrap())
    };
    let own = allocate(device(0), spec);
    let other = allocate(device(1), spec);
    let shared = allocate(device(0), spec.for_sharing());
    let moving = allocate(managed, spec);
    let host = allocate(pinned(), spec);
    let combined = allocate(pinned(), spec.with_write_combining());
    let none = AllocSpec::bytes(1 << 60);
    thread
        .does("allocate too much", || cuda.allocate(device(0), &none))
        .unwrap_err();
    control("fault oom@1+").unwrap();
    thread
        .does("run out of memory", || {
            cuda.allocate(device(0), &spec.for_sharing())
        })
        .unwrap_err();

    control("fault none").unwrap();

    thread
        .does("connect", || cuda.connect(device(0), device(1)))
        .unwrap();

    let theirs = own::of_device(driver, 0, 4096);
    exchange(thread, &cuda, &[&own, &shared, &moving, &host], &theirs);

    for (from, to) in [
        (&host, &own),
        (&own, &shared),
        (&combined, &other),
        (&own, &other),
        (&moving, &host),
    ] {
        let what = format!("{} to {}", from.memory(), to.memory());
        // SAFETY: the buffers are kept until it is over.
        let submit = || unsafe { cuda.submit(None, &[copy(from, to)], &[]) };
        let fence = thread.does(&format!("submit {what}"), submit).unwrap();
        thread.does(&format!("wait for {what}"), || {
            cuda.wait(fence, Duration::MAX)
        });
    }
    let small = allocate(device(0), AllocSpec::bytes(1));
    let wrong = [copy(&own, &small)];
    // SAFETY: the backend refuses the call.
    thread
        .does("submit what fits nowhere", || unsafe {
            cuda.submit(None, &wrong, &[])
        })
        .unwrap_err();

    streams(thread, &cuda, &host, &own);
    assert!(
        outcomes
            .all()
            .iter()
            .all(|outcome| *outcome == Outcome::Done)
    );
    thread.does("let buffers go", || {
        drop((own, other, shared, moving, host, combined, small))
    });
    drop(theirs);
    thread.does("let the backend go", || drop(cuda));
}

fn exchange(thread: &Thread<'_>, cuda: &Cuda, buffers: &[&Buffer], theirs: &Own) {
    for buffer in buffers {
        for kind in [
            ExternalKind::Host,
            ExternalKind::DevicePointer,
            ExternalKind::CudaIpc,
        ] {
            let what = format!("{kind} of {}", buffer.memory());
            // SAFETY: nothing writes the bytes meanwhile.
            let give = || unsafe { cuda.export(buffer, kind) };
            let given = thread.does(&format!("export {what}"), give);
            let Ok(external) = given else { continue };
            // SAFETY: the backend exported it itself.
            let take = || unsafe { cuda.import(buffer.memory(), external) };
            let view = thread.does(&format!("import {what}"), take).unwrap();
            thread.does("let a view go", || drop(view));
        }
    }
    let mut bytes = vec![0u8; 5000];
    let external = External::Host {
        span: HostSpan::of_mut(&mut bytes),
        writable: true,
        owner: Box::new(bytes),
    };
    // SAFETY: the vector keeps the bytes.
    let view = thread
        .does("register", || unsafe { cuda.import(pinned(), external) })
        .unwrap();
    thread.does("unregister", || drop(view));
    for (len_bytes, is_there) in [(theirs.len, true), (theirs.len + 1, false)] {
        let external = External::Device {
            address: theirs.address,
            len_bytes,
            writable: true,
            owner: Box::new(()),
        };
        // SAFETY: the memory outlives the buffer.
        let taken = thread.does("adopt", || unsafe { cuda.import(device(0), external) });
        assert_eq!(taken.is_ok(), is_there);
    }
}

fn streams(thread: &Thread<'_>, cuda: &Cuda, src: &Buffer, dst: &Buffer) {
    let driver = thread.driver;
    let (stream, event) = own::beside(driver, 0, || {
        let stream = theirs::stream(driver);
        (stream, theirs::record(driver, stream))
    });
    let (tell, told) = channel();
    for is_idle in [true, false] {
        let stop = (!is_idle).then(|| {
            own::beside(driver, 0, || {
                let stop = theirs::stop(driver, stream);
                // SAFETY: both are the test's.
                unsafe { driver.cuEventRecord(event, stream) }.unwrap();
                stop
            })
        });
        let [first, second] = [tell.clone(), tell.clone()];
        // SAFETY: the stream is the test's.
        let watch = || unsafe { cuda.when_done(stream, move || first.send(()).unwrap()) };
        thread.does("watch a stream", watch).unwrap();
        // SAFETY: the event is the test's.
        let watch = || unsafe { cuda.when_event(event, move || second.send(()).unwrap()) };
        thread.does("watch an event", watch).unwrap();
        if let Some(stop) = stop {
            stop.release();
        }
        told.recv().unwrap();
        told.recv().unwrap();
    }
    // SAFETY: the buffers are kept until it is over.
    let fence = unsafe { cuda.submit(None, &[copy(src, dst)], &[]) }.unwrap();
    // SAFETY: the stream is the test's.
    thread
        .does("follow", || unsafe { cuda.follow(stream, &[fence]) })
        .unwrap();
    cuda.wait(fence, Duration::MAX);
    own::beside(driver, 0, || {
        theirs::destroy_event(driver, event);
        theirs::synchronize(driver, stream);
        theirs::destroy(driver, stream);
    });
    // SAFETY: the driver reports that no such stream exists.
    thread
        .does("watch no stream", || unsafe {
            cuda.when_done(stream, || ())
        })
        .unwrap_err();
}

fn on_two_devices() -> Driver {
    driver(&[("TOPOLOGY", &machine("pcie-peer"))])
}

#[test]
fn a_thread_without_a_context_has_none_afterwards() {
    let driver = on_two_devices();
    let contexts = Vec::new();
    everything(&Thread {
        driver: &driver,
        contexts,
    });
    assert_clean();
}

#[test]
fn contexts_of_the_programs_own_stay_current_and_in_their_order() {
    let driver = on_two_devices();
    // SAFETY: flags are zero.
    unsafe { driver.cuInit(0) }.unwrap();
    let mut contexts = [0, 1, 0]
        .map(|number| own_context(&driver, number))
        .to_vec();
    contexts.reverse();
    let thread = Thread {
        driver: &driver,
        contexts: contexts.clone(),
    };
    everything(&thread);
    for context in contexts {
        destroy_context(&driver, context);
    }
    assert_clean();
}

#[test]
fn the_runtimes_context_stays_current() {
    let driver = on_two_devices();
    // SAFETY: flags are zero.
    unsafe { driver.cuInit(0) }.unwrap();
    own::beside(&driver, 1, || {
        let contexts = stack(&driver);
        everything(&Thread {
            driver: &driver,
            contexts,
        });
    });
    assert_clean();
}
