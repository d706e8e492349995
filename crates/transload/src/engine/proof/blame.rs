//! Who changed a pattern that came back changed.
//!
//! It has passed other links on its way there and back. Where one of those was not proven either, the link
//! under proof is not used by this process, but other processes are not told of it yet. What lies at its
//! source is read first; then the pattern goes to its destination by another way, and back from there over
//! the same links as before. Where both come back as they went, the link alone has changed it.

use alloc::sync::Arc;

use transload_core::Plan;
use transload_hal::{ErrorClass, Fault};

use super::{Found, Job, ProofStage, poison};
use crate::engine::kept::Judgement;
use crate::engine::state::State;

impl ProofStage {
    /// Whether a pattern came back changed, and it is being found out why.
    fn is_inquiry(self) -> bool {
        use ProofStage::{ComparingAgain, ComparingSrc, ReadingAgain, ReadingSrc, Refilling};
        matches!(
            self,
            ReadingSrc | ComparingSrc | Refilling | ReadingAgain | ComparingAgain
        )
    }
}

impl Job {
    /// A step goes that way.
    pub(super) fn note_way(&mut self, way: &Arc<Plan>, is_trusted: bool) {
        match self.stage {
            ProofStage::Reading => {
                self.alone &= is_trusted;
                self.way_back = Some(Arc::clone(way));
            }
            ProofStage::ReadingAgain => {
                let before = self.way_back.as_ref();
                self.alone &= before.is_some_and(|before| before.links().eq(way.links()));
            }
            stage if stage.is_inquiry() => {}
            _ => self.alone &= is_trusted,
        }
    }

    /// A step failed on its way, and was done over another.
    pub(super) fn note_detour(&mut self) {
        self.alone = false;
        self.way_back = None;
    }
}

impl State {
    /// The pattern came back changed.
    pub(super) fn handle_difference(&mut self, at: usize) {
        let job = &mut self.proofs.jobs[at];
        if job.alone {
            return self.condemn(at);
        }
        job.alone = true;
        job.back = Some(poison());
        self.proceed(at, ProofStage::ReadingSrc);
    }

    /// What came of a comparison by which it is found out why.
    pub(super) fn handle_compared_again(&mut self, at: usize, found: &Found) {
        let job = &mut self.proofs.jobs[at];
        job.alone &= matches!(found, Found::Equal(true));
        if !job.alone || job.stage == ProofStage::ComparingAgain {
            return self.condemn(at);
        }
        job.back = Some(poison());
        self.proceed(at, ProofStage::Refilling);
    }

    /// A step of a proof failed. What was seen before stands: a link that may have changed a pattern is
    /// not tried again in a while.
    pub(super) fn give_up_proof(&mut self, at: usize, fault: Fault) {
        let job = &mut self.proofs.jobs[at];
        if !job.stage.is_inquiry() {
            return self.disprove(at, fault);
        }
        job.alone = false;
        self.condemn(at);
    }

    /// The link moved wrong bytes. Time does not make it trustworthy. Other processes hear of it only
    /// where no other link can have been to blame.
    fn condemn(&mut self, at: usize) {
        let message = "a pattern that was sent over the link came back changed";
        let fault = Fault::new(ErrorClass::Failed, message);
        let Job { link, alone, .. } = self.proofs.jobs[at];
        let reason = alloc::format!("its proof failed: {fault}");
        if alone {
            self.note_verdict(link, Some(Judgement::Condemned(reason.clone())));
        }
        self.quarantine.condemn(link, reason);
        self.tell_why(at, fault);
    }
}
