//! A part of a payload as a few shapes.

use super::Shape;
use crate::Span;

/// Some of a shape's payload, as a shape of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Where the block starts, relative to the first byte of the whole shape.
    pub offset: u64,
    /// The block. Its payload is never empty.
    pub shape: Shape,
    /// Which payload byte of the whole shape its first one is.
    pub position: u64,
}

/// Iterates over the [`Block`]s of a span; made by [`Shape::blocks`]. Allocates nothing.
#[derive(Clone, Debug)]
pub struct Blocks {
    shape: Shape,
    at: u64,
    end: u64,
}

impl Blocks {
    pub(super) fn new(shape: Shape, span: Span) -> Blocks {
        let payload = shape.payload_bytes();
        Blocks {
            shape,
            at: span.offset.min(payload),
            end: span.end().unwrap_or(u64::MAX).min(payload),
        }
    }
}

impl Iterator for Blocks {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        if self.at >= self.end {
            return None;
        }
        let whole = &self.shape;
        let (offset, left_in_row) = whole.locate(self.at);
        let left = self.end - self.at;
        let width = whole.width_bytes;
        let shape = if left_in_row < width || left < width {
            Shape::contiguous(left_in_row.min(left))
        } else {
            let row = self.at / width % whole.rows;
            let rows = left / width;
            let (rows, planes) = if row > 0 || rows < whole.rows {
                (rows.min(whole.rows - row), 1)
            } else {
                (whole.rows, rows / whole.rows)
            };
            Shape {
                rows,
                planes,
                ..*whole
            }
            .normalised()
        };
        let block = Block {
            offset,
            shape,
            position: self.at,
        };
        self.at += shape.payload_bytes();
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn at_most_five_blocks_cover_the_same_bytes_as_the_runs(
            w in 1u64..9, r in 1u64..6, gap in 0u64..3, p in 1u64..6, pgap in 0u64..3,
            offset in 0u64..300, len in 0u64..300,
        ) {
            let plane_pitch = (r - 1) * (w + gap) + w + pgap;
            let shape = Shape::pitched_3d(w, r, w + gap, p, plane_pitch).unwrap();
            let span = Span::new(offset, len);
            let flat = Shape::contiguous(shape.payload_bytes());
            let bytes = |shape: &Shape, at: u64, span: Span| -> Vec<u64> {
                shape.runs(at, &flat, 0, span)
                    .flat_map(|run| (0..run.len_bytes).map(move |i| run.offset + i))
                    .collect()
            };
            let mut seen = Vec::new();
            let mut count = 0;
            for block in shape.blocks(span) {
                prop_assert_eq!(block.position, offset + seen.len() as u64);
                let all = Span::new(0, block.shape.payload_bytes());
                seen.extend(bytes(&block.shape, block.offset, all));
                count += 1;
            }
            prop_assert_eq!(seen, bytes(&shape, 0, span));
            prop_assert!(count <= 5);
        }
    }
}
