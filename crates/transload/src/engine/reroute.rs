//! What follows when a leg fails: which links are blamed, and which way the rest goes.

use alloc::boxed::Box;
use alloc::sync::Arc;

use transload_core::flight::{Failure, Flight, Phase};
use transload_core::{Instant, LinkId, Plan};
use transload_hal::ErrorClass;

use super::active::Active;
use super::planning;
use super::state::State;
use super::types::Index;
use crate::report::Fallback;

impl State {
    /// Handles the failure of a leg: blames the link that failed, and finds another way.
    pub(super) fn reroute(&mut self, index: Index, failure: Failure, now: Instant) {
        let class = self.give_up_leg(index, failure, now);
        let active = &self.table[index];
        // Bytes that took another way prove nothing about the link.
        let is_crossing = active.proof.is_some_and(|job| self.proofs.is_crossing(job));
        let is_only_way = active.has_only_way && failure.phase == Phase::Copy;
        // After a caller's mistake another route would fail likewise.
        let is_last = class.is_none_or(|class| class == ErrorClass::Caller);
        // A member of a group may get its bytes from elsewhere.
        let member = active.member.as_ref();
        let has_giver = failure.phase == Phase::Copy && member.is_some_and(|of| of.has_giver());
        let is_last = is_last && !has_giver;
        let ends = active.src.as_ref().zip(active.dst.as_ref());
        let ends = ends.filter(|_| !is_last && !is_crossing && !is_only_way);
        let mut next = ends.and_then(|ends| {
            let is_new = |plan: &Arc<Plan>| is_untried(active, plan) && fits(active, plan);
            self.planning.another(ends, failure.phase, now, is_new)
        });
        if next.is_none() && has_giver {
            self.read_from(index, None);
            let active = &self.table[index];
            let ends = active.src.as_ref().zip(active.dst.as_ref());
            let is_new = |plan: &Arc<Plan>| is_untried(active, plan);
            next = ends.and_then(|ends| self.planning.another(ends, failure.phase, now, is_new));
        }
        let active = &mut self.table[index];
        if active.member.is_some() {
            let bytes = active.flight.as_ref().map_or(0, Flight::len_bytes);
            next = next.map(|plan| Arc::new(plan.in_chunks(planning::passed_on(bytes))));
        }
        if next.is_some() {
            // The next leg has faults of its own; without a next leg, this fault is the last one.
            active.fault = None;
            active.checksum = None;
        }
        if let Some(flight) = &mut active.flight {
            flight.handle_route(next);
        }
    }

    /// Records a failed plan and its fault, and blames the links that may have caused it. Returns the class of the
    /// fault.
    pub(crate) fn give_up_leg(
        &mut self,
        index: Index,
        failure: Failure,
        now: Instant,
    ) -> Option<ErrorClass> {
        let active = &mut self.table[index];
        let flight = active.flight.as_ref()?;
        let failed = match failure.at {
            // After a comparison the leg that is over is the one that read the destination.
            None if failure.phase == Phase::Copy => flight.copied_by().or(flight.plan()).cloned(),
            _ => flight.plan().cloned(),
        }?;
        let told = active.failed_leg(Some(&*failed), failure);
        let fault = told.fault.clone();
        // The later legs fail by what the first one met, unless that did not take these bytes or is over.
        let follows = active.cause.as_ref().is_some_and(|cause| {
            let cause = &cause.1;
            let took_none = cause.fault.class == ErrorClass::Unsupported;
            cause.task.moves() == told.task.moves()
                && (!took_none || fault.class == cause.fault.class)
        });
        if !follows {
            active.cause = Some(Box::new((active.fallbacks.len(), told)));
        }
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
        // Another session with the same machine may have other luck with the same links.
        let leads_away = |link: LinkId| {
            [link.src, link.dst]
                .iter()
                .any(|end| !end.device.node.is_here())
        };
        let has_session_ended = fault.class == ErrorClass::Lost && failed.links().any(leads_away);
        if has_session_ended {
            // The slots there are lost, too.
            let there = failed
                .links()
                .filter(|link| !link.dst.device.node.is_here());
            for link in there {
                let lost = self.admission.trim_of(link.dst.device);
                self.after.buffers.extend(lost);
            }
        }
        // What another member got may have been wrong before.
        let is_passed_on = compared && active.member.as_ref().is_some_and(|of| of.has_giver());
        if !blameless.contains(&fault.class) && !has_session_ended && !is_passed_on {
            let reason = alloc::format!("{fault}");
            let planning = &mut self.planning;
            if planning.blame(&failed, failure, compared, &reason, now) {
                failed.links().for_each(|link| self.doubt(link));
            }
        }
        Some(fault.class)
    }
}

/// Returns whether no leg has failed over the same links.
fn is_untried(active: &Active, plan: &Arc<Plan>) -> bool {
    let is_twin = |tried: &Arc<Plan>| tried.links().eq(plan.links());
    !active.tried.iter().any(is_twin)
}

/// An overlapping copy must be a single operation.
fn fits(active: &Active, plan: &Plan) -> bool {
    let in_place = active.flight.as_ref().is_some_and(Flight::is_in_place);
    !in_place || plan.moves_whole()
}
