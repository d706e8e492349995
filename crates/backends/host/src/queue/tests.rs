use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex};

use transload_hal::{
    Advice, AllocSpec, Buffer, HostSpan, Layout, MemoryId, Part, Shape, Span, Transform,
};

use super::*;
use crate::memory::file::HostFile;
use crate::memory::{self, FILE, PAGEABLE, SHARED};

/// Keeps what was told, and fails when something is told twice.
#[derive(Default)]
struct Told(Mutex<HashMap<u64, Outcome>>);

impl CompletionSink for Told {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        let before = self.0.lock().unwrap().insert(fence.number(), outcome);
        assert_eq!(before, None, "{fence:?} was told twice");
    }
}

impl Told {
    fn outcome(&self, fence: Fence) -> Option<Outcome> {
        if fence.is_settled() {
            Some(Outcome::Done)
        } else {
            self.0.lock().unwrap().get(&fence.number()).cloned()
        }
    }
}

struct Bench {
    queue: Queue,
    told: Arc<Told>,
}

impl Bench {
    /// A queue with that many threads, which runs copies below 64 KiB inline.
    fn new(threads: u32) -> Self {
        let band = |from_bytes, store| crate::tuning::Band {
            from_bytes,
            threads: 3,
            store,
        };
        let tuning = Tuning {
            inline_below_bytes: 64 << 10,
            bands: vec![
                band(1 << 10, crate::raw::Store::Plain),
                band(1 << 20, crate::raw::Store::Streaming),
            ],
        };
        let queue = Queue::new(
            tuning,
            Limits {
                threads,
                ..Limits::default()
            },
        );
        let told = Arc::new(Told::default());
        queue.attach(Arc::clone(&told) as Arc<dyn CompletionSink>);
        Self { queue, told }
    }

    fn submit(&self, ops: &[Op<'_>], after: &[Fence]) -> Result<Fence, SubmitError> {
        // SAFETY: every test waits for its fences, or drops the bench, before its buffers go.
        unsafe { self.queue.submit(ops, after) }
    }

    fn run(&self, op: Op<'_>) -> Outcome {
        let fence = self.submit(&[op], &[]).unwrap();
        self.wait(fence)
    }

    fn wait(&self, fence: Fence) -> Outcome {
        assert_eq!(self.queue.wait(fence, Duration::MAX), Waited::Settled);
        self.told.outcome(fence).expect("a settled fence was told")
    }
}

fn allocate(memory: MemoryId, len_bytes: u64) -> Buffer {
    memory::allocate(memory, &AllocSpec::bytes(len_bytes)).unwrap()
}

fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i ^ seed).wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect()
}

/// Sets a buffer's bytes by another way than the queue's.
fn fill(buffer: &Buffer, bytes: &[u8]) {
    match buffer.host(0, bytes.len() as u64) {
        // SAFETY: the test has the buffer to itself.
        Some(span) => unsafe { HostSpan::of(bytes).copy_to(span) },
        None => {
            use std::io::{Seek, SeekFrom, Write};
            let mut file = buffer.native::<HostFile>().unwrap().file();
            file.seek(SeekFrom::Start(buffer.position())).unwrap();
            file.write_all(bytes).unwrap();
        }
    }
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    match buffer.host(0, buffer.len()) {
        // SAFETY: the test has the buffer to itself.
        Some(span) => unsafe { span.as_slice() }.to_vec(),
        None => {
            use std::io::{Read, Seek, SeekFrom};
            let mut file = buffer.native::<HostFile>().unwrap().file();
            file.seek(SeekFrom::Start(buffer.position())).unwrap();
            let mut bytes = vec![0; buffer.len() as usize];
            file.read_exact(&mut bytes).unwrap();
            bytes
        }
    }
}

fn part(buffer: &Buffer, offset: u64, len_bytes: u64) -> Part<'_> {
    Part {
        buffer,
        offset,
        len_bytes,
    }
}

fn memories() -> Vec<MemoryId> {
    let all = [
        (PAGEABLE, true),
        (SHARED, memory::HAS_SHARED),
        (FILE, memory::HAS_FILES),
    ];
    all.into_iter()
        .filter(|(_, here)| *here)
        .map(|(memory, _)| memory)
        .collect()
}

#[test]
fn copies_between_all_memories_move_just_their_bytes_at_every_boundary_size() {
    let bench = Bench::new(2);
    for src_memory in memories() {
        for dst_memory in memories() {
            for len in [
                0usize,
                1,
                63,
                4097,
                65_535,
                65_536,
                65_537,
                1_000_003,
                3 << 20,
            ] {
                let (src, dst) = (
                    allocate(src_memory, len as u64 + 9),
                    allocate(dst_memory, len as u64 + 20),
                );
                let bytes = pattern(len + 9, 1);
                let mut wanted = pattern(len + 20, 2);
                fill(&src, &bytes);
                fill(&dst, &wanted);
                wanted[11..11 + len].copy_from_slice(&bytes[5..5 + len]);
                let len = len as u64;
                let outcome = bench.run(Op::Copy {
                    src: part(&src, 5, len),
                    dst: part(&dst, 11, len),
                });
                assert_eq!(outcome, Outcome::Done);
                assert!(
                    bytes_of(&dst) == wanted,
                    "{src_memory} to {dst_memory}, {len} bytes"
                );
            }
        }
    }
}

#[test]
fn overlapping_copies_in_one_storage_equal_copies_through_a_temporary() {
    let bench = Bench::new(2);
    for memory in memories() {
        for (from, to) in [(0u64, 100u64), (100, 0), (0, 300_000), (300_000, 0), (7, 7)] {
            let len = 700_001u64;
            let buffer = allocate(memory, len + 300_000);
            let mut wanted = pattern(buffer.len() as usize, 3);
            fill(&buffer, &wanted);
            wanted.copy_within(from as usize..(from + len) as usize, to as usize);
            let outcome = bench.run(Op::Copy {
                src: part(&buffer, from, len),
                dst: part(&buffer, to, len),
            });
            assert_eq!(outcome, Outcome::Done);
            assert!(bytes_of(&buffer) == wanted, "{memory}: {from} to {to}");
        }
    }
}

#[test]
fn pitched_copies_move_rows_and_leave_gaps_in_every_memory() {
    let bench = Bench::new(2);
    let shapes = [
        (
            Shape::pitched_3d(300, 40, 512, 9, 40 * 512 + 64).unwrap(),
            Shape::contiguous(300 * 40 * 9),
        ),
        (
            Shape::pitched(5000, 50, 5000).unwrap(),
            Shape::pitched(5000, 50, 8192).unwrap(),
        ),
    ];
    for (src_shape, dst_shape) in shapes {
        for (src_memory, dst_memory) in memories().into_iter().zip(memories().into_iter().rev()) {
            let src = allocate(src_memory, src_shape.extent_bytes());
            let dst = allocate(dst_memory, dst_shape.extent_bytes());
            let bytes = pattern(src.len() as usize, 1);
            let mut wanted = pattern(dst.len() as usize, 2);
            fill(&src, &bytes);
            fill(&dst, &wanted);
            let span = Span::new(101, src_shape.payload_bytes() - 150);
            for run in src_shape.runs(0, &dst_shape, 0, span) {
                let (from, to, len) = (
                    run.offset as usize,
                    run.other_offset as usize,
                    run.len_bytes as usize,
                );
                wanted[to..to + len].copy_from_slice(&bytes[from..from + len]);
            }
            let layout = |buffer, shape| Layout {
                buffer,
                offset: 0,
                shape,
            };
            let op = Op::Pitched {
                src: layout(&src, src_shape),
                dst: layout(&dst, dst_shape),
                span,
            };
            assert_eq!(bench.run(op), Outcome::Done);
            assert!(bytes_of(&dst) == wanted, "{src_memory} to {dst_memory}");
        }
    }
}

#[test]
fn small_copies_are_settled_when_submit_returns_and_are_never_told() {
    let bench = Bench::new(2);
    let (src, dst) = (allocate(PAGEABLE, 4096), allocate(PAGEABLE, 4096));
    fill(&src, &pattern(4096, 1));
    let op = Op::Copy {
        src: part(&src, 0, 4096),
        dst: part(&dst, 0, 4096),
    };
    let fence = bench
        .submit(
            &[
                op,
                Op::MakeVisible {
                    part: part(&dst, 0, 4096),
                },
            ],
            &[],
        )
        .unwrap();
    assert!(fence.is_settled());
    assert!(bytes_of(&dst) == bytes_of(&src));
    assert!(bench.told.0.lock().unwrap().is_empty());
    assert_eq!(bench.queue.wait(fence, Duration::ZERO), Waited::Settled);
}

/// Blocks in `inspect` until it is opened; then fails, panics or is content.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    fault: Option<Fault>,
    panics: bool,
    seen: AtomicBool,
}

impl Gate {
    fn open(self) -> Self {
        *self.open.lock().unwrap() = true;
        self
    }
}

impl Transform for Gate {
    fn inspect(&self, _: &[u8], _: u64) -> Result<(), Fault> {
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

const SLOW: u64 = 256 << 10;

fn inspect<'a>(buffer: &'a Buffer, gate: &'a Gate) -> Op<'a> {
    Op::Transform {
        part: part(buffer, 0, SLOW),
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
            &[held, first, Fence::settled(BACKEND)],
        )
        .unwrap();
    assert_eq!(
        bench.queue.wait(second, Duration::from_millis(1)),
        Waited::TimedOut
    );
    assert!(bytes_of(&c) == pattern(SLOW as usize, 3));
    *gate.open.lock().unwrap() = true;
    gate.opened.notify_all();
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
    // The one worker is busy with the first; the second is there for whoever waits.
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
        *gate.open.lock().unwrap() = true;
        gate.opened.notify_all();
    }
    assert_eq!(
        fences.map(|fence| bench.wait(fence)),
        [Outcome::Done, Outcome::Done]
    );
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
                    part: part(&src, 0, size),
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
        .file()
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
fn hints_change_no_byte_anywhere() {
    let bench = Bench::new(2);
    for memory in memories() {
        for len in [0u64, 1, 100_000, 5 << 20] {
            let buffer = allocate(memory, len);
            let bytes = pattern(len as usize, 9);
            fill(&buffer, &bytes);
            let part = part(&buffer, 0, len);
            let mut hints = vec![
                Op::Prefetch {
                    part,
                    to: transload_hal::DeviceId::CPU0,
                },
                Op::MakeVisible { part },
            ];
            let advices = [
                Advice::Sequential,
                Advice::Random,
                Advice::WillNeed,
                Advice::DontNeed,
            ];
            hints.extend(advices.map(|advice| Op::Advise { part, advice }));
            for op in hints {
                assert_eq!(bench.run(op), Outcome::Done);
            }
            assert!(bytes_of(&buffer) == bytes, "{memory}, {len} bytes");
        }
    }
}

#[test]
fn dropping_the_queue_completes_chains_that_nobody_waits_for() {
    for threads in [0, 1, 3] {
        let bench = Bench::new(threads);
        let buffers: Vec<_> = (0..20).map(|_| allocate(PAGEABLE, SLOW)).collect();
        fill(&buffers[0], &pattern(SLOW as usize, 4));
        let mut fence = Fence::settled(BACKEND);
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
