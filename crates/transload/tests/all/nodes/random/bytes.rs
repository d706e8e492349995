//! What plain memory says of a buffer.

use std::ops::Range;

/// Bytes, of which some are unspecified.
#[derive(Clone)]
pub(super) struct Bytes {
    values: Vec<u8>,
    /// Few, and none of them empty.
    unspecified: Vec<Range<usize>>,
}

impl Bytes {
    pub(super) fn known(values: Vec<u8>) -> Bytes {
        Bytes {
            values,
            unspecified: Vec::new(),
        }
    }

    pub(super) fn part(&self, range: Range<usize>) -> Bytes {
        let shift = |open: Range<usize>| open.start - range.start..open.end - range.start;
        let open = self.unspecified.iter().map(|open| common(open, &range));
        Bytes {
            values: self.values[range.clone()].to_vec(),
            unspecified: open.filter(|open| !open.is_empty()).map(shift).collect(),
        }
    }

    /// Writes bytes from `at` on.
    pub(super) fn put(&mut self, at: usize, bytes: &Bytes) {
        let range = at..at + bytes.values.len();
        self.values[range.clone()].copy_from_slice(&bytes.values);
        let kept = { self.unspecified.iter() }
            .flat_map(|open| {
                let before = open.start..open.end.min(range.start);
                [before, open.start.max(range.end)..open.end]
            })
            .filter(|open| !open.is_empty());
        let new = bytes.unspecified.iter();
        let new = new.map(|open| open.start + at..open.end + at);
        self.unspecified = kept.chain(new).collect();
    }

    /// Keeps the first bytes alone.
    pub(super) fn leading(mut self, len: usize) -> Bytes {
        let all = self.values.len();
        self.unspecified.retain(|open| open.start < len);
        if len < all {
            self.unspecified.push(len..all);
        }
        self
    }

    /// Where other bytes were found than it has, and how many.
    pub(super) fn difference(&self, found: &[u8]) -> Option<(usize, usize)> {
        let mut values = self.values.clone();
        for open in &self.unspecified {
            values[open.clone()].copy_from_slice(&found[open.clone()]);
        }
        if values == found {
            return None;
        }
        let pairs = values.iter().zip(found).enumerate();
        let mut differ = pairs.filter(|(_, (is, found))| is != found);
        let first = differ.next().expect("as many bytes, and not the same").0;
        Some((first, 1 + differ.count()))
    }
}

fn common(one: &Range<usize>, two: &Range<usize>) -> Range<usize> {
    one.start.max(two.start)..one.end.min(two.end)
}
