//! Finds the link that changed a pattern.
//!
//! The pattern has passed other links on its way there and back. If one of those was not proven either, this process
//! does not use the link under proof, but other processes are not told of it yet. The job first reads the bytes at the
//! link's source. Then it sends the pattern to the destination by another way, and back from there over the same links
//! as before. If both come back unchanged, only the link under proof can have changed the pattern.

use alloc::sync::Arc;

use transload_core::Plan;
use transload_hal::{ErrorClass, Fault};

use super::{Found, Job, ProofStage, poison};
use crate::engine::kept::Judgement;
use crate::engine::state::State;

impl ProofStage {
    /// Returns whether the job looks for the link that changed a pattern.
    fn is_inquiry(self) -> bool {
        use ProofStage::{ComparingAgain, ComparingSrc, ReadingAgain, ReadingSrc, Refilling};
        matches!(
            self,
            ReadingSrc | ComparingSrc | Refilling | ReadingAgain | ComparingAgain
        )
    }
}

impl Job {
    /// Records the way of a step.
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

    /// Records that a step failed on its way, and was done over another one.
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

    /// Takes in a comparison that tells which link changed the pattern.
    pub(super) fn handle_compared_again(&mut self, at: usize, found: &Found) {
        let job = &mut self.proofs.jobs[at];
        job.alone &= matches!(found, Found::Equal(true));
        if !job.alone || job.stage == ProofStage::ComparingAgain {
            return self.condemn(at);
        }
        job.back = Some(poison());
        self.proceed(at, ProofStage::Refilling);
    }

    /// A step of a proof failed. Earlier results stand: a link that may have changed a pattern is not tried again for a
    /// while.
    pub(super) fn give_up_proof(&mut self, at: usize, fault: Fault) {
        let job = &mut self.proofs.jobs[at];
        if !job.stage.is_inquiry() {
            return self.disprove(at, fault);
        }
        job.alone = false;
        self.condemn(at);
    }

    /// Condemns the link: it moved wrong bytes, and time does not make it trustworthy. Other processes are told only if
    /// no other link can have changed the pattern.
    fn condemn(&mut self, at: usize) {
        let message = "a pattern that was sent over the link came back changed";
        let fault = Fault::new(ErrorClass::Failed, message);
        let Job { link, alone, .. } = self.proofs.jobs[at];
        let reason = alloc::format!("its proof failed: {fault}");
        if alone {
            self.note_verdict(link, Some(Judgement::Condemned(reason.clone())));
        }
        self.planning.condemn(link, reason);
        self.tell_why(at, fault);
    }
}
