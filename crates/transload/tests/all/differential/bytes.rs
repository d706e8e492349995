//! The expected bytes: plain arrays, in which some bytes are unknown.

use std::ops::Range;

use transload::Shape;

use crate::dice::Dice;

/// The tag of a byte whose value is known.
const KNOWN: u32 = 0;

/// The tag of a byte that may have any value until it is written again.
const LOST: u32 = u32::MAX;

/// A shape and its position in a store.
#[derive(Clone, Copy)]
pub(crate) struct Lay {
    pub(crate) at: u64,
    pub(crate) shape: Shape,
}

/// The end of a copy that was allowed to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Done,
    /// The first `n` bytes arrived. The others are unknown.
    Stopped(u64),
    Untouched,
}

/// Values, each with a tag: known, lost, or the number of a copy whose end is not known yet.
#[derive(Clone)]
pub(crate) struct Bytes {
    pub(crate) values: Vec<u8>,
    tags: Vec<u32>,
}

/// A copy that was allowed to fail, and whose end is not known yet.
pub(crate) struct Pending {
    pub(crate) store: u32,
    pub(crate) dst: Lay,
    pub(crate) payload: Bytes,
    pub(crate) before: Bytes,
}

impl std::fmt::Debug for Lay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape = &self.shape;
        write!(f, "{}+{}", self.at, shape.width_bytes())?;
        if shape.rows() * shape.planes() > 1 {
            write!(f, " x{} by {}", shape.rows(), shape.row_pitch())?;
        }
        if shape.planes() > 1 {
            write!(f, " x{} by {}", shape.planes(), shape.plane_pitch())?;
        }
        Ok(())
    }
}

impl Lay {
    pub(crate) fn run(at: u64, len: u64) -> Lay {
        let shape = Shape::contiguous(len);
        Lay { at, shape }
    }

    /// The rows, in the order of the payload.
    pub(crate) fn rows(self) -> impl Iterator<Item = Range<usize>> {
        let (shape, at) = (self.shape, self.at);
        let planes = (0..shape.planes()).map(move |plane| at + plane * shape.plane_pitch());
        planes.flat_map(move |plane| {
            (0..shape.rows()).map(move |row| {
                let start = (plane + row * shape.row_pitch()) as usize;
                start..start + shape.width_bytes() as usize
            })
        })
    }

    pub(crate) fn len(self) -> usize {
        self.shape.payload_bytes() as usize
    }

    pub(crate) fn range(self) -> Range<u64> {
        self.at..self.at + self.shape.extent_bytes()
    }

    /// Whether both have a byte in common. Rows lie in ascending order.
    pub(crate) fn meets(self, other: Lay) -> bool {
        let (mut mine, mut theirs) = (self.rows().peekable(), other.rows().peekable());
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            if a.start < b.end && b.start < a.end {
                return true;
            }
            match a.end <= b.start {
                true => mine.next(),
                false => theirs.next(),
            };
        }
        false
    }
}

impl Bytes {
    pub(crate) fn known(values: Vec<u8>) -> Bytes {
        let tags = vec![KNOWN; values.len()];
        Bytes { values, tags }
    }

    pub(crate) fn len(&self) -> u64 {
        self.values.len() as u64
    }

    /// A region's bytes, in the order of the payload.
    pub(crate) fn payload(&self, lay: Lay) -> Bytes {
        let mut payload = Bytes {
            values: Vec::with_capacity(lay.len()),
            tags: Vec::with_capacity(lay.len()),
        };
        for row in lay.rows() {
            payload.values.extend_from_slice(&self.values[row.clone()]);
            payload.tags.extend_from_slice(&self.tags[row]);
        }
        payload
    }

    /// The same bytes when the ends of open copies will not be learned.
    pub(crate) fn closed(mut self) -> Bytes {
        self.tags.iter_mut().for_each(|tag| *tag = closed(*tag));
        self
    }

    pub(crate) fn put(&mut self, lay: Lay, payload: &Bytes) {
        let mut at = 0;
        for row in lay.rows() {
            let from = at..at + row.len();
            at = from.end;
            self.values[row.clone()].copy_from_slice(&payload.values[from.clone()]);
            self.tags[row].copy_from_slice(&payload.tags[from]);
        }
    }

    /// Records a copy in flight to there, whose end is not known yet.
    pub(crate) fn open(&mut self, lay: Lay, number: u32) {
        lay.rows().for_each(|row| self.tags[row].fill(number));
    }

    /// Records the end of that copy. Bytes that were written since stay.
    pub(crate) fn settle(&mut self, number: u32, pending: &Pending, fate: Fate) {
        let payload = &pending.payload;
        let positions = pending.dst.rows().flatten().enumerate();
        for (nth, at) in positions.filter(|(nth, _)| *nth < payload.values.len()) {
            if self.tags[at] != number {
                continue;
            }
            let arrived = match fate {
                Fate::Done => true,
                Fate::Stopped(leading) => (nth as u64) < leading,
                Fate::Untouched => {
                    self.values[at] = pending.before.values[nth];
                    self.tags[at] = pending.before.tags[nth];
                    continue;
                }
            };
            self.values[at] = payload.values[nth];
            self.tags[at] = if arrived { payload.tags[nth] } else { LOST };
        }
    }

    /// The first known byte that differs.
    pub(crate) fn difference(&self, found: &[u8]) -> Option<usize> {
        assert_eq!(self.values.len(), found.len(), "the lengths differ");
        if self.values == found {
            return None;
        }
        let pairs = self.values.iter().zip(found).zip(&self.tags);
        pairs
            .into_iter()
            .position(|((wanted, found), tag)| *tag == KNOWN && wanted != found)
    }
}

fn closed(tag: u32) -> u32 {
    if tag == KNOWN { KNOWN } else { LOST }
}

/// Bytes without a short period.
pub(crate) fn fresh(dice: &mut Dice, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(5) {
        let word = dice.below(1 << 40).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

/// Sizes at which something begins or ends: words, pages, chunks, megabytes.
const EDGES: [u64; 9] = [4, 8, 16, 64, 4096, 1 << 16, 1 << 18, 1 << 20, 2 << 20];

/// A number of at most `most`, often one beside an edge.
pub(crate) fn near_edges(dice: &mut Dice, most: u64) -> u64 {
    let number = match dice.below(8) {
        0 => dice.below(2),
        1 | 2 => dice.below(9),
        3 | 4 => EDGES[dice.below(EDGES.len() as u64) as usize] + dice.below(3) - 1,
        5 => most - dice.below(3).min(most),
        6 => dice.below(most.min(5000) + 1),
        _ => dice.below(most + 1),
    };
    if number > most {
        dice.below(most + 1)
    } else {
        number
    }
}

/// A run of any length, anywhere.
pub(crate) fn any_run(dice: &mut Dice, limit: u64) -> Lay {
    let len = near_edges(dice, limit);
    Lay::run(near_edges(dice, limit - len), len)
}

/// Two regions of one payload, in stores of those lengths.
pub(crate) fn any_pair(dice: &mut Dice, (from, to): (u64, u64)) -> (Lay, Lay) {
    let most = from.min(to);
    if dice.below(3) == 0 {
        for _ in 0..8 {
            let dims = match dice.below(2) {
                0 => [1 + dice.below(40), 1 + dice.below(60), 1],
                _ => [1 + dice.below(20), 1 + dice.below(9), 1 + dice.below(6)],
            };
            let [width, rows, planes] = dims;
            let other = match dice.below(4) {
                0 => [width * rows, planes, 1],
                1 => [width * rows * planes, 1, 1],
                2 => [width, rows * planes, 1],
                _ => dims,
            };
            if let (Some(src), Some(dst)) = (pitched(dice, other, from), pitched(dice, dims, to)) {
                return (src, dst);
            }
        }
    }
    let len = near_edges(dice, most);
    let at = |dice: &mut Dice, limit: u64| Lay::run(near_edges(dice, limit - len), len);
    (at(dice, from), at(dice, to))
}

fn pitched(dice: &mut Dice, [width, rows, planes]: [u64; 3], limit: u64) -> Option<Lay> {
    let row_pitch = width + dice.below(7);
    let plane_pitch = row_pitch * rows + dice.below(40);
    let shape = match (rows, planes) {
        (1, 1) => Shape::contiguous(width),
        (_, 1) => Shape::pitched(width, rows, row_pitch).ok()?,
        _ => Shape::pitched_3d(width, rows, row_pitch, planes, plane_pitch).ok()?,
    };
    let room = limit.checked_sub(shape.extent_bytes())?;
    let at = dice.below(room + 1);
    Some(Lay { at, shape })
}
