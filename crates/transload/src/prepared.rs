//! Copies that are made again and again.

use alloc::sync::Arc;

use crate::engine::checked::{Checked, Chosen, Terms};
use crate::engine::shared::Shared;
use crate::{Request, Transfer, TransferError};

/// A copy that was checked and planned once, and can be posted any number of times.
///
/// Posting checks nothing again and allocates nothing. When routes have changed, because a backend was added, a link
/// failed or a cache was cleared, each later post looks its plan up.
pub struct Prepared {
    shared: Arc<Shared>,
    checked: Checked,
    terms: Terms,
    /// The plan, and the state of routes for which it was made.
    chosen: (u64, Chosen),
}

impl Prepared {
    pub(crate) fn new(shared: &Arc<Shared>, request: &Request) -> Result<Prepared, TransferError> {
        shared.check_fork()?;
        let checked = request.check()?;
        let now = shared.clock.now();
        let chosen = shared.change(|state| {
            let planning = &mut state.planning;
            let chosen = planning.choose(&checked, &request.terms, now)?;
            Ok::<_, TransferError>((planning.epoch(), chosen))
        })?;
        Ok(Prepared {
            shared: Arc::clone(shared),
            checked,
            terms: request.terms.clone(),
            chosen,
        })
    }

    /// Submits the copy once more. Small copies are done when this returns.
    pub fn post(&self) -> Transfer {
        let (checked, terms) = (&self.checked, &self.terms);
        let submitted = self.shared.submit(&terms.then, |state, now| {
            let planning = &mut state.planning;
            planning.release_due(now);
            let (epoch, chosen) = &self.chosen;
            let chosen = match *epoch == planning.epoch() {
                true => chosen.clone(),
                false => planning.choose(checked, terms, now)?,
            };
            let ends = (checked.src.clone(), checked.dst.clone());
            let parts = (checked.in_place, &checked.footprints[..]);
            state.start(ends, parts, chosen, terms, now)
        });
        Transfer::new(submitted)
    }
}

impl core::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Prepared")
            .field("src", &self.checked.src)
            .field("dst", &self.checked.dst)
            .finish_non_exhaustive()
    }
}
