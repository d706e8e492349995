//! Runs: tensors of a file that are read together.

use transload::Conversion;

use crate::bytes::Bytes;

/// Where tensors begin in memory: at multiples of this. JAX takes host memory without a copy from 64 on, and vector
/// instructions load whole registers.
const ALIGNMENT: u64 = 64;

/// Small tensors are read together, so many bytes at most, so that the first ones arrive while the next ones are read.
pub(super) const MOST_RUN_BYTES: u64 = 16 << 20;

/// Small tensors are read together in so many pieces at most: one thread reads the pieces of a run.
const MOST_PIECES: usize = 1024;

/// Bytes of a file that are read with one transfer, to bytes that lie end to end.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) file: usize,
    /// Where they lie in the file. Between two tensors spans go on beyond the first, up to a multiple of [`ALIGNMENT`]: what
    /// lies there in memory does not matter.
    pub(super) bytes: Bytes,
    /// How they are converted.
    pub(super) conversion: Option<Conversion>,
    /// How many there are in memory.
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
}

impl Run {
    /// Adds an item of the same file, conversion and memories, whose bytes come later in the file. Returns whether it can be
    /// read with the others.
    pub(super) fn takes(
        &mut self,
        item: usize,
        (bytes, len_bytes): (&Bytes, u64),
        limits: &Limits,
    ) -> bool {
        let (pieces, last) = match &mut self.bytes {
            Bytes::Span(only) => (1, only),
            Bytes::Spans(spans) => match (spans.len(), spans.last_mut()) {
                (count, Some(last)) => (count, last),
                _ => return false,
            },
            Bytes::Strided(..) => return false,
        };
        let Bytes::Span(new) = bytes else {
            return false;
        };
        let (read, converted) = match self.conversion {
            Some(of) => (of.source_bytes(ALIGNMENT), ALIGNMENT),
            None => (1, 1),
        };
        let Some(at) = self.len_bytes.checked_next_multiple_of(ALIGNMENT) else {
            return false;
        };
        // What fills the gap in memory are whole numbers, as the gap is.
        let padded = last.end + (at - self.len_bytes) * read / converted;
        let follows = padded == new.start;
        if at.saturating_add(len_bytes) > limits.run_bytes
            || padded > limits.file_bytes
            || !(follows || pieces < MOST_PIECES)
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
        self.len_bytes = at + len_bytes;
        self.items.push((item, at));
        true
    }
}
