//! The engine hands small copies over one link that are ready at the same time to their backend in one call. The
//! backend's answer to each copy concerns that copy alone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fixture::{Outcome, bytes, place, without_peers};
use transload::hal::{AllocSpec, Backend, ErrorClass};
use transload::hal::{Fault, Fence, Op, SubmitError};
use transload::model::LinkId;
use transload::{Buffer, OnFailure, Region, Request, TransferError, TransferManager};
use transload_testkit::sim::{Completion, Sim};
use transload_testkit::topology;

const COUNT: u64 = 100;
const BLOCK: u64 = 1000;

/// A backend's answer to copies that it gets in one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// It accepts each.
    All,
    /// It refuses every third as unsupported.
    RefusesSome,
    /// It gives no answer after the second.
    FallsSilent,
    /// It panics after the second.
    Panics,
}

/// A simulated machine that records how many copies it got in each call.
struct Handed {
    sim: Sim,
    answer: Answer,
    counts: Arc<Mutex<Vec<usize>>>,
}

// SAFETY: the simulated machine executes the operations and keeps the promises. Copies that the wrapper leaves out are
// neither begun nor reported.
unsafe impl Backend for Handed {
    left_to_the_sim!(inventory allocate exchange connect submit attach completes_unattended pump wait wait_any);

    unsafe fn submit_each(
        &self,
        via: LinkId,
        ops: &[Op<'_>],
        told: &mut dyn FnMut(Result<Fence, SubmitError>),
    ) {
        self.counts.lock().unwrap().push(ops.len());
        for (index, op) in ops.iter().enumerate() {
            match self.answer {
                Answer::RefusesSome if index % 3 == 2 => {
                    let fault = Fault::new(ErrorClass::Unsupported, "every third is not for it");
                    told(Err(SubmitError::Refused(fault)));
                    continue;
                }
                Answer::FallsSilent if index >= 2 => return,
                Answer::Panics if index >= 2 => panic!("simulated fault: no more"),
                _ => {}
            }
            // SAFETY: the caller keeps the same promise that the machine asks for.
            told(unsafe { self.sim.submit(Some(via), std::slice::from_ref(op), &[]) });
        }
    }
}

struct Bench {
    sim: Sim,
    manager: TransferManager,
    counts: Arc<Mutex<Vec<usize>>>,
    src: Buffer,
    dst: Buffer,
}

impl Bench {
    fn new(answer: Answer, completion: Completion) -> Bench {
        let machine = topology::from_str(&without_peers(1)).unwrap();
        let sim = Sim::builder(&machine)
            .completion(completion)
            .build()
            .unwrap();
        let counts = Arc::new(Mutex::default());
        let handed = Handed {
            sim: sim.clone(),
            answer,
            counts: Arc::clone(&counts),
        };
        let manager = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .backend(Arc::new(handed))
            .build()
            .unwrap();
        let make = |at: &str| {
            manager
                .allocate(place(at), AllocSpec::bytes(COUNT * BLOCK))
                .unwrap()
        };
        let (src, dst) = (make("cpu:0/pinned"), make("sim:0"));
        // This copy proves the link.
        manager.copy(&src, &dst).wait().unwrap();
        let sent = bytes((COUNT * BLOCK) as usize, 3);
        sim.write(src.raw(), 0, &sent).unwrap();
        Bench {
            sim,
            manager,
            counts,
            src,
            dst,
        }
    }

    /// Copies all blocks in one batch.
    fn run(&self) -> Vec<Result<transload::Report, TransferError>> {
        let block = |buffer: &Buffer, number: u64| {
            Region::from(buffer.slice(number * BLOCK..(number + 1) * BLOCK).unwrap())
        };
        let requests: Vec<_> = (0..COUNT)
            .map(|number| Request::new(block(&self.src, number), block(&self.dst, number)))
            .collect();
        let batch = self.manager.copy_batch(&requests, OnFailure::GoOn).unwrap();
        batch.wait()
    }

    fn arrived(&self, number: u64) -> bool {
        let mut got = vec![0; BLOCK as usize];
        self.sim
            .read(self.dst.raw(), number * BLOCK, &mut got)
            .unwrap();
        let sent = bytes((COUNT * BLOCK) as usize, 3);
        got == sent[(number * BLOCK) as usize..][..BLOCK as usize]
    }
}

#[test]
fn copies_of_a_batch_are_handed_over_many_at_a_time() -> Outcome {
    for completion in [Completion::AtOnce, Completion::Timed] {
        let bench = Bench::new(Answer::All, completion);
        for report in bench.run() {
            report?;
        }
        assert!((0..COUNT).all(|number| bench.arrived(number)));
        let counts = bench.counts.lock().unwrap();
        assert_eq!(counts.iter().sum::<usize>() as u64, COUNT, "{counts:?}");
        assert!(counts.len() < 10, "{counts:?}");
        assert!(bench.sim.violations().is_empty());
    }
    Ok(())
}

#[test]
fn a_copy_that_is_refused_among_others_fails_alone() {
    let bench = Bench::new(Answer::RefusesSome, Completion::Timed);
    let mut refused = 0;
    for (number, report) in bench.run().into_iter().enumerate() {
        match report {
            Ok(_) => assert!(bench.arrived(number as u64), "{number}"),
            Err(error) => {
                assert!(
                    error.to_string().ends_with("every third is not for it"),
                    "{error}"
                );
                refused += 1;
            }
        }
    }
    let counts = bench.counts.lock().unwrap();
    let thirds = counts.iter().map(|count| count / 3);
    assert_eq!(refused, thirds.sum::<usize>(), "{counts:?}");
    assert!(refused > 0 && bench.sim.violations().is_empty());
}

#[test]
fn a_backend_that_leaves_copies_unanswered_has_refused_them() {
    for answer in [Answer::FallsSilent, Answer::Panics] {
        let bench = Bench::new(answer, Completion::Timed);
        for (number, report) in bench.run().into_iter().enumerate() {
            match report {
                Ok(_) => assert!(bench.arrived(number as u64), "{answer:?}, {number}"),
                Err(error) => assert_eq!(error.class(), ErrorClass::Failed, "{answer:?}: {error}"),
            }
        }
        // The engine is idle again.
        assert!(bench.manager.wait_idle_timeout(Duration::from_secs(600)));
        bench.manager.clear_cache();
        bench.manager.copy(&bench.src, &bench.dst).wait().unwrap();
        assert!((0..COUNT).all(|number| bench.arrived(number)));
        assert!(bench.sim.violations().is_empty());
    }
}
