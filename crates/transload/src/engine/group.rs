//! Copies of one source to several destinations, as transfers that pass on what they get: each reads the source or the
//! destination of another one, and copies what has arrived there. They have one place in the order together.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use transload_core::flight::{Flight, Phase};
use transload_core::{Footprint, Giver, Instant, spread};
use transload_hal::{Buffer, ErrorClass, Fault};

use super::active::{Active, Stage};
use super::checked::{Checked, Chosen, Terms};
use super::event::EventState;
use super::operand::Operand;
use super::planning;
use super::state::State;
use super::types::{Index, TransferId};
use crate::error::TransferError;

/// How often the engine looks whether a member holds up those behind it.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// A member that has less than this part of what the fastest one got between two looks, although more is there for it, is cut
/// out: those behind it get their bytes from the one before it.
const LEAST_PART: u64 = 4;

/// A transfer's place in a group.
pub(crate) struct Member {
    /// The record that has the group's place in the order.
    leader: TransferId,
    /// The member whose destination it reads; `None` for the group's source.
    giver: Option<TransferId>,
    /// The members that read its destination.
    followers: Vec<TransferId>,
    /// The group's source.
    source: Operand,
    /// What had arrived at the last look.
    seen_bytes: u64,
    /// More was there for it at the last look.
    was_behind: bool,
}

/// What the record that has the group's place in the order knows.
pub(crate) struct Group {
    members: Vec<TransferId>,
    /// Members that are not over.
    left: usize,
}

impl Member {
    /// The record that has the group's place in the order.
    pub(crate) fn leader(&self) -> TransferId {
        self.leader
    }

    /// Returns the group's source, with which a verification compares.
    pub(crate) fn source(&self) -> &Operand {
        &self.source
    }

    /// Returns whether it reads what another member got.
    pub(crate) fn has_giver(&self) -> bool {
        self.giver.is_some()
    }
}

impl State {
    /// Starts copies of one source, all or none, which have one place in the order together.
    ///
    /// # Errors
    /// The number of the first that cannot be accepted, and why.
    pub(crate) fn start_group(
        &mut self,
        parts: Vec<(Checked, Terms)>,
        footprints: &[Footprint],
        turn: &Arc<EventState>,
        now: Instant,
    ) -> Result<Vec<TransferId>, (usize, TransferError)> {
        let Some(source) = parts.first().map(|(checked, _)| checked.src.clone()) else {
            return Ok(Vec::new());
        };
        let givers = self.givers(&source, &parts, now);
        let destinations: Vec<Operand> = { parts.iter() }
            .map(|(checked, _)| checked.dst.clone())
            .collect();
        // Elements at strides are read in an order that suits their destination.
        let sources: Vec<Operand> = { parts.iter() }
            .map(|(checked, _)| checked.src.clone())
            .collect();
        let mut members = Vec::with_capacity(parts.len());
        for (at, (checked, mut terms)) in parts.into_iter().enumerate() {
            terms.after.push(Arc::clone(turn));
            let started = self
                .planning
                .choose(&checked, &terms, now)
                .and_then(|chosen| {
                    let (from, plan) = match givers[at] {
                        Giver::Source => (checked.src.clone(), None),
                        Giver::Destination(giver) => {
                            let from = destinations[giver].clone();
                            let plan = self.planning.plan(&from, &checked.dst, now);
                            (from, plan)
                        }
                    };
                    let plan = plan.unwrap_or(chosen.plan);
                    let most_bytes = planning::passed_on(checked.len_bytes());
                    let plan = Arc::new(plan.in_chunks(most_bytes));
                    let chosen = Chosen { plan, ..chosen };
                    self.start((from, checked.dst), (false, &[]), chosen, &terms, now)
                });
            match started {
                Ok(id) => {
                    // The group has one place in the order, there as here.
                    self.table[id.index].orders.clear();
                    members.push(id);
                }
                Err(error) => {
                    members.into_iter().for_each(|id| self.withdraw(id));
                    return Err((at, error));
                }
            }
        }
        let leader = self.table.take();
        let leader_id = self.table.id(leader);
        for (at, id) in members.iter().enumerate() {
            let giver = match givers[at] {
                Giver::Source => None,
                Giver::Destination(giver) => Some(members[giver]),
            };
            let active = &mut self.table[id.index];
            if let (Some(_), Some(flight)) = (giver, &mut active.flight) {
                flight.handle_source(0);
            }
            active.member = Some(Box::new(Member {
                leader: leader_id,
                giver,
                followers: Vec::new(),
                source: sources[at].clone(),
                seen_bytes: 0,
                was_behind: false,
            }));
        }
        for (at, id) in members.iter().enumerate() {
            if let Giver::Destination(giver) = givers[at]
                && let Some(member) = &mut self.table[members[giver].index].member
            {
                member.followers.push(*id);
            }
        }
        let active = &mut self.table[leader];
        active.stage = Stage::Waiting;
        active
            .orders
            .extend([&source].into_iter().chain(&destinations));
        active.src = Some(source);
        active.then.push(Arc::clone(turn));
        active.group = Some(Box::new(Group {
            left: members.len(),
            members: members.clone(),
        }));
        self.enter(leader, footprints, &[]);
        Ok(members)
    }

    /// Chooses where each destination gets its bytes. Numbers that are converted all come from the source, and so do elements at
    /// strides that the destinations want in different orders. A destination of such elements passes nothing on: its strides may
    /// go with its record while another member's operation still reads by them.
    fn givers(&mut self, source: &Operand, parts: &[(Checked, Terms)], now: Instant) -> Vec<Giver> {
        let passes_on =
            |checked: &Checked| checked.src.reads_as(source) && checked.dst.strided().is_none();
        let is_one_order = parts.iter().all(|(checked, _)| passes_on(checked));
        if source.conversion().is_some() || !is_one_order {
            return alloc::vec![Giver::Source; parts.len()];
        }
        let planning = &mut self.planning;
        spread(parts.len(), |giver, to| {
            let from = match giver {
                Giver::Source => source,
                Giver::Destination(at) => &parts[at].0.dst,
            };
            planning.sending(from, &parts[to].0.dst, now)
        })
    }

    pub(super) fn look_later(&mut self, leader: Index, now: Instant) {
        self.deadlines.clear(leader, &mut self.table);
        self.deadlines
            .set(leader, Some(now + LOOKS_EVERY), &mut self.table);
    }

    /// Returns an end of a transfer or group, by its number among those that other machines keep the order of.
    pub(super) fn end(&self, index: Index, at: usize) -> Option<&Operand> {
        let active = &self.table[index];
        match (at.checked_sub(1), &active.group) {
            (None, _) => active.src.as_ref(),
            (Some(_), None) => active.dst.as_ref(),
            (Some(at), Some(group)) => self.table.find(group.members[at])?.dst.as_ref(),
        }
    }

    /// Has all that use an end use another view of it.
    pub(super) fn replace_end(&mut self, index: Index, at: usize, view: Buffer) {
        let active = &mut self.table[index];
        let (end, at) = match (at.checked_sub(1), &active.group) {
            (None, _) => (&mut active.src, None),
            (Some(_), None) => (&mut active.dst, None),
            (Some(at), Some(group)) => {
                let giver = group.members[at];
                match self.table.find_mut(giver) {
                    Some(member) => (&mut member.dst, Some(giver)),
                    None => return self.after.buffers.push(view),
                }
            }
        };
        let old = end.as_mut();
        let old = old.map(|end| core::mem::replace(&mut end.buffer, view.clone()));
        self.after.buffers.extend(old);
        let group = self.table[index].group.as_ref();
        let members = group.map(|group| group.members.clone());
        for id in members.into_iter().flatten() {
            let Some(active) = self.table.find_mut(id) else {
                continue;
            };
            let Some(member) = &mut active.member else {
                continue;
            };
            let reads = (member.giver == at).then_some(active.src.as_mut());
            let of_all = at.is_none().then_some(&mut member.source);
            for end in reads.flatten().into_iter().chain(of_all) {
                let old = core::mem::replace(&mut end.buffer, view.clone());
                self.after.buffers.push(old);
            }
        }
        self.after.buffers.push(view);
    }

    /// Returns the transfers that cannot be made without these ends of a transfer or group.
    pub(super) fn parts_with(&self, index: Index, ends: &[usize]) -> Vec<TransferId> {
        match &self.table[index].group {
            None => alloc::vec![self.table.id(index)],
            Some(group) if ends.contains(&0) => group.members.clone(),
            Some(group) => ends.iter().map(|at| group.members[at - 1]).collect(),
        }
    }

    /// Tells those that read a member's destination how much has arrived there.
    #[cold]
    pub(crate) fn pass_on(&mut self, index: Index) {
        let active = &mut self.table[index];
        let given = [false, true].map(|compares| there(active, compares));
        let Some(member) = &mut active.member else {
            return;
        };
        let followers = core::mem::take(&mut member.followers);
        for id in &followers {
            let Some(follower) = self.table.find_mut(*id) else {
                continue;
            };
            if let Some(flight) = &mut follower.flight {
                flight.handle_source(given[usize::from(follower.digests.is_some())]);
            }
            if follower.stage == Stage::Flying {
                self.enqueue(id.index);
            }
        }
        if let Some(member) = &mut self.table[index].member {
            member.followers = followers;
        }
    }

    /// Takes in that a member is over. The group leaves the order with its last member.
    #[cold]
    pub(crate) fn leave_group(&mut self, index: Index, is_done: bool) {
        match is_done {
            true => self.pass_on(index),
            false => self.cut_out(index),
        }
        let Some(member) = self.table[index].member.take() else {
            return;
        };
        self.after.buffers.push(member.source.buffer);
        let leader = self.table.find_mut(member.leader);
        let group = leader.and_then(|leader| leader.group.as_mut());
        let Some(group) = group else { return };
        group.left -= 1;
        if group.left == 0 {
            let index = member.leader.index;
            self.deadlines.clear(index, &mut self.table);
            let active = &mut self.table[index];
            active.group = None;
            let end = active.src.take();
            self.after.buffers.extend(end.map(|end| end.buffer));
            self.table.leave(index);
            self.free_place(index);
        }
    }

    /// Has those that read a member's destination read on at the one before it.
    fn cut_out(&mut self, index: Index) {
        let active = &mut self.table[index];
        let from = active.dst.as_ref().map(|dst| dst.buffer.memory());
        // Where its source is gone, those behind it end for that reason, too.
        let why = match &active.result {
            Some(Err(TransferError::Failed(failure))) => alloc::format!(": {}", failure.fault),
            _ => alloc::string::String::new(),
        };
        let Some(member) = &mut active.member else {
            return;
        };
        let (giver, followers) = (member.giver, core::mem::take(&mut member.followers));
        for id in followers {
            if self
                .table
                .find(id)
                .is_none_or(|follower| follower.member.is_none())
            {
                continue;
            }
            let reason = match from {
                Some(memory) => alloc::format!("{memory} passes on too little{why}"),
                None => alloc::format!("the one before it passes on too little{why}"),
            };
            self.read_from(id.index, giver);
            self.interrupt(id.index, reason);
        }
    }

    /// Has a member read the destination of another one, or the group's source.
    pub(super) fn read_from(&mut self, index: Index, giver: Option<TransferId>) {
        let id = self.table.id(index);
        let compares = self.table[index].digests.is_some();
        let given = giver.and_then(|giver| {
            let active = self.table.find_mut(giver)?;
            let (from, there) = (active.dst.clone()?, there(active, compares));
            active.member.as_mut()?.followers.push(id);
            Some((giver, from, there))
        });
        let active = &mut self.table[index];
        let Some(member) = &mut active.member else {
            return;
        };
        let (giver, from, there) = match given {
            Some((giver, from, there)) => (Some(giver), from, there),
            // A giver that is over has left the group.
            None => (None, member.source.clone(), u64::MAX),
        };
        let before = core::mem::replace(&mut member.giver, giver);
        let read = active.src.replace(from);
        self.after.buffers.extend(read.map(|end| end.buffer));
        if let Some(flight) = &mut active.flight {
            flight.handle_source(there);
        }
        let before = before.and_then(|before| self.table.find_mut(before));
        if let Some(member) = before.and_then(|before| before.member.as_mut()) {
            member.followers.retain(|follower| *follower != id);
        }
    }

    /// Ends a member's leg, so that it goes on from its new source.
    fn interrupt(&mut self, index: Index, reason: alloc::string::String) {
        let active = &mut self.table[index];
        if active.stage != Stage::Flying {
            return;
        }
        let Some(flight) = &mut active.flight else {
            return;
        };
        let backend = flight.plan().map(|plan| plan.lanes[0].steps[0].backend);
        flight.handle_source_lost();
        if let Some(backend) = backend {
            let fault = Fault::new(ErrorClass::Exhausted, reason);
            active.fault.get_or_insert((backend, fault));
        }
        self.enqueue(index);
    }

    /// Looks which members hold up those behind them, and cuts these out.
    #[cold]
    pub(crate) fn look_at_group(&mut self, leader: Index, now: Instant) {
        self.look_later(leader, now);
        let group = self.table[leader].group.as_ref();
        let members = group.map(|group| group.members.clone()).unwrap_or_default();
        let mut found = Vec::with_capacity(members.len());
        for id in &members {
            let Some(active) = self.table.find_mut(*id).filter(|active| active.is_live()) else {
                continue;
            };
            let arrived = there(active, true);
            let Some(flight) = &active.flight else {
                continue;
            };
            let is_behind = flight.phase() == Phase::Copy && flight.source_bytes() > arrived;
            let Some(member) = &mut active.member else {
                continue;
            };
            let moved = arrived.saturating_sub(member.seen_bytes);
            // Only of one that had something to copy all the time is it known how fast it is.
            let was_behind = core::mem::replace(&mut member.was_behind, is_behind);
            member.seen_bytes = arrived;
            found.push((*id, moved, is_behind && was_behind));
        }
        let most = found.iter().map(|(_, moved, _)| *moved).max().unwrap_or(0);
        for (id, moved, is_behind) in found {
            if is_behind && (moved == 0 || moved < most / LEAST_PART) {
                self.cut_out(id.index);
            }
        }
    }
}

/// Returns how many leading bytes of a member's destination another member can read, which compares what it gets or does not.
/// One that does not gets none before the giver's own comparison.
fn there(giver: &Active, compares: bool) -> u64 {
    match (&giver.result, &giver.flight) {
        (Some(Ok(_)), _) => u64::MAX,
        _ if giver.digests.is_some() && !compares => 0,
        (_, Some(flight)) if flight.phase() != Phase::Copy => u64::MAX,
        (_, flight) => flight.as_ref().map_or(0, Flight::leading_bytes),
    }
}
