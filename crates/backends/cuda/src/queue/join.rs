//! Joins consecutive copies of adjacent ranges into one copy.

use transload_hal::{Buffer, Op, Part};

use super::Move;
use crate::gpu::Gpu;

/// The moves of independent operations: one for each, but a single one for consecutive copies of adjacent ranges. For the
/// driver, accepting a small copy takes about as long as doing it, even with many copies in one call.
///
/// Only ranges of one storage are joined, because the driver accepts no copy that reaches from one allocation into the next.
pub(crate) fn joined<'a>(gpus: &'a [Gpu], ops: &'a [Op<'a>]) -> impl Iterator<Item = Move> + 'a {
    let mut left = ops;
    std::iter::from_fn(move || {
        loop {
            let first = left.first()?;
            let (count, together) = run(gpus, left);
            left = &left[count..];
            if let Some(one) = together.or_else(|| move_of(gpus, first)) {
                return Some(one);
            }
        }
    })
}

fn move_of(gpus: &[Gpu], op: &Op<'_>) -> Option<Move> {
    Move::of(gpus, op).ok().flatten()
}

/// How many of the first operations form one copy, and that copy if they are more than one.
fn run(gpus: &[Gpu], ops: &[Op<'_>]) -> (usize, Option<Move>) {
    let later = ops.windows(2).take_while(|two| goes_on(&two[0], &two[1]));
    let count = 1 + later.count();
    let Some(Op::Copy { src, dst }) = ops.first().filter(|_| count > 1) else {
        return (1, None);
    };
    let len_bytes = ops[..count].iter().map(bytes).sum();
    let (from, to) = (src.buffer.whole(), dst.buffer.whole());
    let whole = Op::Copy {
        src: reaching(&from, src, len_bytes),
        dst: reaching(&to, dst, len_bytes),
    };
    match move_of(gpus, &whole) {
        Some(one) => (count, Some(one)),
        None => (1, None),
    }
}

fn bytes(op: &Op<'_>) -> u64 {
    match op {
        Op::Copy { src, .. } => src.len_bytes,
        _ => 0,
    }
}

/// `len_bytes` bytes from where the part begins, in a view that holds them all.
fn reaching<'a>(whole: &'a Buffer, part: &Part<'_>, len_bytes: u64) -> Part<'a> {
    Part {
        buffer: whole,
        offset: start(part),
        len_bytes,
    }
}

fn goes_on(op: &Op<'_>, next: &Op<'_>) -> bool {
    let (Op::Copy { src, dst }, Op::Copy { src: from, dst: to }) = (op, next) else {
        return false;
    };
    is_next(src, from) && is_next(dst, to)
}

fn is_next(part: &Part<'_>, next: &Part<'_>) -> bool {
    part.buffer.same_storage(next.buffer) && start(part) + part.len_bytes == start(next)
}

/// Where a part begins in its storage.
fn start(part: &Part<'_>) -> u64 {
    part.buffer.span().offset + part.offset
}
