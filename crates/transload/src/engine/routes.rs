//! Plans for requests, from the cache or made on demand.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use transload_core::flight::Verify;
use transload_core::{
    Instant, Lane, LinkId, Method, NoPlan, Plan, PlanKey, PlanSet, Purpose, Role, Route, Step,
    StepKind,
};

use super::accept::{Checked, Chosen, Terms};
use super::active::Operand;
use super::state::State;
use crate::TransferError;

/// Returns the key of a transfer's plans.
pub(crate) fn key(src: &Operand, dst: &Operand, purpose: Purpose) -> PlanKey {
    let pitched = !src.shape.is_contiguous() || !dst.shape.is_contiguous();
    PlanKey {
        purpose,
        ..PlanKey::copy(src.buffer.memory(), dst.buffer.memory()).pitched(pitched)
    }
}

impl State {
    /// Forgets plans that avoid a link whose bar has ended. Called before plans are looked up.
    pub(crate) fn release_due(&mut self, now: Instant) {
        if self.quarantine.release_due(now) > 0 {
            self.cache.invalidate();
        }
    }

    /// Returns the plans for a key.
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

    /// Returns the plans of a checked request.
    pub(crate) fn choose(
        &mut self,
        checked: &Checked,
        terms: &Terms,
        now: Instant,
    ) -> Result<Chosen, TransferError> {
        let len_bytes = checked.len_bytes();
        let (src, dst) = (&checked.src, &checked.dst);
        let no_route = |error: NoPlan| TransferError::NoRoute {
            src: src.buffer.memory(),
            dst: dst.buffer.memory(),
            reasons: error.to_string(),
        };
        if checked.in_place && terms.verify {
            let memory = dst.buffer.memory();
            return Err(TransferError::VerifyOverlap { memory });
        }
        let plan = match terms.over {
            Some(link) => self.plan_over(checked, link)?,
            None => {
                let plans = self.plans(key(src, dst, Purpose::Copy), now);
                let plans = plans.map_err(no_route)?;
                let cheapest = plans.choose(len_bytes);
                if checked.in_place && !cheapest.moves_whole() {
                    let mut others = plans.alternatives(len_bytes);
                    let one_pass = others.find(|plan| plan.moves_whole());
                    let memory = dst.buffer.memory();
                    one_pass.ok_or(TransferError::Overlap { memory })?
                } else {
                    Arc::clone(cheapest)
                }
            }
        };
        let verify = if terms.verify {
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

    /// Returns the plan of a request that must use one link, in one pass and one piece.
    fn plan_over(&self, checked: &Checked, id: LinkId) -> Result<Arc<Plan>, TransferError> {
        let (src, dst) = (checked.src.buffer.memory(), checked.dst.buffer.memory());
        let refused = |reasons: String| TransferError::NoRoute { src, dst, reasons };
        if (id.src, id.dst) != (src, dst) {
            let reasons = alloc::format!("the link goes from {} to {}", id.src, id.dst);
            return Err(refused(reasons));
        }
        let pitched = key(&checked.src, &checked.dst, Purpose::Copy).pitched;
        let mut links = self.topology.links_between(src, dst);
        if pitched && links.any(|link| link.id == id && !link.pitched) {
            return Err(refused("the link takes contiguous ranges only".into()));
        }
        let plan = self.plan_of_link(id, checked.len_bytes().max(1));
        plan.ok_or_else(|| refused(alloc::format!("{} has no such link", id.engine)))
    }

    /// Returns a plan over one link, in chunks of `chunk_bytes`.
    pub(crate) fn plan_of_link(&self, id: LinkId, chunk_bytes: u64) -> Option<Arc<Plan>> {
        let link = self.topology.links().iter().find(|link| link.id == id)?;
        let step = Step {
            kind: StepKind::Copy {
                from: Role::Src,
                to: Role::Dst,
            },
            backend: link.backend,
            engine: link.id.engine,
            cost: link.cost.clone(),
            link: Some(id),
        };
        Some(Arc::new(Plan {
            method: Method::of_access(id.access),
            estimate: link.cost.clone().into(),
            lanes: vec![Lane {
                route: Route::new(vec![link.clone()]),
                steps: vec![step],
                rings: Vec::new(),
                chunk_bytes,
                depth: 1,
                share: 1,
            }],
        }))
    }
}
