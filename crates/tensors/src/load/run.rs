//! Runs: tensors of a file that are read together.

use super::part::Bytes;

/// Where tensors begin in memory: at multiples of this. JAX takes host memory without a copy from 64 on, and vector
/// instructions load whole registers.
const ALIGNMENT: u64 = 64;

/// Small tensors are read together, so many bytes at most, so that the first ones arrive while the next ones are read.
pub(super) const MOST_RUN_BYTES: u64 = 16 << 20;

/// Bytes of a file that are read with one transfer, to bytes that lie end to end.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) file: usize,
    /// Where they lie in the file. Between two tensors spans go on beyond the first, up to a multiple of [`ALIGNMENT`]: what
    /// lies there in memory does not matter.
    pub(super) bytes: Bytes,
    pub(super) len_bytes: u64,
    /// The numbers of the memories that get the bytes.
    pub(super) memories: Vec<usize>,
    /// The numbers of the items, and where each begins in the run.
    pub(super) items: Vec<(usize, u64)>,
}

/// What limits a run.
pub(super) struct Limits {
    /// The length of the file.
    pub(super) file_bytes: u64,
    pub(super) run_bytes: u64,
    pub(super) pieces: usize,
}

impl Run {
    pub(super) fn new(item: usize, file: usize, bytes: Bytes, memories: Vec<usize>) -> Run {
        Run {
            file,
            len_bytes: bytes.len_bytes(),
            bytes,
            memories,
            items: vec![(item, 0)],
        }
    }

    /// Adds an item of the same file, whose bytes come later there. Returns whether it can be read with the others.
    pub(super) fn takes(&mut self, item: usize, bytes: &Bytes, limits: &Limits) -> bool {
        let (pieces, last) = match &mut self.bytes {
            Bytes::Span(only) => (1, only),
            Bytes::Spans(spans) => match (spans.len(), spans.last_mut()) {
                (count, Some(last)) => (count, last),
                _ => return false,
            },
            Bytes::Rows(..) => return false,
        };
        let Bytes::Span(new) = bytes else {
            return false;
        };
        let at = self.len_bytes.next_multiple_of(ALIGNMENT);
        let padded = last.end + (at - self.len_bytes);
        let follows = padded == new.start;
        if at + (new.end - new.start) > limits.run_bytes
            || padded > limits.file_bytes
            || !(follows || pieces < limits.pieces)
        {
            return false;
        }
        last.end = padded;
        match follows {
            true => last.end = new.end,
            false => {
                let last = last.clone();
                match &mut self.bytes {
                    Bytes::Spans(spans) => spans.push(new.clone()),
                    all => *all = Bytes::Spans(vec![last, new.clone()]),
                }
            }
        }
        self.len_bytes = at + (new.end - new.start);
        self.items.push((item, at));
        true
    }
}
