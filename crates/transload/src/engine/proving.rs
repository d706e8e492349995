//! Carries out what [`Proofs`](super::proofs::Proofs) decides about links: their first proof, and their verdicts.

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::flight::Flight;
use transload_core::{Barred, Instant, LinkId, Plan, PlanKey, Shape};
use transload_hal::{BackendId, Buffer, ErrorClass, Fault};

use super::active::{Active, Stage};
use super::checked::{Checked, Chosen, Terms};
use super::command::{Command, CommandKind, Commands};
use super::errand::{Errand, Found, PROOF_BYTES};
use super::operand::Operand;
use super::proofs::Effect;
use super::state::State;
use super::types::{Index, TransferId};
use super::verdict::{Judgement, Verdict, ends};
use crate::explain::Proof;

impl State {
    /// Holds the transfer while a link of its leg is proven. Returns whether it waits now. Fails a leg over a link that is
    /// barred, and answers false.
    pub(crate) fn hold_for_proof(&mut self, index: Index, now: Instant) -> bool {
        let active = &self.table[index];
        let starting = active.flight.as_ref().filter(|flight| {
            active.stage == Stage::Flying && active.proof.is_none() && flight.is_at_start_of_leg()
        });
        let plan = starting.and_then(Flight::plan);
        let Some(link) = plan.and_then(|plan| self.proofs.first_unproven(plan)) else {
            return false;
        };
        let backend = self.planning.backend_of_link(link);
        if let Some(barred) = self.planning.barred(link, now) {
            // The link's proof failed just now, or the leg was planned before the link was found to be bad: the leg
            // fails and another one is planned.
            let active = &mut self.table[index];
            active.fault.get_or_insert_with(|| {
                let class = match barred {
                    Barred::Lost => ErrorClass::Lost,
                    _ => ErrorClass::Failed,
                };
                let message = alloc::format!("{} → {}: {barred}", link.src, link.dst);
                (backend, Fault::new(class, message))
            });
            if let Some(flight) = &mut active.flight {
                flight.handle_not_admitted();
            }
            return false;
        }
        self.table[index].stage = Stage::Proving;
        let effects = self.proofs.enter(link, backend, self.table.id(index));
        self.carry_out(effects);
        true
    }

    /// Turns what proofs have to do outside the lock into commands.
    pub(crate) fn run_errands(&mut self, commands: &mut Commands) {
        while !commands.is_full() {
            let Some((job, backend, errand)) = self.proofs.poll_errand() else {
                return;
            };
            let owner = match &errand {
                Errand::Allocate { memory } => self.planning.owner(*memory),
                Errand::Connect { .. } | Errand::Compare { .. } => Some(backend),
            };
            let known = owner.and_then(|owner| self.in_flight.known(owner));
            let Some((backend, backend_id)) =
                known.map(|known| (Arc::clone(&known.backend), known.id))
            else {
                let fault = Fault::new(ErrorClass::Unsupported, "no backend allocates there");
                self.handle_errand(job, Err(fault));
                continue;
            };
            let command = Command {
                id: TransferId::NONE,
                backend,
                backend_id,
                kind: CommandKind::Prove { job, errand },
                is_apart: false,
            };
            self.later.hand_out(command, self.pace, commands);
        }
    }

    /// Takes in the result of an errand.
    pub(crate) fn handle_errand(&mut self, job: usize, found: Result<Found, Fault>) {
        let effects = self.proofs.handle_found(job, found);
        self.carry_out(effects);
    }

    /// Takes in the end of a transfer of a proof. `Ok(true)`: it went over its first route; `Ok(false)`: over another
    /// one.
    pub(crate) fn handle_proof_step(&mut self, job: usize, done: Result<bool, Fault>) {
        let effects = self.proofs.handle_copied(job, done);
        self.carry_out(effects);
    }

    /// Carries out what follows from an input to the proofs.
    fn carry_out(&mut self, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            match effect {
                Effect::Send {
                    job,
                    from,
                    to,
                    over,
                } => {
                    if let Err(fault) = self.send(job, from, to, over) {
                        self.handle_proof_step(job, Err(fault));
                    }
                }
                Effect::Report { link, judgement } => self.note_verdict(link, judgement),
                Effect::Bar { link, reason } => self.planning.bar(link, self.now, reason),
                Effect::Condemn { link, reason } => self.planning.condemn(link, reason),
                Effect::Release {
                    waiting,
                    fault,
                    buffers,
                } => {
                    self.after.buffers.extend(buffers);
                    for id in waiting {
                        self.release(id, fault.as_ref());
                    }
                }
            }
        }
    }

    /// Lets a transfer go on that waited for a proof.
    fn release(&mut self, id: TransferId, fault: Option<&(BackendId, Fault)>) {
        let waits = |active: &&mut Active| active.stage == Stage::Proving;
        let Some(active) = self.table.find_mut(id).filter(waits) else {
            return;
        };
        if let Some(fault) = fault {
            active.fault = Some(fault.clone());
        }
        active.stage = Stage::Flying;
        self.enqueue(id.index);
    }

    /// Submits one copy of a proof: over the link itself, or by any other way.
    fn send(
        &mut self,
        job: usize,
        from: Buffer,
        to: Buffer,
        over: Option<LinkId>,
    ) -> Result<(), Fault> {
        let refused = |error: &dyn core::fmt::Display| {
            let message = alloc::format!("it cannot be proven: {error}");
            Fault::new(ErrorClass::Unsupported, message)
        };
        let now = self.now;
        let plan = match over {
            Some(link) => { &self.planning }
                .plan_of_link(link, PROOF_BYTES)
                .ok_or_else(|| refused(&"the link is gone"))?,
            None => {
                let key = PlanKey::copy(from.memory(), to.memory());
                let plans = self
                    .planning
                    .plans(key, now)
                    .map_err(|error| refused(&error))?;
                let ways: Vec<Arc<Plan>> = plans.alternatives(PROOF_BYTES).collect();
                let way = self.proofs.choose_way(job, &ways);
                way.ok_or_else(|| refused(&"no way leads there"))?
            }
        };
        let operand = |buffer: Buffer| Operand {
            buffer,
            offset: 0,
            shape: Shape::contiguous(PROOF_BYTES),
            scattered: None,
        };
        let checked = Checked::new(operand(from), operand(to)).map_err(|error| refused(&error))?;
        let terms = Terms {
            proof: Some(job),
            ..Terms::default()
        };
        let parts = (checked.in_place, &checked.footprints[..]);
        let ends = (checked.src, checked.dst);
        let chosen = Chosen { plan, verify: None };
        let id = self
            .start(ends, parts, chosen, &terms, now)
            .map_err(|error| refused(&error))?;
        if let Some(active) = self.table.find_mut(id) {
            active.detached = true;
        }
        Ok(())
    }

    /// Takes in what earlier processes found out. Verdicts of this process remain.
    #[cfg(feature = "std")]
    pub(crate) fn recall(&mut self, recalled: Vec<(LinkId, Judgement)>) {
        for (link, judgement) in recalled {
            let effect = self.proofs.recall(link, judgement);
            self.carry_out(effect);
        }
        self.planning.invalidate();
    }

    /// Reports a new verdict to the writer of verdicts.
    pub(crate) fn note_verdict(&mut self, link: LinkId, judgement: Option<Judgement>) {
        if !self.proofs.keeps() {
            return;
        }
        if let Some([src, dst]) = ends(self.planning.topology(), link) {
            self.after.verdicts.push(Verdict {
                link,
                devices: [src.clone(), dst.clone()],
                judgement,
            });
        }
    }

    /// Bytes that went over the link, and perhaps over others, arrived changed.
    pub(crate) fn doubt(&mut self, link: LinkId) {
        let effect = self.proofs.doubt(link);
        self.carry_out(effect);
    }

    /// Called before a probe: links between devices are proven anew, those that an earlier process condemned too. Links
    /// that this process condemned stay so.
    #[cfg(feature = "std")]
    pub(crate) fn distrust_peers(&mut self) {
        let links = self.planning.topology().links().iter().map(|link| link.id);
        let peers = links.filter(|id| id.access == transload_core::Access::Peer);
        for link in self.proofs.distrust(peers) {
            self.planning.pardon(link);
        }
        self.planning.invalidate();
    }

    /// How the link came to be trusted; `None` where it needs no proof.
    pub(crate) fn proof_of(&self, link: LinkId) -> Option<Proof> {
        if !link.access.needs_proof() {
            return None;
        }
        let proofs = &self.proofs;
        Some(
            match (proofs.was_proven_before(link), proofs.is_proven(link)) {
                (true, _) => Proof::Kept,
                (false, true) => Proof::Made,
                (false, false) => Proof::ToCome,
            },
        )
    }
}
