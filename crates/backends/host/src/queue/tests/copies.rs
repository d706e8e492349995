//! The bytes that operations move.

use transload_hal::{Advice, Layout, Shape, Span};

use super::*;

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
    assert!(fence.is_immediate());
    assert!(bytes_of(&dst) == bytes_of(&src));
    assert!(bench.told.0.lock().unwrap().is_empty());
    assert_eq!(bench.queue.wait(fence, Duration::ZERO), Waited::Settled);
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
