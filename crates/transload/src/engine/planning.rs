//! The way of each transfer: plans from the cache or made on demand, and the links that no plan may use now.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use transload_core::flight::{Failure, Load, Phase, Resource, Tried, Verify, predict};
use transload_core::{
    Barred, DeviceId, Form, Instant, Inventory, Lane, Learning, Limits, Link, LinkId, MemoryId,
    Method, NoPlan, Plan, PlanCache, PlanKey, PlanSet, Purpose, Quarantine, Role, Route, Sending,
    Step, StepKind, Topology, TopologyError, Trial,
};
use transload_hal::BackendId;

#[cfg(feature = "std")]
use transload_core::Correction;

use super::checked::{Checked, Chosen, Only, Terms};
use super::operand::Operand;
use crate::error::TransferError;

/// Returns the largest chunk of copies that are passed on: each destination of a chain waits for one from the one before it.
/// A sixteenth of the payload keeps the wait small, and a quarter of a mebibyte the cost of a chunk.
pub(crate) fn passed_on(bytes: u64) -> u64 {
    (bytes / 16).clamp(256 << 10, 4 << 20).next_power_of_two()
}

/// What the engine knows of the machine: its topology, the plans made over it, and the links that failed.
pub(crate) struct Planning {
    topology: Topology,
    cache: PlanCache,
    quarantine: Quarantine,
    limits: Limits,
    /// Backends that are registered and were not given up. The links of others are barred.
    served: Vec<BackendId>,
    /// What transfers teach of routes; `None` where costs were measured, or the program wants none of it.
    learning: Option<Learning>,
}

/// Returns the key of a transfer's plans.
pub(crate) fn key(src: &Operand, dst: &Operand, purpose: Purpose) -> PlanKey {
    let form = |end: &Operand| match end.form() {
        // A checksum reads what lies in one piece or in rows.
        Form::Rows if purpose == Purpose::Digest && end.scattered.is_some() => Form::Elements,
        form => form,
    };
    let purpose = match src.conversion() {
        Some(_) => Purpose::Convert,
        None => purpose,
    };
    PlanKey {
        purpose,
        forms: [form(src), form(dst)],
        ..PlanKey::copy(src.buffer.memory(), dst.buffer.memory())
    }
}

impl Planning {
    pub(crate) fn new(cache: PlanCache, limits: Limits) -> Planning {
        Planning {
            topology: Topology::new(),
            cache,
            quarantine: Quarantine::new(),
            limits,
            served: Vec::new(),
            learning: Some(Learning::new()),
        }
    }

    /// Learns nothing from now on.
    pub(crate) fn stop_learning(&mut self) {
        self.learning = None;
    }

    /// Returns whether the end of a transfer of so many bytes is worth noting.
    #[inline]
    pub(crate) fn learns_from(&self, bytes: u64) -> bool {
        bytes >= Learning::FROM_BYTES && self.learning.is_some()
    }

    /// Returns another route to try with the leading bytes of a transfer whose plans are known, rarely.
    #[cold]
    pub(crate) fn trial(
        &mut self,
        key: PlanKey,
        bytes: u64,
        now: Instant,
        fits: impl Fn(&Plan) -> bool,
    ) -> Option<Trial> {
        let plans = self.plans(key, now).ok()?;
        self.learning.as_mut()?.trial(&plans, bytes, fits)
    }

    /// Takes in how long the legs of a transfer of `bytes` bytes took, which had the machine to itself: a trial, and the
    /// lanes of `plan`, which moved the rest.
    #[cold]
    pub(crate) fn learn(
        &mut self,
        key: PlanKey,
        bytes: u64,
        tried: Option<&Tried>,
        plan: &Plan,
        lane_ns: impl Iterator<Item = u64>,
    ) {
        let Some(learning) = &mut self.learning else {
            return;
        };
        let rest = bytes - tried.map_or(0, |tried| tried.bytes);
        let mut learned = Vec::new();
        let mut note = |lane: &Lane, predicted_ns, ns| {
            let Some(route) = &lane.route else { return };
            if let Some(correction) = learning.record(route, bytes, predicted_ns, ns) {
                let links = route.links().iter().map(|link| link.id).collect();
                learned.push((links, correction));
            }
        };
        if rest > 0 {
            for (lane, ns) in plan.lanes.iter().zip(lane_ns) {
                note(lane, plan.uncorrected_ns(rest), ns);
            }
        }
        if let Some(tried) = tried {
            for lane in &tried.plan.lanes {
                note(lane, tried.plan.uncorrected_ns(tried.bytes), tried.ns);
            }
            learning.charge(key, tried.ns);
        }
        learning.earn(key, plan.estimate_ns(bytes));
        if !learned.is_empty() {
            for (links, correction) in learned {
                self.topology.set_correction(links, correction);
            }
            self.cache.invalidate();
        }
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn cache(&self) -> &PlanCache {
        &self.cache
    }

    /// Returns a number that differs as soon as a plan of before may no longer be the cheapest one.
    pub(crate) fn epoch(&self) -> u64 {
        self.cache.epoch()
    }

    /// Adds what a backend lists. Plans are made anew.
    pub(crate) fn add(&mut self, inventory: Inventory) -> Result<(), TopologyError> {
        let backend = inventory.backend;
        self.topology.add(inventory)?;
        self.served.push(backend);
        self.cache.invalidate();
        Ok(())
    }

    /// Sets the cost of a link. Plans are made anew.
    #[cfg(feature = "std")]
    pub(crate) fn set_cost(&mut self, link: LinkId, cost: transload_core::Curve, doubt: u16) {
        self.topology.set_cost(link, cost, doubt);
        self.learning = None;
        self.cache.invalidate();
    }

    /// Sets the corrections of routes, in the place of all earlier ones. Plans are made anew.
    #[cfg(feature = "std")]
    pub(crate) fn set_corrections(&mut self, routes: Vec<(Vec<LinkId>, Correction)>) {
        self.learning = None;
        self.topology.clear_corrections();
        for (route, correction) in routes {
            self.topology.set_correction(route, correction);
        }
        self.cache.invalidate();
    }

    /// Forgets plans and quarantine.
    pub(crate) fn forget(&mut self) {
        if let Some(learning) = &mut self.learning {
            learning.forget();
            self.topology.clear_corrections();
        }
        self.quarantine.clear();
        self.cache.invalidate();
    }

    /// Forgets the plans.
    #[cfg(feature = "std")]
    pub(crate) fn invalidate(&mut self) {
        self.cache.invalidate();
    }

    /// Takes in that a backend was given up.
    pub(crate) fn handle_lost(&mut self, backend: BackendId) {
        self.served.retain(|known| *known != backend);
    }

    /// Returns why a link may not be used now.
    pub(crate) fn barred(&self, link: LinkId, now: Instant) -> Option<Barred> {
        let known = self.topology.link(link);
        if known.is_some_and(|known| !self.served.contains(&known.backend)) {
            return Some(Barred::Lost);
        }
        let bar = self.quarantine.barred(link, now)?;
        Some(Barred::Quarantined(bar.clone()))
    }

    /// Returns whether the link has moved wrong bytes.
    pub(crate) fn is_condemned(&self, link: LinkId, now: Instant) -> bool {
        let bar = self.quarantine.barred(link, now);
        bar.is_some_and(|bar| bar.until.is_none())
    }

    /// Bars a link for a while, whose proof failed.
    pub(crate) fn bar(&mut self, link: LinkId, now: Instant, reason: String) {
        self.quarantine.bar(link, now, reason);
        self.cache.invalidate();
    }

    /// Bars a link for good, which moved wrong bytes.
    pub(crate) fn condemn(&mut self, link: LinkId, reason: String) {
        self.quarantine.condemn(link, reason);
        self.cache.invalidate();
    }

    /// Lifts all bars of a link.
    #[cfg(feature = "std")]
    pub(crate) fn pardon(&mut self, link: LinkId) {
        self.quarantine.clear_link(link);
        self.cache.invalidate();
    }

    /// Bars the links that may have made a leg fail. `compared`: the ends were compared and differ, so any link of the
    /// plan may have changed the bytes. Returns whether the links' proofs are in doubt.
    pub(crate) fn blame(
        &mut self,
        failed: &Plan,
        failure: Failure,
        compared: bool,
        reason: &str,
        now: Instant,
    ) -> bool {
        match failure.at {
            Some((lane, step)) => {
                let link = failed.lanes[usize::from(lane)].steps[usize::from(step)].link;
                if let Some(link) = link {
                    self.quarantine.bar(link, now, String::from(reason));
                }
            }
            // The slots could not be had, or a proof failed: other code reports that.
            None if !compared => return false,
            None => {
                for link in failed.links() {
                    self.quarantine.bar(link, now, String::from(reason));
                }
            }
        }
        self.cache.invalidate();
        failure.at.is_none()
    }

    /// Restores the trust in the links of a plan that carried its payload, after earlier failures.
    #[inline]
    pub(crate) fn trust(&mut self, plan: Option<&Arc<Plan>>, now: Instant) {
        if self.quarantine.is_empty() {
            return;
        }
        for link in plan.into_iter().flat_map(|plan| plan.links()) {
            self.quarantine.succeeded(link, now);
        }
    }

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
            let made = transload_core::plan(&self.topology, &key, &self.limits, &barred);
            Arc::new(made?)
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
        let asked = key(src, dst, Purpose::Copy);
        let no_route = |error: NoPlan| TransferError::no_route(&asked, &error);
        if checked.in_place && terms.verify {
            let memory = dst.buffer.memory();
            return Err(TransferError::VerifyOverlap { memory });
        }
        if src.conversion().is_some() && terms.verify {
            return Err(TransferError::VerifyConversion);
        }
        let plan = match &terms.only {
            Some(Only::Link(link)) => self.plan_over(checked, *link)?,
            Some(Only::Way(way)) => {
                if way.key != asked {
                    return Err(TransferError::NoRoute {
                        src: asked.src,
                        dst: asked.dst,
                        reasons: alloc::format!("the request names the way {}", way.plan),
                    });
                }
                if way.plan.links().any(|link| self.is_condemned(link, now)) {
                    return Err(TransferError::NoRoute {
                        src: asked.src,
                        dst: asked.dst,
                        reasons: alloc::format!("{} has moved wrong bytes", way.plan),
                    });
                }
                if checked.in_place && !way.plan.moves_whole() {
                    let memory = dst.buffer.memory();
                    return Err(TransferError::Overlap { memory });
                }
                Arc::clone(&way.plan)
            }
            None => {
                let plans = self.plans(asked, now);
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

    /// Returns the cheapest plan for a phase of a transfer that `fits` accepts.
    pub(crate) fn another(
        &mut self,
        (src, dst): (&Operand, &Operand),
        phase: Phase,
        now: Instant,
        fits: impl Fn(&Arc<Plan>) -> bool,
    ) -> Option<Arc<Plan>> {
        let key = match phase {
            Phase::Copy => key(src, dst, Purpose::Copy),
            Phase::CheckSrc => key(src, src, Purpose::Digest),
            Phase::CheckDst => key(dst, dst, Purpose::Digest),
        };
        let plans = self.plans(key, now).ok()?;
        plans.alternatives(src.shape.payload_bytes()).find(fits)
    }

    /// Returns the plan of a copy from one end to another.
    pub(crate) fn plan(&mut self, src: &Operand, dst: &Operand, now: Instant) -> Option<Arc<Plan>> {
        let plans = self.plans(key(src, dst, Purpose::Copy), now).ok()?;
        plans.alternatives(dst.shape.payload_bytes()).next()
    }

    /// Predicts a copy that shares resources with others.
    pub(crate) fn sending(
        &mut self,
        src: &Operand,
        dst: &Operand,
        now: Instant,
    ) -> Option<Sending> {
        let bytes = dst.shape.payload_bytes();
        let plan = Arc::new(self.plan(src, dst, now)?.in_chunks(passed_on(bytes)));
        let whole = predict(&plan, bytes).ok()?;
        let first = predict(&plan, plan.chunk_bytes().min(bytes)).ok()?;
        let is_shared = |load: &Load| matches!(load.of, Resource::Engine(_) | Resource::Host);
        Some(Sending {
            ns: whole.ns,
            first_ns: first.ns,
            loads: whole.loads.into_iter().filter(is_shared).collect(),
        })
    }

    /// Returns the plan of a request that must use one link, in one pass and one piece.
    fn plan_over(&self, checked: &Checked, id: LinkId) -> Result<Arc<Plan>, TransferError> {
        let (src, dst) = (checked.src.buffer.memory(), checked.dst.buffer.memory());
        let refused = |reasons: String| TransferError::NoRoute { src, dst, reasons };
        if (id.src, id.dst) != (src, dst) {
            let reasons = alloc::format!("the link goes from {} to {}", id.src, id.dst);
            return Err(refused(reasons));
        }
        let asked = key(&checked.src, &checked.dst, Purpose::Copy);
        if asked.purpose == Purpose::Convert && id.engine.device != DeviceId::CPU0 {
            let engine = id.engine;
            return Err(refused(alloc::format!(
                "{engine} converts no numbers: the host's engine does"
            )));
        }
        let takes = |link: &Link| {
            let [src, dst] = asked.forms;
            src.is_taken_by(link, 0) && dst.is_taken_by(link, 1)
        };
        let mut links = self.topology.links_between(src, dst);
        if links.any(|link| link.id == id && !takes(link)) {
            let reasons = "the link does not take bytes that lie as these do";
            return Err(refused(reasons.into()));
        }
        let plan = self.plan_of_link(id, checked.len_bytes().max(1));
        plan.ok_or_else(|| refused(alloc::format!("{} has no such link", id.engine)))
    }

    /// Returns a plan over one link, in chunks of `chunk_bytes`.
    pub(crate) fn plan_of_link(&self, id: LinkId, chunk_bytes: u64) -> Option<Arc<Plan>> {
        let link = self.topology.link(id)?;
        let step = Step {
            kind: StepKind::Copy {
                from: Role::Src,
                to: Role::Dst,
            },
            backend: link.backend,
            engine: link.id.engine,
            cost: link.cost.clone(),
            host_load: self.topology.host_load(link.id.engine),
            link: Some(id),
        };
        let lane = Lane {
            route: Route::new(vec![link.clone()]),
            steps: vec![step],
            rings: Vec::new(),
            chunk_bytes,
            depth: 1,
            share: 1,
        };
        let method = Method::of_access(id.access);
        let estimate = link.cost.clone().into();
        Some(Arc::new(Plan::new(method, vec![lane], estimate)))
    }

    /// Returns the backend that serves a link.
    pub(crate) fn backend_of_link(&self, id: LinkId) -> BackendId {
        let link = self.topology.link(id);
        link.map_or(id.engine.device.backend(), |link| link.backend)
    }

    /// Returns the backend that allocates in a memory.
    pub(crate) fn owner(&self, memory: MemoryId) -> Option<BackendId> {
        self.topology.memory(memory).map(|memory| memory.backend)
    }
}
