//! Random work as plain numbers, which apply to any set of buffers.

use proptest::prelude::*;
use transload::Shape;

use crate::model::ledger::Area;

/// One act of a user.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Copy {
        ends: Ends,
        verify: bool,
        priority: u8,
    },
    Batch {
        all: Vec<Ends>,
        stop_at_failure: bool,
    },
    Read(Cut),
    Write(Cut, u64),
    FromSlice(Cut, u64),
    IntoSlice(Cut),
    Settle(usize, How),
    Detach(usize),
    Cancel(usize),
}

/// A way to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Wait,
    Await,
    /// Waits for that many nanoseconds at a time.
    Patience(u64),
}

/// Two regions of one payload.
#[derive(Clone, Debug)]
pub(crate) enum Ends {
    Apart {
        src: Cut,
        dst: Cut,
    },
    /// Rows of one buffer; the rows of the destination lie between those of the source.
    Interleaved {
        cut: Cut,
    },
}

/// A region that does not depend on the lengths of the buffers.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) buffer: usize,
    /// The start, as a fraction of the room in 2^16ths.
    start: u64,
    width: u64,
    rows: u64,
    planes: u64,
    row_gap: u64,
    plane_gap: u64,
}

impl Cut {
    /// The region in buffers of these lengths, with a payload of the shape of `like` where it fits.
    fn area(&self, like: &Cut, lens: &[u64]) -> Area {
        let buffer = self.buffer % lens.len();
        let len = lens[buffer];
        let shape = self.shape(like).filter(|shape| shape.extent_bytes() <= len);
        let shape = shape.unwrap_or(Shape::contiguous(like.payload().min(len)));
        let room = len - shape.extent_bytes();
        Area {
            buffer,
            offset: (room * self.start) >> 16,
            shape,
        }
    }

    pub(crate) fn alone(&self, lens: &[u64]) -> Area {
        self.area(self, lens)
    }

    /// The range of a contiguous view of that length.
    pub(crate) fn range(&self, lens: &[u64]) -> Area {
        let flat = Cut {
            width: self.payload(),
            rows: 1,
            planes: 1,
            ..self.clone()
        };
        flat.area(&flat, lens)
    }

    fn shape(&self, like: &Cut) -> Option<Shape> {
        let row_pitch = like.width + self.row_gap;
        let plane_pitch = row_pitch * like.rows + self.plane_gap;
        Shape::pitched_3d(like.width, like.rows, row_pitch, like.planes, plane_pitch).ok()
    }

    fn payload(&self) -> u64 {
        self.width * self.rows * self.planes
    }
}

impl Ends {
    /// The two regions; `None` where they cannot have one payload in those buffers.
    pub(crate) fn areas(&self, lens: &[u64]) -> Option<(Area, Area)> {
        let (src, dst) = match self {
            Ends::Apart { src, dst } => (src.alone(lens), dst.area(src, lens)),
            Ends::Interleaved { cut } => {
                let buffer = cut.buffer % lens.len();
                let pitch = 2 * cut.width + cut.row_gap;
                let shape = Shape::pitched(cut.width, cut.rows, pitch).ok()?;
                let at = |offset| Area {
                    buffer,
                    offset,
                    shape,
                };
                if cut.width + shape.extent_bytes() > lens[buffer] {
                    return None;
                }
                (at(0), at(cut.width))
            }
        };
        (src.len() == dst.len()).then_some((src, dst))
    }
}

/// The smallest chunk of a plan.
const CHUNK: u64 = 64 << 10;

fn width() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        63..66u64,
        255..258u64,
        1..3000u64,
        CHUNK - 1..CHUNK + 2,
        CHUNK..90_000u64,
    ]
}

fn cut() -> impl Strategy<Value = Cut> {
    let gaps = (
        prop_oneof![Just(0), 1..5u64, 1..600u64],
        prop_oneof![Just(0), 1..5000u64],
    );
    let start = prop_oneof![Just(0), Just(1 << 16), 0..1u64 << 16];
    let rows = prop_oneof![3 => Just(1), 2 => 2..40u64];
    let planes = prop_oneof![3 => Just(1), 1 => 2..5u64];
    (0..16usize, start, width(), rows, planes, gaps).prop_map(
        |(buffer, start, width, rows, planes, (row_gap, plane_gap))| Cut {
            buffer,
            start,
            // In regions of many rows the rows are short, so that they fit.
            width: if rows * planes > 1 {
                width % 700
            } else {
                width
            },
            rows,
            planes,
            row_gap,
            plane_gap,
        },
    )
}

fn ends() -> impl Strategy<Value = Ends> {
    prop_oneof![
        6 => (cut(), cut()).prop_map(|(src, dst)| Ends::Apart { src, dst }),
        1 => cut().prop_map(|cut| Ends::Interleaved { cut }),
    ]
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        Just(How::Wait),
        Just(How::Await),
        (1..5000u64).prop_map(How::Patience),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        10 => (ends(), proptest::bool::weighted(0.2), 0..3u8).prop_map(
            |(ends, verify, priority)| Act::Copy { ends, verify, priority }
        ),
        2 => (prop::collection::vec(ends(), 1..4), any::<bool>()).prop_map(
            |(all, stop_at_failure)| Act::Batch { all, stop_at_failure }
        ),
        1 => cut().prop_map(Act::Read),
        1 => (cut(), any::<u64>()).prop_map(|(cut, seed)| Act::Write(cut, seed)),
        1 => (cut(), any::<u64>()).prop_map(|(cut, seed)| Act::FromSlice(cut, seed)),
        1 => cut().prop_map(Act::IntoSlice),
        4 => (any::<usize>(), how()).prop_map(|(which, how)| Act::Settle(which, how)),
        1 => any::<usize>().prop_map(Act::Detach),
        2 => any::<usize>().prop_map(Act::Cancel),
    ]
}

/// A random list of acts.
pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(act(), 1..30)
}
