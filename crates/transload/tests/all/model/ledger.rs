//! The expected bytes: every write in the order of submission, over plain arrays.

use transload::Shape;

/// A region of one of the buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) buffer: usize,
    pub(crate) offset: u64,
    pub(crate) shape: Shape,
}

/// The end of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The copy arrived, or will arrive.
    Done,
    /// The first `leading` bytes arrived; the rest of the destination is not checked.
    Stopped { leading: u64 },
    /// The copy never started.
    Untouched,
}

/// Names a copy in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyId(usize);

pub(crate) struct Ledger {
    initial: Vec<Bytes>,
    entries: Vec<Entry>,
}

/// Bytes, some of which are unknown.
#[derive(Clone)]
pub(crate) struct Bytes {
    values: Vec<u8>,
    known: Vec<bool>,
}

enum Entry {
    Copy { src: Area, dst: Area, fate: Fate },
    Fill { dst: Area, bytes: Vec<u8> },
}

impl Area {
    /// Its rows as ranges of the buffer, in payload order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (shape, offset) = (self.shape, self.offset);
        (0..shape.planes()).flat_map(move |plane| {
            (0..shape.rows()).map(move |row| {
                let start = offset + plane * shape.plane_pitch() + row * shape.row_pitch();
                start as usize..(start + shape.width_bytes()) as usize
            })
        })
    }

    /// Whether the two have a byte in common.
    pub(crate) fn meets(&self, other: &Area) -> bool {
        self.buffer == other.buffer
            && self.rows().any(|a| {
                let shared = |b: std::ops::Range<usize>| a.start.max(b.start) < a.end.min(b.end);
                other.rows().any(shared)
            })
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.payload_bytes() as usize
    }
}

impl Ledger {
    pub(crate) fn new(initial: Vec<Vec<u8>>) -> Ledger {
        let all_known = |values: Vec<u8>| Bytes {
            known: vec![true; values.len()],
            values,
        };
        Ledger {
            initial: initial.into_iter().map(all_known).collect(),
            entries: Vec::new(),
        }
    }

    /// Records a submitted copy. It counts as done unless [`Ledger::settle`] reports another end.
    pub(crate) fn copy(&mut self, src: Area, dst: Area) -> CopyId {
        let fate = Fate::Done;
        self.entries.push(Entry::Copy { src, dst, fate });
        CopyId(self.entries.len() - 1)
    }

    pub(crate) fn settle(&mut self, id: CopyId, became: Fate) {
        if let Entry::Copy { fate, .. } = &mut self.entries[id.0] {
            *fate = became;
        }
    }

    /// Records that the host wrote a region.
    pub(crate) fn fill(&mut self, dst: Area, bytes: Vec<u8>) {
        self.entries.push(Entry::Fill { dst, bytes });
    }

    /// The contents of every buffer after all recorded writes.
    pub(crate) fn buffers(&self) -> Vec<Bytes> {
        let mut buffers = self.initial.clone();
        for entry in &self.entries {
            match entry {
                Entry::Copy { src, dst, fate } => {
                    let payload = buffers[src.buffer].payload(src);
                    let (arrived, lost) = match fate {
                        Fate::Done => (payload.values.len(), 0),
                        Fate::Stopped { leading } => (*leading as usize, usize::MAX),
                        Fate::Untouched => continue,
                    };
                    buffers[dst.buffer].put(dst, &payload, arrived, lost > 0);
                }
                Entry::Fill { dst, bytes } => {
                    let payload = Bytes {
                        values: bytes.clone(),
                        known: vec![true; bytes.len()],
                    };
                    buffers[dst.buffer].put(dst, &payload, bytes.len(), false);
                }
            }
        }
        buffers
    }
}

impl Bytes {
    /// The bytes of a region in payload order.
    pub(crate) fn payload(&self, area: &Area) -> Bytes {
        let mut payload = Bytes {
            values: Vec::with_capacity(area.len()),
            known: Vec::with_capacity(area.len()),
        };
        for row in area.rows() {
            payload.values.extend_from_slice(&self.values[row.clone()]);
            payload.known.extend_from_slice(&self.known[row]);
        }
        payload
    }

    /// Writes the first `arrived` bytes of a payload; the rest becomes unknown.
    fn put(&mut self, area: &Area, payload: &Bytes, arrived: usize, stopped: bool) {
        let mut at = 0;
        for row in area.rows() {
            let next = at + row.len();
            let fresh = arrived.clamp(at, next) - at;
            let middle = row.start + fresh;
            self.values[row.start..middle].copy_from_slice(&payload.values[at..at + fresh]);
            self.known[row.start..middle].copy_from_slice(&payload.known[at..at + fresh]);
            if stopped {
                self.known[middle..row.end].fill(false);
            }
            at = next;
        }
    }

    /// The first known byte that differs.
    pub(crate) fn first_difference(&self, found: &[u8]) -> Option<usize> {
        assert_eq!(self.values.len(), found.len());
        if self.values == found {
            return None;
        }
        let pairs = self.values.iter().zip(found);
        pairs
            .zip(&self.known)
            .position(|((wanted, found), known)| *known && wanted != found)
    }
}
