//! One of the threads that perform random operations.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use transload::{Event, Transfer, TransferError};

use crate::dice::Dice;
use crate::differential::bytes::Fate;
use crate::differential::tally::{self, Kind, count};
use crate::differential::world::World;

/// A transfer whose handle the thread holds.
pub(crate) struct Held {
    pub(crate) world: usize,
    pub(crate) transfer: Transfer,
    pub(crate) len: u64,
    pub(crate) terms: Terms,
}

/// The terms of the submission that matter to the transfer's end.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    /// Its number in the model, if it may fail.
    pub(crate) open: Option<u32>,
    pub(crate) verified: bool,
    pub(crate) may_be_late: bool,
    pub(crate) stops_when_dropped: bool,
    pub(crate) of_batch: bool,
    pub(crate) then: Option<Event>,
    /// Use counts of the stores that the transfer touches.
    pub(crate) in_use: Vec<Arc<()>>,
}

pub(crate) struct Worker<'a> {
    pub(crate) worlds: [&'a World; 2],
    pub(crate) dice: Dice,
    pub(crate) seat: usize,
    /// Sends events to the thread that sets them.
    pub(crate) gates: Sender<Event>,
    pub(crate) held: Vec<Held>,
    /// An event that a transfer sets when it is over, with the transfer's world.
    pub(crate) ends: Option<(usize, Event)>,
    /// Whether the steps are mostly short writes to mapped memory.
    pub(crate) words: bool,
}

impl Worker<'_> {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.dice.below(end)
    }

    pub(crate) fn doing(&self, what: impl Into<String>) {
        tally::doing(self.seat, what);
    }

    /// Picks a world, mostly the first one.
    pub(crate) fn any_world(&mut self) -> usize {
        usize::from(self.below(8) == 0)
    }

    pub(crate) fn step(&mut self) {
        if self.words {
            match self.below(16) {
                0 => self.borrow(),
                1..4 => self.settle_one(),
                4..12 => self.pieces(),
                _ => self.copy(),
            }
        } else {
            match self.below(64) {
                0..18 => self.copy(),
                18..21 => self.batch(),
                21 => self.refused(),
                22..38 => self.settle_one(),
                38..44 => self.borrow(),
                44..50 => self.guard(),
                50 | 51 => self.hint(),
                52..54 => self.share(),
                54..58 => self.create(),
                58 => self.drop_store(),
                59 => self.hand_over(),
                60 => self.foreign(),
                61 => self.claimed(),
                62 if self.below(2) == 0 => self.pieces(),
                62 => self.place(),
                _ => self.ask(),
            }
        }
        while self.held.len() > 16 {
            self.settle_one();
        }
    }

    /// Ends one of the thread's transfers in some way.
    pub(crate) fn settle_one(&mut self) {
        let many = self.held.len() as u64;
        if many == 0 {
            return;
        }
        let which = self.below(many) as usize;
        let one = self.held.swap_remove(which);
        self.settle(one);
    }

    pub(crate) fn settle_all(&mut self) {
        while !self.held.is_empty() {
            self.settle_one();
        }
    }

    fn settle(&mut self, mut one: Held) {
        let way = self.below(if one.terms.open.is_some() { 12 } else { 8 });
        self.doing(format!(
            "settles {:?} of world {}, way {way}",
            one.terms.open, one.world
        ));
        let result = match way {
            0 | 1 => {
                count(Kind::Wait);
                one.transfer.wait()
            }
            2 => {
                count(Kind::WaitTimeout);
                let limit = Duration::from_micros(self.below(500));
                match one.transfer.wait_timeout(limit) {
                    Some(result) => result,
                    None => return self.held.push(one),
                }
            }
            3 => {
                count(Kind::Await);
                pollster::block_on(one.transfer)
            }
            4 => {
                count(Kind::Poll);
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                match std::pin::Pin::new(&mut one.transfer).poll(&mut context) {
                    std::task::Poll::Ready(result) => result,
                    std::task::Poll::Pending => return self.held.push(one),
                }
            }
            5 => {
                count(Kind::Look);
                let over = one.transfer.is_over();
                match one.transfer.progress() {
                    Some((came, all)) => assert!(came <= all && all == one.len, "{came} of {all}"),
                    None => assert!(over, "progress of a transfer that is not over"),
                }
                if !over {
                    return self.held.push(one);
                }
                one.transfer.wait()
            }
            6 | 7 => {
                drop(one.transfer);
                count(match one.terms.stops_when_dropped {
                    true => Kind::CancelOnDrop,
                    false => Kind::Dropped,
                });
                if let Some(number) = one.terms.open {
                    // Only a cancel or a time limit may keep the transfer from arriving.
                    let terms = &one.terms;
                    let arrives =
                        !(terms.stops_when_dropped || terms.may_be_late || terms.of_batch);
                    let fate = arrives.then_some(Fate::Done);
                    self.worlds[one.world].lock().settle(number, fate);
                }
                return;
            }
            8 | 9 => {
                count(Kind::Cancel);
                let answer = one.transfer.cancel();
                return self.cancelled(one.world, one.len, &one.terms, answer);
            }
            10 => {
                count(Kind::CancelAsync);
                let answer = pollster::block_on(one.transfer.cancel_async());
                return self.cancelled(one.world, one.len, &one.terms, answer);
            }
            _ => {
                count(Kind::Canceller);
                let canceller = one.transfer.canceller();
                canceller.cancel();
                one.transfer.wait()
            }
        };
        self.ended(one.world, one.len, &one.terms, result);
    }

    pub(crate) fn cancelled(
        &mut self,
        world: usize,
        len: u64,
        terms: &Terms,
        answer: transload::Cancelled,
    ) {
        match answer {
            transload::Cancelled::Finished(result) => self.ended(world, len, terms, result),
            transload::Cancelled::NotStarted => {
                count(Kind::CameUntouched);
                self.fate(world, terms, Fate::Untouched);
            }
            transload::Cancelled::Stopped { leading_bytes } => {
                count(Kind::CameStopped);
                assert!(leading_bytes <= len);
                self.fate(world, terms, Fate::Stopped(leading_bytes));
            }
        }
    }

    pub(crate) fn ended(
        &mut self,
        world: usize,
        len: u64,
        terms: &Terms,
        result: Result<transload::Report, TransferError>,
    ) {
        if let Some(then) = &terms.then {
            tally::until("an event of a transfer that is over", || {
                match then.is_set() {
                    true => Ok(()),
                    false => Err("is not set"),
                }
            });
        }
        let context = &self.worlds[world].context;
        let fate = match result {
            Ok(report) => {
                count(Kind::CameDone);
                assert_eq!(report.bytes(), len, "{context}");
                assert_eq!(report.checksum().is_some(), terms.verified, "{context}");
                assert!(report.fallbacks().is_empty(), "{context}: {report}");
                Fate::Done
            }
            Err(TransferError::Deadline { leading_bytes }) if terms.may_be_late => {
                count(Kind::CameLate);
                assert!(leading_bytes <= len);
                Fate::Stopped(leading_bytes)
            }
            Err(TransferError::Cancelled { leading_bytes }) if terms.open.is_some() => {
                count(Kind::CameStopped);
                assert!(leading_bytes <= len);
                Fate::Stopped(leading_bytes)
            }
            Err(TransferError::BatchStopped) if terms.of_batch => {
                count(Kind::CameBatchStopped);
                Fate::Untouched
            }
            Err(error) => panic!("{context}: {error}"),
        };
        self.fate(world, terms, fate);
    }

    fn fate(&mut self, world: usize, terms: &Terms, fate: Fate) {
        if let Some(number) = terms.open {
            self.worlds[world].lock().settle(number, Some(fate));
        }
    }
}
