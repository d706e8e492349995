//! Runs: tensors of a file that are read together.

use std::ops::Range;

use crate::TensorInfo;

/// Where tensors begin in memory: at multiples of this. JAX takes host memory without a copy from 64 on, and vector
/// instructions load whole registers.
const ALIGNMENT: u64 = 64;

/// Small tensors are read together, so many bytes at most, so that the first ones arrive while the next ones are read.
pub(super) const MOST_RUN_BYTES: u64 = 16 << 20;

/// Bytes of a file that are read with one transfer, to bytes that lie end to end.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) file: usize,
    /// The pieces of the file. Between two tensors they go on beyond the first, up to a multiple of [`ALIGNMENT`]: what
    /// lies there in memory does not matter.
    pub(super) pieces: Vec<Range<u64>>,
    pub(super) len_bytes: u64,
    /// The numbers of the memories that get the bytes.
    pub(super) memories: Vec<usize>,
    /// The numbers of the tensors, and where each begins in the run.
    pub(super) tensors: Vec<(usize, u64)>,
}

impl Run {
    pub(super) fn of(number: usize, tensor: &TensorInfo, memories: Vec<usize>) -> Run {
        let bytes = tensor.offset..tensor.offset + tensor.len_bytes;
        Run {
            file: tensor.file,
            pieces: vec![bytes],
            len_bytes: tensor.len_bytes,
            memories,
            tensors: vec![(number, 0)],
        }
    }

    /// Adds a tensor that comes later in the file. Returns whether it can be read with the others.
    pub(super) fn takes(
        &mut self,
        number: usize,
        tensor: &TensorInfo,
        (file_bytes, most_bytes, most_pieces): (u64, u64, usize),
    ) -> bool {
        let pieces = self.pieces.len();
        let Some(last) = self.pieces.last_mut() else {
            return false;
        };
        let at = self.len_bytes.next_multiple_of(ALIGNMENT);
        let padded = last.end + (at - self.len_bytes);
        let follows = padded == tensor.offset;
        if tensor.file != self.file
            || at + tensor.len_bytes > most_bytes
            || padded > file_bytes
            || !(follows || pieces < most_pieces)
        {
            return false;
        }
        let end = tensor.offset + tensor.len_bytes;
        last.end = padded;
        match follows {
            true => last.end = end,
            false => self.pieces.push(tensor.offset..end),
        }
        self.len_bytes = at + tensor.len_bytes;
        self.tensors.push((number, at));
        true
    }

    /// Returns where the bytes to read end in the file.
    pub(super) fn end(&self) -> u64 {
        let ends = self.pieces.iter().map(|piece| piece.end);
        ends.max().unwrap_or(0)
    }
}
