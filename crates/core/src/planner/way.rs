//! One way that bytes can take: its copies and its transform, in order.

use crate::{EngineId, Role};

/// One step, by the number of its link or transformer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Copy(u16),
    Transform(u16),
    MakeVisible(Region),
}

/// A region of the user's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Region {
    Src,
    Dst,
}

impl Region {
    pub(super) const fn role(self) -> Role {
        match self {
            Region::Src => Role::Src,
            Region::Dst => Role::Dst,
        }
    }
}

/// Why a way cannot be taken, by numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    Barred(u16),
    NotPitched(u16),
    /// The first hop is none of the host's engine, and the bytes are to be converted there.
    ConvertsNothing(u16),
    NoTransform,
    NoRoom,
    SlotTooLarge {
        ring: u8,
        max_alloc_bytes: u64,
    },
}

/// A way, small enough that hundreds are made and dropped while one plan is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    acts: [Act; Way::MAX_ACTS],
    len: u8,
    rings: u8,
    /// For each act the first one on the same engine.
    engines: [u8; Way::MAX_ACTS],
    /// The exponents of the smallest and largest chunk, or why there is none.
    pub(super) chunks: Result<(u8, u8), Flaw>,
    /// By how much it must be faster than others to be chosen, in parts of 1024.
    pub(super) handicap: u16,
    /// The number of the correction of its route, if it has one.
    pub(super) correction: Option<u16>,
}

impl Way {
    /// Three copies and a transform, and each of their ends in the regions made visible.
    pub(super) const MAX_ACTS: usize = 8;

    /// Returns the way over `links` (at most three), with a transform after so many of them by the
    /// transformer of that number, and with a ring after each of the first `rings` copies.
    pub(super) fn new(links: &[u16], transform: Option<(usize, u16)>, rings: usize) -> Way {
        let mut way = Way {
            acts: [Act::Copy(0); Way::MAX_ACTS],
            len: 0,
            rings: rings as u8,
            engines: [0; Way::MAX_ACTS],
            chunks: Err(Flaw::NoTransform),
            handicap: 0,
            correction: None,
        };
        for at in 0..=links.len() {
            if let Some((before, by)) = transform
                && before == at
            {
                way.push(Act::Transform(by));
            }
            if let Some(link) = links.get(at) {
                way.push(Act::Copy(*link));
            }
        }
        way
    }

    /// The same way, with each end made visible before the first act that `needs` it. Acts that do not
    /// may write it anew, and then it is made visible once more.
    pub(super) fn made_visible(self, needs: impl Fn(Act, Region) -> bool) -> Way {
        let mut way = Way { len: 0, ..self };
        let mut visible = None;
        let mut copies = 0;
        for act in self.acts() {
            let (first, last) = match act {
                Act::Copy(_) => {
                    copies += 1;
                    (copies == 1, copies > self.rings)
                }
                _ => (copies == 0, copies > self.rings),
            };
            let ends = [(first, Region::Src), (last, Region::Dst)];
            for (_, end) in ends.into_iter().filter(|(touched, _)| *touched) {
                if !needs(*act, end) {
                    visible = visible.filter(|seen| *seen != end);
                } else if visible != Some(end) {
                    way.push(Act::MakeVisible(end));
                    visible = Some(end);
                }
            }
            way.push(*act);
        }
        way
    }

    fn push(&mut self, act: Act) {
        self.acts[usize::from(self.len)] = act;
        self.len += 1;
    }

    /// Notes which acts share an engine.
    pub(super) fn group_by(&mut self, engine: impl Fn(Act) -> EngineId) {
        for i in 1..usize::from(self.len) {
            let mine = engine(self.acts[i]);
            let twin = (0..i).find(|j| same(engine(self.acts[*j]), mine));
            self.engines[i] = twin.unwrap_or(i) as u8;
        }
    }

    /// Returns the steps, in order.
    pub(super) fn acts(&self) -> &[Act] {
        &self.acts[..usize::from(self.len)]
    }

    /// For each step the number of the first one on the same engine.
    pub(super) fn engines(&self) -> &[u8] {
        &self.engines[..usize::from(self.len)]
    }

    /// Returns the transformer, where there is one.
    pub(super) fn transform(&self) -> Option<u16> {
        self.acts().iter().find_map(|act| match act {
            Act::Transform(by) => Some(*by),
            _ => None,
        })
    }

    /// Returns the links, in order.
    pub(super) fn copies(&self) -> impl Iterator<Item = u16> + '_ {
        self.acts().iter().filter_map(|act| match act {
            Act::Copy(hop) => Some(*hop),
            Act::Transform(_) | Act::MakeVisible(_) => None,
        })
    }

    /// Returns how many rings lie between the steps.
    pub(super) fn rings(&self) -> u8 {
        self.rings
    }

    /// Returns the first and last step that hold a slot of `ring`: the copy into it, and the copy out of it
    /// or the transform that ends the way.
    pub(super) fn held(&self, ring: u8) -> (usize, usize) {
        let copy = |number: u8| {
            let acts = self.acts().iter().enumerate();
            let mut copies = acts.filter(|(_, act)| matches!(act, Act::Copy(_)));
            copies.nth(usize::from(number)).map(|(at, _)| at)
        };
        let last = usize::from(self.len) - 1;
        (copy(ring).unwrap_or(0), copy(ring + 1).unwrap_or(last))
    }
}

/// Equality that looks at the numbers first: of the engines of a machine most differ there.
pub(super) fn same(a: EngineId, b: EngineId) -> bool {
    a.index == b.index
        && a.device.index == b.device.index
        && a.device.kind == b.device.kind
        && a.device.node == b.device.node
}
