//! The proof of a link, as a state machine without I/O.
//!
//! Some machines grant peer access, or an import, and then move wrong bytes without an error. So such a link carries a
//! pattern before it carries bytes of users: the proof sends the pattern over the link into poisoned memory, reads it
//! back another way and compares.
//!
//! The pattern passes other links on its way there and back. If it comes back changed and all of those links are
//! trusted, the link under proof is to blame. Otherwise an *inquiry* follows: the proof reads the bytes at the link's
//! source, sends the pattern to the destination by another way, and reads it back over the same links as before. If
//! both readings equal the pattern, only the link under proof can have changed it.
//!
//! A proof knows scratch by its use, but no address, buffer or backend handle. Its driver asks [`Proof::poll_action`]
//! what to do, does it, and reports the result through the `handle_*` functions. A result that was not asked for is
//! ignored.

use alloc::vec::Vec;

use crate::LinkId;

/// A piece of memory that a proof uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scratch {
    /// The driver's own bytes that are sent. They are never written.
    Pattern,
    /// The driver's own bytes that the pattern is read back into.
    Back,
    /// Memory at the link's source.
    Src,
    /// Memory at the link's destination.
    Dst,
}

/// The next task of the proof's driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    /// Connect the two memories, then call [`Proof::handle_connected`].
    Connect,
    /// Allocate memory at one end of the link, then call [`Proof::handle_allocated`].
    Allocate(Scratch),
    /// Fill [`Scratch::Back`] with bytes that differ from the pattern everywhere. No answer follows.
    Poison,
    /// Copy all bytes, then call [`Proof::handle_copied`].
    Copy {
        /// The bytes to copy.
        from: Scratch,
        /// The memory that they go to.
        to: Scratch,
        /// Only the link under proof may carry them. Otherwise any way will do: best a trusted one, else one without
        /// that link.
        over_link: bool,
    },
    /// Compare [`Scratch::Back`] with [`Scratch::Pattern`], then call [`Proof::handle_compared`].
    Compare,
    /// Free the memory at one end of the link. No answer follows.
    Free(Scratch),
    /// The proof is over: all its memory is freed, and nothing follows.
    Finish(Verdict),
}

/// The result of a proof.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// The two memories are connected, and the link was proven before.
    Connected,
    /// The pattern crossed the link and came back unchanged.
    Proven,
    /// The pattern came back changed.
    Condemned {
        /// Whether only the link under proof can have changed it.
        alone: bool,
    },
    /// A step failed before the pattern came back.
    GivenUp,
}

/// The way of a copy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Way {
    /// The one that was chosen for it.
    Chosen {
        /// The links that carried the bytes, in order.
        links: Vec<LinkId>,
        /// Whether each of them needs no proof or has one.
        is_trusted: bool,
    },
    /// Another one, after the chosen one had failed.
    Detour,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Connecting,
    AllocatingSrc,
    AllocatingDst,
    Poisoning,
    Filling,
    Crossing,
    Reading,
    Comparing,
    // The inquiry.
    ReadingSrc,
    ComparingSrc,
    Refilling,
    ReadingAgain,
    ComparingAgain,
    /// The verdict is known, but the driver was not told yet.
    Ending(Verdict),
    /// The driver was told the verdict.
    Over,
}

/// The proof of a link. See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof {
    stage: Stage,
    /// The driver was asked for the stage's action.
    is_asked: bool,
    /// The bytes read back must be poisoned before the next copy.
    must_poison: bool,
    /// The ends of the link at which memory is allocated.
    held: Vec<Scratch>,
    /// Whether, as far as is known, only this link can have changed the pattern.
    alone: bool,
    /// The links over which the pattern came back; `None` where that is not known.
    way_back: Option<Vec<LinkId>>,
}

impl Default for Proof {
    fn default() -> Proof {
        Proof::new()
    }
}

impl Proof {
    /// Makes a proof that has not begun.
    pub const fn new() -> Proof {
        Proof {
            stage: Stage::Connecting,
            is_asked: false,
            must_poison: false,
            held: Vec::new(),
            alone: true,
            way_back: None,
        }
    }

    /// What to do next; `None` until the result of the last action was handed in.
    pub fn poll_action(&mut self) -> Option<Action> {
        if let Stage::Ending(verdict) = self.stage {
            if let Some(end) = self.held.pop() {
                return Some(Action::Free(end));
            }
            self.stage = Stage::Over;
            return Some(Action::Finish(verdict));
        }
        if core::mem::take(&mut self.must_poison) {
            return Some(Action::Poison);
        }
        match core::mem::replace(&mut self.is_asked, true) {
            true => None,
            false => self.stage.action(),
        }
    }

    /// Returns whether the proof waits for the copy over the link itself.
    pub fn is_crossing(&self) -> bool {
        self.asked() == Some(Stage::Crossing)
    }

    /// The answer to [`Action::Connect`]. A link that was proven before sends no pattern.
    pub fn handle_connected(&mut self, was_proven: bool) {
        match (self.asked(), was_proven) {
            (Some(Stage::Connecting), true) => self.end(Verdict::Connected),
            (Some(Stage::Connecting), false) => {
                self.must_poison = true;
                self.proceed(Stage::AllocatingSrc);
            }
            _ => {}
        }
    }

    /// The answer to [`Action::Allocate`].
    pub fn handle_allocated(&mut self) {
        let (end, next) = match self.asked() {
            Some(Stage::AllocatingSrc) => (Scratch::Src, Stage::AllocatingDst),
            Some(Stage::AllocatingDst) => (Scratch::Dst, Stage::Poisoning),
            _ => return,
        };
        self.held.push(end);
        self.proceed(next);
    }

    /// The answer to [`Action::Copy`].
    pub fn handle_copied(&mut self, way: Way) {
        let next = match self.asked() {
            Some(Stage::Poisoning) => Stage::Filling,
            Some(Stage::Filling) => Stage::Crossing,
            // Bytes that took another way prove nothing about the link.
            Some(Stage::Crossing) if way == Way::Detour => return self.end(Verdict::GivenUp),
            Some(Stage::Crossing) => return self.proceed(Stage::Reading),
            Some(Stage::Reading) => Stage::Comparing,
            Some(Stage::ReadingSrc) => Stage::ComparingSrc,
            Some(Stage::Refilling) => Stage::ReadingAgain,
            Some(Stage::ReadingAgain) => Stage::ComparingAgain,
            _ => return,
        };
        self.note(way);
        self.proceed(next);
    }

    /// The answer to [`Action::Compare`].
    pub fn handle_compared(&mut self, equal: bool) {
        match self.asked() {
            Some(Stage::Comparing) if equal => self.end(Verdict::Proven),
            Some(Stage::Comparing) if self.alone => self.condemn(),
            Some(Stage::Comparing) => {
                self.alone = true;
                self.must_poison = true;
                self.proceed(Stage::ReadingSrc);
            }
            Some(Stage::ComparingSrc) if equal && self.alone => {
                self.must_poison = true;
                self.proceed(Stage::Refilling);
            }
            Some(Stage::ComparingSrc | Stage::ComparingAgain) => {
                self.alone &= equal;
                self.condemn();
            }
            _ => {}
        }
    }

    /// The answer to any action that failed. Earlier results stand: a link that may have changed a pattern is not
    /// tried again.
    pub fn handle_failed(&mut self) {
        match self.asked() {
            None => {}
            Some(stage) if stage.is_inquiry() => {
                self.alone = false;
                self.condemn();
            }
            Some(_) => self.end(Verdict::GivenUp),
        }
    }

    /// Returns the stage, if its action is under way.
    fn asked(&self) -> Option<Stage> {
        let is_live = !matches!(self.stage, Stage::Ending(_) | Stage::Over);
        (self.is_asked && is_live).then_some(self.stage)
    }

    /// Takes in what a way says about the blame for a change of the pattern.
    fn note(&mut self, way: Way) {
        match (self.stage, way) {
            (_, Way::Detour) => self.alone = false,
            (Stage::ReadingAgain, Way::Chosen { links, .. }) => {
                self.alone &= self.way_back.as_ref() == Some(&links);
            }
            // The comparison that follows tells more than trust.
            (stage, _) if stage.is_inquiry() => {}
            (stage, Way::Chosen { links, is_trusted }) => {
                self.alone &= is_trusted;
                self.way_back = (stage == Stage::Reading).then_some(links);
            }
        }
    }

    fn proceed(&mut self, next: Stage) {
        self.stage = next;
        self.is_asked = false;
    }

    fn condemn(&mut self) {
        self.end(Verdict::Condemned { alone: self.alone });
    }

    fn end(&mut self, verdict: Verdict) {
        self.stage = Stage::Ending(verdict);
    }
}

impl Stage {
    /// Returns what the driver does in the stage.
    fn action(self) -> Option<Action> {
        use Scratch::{Back, Dst, Pattern, Src};
        let (from, to) = match self {
            Stage::Connecting => return Some(Action::Connect),
            Stage::AllocatingSrc => return Some(Action::Allocate(Src)),
            Stage::AllocatingDst => return Some(Action::Allocate(Dst)),
            Stage::Comparing | Stage::ComparingSrc | Stage::ComparingAgain => {
                return Some(Action::Compare);
            }
            Stage::Poisoning => (Back, Dst),
            Stage::Filling => (Pattern, Src),
            Stage::Crossing => (Src, Dst),
            Stage::Reading | Stage::ReadingAgain => (Dst, Back),
            Stage::ReadingSrc => (Src, Back),
            Stage::Refilling => (Pattern, Dst),
            Stage::Ending(_) | Stage::Over => return None,
        };
        let over_link = self == Stage::Crossing;
        Some(Action::Copy {
            from,
            to,
            over_link,
        })
    }

    /// Returns whether the proof looks for the link that changed the pattern.
    fn is_inquiry(self) -> bool {
        use Stage::{ComparingAgain, ComparingSrc, ReadingAgain, ReadingSrc, Refilling};
        matches!(
            self,
            ReadingSrc | ComparingSrc | Refilling | ReadingAgain | ComparingAgain
        )
    }
}

#[cfg(test)]
mod explorer;
#[cfg(test)]
mod liars;
