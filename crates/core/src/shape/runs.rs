//! The runs of bytes that a copy between two shapes consists of.

use super::Shape;
use crate::Span;

/// `len_bytes` bytes that lie without a gap on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Where the run starts on the first side.
    pub offset: u64,
    /// Where it starts on the other side.
    pub other_offset: u64,
    /// Its length, never 0.
    pub len_bytes: u64,
}

/// Iterates over the [`Run`]s of a copy; made by [`Shape::runs`]. Allocates nothing.
#[derive(Clone, Debug)]
pub struct Runs {
    shape: Shape,
    offset: u64,
    other: Shape,
    other_offset: u64,
    at: u64,
    end: u64,
}

impl Runs {
    pub(super) fn new(
        shape: Shape,
        offset: u64,
        other: Shape,
        other_offset: u64,
        span: Span,
    ) -> Runs {
        let payload = shape.payload_bytes().min(other.payload_bytes());
        Runs {
            shape,
            offset,
            other,
            other_offset,
            at: span.offset.min(payload),
            end: span.end().unwrap_or(u64::MAX).min(payload),
        }
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.at >= self.end {
            return None;
        }
        let (start, left) = self.shape.locate(self.at);
        let (other_start, other_left) = self.other.locate(self.at);
        let len_bytes = left.min(other_left).min(self.end - self.at);
        self.at += len_bytes;
        Some(Run {
            offset: self.offset + start,
            other_offset: self.other_offset + other_start,
            len_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn shapes() -> impl Strategy<Value = Shape> {
        (0u64..20, 0u64..6, 0u64..9, 0u64..4, 0u64..40).prop_map(|(w, r, gap, p, pgap)| {
            let row_pitch = w + gap;
            let plane = r.saturating_sub(1) * row_pitch + w;
            Shape::pitched_3d(w, r, row_pitch, p, plane + pgap).unwrap()
        })
    }

    fn positions(shape: &Shape) -> Vec<u64> {
        let mut all = Vec::new();
        for plane in 0..shape.planes() {
            for row in 0..shape.rows() {
                for column in 0..shape.width_bytes() {
                    all.push(plane * shape.plane_pitch() + row * shape.row_pitch() + column);
                }
            }
        }
        all
    }

    proptest! {
        #[test]
        fn runs_visit_each_payload_byte_once_in_order(
            a in shapes(), b in shapes(), offset in 0u64..100, len in 0u64..100,
        ) {
            let (pa, pb) = (positions(&a), positions(&b));
            let payload = pa.len().min(pb.len());
            let end = (offset + len).min(payload as u64) as usize;
            let start = (offset as usize).min(payload);
            let wanted: Vec<(u64, u64)> = (start..end).map(|i| (7 + pa[i], 11 + pb[i])).collect();
            let mut seen = Vec::new();
            for run in a.runs(7, &b, 11, Span { offset, len }) {
                prop_assert!(run.len_bytes > 0);
                for i in 0..run.len_bytes {
                    seen.push((run.offset + i, run.other_offset + i));
                }
            }
            prop_assert_eq!(seen, wanted);
        }

        #[test]
        fn normal_form_keeps_the_bytes(
            w in 1u64..9, r in 1u64..5, gap in 0u64..3, p in 1u64..4, pgap in 0u64..3,
        ) {
            let row_pitch = w + gap;
            let plane_pitch = (r - 1) * row_pitch + w + pgap;
            let shape = Shape::pitched_3d(w, r, row_pitch, p, plane_pitch).unwrap();
            let mut wanted = Vec::new();
            for plane in 0..p { for row in 0..r { for x in 0..w {
                wanted.push(plane * plane_pitch + row * row_pitch + x);
            }}}
            prop_assert_eq!(positions(&shape), wanted);
        }

        #[test]
        fn overlap_agrees_with_the_sets_of_bytes(
            a in shapes(), b in shapes(), base in 0u64..120, other in 0u64..120,
        ) {
            let pa: Vec<u64> = positions(&a).into_iter().map(|x| x + base).collect();
            let common = positions(&b).into_iter().any(|x| pa.contains(&(x + other)));
            prop_assert_eq!(a.overlaps(base, &b, other), common);
            prop_assert_eq!(b.overlaps(other, &a, base), common);
        }
    }
}
