//! The bytes that operations move.

use transload_hal::{Advice, Axis, Conversion, Element, Layout, Shape, Span, Strided, View};

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

/// Copies from one array to another, either end with its bytes end to end where `None`, and compares all of the destination.
fn check_strided(
    memories: (MemoryId, MemoryId),
    arrays: [Option<Strided>; 2],
    conversion: Option<Conversion>,
    span: Span,
) {
    let bench = Bench::new(2);
    let sizes = conversion.map_or([1; 2], |of| {
        [of.from(), of.to()].map(|of| of.len_bytes() as usize)
    });
    let source_bytes = |bytes: u64| conversion.map_or(bytes, |of| of.source_bytes(bytes));
    let lengths = [source_bytes(span.len), span.len];
    let [src, dst] = [0, 1].map(|end| {
        let memory = [memories.0, memories.1][end];
        allocate(
            memory,
            3 + arrays[end].map_or(lengths[end], |of| of.extent_bytes()),
        )
    });
    let bytes = pattern(src.len() as usize, 1);
    let mut wanted = pattern(dst.len() as usize, 2);
    fill(&src, &bytes);
    fill(&dst, &wanted);
    let firsts = [source_bytes(span.offset), span.offset];
    for number in 0..span.len as usize / sizes[1] {
        let [from, to] = [0, 1].map(|end| {
            let at = (number * sizes[end]) as u64;
            3 + arrays[end].map_or(at, |of| of.locate(firsts[end] + at).0) as usize
        });
        let (read, place) = (
            &bytes[from..from + sizes[0]],
            &mut wanted[to..to + sizes[1]],
        );
        match conversion {
            None => place.copy_from_slice(read),
            // SAFETY: one number lies within both.
            Some(of) => unsafe {
                crate::raw::convert(
                    place.as_mut_ptr(),
                    read.as_ptr(),
                    1,
                    of,
                    crate::raw::Store::Plain,
                );
            },
        }
    }
    let view = |end: usize, buffer| View {
        buffer,
        offset: 3,
        array: arrays[end].as_ref(),
    };
    let op = Op::Strided {
        src: view(0, &src),
        dst: view(1, &dst),
        span,
        conversion,
    };
    assert_eq!(bench.run(op), Outcome::Done);
    assert!(
        bytes_of(&dst) == wanted,
        "{memories:?} {arrays:?} {conversion:?} {span:?}"
    );
}

#[test]
fn elements_at_strides_go_to_their_places_in_every_memory() {
    let array = |element, axes: &[(u64, i64)]| {
        let axes: Vec<Axis> = axes
            .iter()
            .map(|(count, stride)| Axis::new(*count, *stride))
            .collect();
        Some(Strided::new(element, &axes).unwrap())
    };
    let element = 4;
    let pairs = [
        // Transposed, to one piece and to rows with gaps.
        [array(element, &[(300, 4), (200, 1200)]), None],
        [
            array(element, &[(300, 4), (200, 1200)]),
            array(element, &[(300, 1000), (200, 4)]),
        ],
        // Backwards, and scattered.
        [None, array(element, &[(60_000, -8)])],
        [
            array(element, &[(20, -12_000), (30, 400), (100, -4)]),
            array(element, &[(20, 13), (30, 600), (100, 20_000)]),
        ],
        // Dimensions that do not divide each other.
        [
            array(element, &[(600, 420), (100, 4)]),
            array(element, &[(400, 640), (150, 4)]),
        ],
    ];
    let all = 240_000;
    let conversion = Conversion::new(Element::F32, Element::BF16).unwrap();
    for pair in pairs {
        for (from, to) in memories().into_iter().zip(memories().into_iter().rev()) {
            // A file that is written element by element takes a system call for each.
            let len = if to == FILE { 4_000 } else { all };
            for span in [Span::new(0, len), Span::new(1_001, len / 2)] {
                check_strided((from, to), pair, None, span);
            }
            // The destination's numbers are half as wide.
            let halved = pair[1].map(|of| {
                let axes: Vec<Axis> = of
                    .axes()
                    .iter()
                    .map(|axis| Axis::new(axis.count, axis.stride_bytes))
                    .collect();
                Strided::new(of.element_bytes() / 2, &axes).unwrap()
            });
            check_strided(
                (from, to),
                [pair[0], halved],
                Some(conversion),
                Span::new(320, len / 4),
            );
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
