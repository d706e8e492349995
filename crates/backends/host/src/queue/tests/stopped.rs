//! Stopping operations, and their progress.

use transload_hal::{Layout, Shape, Span};

use super::outcomes::{Gate, OpensAtLast, SLOW, inspect};
use super::*;

/// Two buffers of that length with different bytes.
fn pair(len_bytes: u64) -> (Buffer, Buffer) {
    let (src, dst) = (allocate(PAGEABLE, len_bytes), allocate(PAGEABLE, len_bytes));
    let bytes = pattern(len_bytes as usize, 1);
    fill(&src, &bytes);
    fill(&dst, &bytes.iter().map(|byte| !byte).collect::<Vec<_>>());
    (src, dst)
}

fn whole<'a>((src, dst): &'a (Buffer, Buffer)) -> Op<'a> {
    Op::Copy {
        src: part(src, 0, src.len()),
        dst: part(dst, 0, dst.len()),
    }
}

fn stopped(leading_bytes: u64) -> Outcome {
    Outcome::Stopped { leading_bytes }
}

/// Stops an operation once that many bytes have moved. Returns its outcome.
fn stop_at(bench: &Bench, op: Op<'_>, len_bytes: u64, moved_bytes: u64) -> u64 {
    let fence = bench.submit(&[op], &[]).unwrap();
    let mut before = 0;
    while bench.told.outcome(fence).is_none() {
        let now = bench.queue.progress(fence);
        assert!(now <= len_bytes, "{now} of {len_bytes} bytes");
        let settled = bench.told.outcome(fence).is_some();
        assert!(now >= before || settled, "{before}, then {now}");
        before = now;
        if now >= moved_bytes {
            break;
        }
        std::thread::yield_now();
    }
    let known = bench.queue.stop(fence);
    let leading = match bench.wait(fence) {
        Outcome::Stopped { leading_bytes } => leading_bytes,
        outcome => {
            assert_eq!(outcome, Outcome::Done);
            len_bytes
        }
    };
    assert!(known <= leading, "{known} leading bytes, then {leading}");
    assert_eq!(
        (bench.queue.stop(fence), bench.queue.progress(fence)),
        (0, 0)
    );
    leading
}

#[test]
fn a_stopped_copy_has_as_many_leading_bytes_as_it_tells() {
    const LEN: u64 = (24 << 20) + 5;
    for threads in [1, 3] {
        let bench = Bench::new(threads);
        for round in 0..12 {
            let pair = pair(LEN);
            let leading = stop_at(&bench, whole(&pair), LEN, round * LEN / 12);
            let leading = leading as usize;
            assert!(bytes_of(&pair.1)[..leading] == bytes_of(&pair.0)[..leading]);
        }
    }
}

#[test]
fn leading_bytes_of_rows_are_payload() {
    let shape = Shape::pitched(3000, 1000, 4096).unwrap();
    let payload = shape.payload_bytes();
    let bench = Bench::new(2);
    for round in 0..4 {
        let (src, dst) = pair(shape.extent_bytes());
        let at = |buffer| Layout {
            buffer,
            offset: 0,
            shape,
        };
        let op = Op::Pitched {
            src: at(&src),
            dst: at(&dst),
            span: Span::new(0, payload),
        };
        let leading = stop_at(&bench, op, payload, round * payload / 4);
        let (from, to) = (bytes_of(&src), bytes_of(&dst));
        for run in shape.runs(0, &shape, 0, Span::new(0, leading)) {
            let range = run.offset as usize..(run.offset + run.len_bytes) as usize;
            assert!(from[range.clone()] == to[range]);
        }
    }
}

#[test]
fn a_copy_that_has_not_begun_moves_nothing_once_it_is_stopped() {
    let gate = Gate::default();
    let pairs = [(); 4].map(|()| pair(SLOW));
    let bench = Bench::new(1);
    let _opens = OpensAtLast(&gate);
    let held = bench.submit(&[inspect(&pairs[0].0, &gate)], &[]).unwrap();
    while !gate.is_reached() {
        std::thread::yield_now();
    }
    // One operation waits for a thread, two wait for a predecessor, and one for a stopped operation.
    let ready = bench.submit(&[whole(&pairs[0])], &[]).unwrap();
    let blocked = bench.submit(&[whole(&pairs[1])], &[held]).unwrap();
    let after = bench.submit(&[whole(&pairs[2])], &[blocked]).unwrap();
    let other = bench.submit(&[whole(&pairs[3])], &[held]).unwrap();
    for fence in [ready, blocked, other] {
        assert_eq!(bench.queue.stop(fence), 0);
        assert_eq!(bench.queue.stop(fence), 0, "again");
    }
    let settled = |fence| bench.told.outcome(fence);
    assert_eq!(settled(ready), Some(stopped(0)), "no thread had begun it");
    assert_eq!((settled(blocked), settled(held)), (None, None));
    gate.let_through();
    for fence in [blocked, other] {
        assert_eq!(bench.wait(fence), stopped(0));
    }
    assert_eq!(
        (bench.wait(after), bench.wait(held)),
        (Outcome::Done, Outcome::Done)
    );
    for at in [0, 1, 3] {
        let poison = bytes_of(&pair(SLOW).1);
        assert!(bytes_of(&pairs[at].1) == poison, "pair {at}");
    }
    assert!(bytes_of(&pairs[2].1) == bytes_of(&pairs[2].0));
}

#[test]
fn several_operations_have_no_leading_bytes() {
    const LEN: u64 = 8 << 20;
    let bench = Bench::new(1);
    let pairs = [(); 2].map(|()| pair(LEN));
    let fence = bench
        .submit(&[whole(&pairs[0]), whole(&pairs[1])], &[])
        .unwrap();
    while bench.told.outcome(fence).is_none() && bench.queue.progress(fence) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(bench.queue.stop(fence), 0);
    let outcome = bench.wait(fence);
    assert!(
        [Outcome::Done, stopped(0)].contains(&outcome),
        "{outcome:?}"
    );
}

#[test]
fn what_has_one_piece_runs_to_its_end() {
    let gate = Gate::default();
    let (src, _) = pair(SLOW);
    let bench = Bench::new(1);
    let _opens = OpensAtLast(&gate);
    let fence = bench.submit(&[inspect(&src, &gate)], &[]).unwrap();
    while !gate.is_reached() {
        std::thread::yield_now();
    }
    assert_eq!(
        (bench.queue.stop(fence), bench.queue.progress(fence)),
        (0, 0)
    );
    assert_eq!(bench.told.outcome(fence), None, "it is under way");
    gate.let_through();
    assert_eq!(bench.wait(fence), Outcome::Done);
}

#[test]
fn a_failure_is_told_though_the_operation_was_stopped() {
    let bench = Bench::new(1);
    let (file, dst) = (allocate(FILE, 8 << 20), allocate(PAGEABLE, 8 << 20));
    let raw = file.native::<HostFile>().unwrap().raw();
    raw.set_len(0).unwrap();
    let copy = Op::Copy {
        src: part(&file, 0, 8 << 20),
        dst: part(&dst, 0, 8 << 20),
    };
    for _ in 0..20 {
        let fence = bench.submit(&[copy], &[]).unwrap();
        assert_eq!(bench.queue.stop(fence), 0);
        // No piece has begun, or the first piece found that the file is too short.
        let outcome = bench.wait(fence);
        let expected = outcome == stopped(0) || matches!(outcome, Outcome::Failed(_));
        assert!(expected, "{outcome:?}");
    }
}

#[test]
fn fences_that_are_not_there_are_ignored() {
    let bench = Bench::new(1);
    for number in [0, 1, 77, 1 << 14, 1 << 63, u64::MAX] {
        let fence = Fence::new(HOST, number);
        assert_eq!(
            (bench.queue.stop(fence), bench.queue.progress(fence)),
            (0, 0)
        );
    }
    // The slot is used again, and the fence of its first use stops nothing.
    let pairs = [pair(SLOW), pair(SLOW)];
    let first = bench.submit(&[whole(&pairs[0])], &[]).unwrap();
    assert_eq!(bench.wait(first), Outcome::Done);
    let second = bench.submit(&[whole(&pairs[1])], &[]).unwrap();
    assert_eq!(
        (bench.queue.stop(first), bench.queue.progress(first)),
        (0, 0)
    );
    assert_eq!(bench.wait(second), Outcome::Done);
}
