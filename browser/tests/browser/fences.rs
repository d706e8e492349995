//! The backend alone, called as the engine calls it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use transload::hal::{
    Backend, CompletionSink, ErrorClass, Fence, MemoryKind, Op, Outcome, Part, SubmitError, Waited,
};
use transload::{AllocSpec, model::DeviceId};
use transload_wgpu::Wgpu;
use wasm_bindgen_test::wasm_bindgen_test;

use crate::page::done;

/// Outcomes, in the order of their reports.
#[derive(Default)]
struct Heard(Mutex<Vec<(Fence, Outcome)>>);

impl CompletionSink for Heard {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        self.0.lock().unwrap().push((fence, outcome));
    }
}

/// The backend reads host memory when a copy is submitted, and writes it when the browser has mapped the result. A copy
/// of host memory must therefore wait for copies in flight.
#[wasm_bindgen_test]
async fn a_copy_of_the_hosts_does_not_go_before_what_it_is_to_come_after() {
    let backend = Wgpu::request().await.unwrap();
    let heard = Arc::new(Heard::default());
    assert!(backend.attach(heard.clone()));
    let id: DeviceId = "wgpu:0".parse().unwrap();
    let (_, queue) = backend.handles(id).unwrap();
    let spec = AllocSpec::bytes(64);
    let there = [(); 2].map(|()| backend.allocate(id.memory(MemoryKind::Device), &spec));
    let there = there.map(Result::unwrap);
    let host = transload::host::Host::new();
    let pageable = DeviceId::CPU0.memory(MemoryKind::Pageable);
    let here = host.allocate(pageable, &spec).unwrap();
    let part = |buffer| Part {
        buffer,
        offset: 0,
        len_bytes: 64,
    };
    let copy = |src, dst| Op::Copy {
        src: part(src),
        dst: part(dst),
    };
    // SAFETY: all operands are in bounds and alive, and no code touches them until the end of the test, which awaits
    // the accepted copies.
    let submit = |op: Op<'_>, after: &[Fence]| unsafe { backend.submit(None, &[op], after) };

    let first = submit(copy(&there[0], &there[1]), &[]).unwrap();
    assert!(!first.is_immediate());
    assert_eq!(
        backend.wait(first, Duration::from_secs(3600)),
        Waited::TimedOut
    );
    for op in [copy(&there[1], &here), copy(&here, &there[0])] {
        let Err(SubmitError::Refused(fault)) = submit(op, &[first]) else {
            panic!("it was accepted");
        };
        assert_eq!(fault.class, ErrorClass::Unsupported);
    }
    // The second copy stays in the queue, and so follows the first one anyway.
    let second = submit(copy(&there[1], &there[0]), &[first]).unwrap();
    while heard.0.lock().unwrap().len() < 2 {
        done(&queue).await;
    }
    let both = [(first, Outcome::Done), (second, Outcome::Done)];
    assert_eq!(*heard.0.lock().unwrap(), both);
    assert_eq!(backend.wait(first, Duration::ZERO), Waited::Settled);

    let third = submit(copy(&there[1], &here), &[first]).unwrap();
    while heard.0.lock().unwrap().len() < 3 {
        done(&queue).await;
    }
    assert_eq!(heard.0.lock().unwrap()[2], (third, Outcome::Done));
}
