//! Plans for requests: out of the cache, or made now.

use alloc::string::ToString;
use alloc::sync::Arc;

use transload_core::flight::Verify;
use transload_core::{Instant, LinkId, NoPlan, PlanKey, PlanSet, Purpose};

use super::accept::{Checked, Chosen};
use super::active::Operand;
use super::state::State;
use crate::TransferError;

/// What the plan of a transfer depends on.
pub(crate) fn key(src: &Operand, dst: &Operand, purpose: Purpose) -> PlanKey {
    let pitched = !src.shape.is_contiguous() || !dst.shape.is_contiguous();
    PlanKey {
        purpose,
        ..PlanKey::copy(src.buffer.memory(), dst.buffer.memory()).pitched(pitched)
    }
}

impl State {
    /// Forgets plans that avoid a link whose bar has ended. Before plans are looked up.
    pub(crate) fn release_due(&mut self, now: Instant) {
        if self.quarantine.release_due(now) > 0 {
            self.cache.invalidate();
        }
    }

    /// The plans for a key.
    pub(crate) fn plans(&mut self, key: PlanKey, now: Instant) -> Result<Arc<PlanSet>, NoPlan> {
        self.release_due(now);
        if let Some(plans) = self.cache.get(&key) {
            return Ok(plans);
        }
        let plans = {
            let barred = |link: LinkId| self.barred(link, now);
            Arc::new(transload_core::plan(
                &self.topology,
                &key,
                &self.limits,
                &barred,
            )?)
        };
        self.cache.insert(key, Arc::clone(&plans));
        Ok(plans)
    }

    /// The plans of a checked request.
    pub(crate) fn choose(
        &mut self,
        checked: &Checked,
        verify: bool,
        now: Instant,
    ) -> Result<Chosen, TransferError> {
        let len_bytes = checked.len_bytes();
        let (src, dst) = (&checked.src, &checked.dst);
        let no_route = |error: NoPlan| TransferError::NoRoute {
            src: src.buffer.memory(),
            dst: dst.buffer.memory(),
            reasons: error.to_string(),
        };
        if checked.in_place && verify {
            let memory = dst.buffer.memory();
            return Err(TransferError::VerifyOverlap { memory });
        }
        let plans = self
            .plans(key(src, dst, Purpose::Copy), now)
            .map_err(no_route)?;
        let mut plan = Arc::clone(plans.choose(len_bytes));
        if checked.in_place && !plan.moves_whole() {
            let one_pass = plans
                .alternatives(len_bytes)
                .find(|plan| plan.moves_whole());
            plan = one_pass.ok_or_else(|| TransferError::Overlap {
                memory: dst.buffer.memory(),
            })?;
        }
        let verify = if verify {
            let mut digest = |end: &Operand| {
                let plans = self.plans(key(end, end, Purpose::Digest), now);
                let plans = plans.map_err(no_route)?;
                Ok::<_, TransferError>(Arc::clone(plans.choose(len_bytes)))
            };
            Some(Verify {
                src: digest(src)?,
                dst: digest(dst)?,
            })
        } else {
            None
        };
        Ok(Chosen { plan, verify })
    }
}
