//! Order, waits and failures.

use std::sync::Condvar;
use std::sync::atomic::AtomicBool;

use transload_hal::{Span, Transform};

use super::*;

/// Blocks in `inspect` until it is opened; then fails, panics or succeeds.
#[derive(Default)]
pub(super) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    fault: Option<Fault>,
    panics: bool,
    reached: AtomicBool,
    seen: AtomicBool,
}

impl Gate {
    fn open(self) -> Self {
        self.let_through();
        self
    }

    pub(super) fn is_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    pub(super) fn let_through(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Opens a gate at the end of a test, even after a panic: dropping a queue waits for its running work.
pub(super) struct OpensAtLast<'a>(pub(super) &'a Gate);

impl Drop for OpensAtLast<'_> {
    fn drop(&mut self) {
        self.0.let_through();
    }
}

impl Transform for Gate {
    fn inspect(&self, _: &[u8], _: u64) -> Result<(), Fault> {
        self.reached.store(true, Ordering::Relaxed);
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
        drop(open);
        self.seen.store(true, Ordering::Relaxed);
        if self.panics {
            std::panic::resume_unwind(Box::new("scripted"));
        }
        self.fault.clone().map_or(Ok(()), Err)
    }
}

pub(super) const SLOW: u64 = 256 << 10;

pub(super) fn inspect<'a>(buffer: &'a Buffer, gate: &'a Gate) -> Op<'a> {
    Op::Transform {
        at: part(buffer, 0, SLOW).into(),
        span: Span::new(0, SLOW),
        transform: gate,
        position: 0,
    }
}

#[test]
fn a_submission_starts_only_after_its_predecessors_settled() {
    let bench = Bench::new(2);
    let [a, b, c] = [1, 2, 3].map(|seed| {
        let buffer = allocate(PAGEABLE, SLOW);
        fill(&buffer, &pattern(SLOW as usize, seed));
        buffer
    });
    let gate = Gate::default();
    let held = bench.submit(&[inspect(&a, &gate)], &[]).unwrap();
    let whole = |buffer| part(buffer, 0, SLOW);
    let first = bench
        .submit(
            &[Op::Copy {
                src: whole(&a),
                dst: whole(&b),
            }],
            &[held],
        )
        .unwrap();
    let second = bench
        .submit(
            &[Op::Copy {
                src: whole(&b),
                dst: whole(&c),
            }],
            &[held, first, Fence::immediate(HOST)],
        )
        .unwrap();
    assert_eq!(
        bench.queue.wait(second, Duration::from_millis(1)),
        Waited::TimedOut
    );
    assert!(bytes_of(&c) == pattern(SLOW as usize, 3));
    gate.let_through();
    assert_eq!(bench.wait(second), Outcome::Done);
    assert!(bytes_of(&c) == pattern(SLOW as usize, 1));
    assert_eq!(
        (bench.wait(first), bench.wait(held)),
        (Outcome::Done, Outcome::Done)
    );
}

#[test]
fn a_limited_wait_does_not_get_stuck_in_the_work_that_it_waits_for() {
    let bench = Bench::new(1);
    let buffer = allocate(PAGEABLE, SLOW);
    let (first, second) = (Gate::default(), Gate::default());
    // The one worker is busy with the first job; the second is left to the waiting thread.
    let fences =
        [&first, &second].map(|gate| bench.submit(&[inspect(&buffer, gate)], &[]).unwrap());
    for fence in fences {
        assert_eq!(
            bench.queue.wait(fence, Duration::from_millis(1)),
            Waited::TimedOut
        );
        assert_eq!(bench.queue.wait(fence, Duration::ZERO), Waited::TimedOut);
    }
    for gate in [&first, &second] {
        gate.let_through();
    }
    assert_eq!(
        fences.map(|fence| bench.wait(fence)),
        [Outcome::Done, Outcome::Done]
    );
}

#[test]
fn a_limited_wait_moves_no_byte_itself() {
    let gate = Gate::default();
    let bench = Bench::new(1);
    let _opens = OpensAtLast(&gate);
    let [src, dst] = [1, 2].map(|seed| {
        let buffer = allocate(PAGEABLE, SLOW);
        fill(&buffer, &pattern(SLOW as usize, seed));
        buffer
    });
    // The one worker is blocked, so the waiting thread moves the bytes.
    let held = bench.submit(&[inspect(&src, &gate)], &[]).unwrap();
    let copy = Op::Copy {
        src: part(&src, 0, SLOW),
        dst: part(&dst, 0, SLOW),
    };
    let fence = bench.submit(&[copy], &[]).unwrap();
    let waited = bench.queue.wait(fence, Duration::from_millis(1));
    assert_eq!(waited, Waited::TimedOut);
    assert_eq!(bench.queue.progress(fence), 0);
    assert!(bytes_of(&dst) == pattern(SLOW as usize, 2));
    gate.let_through();
    assert_eq!(bench.wait(fence), Outcome::Done);
    assert_eq!(bench.wait(held), Outcome::Done);
}

#[test]
fn a_panic_whose_payload_panics_too_fails_its_operation_alone() {
    /// Panics when it is dropped.
    struct Spiteful;
    impl Drop for Spiteful {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("scripted, too"));
        }
    }
    struct Panics;
    impl Transform for Panics {
        fn inspect(&self, _: &[u8], _: u64) -> Result<(), Fault> {
            std::panic::resume_unwind(Box::new(Spiteful));
        }
    }
    for threads in [0, 1] {
        let bench = Bench::new(threads);
        let (src, dst) = (allocate(PAGEABLE, SLOW), allocate(PAGEABLE, SLOW));
        fill(&src, &pattern(SLOW as usize, 1));
        // On the submitter and in the pool.
        for size in [64, SLOW] {
            let outcome = bench.run(Op::Transform {
                at: part(&src, 0, size).into(),
                span: Span::new(0, size),
                transform: &Panics,
                position: 0,
            });
            assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
        }
        let copy = Op::Copy {
            src: part(&src, 0, SLOW),
            dst: part(&dst, 0, SLOW),
        };
        assert_eq!(bench.run(copy), Outcome::Done);
        assert!(bytes_of(&dst) == bytes_of(&src));
    }
}

#[test]
fn a_failed_or_panicked_operation_is_told_once_and_its_successors_still_run() {
    let script = Fault::new(ErrorClass::Failed, "scripted");
    for threads in [0, 2] {
        for size in [64, SLOW] {
            for panics in [false, true] {
                let bench = Bench::new(threads);
                let (src, dst) = (allocate(PAGEABLE, SLOW), allocate(PAGEABLE, SLOW));
                fill(&src, &pattern(SLOW as usize, 1));
                let gate = Gate {
                    fault: Some(script.clone()),
                    panics,
                    ..Gate::default()
                }
                .open();
                let op = Op::Transform {
                    at: part(&src, 0, size).into(),
                    span: Span::new(0, size),
                    transform: &gate,
                    position: 0,
                };
                let bad = bench.submit(&[op], &[]).unwrap();
                let copy = Op::Copy {
                    src: part(&src, 0, SLOW),
                    dst: part(&dst, 0, SLOW),
                };
                let good = bench.submit(&[copy], &[bad]).unwrap();
                assert_eq!(bench.wait(good), Outcome::Done);
                let Outcome::Failed(fault) = bench.wait(bad) else {
                    panic!("the fault was lost")
                };
                assert_eq!(fault == script, !panics, "{fault}");
                assert!(bytes_of(&dst) == bytes_of(&src));
            }
        }
    }
}

#[test]
fn a_truncated_file_fails_with_its_path_and_the_range_that_was_wanted() {
    let bench = Bench::new(2);
    let (file, dst) = (allocate(FILE, 3 << 20), allocate(PAGEABLE, 3 << 20));
    file.native::<HostFile>()
        .unwrap()
        .raw()
        .set_len(1 << 20)
        .unwrap();
    let outcome = bench.run(Op::Copy {
        src: part(&file, 0, 3 << 20),
        dst: part(&dst, 0, 3 << 20),
    });
    let Outcome::Failed(fault) = outcome else {
        panic!("{outcome:?}")
    };
    let path = file
        .native::<HostFile>()
        .unwrap()
        .path()
        .display()
        .to_string();
    assert!(
        fault.message.contains(&path) && fault.message.contains("1048576"),
        "{fault}"
    );
    let other = allocate(FILE, 3 << 20);
    let outcome = bench.run(Op::Copy {
        src: part(&file, 0, 3 << 20),
        dst: part(&other, 0, 3 << 20),
    });
    assert!(matches!(outcome, Outcome::Failed(fault) if fault.message.contains(&path)));
}

#[test]
fn what_cannot_be_done_is_refused_whole_and_named() {
    let bench = Bench::new(2);
    let (a, b) = (allocate(PAGEABLE, 64), allocate(PAGEABLE, 64));
    fill(&a, &[7; 64]);
    let copy = Op::Copy {
        src: part(&a, 0, 64),
        dst: part(&b, 0, 64),
    };
    let uneven = Op::Copy {
        src: part(&a, 0, 63),
        dst: part(&b, 0, 64),
    };
    assert!(
        matches!(bench.submit(&[copy, uneven], &[]), Err(SubmitError::Refused(fault)) if fault.class == ErrorClass::Caller)
    );
    let outside = Op::Copy {
        src: part(&a, 1, 64),
        dst: part(&b, 0, 64),
    };
    assert!(matches!(
        bench.submit(&[copy, outside], &[]),
        Err(SubmitError::Unsupported { index: 1, .. })
    ));
    let file = allocate(FILE, 64);
    assert!(matches!(
        bench.submit(&[copy, Op::AcquireHost { buffer: &file }], &[]),
        Err(SubmitError::Unsupported { index: 1, .. })
    ));
    let stranger = Fence::new(
        transload_hal::BackendId(transload_hal::Name::constant("sim")),
        3,
    );
    assert!(matches!(
        bench.submit(&[copy], &[stranger]),
        Err(SubmitError::Refused(_))
    ));
    assert!(
        bytes_of(&b).iter().all(|byte| *byte == 0),
        "something was done before the refusal"
    );
}

#[test]
fn dropping_the_queue_completes_chains_that_nobody_waits_for() {
    for threads in [0, 1, 3] {
        let bench = Bench::new(threads);
        let buffers: Vec<_> = (0..20).map(|_| allocate(PAGEABLE, SLOW)).collect();
        fill(&buffers[0], &pattern(SLOW as usize, 4));
        let mut fence = Fence::immediate(HOST);
        for pair in buffers.windows(2) {
            let copy = Op::Copy {
                src: part(&pair[0], 0, SLOW),
                dst: part(&pair[1], 0, SLOW),
            };
            fence = bench.submit(&[copy], &[fence]).unwrap();
        }
        let told = Arc::clone(&bench.told);
        drop(bench);
        assert_eq!(told.0.lock().unwrap().len(), 19);
        assert!(bytes_of(&buffers[19]) == pattern(SLOW as usize, 4));
    }
}

#[test]
fn many_threads_submit_and_wait_at_once() {
    let bench = Bench::new(3);
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let bench = &bench;
            scope.spawn(move || {
                let (src, middle, dst) = (
                    allocate(PAGEABLE, SLOW),
                    allocate(PAGEABLE, SLOW),
                    allocate(PAGEABLE, SLOW),
                );
                for turn in 0..60 {
                    let bytes = pattern(SLOW as usize, seed * 1000 + turn);
                    fill(&src, &bytes);
                    let whole = |buffer| part(buffer, 0, SLOW);
                    let first = bench
                        .submit(
                            &[Op::Copy {
                                src: whole(&src),
                                dst: whole(&middle),
                            }],
                            &[],
                        )
                        .unwrap();
                    let second = bench
                        .submit(
                            &[Op::Copy {
                                src: whole(&middle),
                                dst: whole(&dst),
                            }],
                            &[first],
                        )
                        .unwrap();
                    assert_eq!(bench.wait(second), Outcome::Done);
                    assert_eq!(bench.wait(first), Outcome::Done);
                    assert!(bytes_of(&dst) == bytes);
                }
            });
        }
    });
}

#[test]
fn a_copy_beside_another_says_nothing_of_the_width() {
    const LEN: u64 = 1 << 20;
    let bench = Bench::new(2);
    let work = bench.queue.pool.work();
    let seen = |wide, starts| Watch {
        begin: Instant::now(),
        wide,
        starts,
    };
    // One thread was very fast, and two were slow because the processors did other work, too.
    work.record(Some(seen(false, 0)), LEN);
    let long_ago = Instant::now().checked_sub(Duration::from_secs(1));
    let slow = |starts| Watch {
        begin: long_ago.unwrap(),
        ..seen(true, starts)
    };
    work.record(Some(slow(7)), LEN);
    assert!(work.live.goes_wide(LEN));
    work.record(Some(slow(0)), LEN);
    assert!(!work.live.goes_wide(LEN));
}
