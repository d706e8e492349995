//! Bytes of a lease that a session lets another one write.

use std::collections::HashMap;
use std::string::String;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::vec::Vec;

use transload_core::Shape;
use transload_hal::{ErrorClass, Fault};
use transload_remote::wire::Outcome;

use super::guest::{Leased, mistake};
use super::order::Place;
use super::ready::{News, Ready};
use crate::{Canceller, Region};

/// A grant of a session. Other sessions write by it until all its bytes were written, a write has failed, or it was stopped.
pub(super) struct Grant {
    pub(super) token: [u8; 16],
    pub(super) lease: Arc<Leased>,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The place of the transfer that grants, if it has one. It may be given up while the grant is unused.
    pub(super) place: Option<Weak<Place>>,
    /// The session that grants, and its number of the grant.
    pub(super) granter: (Arc<Ready>, u64),
    writes: Mutex<Writes>,
}

/// The writes of a grant.
#[derive(Default)]
struct Writes {
    /// How many bytes all of them have together.
    claimed: u64,
    last: u64,
    /// Those under way. They hold the lease and the place in the order.
    running: HashMap<u64, Option<Canceller>>,
    /// How the grant ends, once no further write may begin.
    outcome: Option<Outcome>,
}

/// A write under way. The grant counts it until this is dropped.
pub(super) struct Write {
    grant: Arc<Grant>,
    number: u64,
    outcome: Outcome,
    _place: Option<Arc<Place>>,
}

impl Grant {
    pub(super) fn new(
        token: [u8; 16],
        (lease, offset, len): (Arc<Leased>, u64, u64),
        place: Option<Weak<Place>>,
        granter: (Arc<Ready>, u64),
    ) -> Grant {
        let outcome = (len == 0).then_some(Outcome::Done);
        Grant {
            token,
            lease,
            offset,
            len,
            place,
            granter,
            writes: Mutex::new(Writes {
                outcome,
                ..Writes::default()
            }),
        }
    }

    fn writes(&self) -> MutexGuard<'_, Writes> {
        // Each change is whole when it may panic.
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a write of bytes from `offset` on. Returns their region.
    pub(super) fn begin(
        self: &Arc<Grant>,
        offset: u64,
        len: u64,
    ) -> Result<(Write, Region), Fault> {
        let refused = |reason: &str| mistake(String::from("the grant ") + reason);
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        end.ok_or_else(|| refused("has fewer bytes"))?;
        let place = self.place.as_ref().map(Weak::upgrade);
        if let Some(None) = place {
            return Err(refused("is of a transfer that has ended"));
        }
        let region = Region::new(
            &self.lease.buffer,
            self.offset + offset,
            Shape::contiguous(len),
        );
        let region = region.map_err(|error| refused(&error.to_string()))?;
        let mut writes = self.writes();
        let is_open = writes.outcome.is_none();
        let claimed = writes.claimed.checked_add(len);
        let Some(claimed) = claimed.filter(|sum| is_open && *sum <= self.len) else {
            return Err(refused("was used or has ended"));
        };
        writes.claimed = claimed;
        writes.last += 1;
        let number = writes.last;
        writes.running.insert(number, None);
        drop(writes);
        let write = Write {
            grant: Arc::clone(self),
            number,
            outcome: Outcome::Failed(cut_off().into()),
            _place: place.flatten(),
        };
        Ok((write, region))
    }

    /// Has no further write begin, and stops those under way.
    pub(super) fn stop(&self) {
        let running: Vec<Canceller> = {
            let mut writes = self.writes();
            let stopped = Outcome::Stopped { leading_bytes: 0 };
            writes.outcome.get_or_insert(stopped);
            writes.running.values().flatten().cloned().collect()
        };
        running.iter().for_each(Canceller::cancel);
    }

    /// Returns how the grant ended, once nothing writes by it any more.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        let writes = self.writes();
        let is_quiet = writes.running.is_empty();
        writes.outcome.clone().filter(|_| is_quiet)
    }
}

/// The fault of a write whose session has ended.
fn cut_off() -> Fault {
    let message = "the session that wrote the granted bytes has ended";
    Fault::new(ErrorClass::Failed, message)
}

impl Write {
    /// Takes in what stops the write.
    pub(super) fn started(&self, canceller: Canceller) {
        let mut writes = self.grant.writes();
        let is_stopped = writes.outcome.is_some();
        writes.running.insert(self.number, Some(canceller.clone()));
        drop(writes);
        if is_stopped {
            canceller.cancel();
        }
    }

    /// Takes in how the write ended.
    pub(super) fn ended(&mut self, outcome: &Outcome) {
        self.outcome = outcome.clone();
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        let grant = &self.grant;
        let mut writes = grant.writes();
        writes.running.remove(&self.number);
        if self.outcome != Outcome::Done {
            writes.outcome.get_or_insert(self.outcome.clone());
        } else if writes.claimed == grant.len && writes.running.is_empty() {
            writes.outcome.get_or_insert(Outcome::Done);
        }
        let is_over = writes.outcome.is_some() && writes.running.is_empty();
        drop(writes);
        if is_over {
            let (granter, id) = &grant.granter;
            granter.tell(News::Grant(*id));
        }
    }
}
