//! The next step of each transfer, until there are orders for the thread that turns the engine.

use alloc::sync::Arc;

use transload_core::flight::{Action, Failure, Flight, Phase, Task};
use transload_core::{Instant, Plan, Purpose, Step};
use transload_hal::{ErrorClass, Fault};

use super::active::{Active, Stage};
use super::backlog::Line;
use super::completions::Completions;
use super::order::{Bound, Order, Orders, What, is_on_the_host, pins_pages};
use super::state::{Pace, State};
use crate::Fallback;

/// Up to this size a thread that starts other transfers also makes their copies. The host's threads take as long for a
/// batch of larger copies, and the batch is submitted sooner: 4,000 of 64 KiB in 6 ms and not 19, 2,000 of 256 KiB in 3
/// ms and not 30 (EPYC, 2 cores).
const QUICKLY_COPIED_BYTES: u64 = 32 << 10;

impl State {
    /// Makes one round: takes in outcomes, looks at the clock, and fills `orders`.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        pace: Pace,
        spares_drivers: bool,
        completions: &Completions,
        orders: &mut Orders,
    ) {
        self.now = self.now.max(now);
        self.pace = pace;
        for (fence, outcome) in
            core::iter::from_fn(|| completions.take()).take(Completions::AT_ONCE)
        {
            self.handle_outcome(fence, outcome);
        }
        for id in core::iter::from_fn(|| completions.take_awaited()).take(Completions::AT_ONCE) {
            self.handle_events(&[id]);
        }
        self.expire(now);
        self.take_later(orders);
        self.resume(orders);
        self.release_due(now);
        while !orders.is_full() {
            self.board(orders);
            if let Some(slot) = self.next_ready() {
                self.poll(slot, now, orders);
                continue;
            }
            self.feed(orders);
            self.run_errands(orders);
            if !self.has_ready() {
                break;
            }
        }
        if spares_drivers {
            self.leave_to_another_thread(orders);
        }
        self.hand_out(orders);
    }

    /// Starts a transfer: nothing stands before it any more.
    pub(crate) fn launch(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        if active.flight.is_none() || active.dst.is_none() {
            active.stage = Stage::Guarding;
            self.after.wakers.extend(active.waker.take());
            return self.care_for(slot, false);
        }
        active.stage = Stage::Flying;
        self.enqueue(slot);
    }

    fn poll(&mut self, slot: u32, now: Instant, orders: &mut Orders) {
        loop {
            if self.must_prove_first(slot, now) {
                return;
            }
            let active = &mut self.transfers[slot as usize];
            if active.stage != Stage::Flying {
                return;
            }
            if orders.is_full() {
                return self.requeue_front(slot);
            }
            let Some(flight) = active.flight.as_mut() else {
                return;
            };
            if !flight.has_started() {
                active.begun = now;
                if active
                    .batch
                    .as_ref()
                    .is_some_and(|batch| batch.has_failed())
                {
                    flight.handle_cancel();
                }
            }
            match flight.poll_action(now) {
                Some(Action::Submit(task)) => self.order(slot, task, orders),
                Some(Action::Lease) => self.ask_for_slots(slot),
                Some(Action::Return(id)) => self.take_slot_back(slot, id),
                Some(Action::Route(failure)) => self.reroute(slot, failure, now),
                Some(Action::Compare) => self.compare(slot),
                Some(Action::Finish(verdict)) => return self.handle_verdict(slot, verdict, now),
                None => {
                    if self.must_stop(slot) && !self.stop_operations(slot, orders) {
                        return self.requeue_front(slot);
                    }
                    // The answer tells what has moved by then.
                    if self.transfers[slot as usize].ordered == 0 {
                        self.answer_at_deadline(slot, now);
                    }
                    return self.note_hunger(slot);
                }
            }
        }
    }

    /// Hands an operation out, behind those that wait for the same engine of its backend.
    fn order(&mut self, slot: u32, task: Task, orders: &mut Orders) {
        let waits = |line: &Line| {
            let known = self.registered(line.0);
            known.is_some_and(|known| known.backlog.has_queue(*line))
        };
        match self.line_of(slot, &task).filter(waits) {
            Some(line) => self.postpone(self.id(slot), task, line, u64::MAX),
            None => self.order_now(slot, task, orders),
        }
    }

    /// Returns the engine that an operation goes to.
    pub(crate) fn line_of(&self, slot: u32, task: &Task) -> Option<Line> {
        let step = step_of(&self.transfers[slot as usize], task)?;
        Some((step.backend, step.engine))
    }

    pub(crate) fn order_now(&mut self, slot: u32, task: Task, orders: &mut Orders) {
        let id = self.id(slot);
        let active = &self.transfers[slot as usize];
        let Some(step) = step_of(active, &task) else {
            return;
        };
        let backend = self
            .registered(step.backend)
            .filter(|known| known.lost.is_none());
        let Some(known) = backend else {
            let message = alloc::format!("backend {} is not there any more", step.backend);
            let fault = Fault::new(ErrorClass::Lost, message);
            let backend = step.backend;
            return self.handle_refused(id, task.id, backend, fault);
        };
        let Some(bound) = Bound::of(active, &task) else {
            let fault = Fault::new(
                ErrorClass::Unsupported,
                "the plan needs a contiguous region or a slot that is not there",
            );
            let backend = step.backend;
            return self.handle_refused(id, task.id, backend, fault);
        };
        let is_small = self.pace != Pace::QUICK || task.span.len <= QUICKLY_COPIED_BYTES;
        let copies_here =
            self.pace.copies.has(id) && is_small || !is_on_the_host(step.link.as_ref());
        let pins_pages = pins_pages(&task, step.link.as_ref());
        // An order is large, and each small copy hands one out: it is constructed in its final place.
        let order = || Order {
            id,
            backend: Arc::clone(&known.backend),
            backend_id: known.id,
            what: What::Submit {
                task,
                via: step.link,
                bound,
                since: 0,
            },
            is_apart: !copies_here,
        };
        if pins_pages {
            let order = order();
            self.hand_out_slow(order, orders);
        } else {
            orders.push(order());
        }
        self.transfers[slot as usize].ordered += 1;
    }

    /// Handles the failure of a leg: blames the link that failed, and finds another way.
    fn reroute(&mut self, slot: u32, failure: Failure, now: Instant) {
        let class = self.give_up_leg(slot, failure, now);
        if class.is_none_or(|class| class == ErrorClass::Caller) {
            // Another route would fail by the same mistake.
            return self.answer_route(slot, None);
        }
        let active = &self.transfers[slot as usize];
        // Bytes that took another way prove nothing about the link.
        let crossing = active.proof.is_some_and(|job| self.proofs.is_crossing(job));
        let only_way = active.over_one_link && failure.phase == Phase::Copy;
        let next = match crossing || only_way {
            true => None,
            false => self.next_route(slot, failure.phase, now),
        };
        self.answer_route(slot, next);
    }

    /// Records a failed plan and its fault, and blames the links that may have caused it. Returns the class of the
    /// fault.
    pub(crate) fn give_up_leg(
        &mut self,
        slot: u32,
        failure: Failure,
        now: Instant,
    ) -> Option<ErrorClass> {
        let active = &mut self.transfers[slot as usize];
        let flight = active.flight.as_ref()?;
        let failed = match failure.at {
            // After a comparison the leg that is over is the one that read the destination.
            None if failure.phase == Phase::Copy => flight.copied_by().or(flight.plan()).cloned(),
            _ => flight.plan().cloned(),
        }?;
        let (_, fault) = active.fault.clone().unwrap_or_else(|| {
            let backend = failed.lanes[0].steps[0].backend;
            (
                backend,
                Fault::new(ErrorClass::Failed, "no reason was given"),
            )
        });
        active.fallbacks.push(Fallback {
            plan: failed.clone(),
            fault: fault.clone(),
        });
        active.tried.push(failed.clone());
        // A checksum is present only between a comparison and the next leg.
        let compared = active.checksum.is_some();
        // A caller's mistake and an exhausted resource are not the route's fault. Operands that a link does not take
        // are not the link's fault: it serves others.
        let blameless = [
            ErrorClass::Caller,
            ErrorClass::Exhausted,
            ErrorClass::Unsupported,
        ];
        if !blameless.contains(&fault.class) {
            self.blame(&failed, failure, compared, &fault, now);
        }
        Some(fault.class)
    }

    fn blame(
        &mut self,
        failed: &Plan,
        failure: Failure,
        compared: bool,
        fault: &Fault,
        now: Instant,
    ) {
        let reason = alloc::format!("{fault}");
        match failure.at {
            Some((lane, step)) => {
                let link = failed.lanes[usize::from(lane)].steps[usize::from(step)].link;
                if let Some(link) = link {
                    self.quarantine.bar(link, now, reason);
                }
            }
            // The slots could not be had, or a proof failed: other code reports that.
            None if !compared => return,
            // The bytes at the ends differ: any of the links may have changed them.
            None => {
                for link in failed.links() {
                    self.quarantine.bar(link, now, reason.clone());
                    self.doubt(link);
                }
            }
        }
        self.cache.invalidate();
    }

    fn next_route(&mut self, slot: u32, phase: Phase, now: Instant) -> Option<Arc<Plan>> {
        let active = &self.transfers[slot as usize];
        let (src, dst) = (active.src.clone()?, active.dst.clone()?);
        let key = match phase {
            Phase::Copy => super::routes::key(&src, &dst, Purpose::Copy),
            Phase::CheckSrc => super::routes::key(&src, &src, Purpose::Digest),
            Phase::CheckDst => super::routes::key(&dst, &dst, Purpose::Digest),
        };
        let plans = self.plans(key, now).ok()?;
        let active = &self.transfers[slot as usize];
        let untried = |plan: &Arc<Plan>| {
            let twin = |tried: &Arc<Plan>| tried.links().eq(plan.links());
            !active.tried.iter().any(twin)
        };
        let len_bytes = src.shape.payload_bytes();
        plans
            .alternatives(len_bytes)
            .find(|plan| untried(plan) && fits(active, plan))
    }

    fn answer_route(&mut self, slot: u32, plan: Option<Arc<Plan>>) {
        let active = &mut self.transfers[slot as usize];
        if plan.is_some() {
            // The next leg has faults of its own; without a next leg, this fault is the last one.
            active.fault = None;
            active.checksum = None;
        }
        if let Some(flight) = &mut active.flight {
            flight.handle_route(plan);
        }
    }

    fn compare(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        let (Some(flight), Some([src, dst])) = (&mut active.flight, &active.digests) else {
            return;
        };
        let (src, dst) = (src.value(), dst.value());
        active.checksum = Some(src);
        if src != dst {
            let plan = flight.copied_by().or(flight.plan());
            let backend = plan.map(|plan| plan.lanes[0].steps[0].backend);
            let message =
                alloc::format!("source and destination differ: xxh3-64 {src:016x} and {dst:016x}");
            let fault = Fault::new(ErrorClass::Failed, message);
            active.fault = backend.map(|backend| (backend, fault));
        }
        flight.handle_compared(src == dst);
    }
}

/// Returns the step of its plan that an operation belongs to.
fn step_of<'a>(active: &'a Active, task: &Task) -> Option<&'a Step> {
    let plan = active.flight.as_ref()?.plan()?;
    Some(&plan.lanes[usize::from(task.id.lane)].steps[usize::from(task.step)])
}

/// An overlapping copy must be a single operation.
fn fits(active: &Active, plan: &Plan) -> bool {
    let in_place = active.flight.as_ref().is_some_and(Flight::is_in_place);
    !in_place || plan.moves_whole()
}
