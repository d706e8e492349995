//! Proofs of paths, before they carry transfers of users.
//!
//! Some machines grant peer access, or an import, and then move wrong bytes without an error. So the first transfer
//! over such a link waits while a job of the engine connects the two memories, sends a pattern over the link into
//! poisoned memory, reads it back another way and compares. The verdict holds as long as the manager lives, or until
//! its caches are cleared; where verdicts are kept, later processes use it too ([`super::kept`]).

mod blame;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use hashbrown::HashSet;
use transload_core::flight::Flight;
use transload_core::{Barred, Instant, LinkId, MemoryId, Plan, PlanKey, Shape};
use transload_hal::{
    AllocError, AllocSpec, Backend, BackendId, Buffer, ErrorClass, Fault, HostSpan, StorageId,
    StorageInfo,
};

use super::active::Stage;
use super::checked::{Checked, Chosen, Terms};
use super::command::{Command, CommandKind, Commands, own_fault};
use super::kept::Judgement;
use super::state::State;
use super::types::{Index, Operand, TransferId};
use super::unwind::guarded;

/// The bytes that a proof sends: sixteen small pages and an odd tail, so that mistakes in units of pages and of cache
/// lines both show.
const PROOF_BYTES: u64 = (64 << 10) + 13;

/// The alignment of these bytes, in memory that supports it: a page, since links that reach whole pages refuse other
/// ranges. The largest page that is not a huge one has 64 KiB, on Arm.
const PROOF_ALIGNMENT: u64 = 64 << 10;

/// The state of proofs.
#[derive(Default)]
pub(crate) struct Proofs {
    proven: HashSet<LinkId>,
    jobs: Vec<Job>,
    /// Jobs with an errand to do outside the lock.
    errands: VecDeque<usize>,
}

struct Job {
    link: LinkId,
    backend: BackendId,
    stage: ProofStage,
    src: Option<Buffer>,
    dst: Option<Buffer>,
    pattern: Option<Buffer>,
    back: Option<Buffer>,
    /// Whether only this link can have changed the pattern.
    alone: bool,
    /// The way that the pattern took back from the destination.
    way_back: Option<Arc<Plan>>,
    waiting: Vec<TransferId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProofStage {
    Connecting,
    AllocatingSrc,
    AllocatingDst,
    /// The destination is filled with bytes that differ from the pattern everywhere.
    Poisoning,
    Filling,
    Crossing,
    Reading,
    Comparing,
    // The pattern came back changed, and other links may have changed it.
    ReadingSrc,
    ComparingSrc,
    /// The destination is filled with the pattern by another way.
    Refilling,
    ReadingAgain,
    ComparingAgain,
    Over,
}

/// A step of a proof that is done outside the lock.
pub(crate) enum Errand {
    Connect {
        src: MemoryId,
        dst: MemoryId,
    },
    Allocate {
        memory: MemoryId,
    },
    Compare {
        pattern: Option<Buffer>,
        back: Option<Buffer>,
    },
}

/// The result of an errand.
pub(crate) enum Found {
    Connected,
    Scratch(Buffer),
    Equal(bool),
}

impl Proofs {
    pub(crate) fn forget(&mut self) {
        self.proven.clear();
    }

    /// Returns false when the link was not proven.
    pub(crate) fn forget_link(&mut self, link: LinkId) -> bool {
        self.proven.remove(&link)
    }

    /// Returns whether the link may carry transfers of users.
    pub(crate) fn is_proven(&self, link: LinkId) -> bool {
        self.proven.contains(&link)
    }

    /// Returns whether the job is sending its pattern over the link itself.
    pub(crate) fn is_crossing(&self, job: usize) -> bool {
        self.jobs[job].stage == ProofStage::Crossing
    }
}

impl Job {
    /// Returns the source and destination of the copy in its stage; `None` where the stage copies nothing.
    fn copy(&self) -> Option<(Buffer, Buffer)> {
        let (from, to) = match self.stage {
            ProofStage::Poisoning => (&self.back, &self.dst),
            ProofStage::Filling => (&self.pattern, &self.src),
            ProofStage::Crossing => (&self.src, &self.dst),
            ProofStage::Reading | ProofStage::ReadingAgain => (&self.dst, &self.back),
            ProofStage::ReadingSrc => (&self.src, &self.back),
            ProofStage::Refilling => (&self.pattern, &self.dst),
            _ => return None,
        };
        Some((from.clone()?, to.clone()?))
    }
}

impl Errand {
    pub(crate) fn run(&self, backend: &dyn Backend) -> Result<Found, Fault> {
        match self {
            Errand::Connect { src, dst } => guarded(|| backend.connect(*src, *dst))?
                .map(|_| Found::Connected)
                .map_err(|error| own_fault(error.class(), &error)),
            Errand::Allocate { memory } => {
                let plain = AllocSpec::bytes(PROOF_BYTES);
                let paged = plain.aligned(PROOF_ALIGNMENT);
                guarded(|| match backend.allocate(*memory, &paged) {
                    Err(AllocError::Alignment { .. }) => backend.allocate(*memory, &plain),
                    answer => answer,
                })?
                .map(Found::Scratch)
                .map_err(|error| own_fault(error.class(), &error))
            }
            Errand::Compare { pattern, back } => {
                let bytes = |buffer: &Option<Buffer>| buffer.as_ref()?.host(0, PROOF_BYTES);
                let (Some(pattern), Some(back)) = (bytes(pattern), bytes(back)) else {
                    return Ok(Found::Equal(false));
                };
                // SAFETY: the job owns the vector behind the buffer, and its transfers are over.
                let pattern = unsafe { pattern.as_slice() };
                // SAFETY: as above.
                let back = unsafe { back.as_slice() };
                Ok(Found::Equal(pattern == back))
            }
        }
    }
}

impl State {
    /// Returns whether the transfer's leg must wait for a proof. If so, the transfer waits when this returns.
    pub(crate) fn must_prove_first(&mut self, index: Index, now: Instant) -> bool {
        let active = &self.table[index];
        let starting = active.flight.as_ref().filter(|flight| {
            active.stage == Stage::Flying && active.proof.is_none() && flight.is_at_start_of_leg()
        });
        let Some(plan) = starting.and_then(Flight::plan) else {
            return false;
        };
        let unproven =
            |link: &LinkId| link.access.needs_proof() && !self.proofs.proven.contains(link);
        let Some(link) = plan.links().find(unproven) else {
            return false;
        };
        if let Some(barred) = self.planning.barred(link, now) {
            // The link's proof failed just now, or the leg was planned before the link was found to be bad: the leg
            // fails and another one is planned.
            let backend = self.planning.backend_of_link(link);
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
        let id = self.table.id(index);
        self.table[index].stage = Stage::Proving;
        let running = self
            .proofs
            .jobs
            .iter()
            .position(|job| job.link == link && job.stage != ProofStage::Over);
        match running {
            Some(job) => self.proofs.jobs[job].waiting.push(id),
            None => self.begin_proof(link, id),
        }
        true
    }

    fn begin_proof(&mut self, link: LinkId, waiting: TransferId) {
        let links = self.planning.topology().links().iter();
        let Some(backend) = links
            .into_iter()
            .find(|known| known.id == link)
            .map(|known| known.backend)
        else {
            return;
        };
        let mut job = Job {
            link,
            backend,
            stage: ProofStage::Connecting,
            src: None,
            dst: None,
            pattern: None,
            back: None,
            alone: true,
            way_back: None,
            waiting: Vec::new(),
        };
        job.waiting.push(waiting);
        let over = self
            .proofs
            .jobs
            .iter()
            .position(|job| job.stage == ProofStage::Over);
        let at = match over {
            Some(at) => {
                self.proofs.jobs[at] = job;
                at
            }
            None => {
                self.proofs.jobs.push(job);
                self.proofs.jobs.len() - 1
            }
        };
        self.proofs.errands.push_back(at);
    }

    /// Turns what proofs have to do outside the lock into commands.
    pub(crate) fn run_errands(&mut self, commands: &mut Commands) {
        while !commands.is_full() {
            let Some(at) = self.proofs.errands.pop_front() else {
                return;
            };
            let job = &self.proofs.jobs[at];
            let link = job.link;
            let (owner, errand) = match job.stage {
                ProofStage::Connecting => {
                    let (src, dst) = (link.src, link.dst);
                    (Some(job.backend), Errand::Connect { src, dst })
                }
                ProofStage::AllocatingSrc => (
                    self.planning.owner(link.src),
                    Errand::Allocate { memory: link.src },
                ),
                ProofStage::AllocatingDst => (
                    self.planning.owner(link.dst),
                    Errand::Allocate { memory: link.dst },
                ),
                ProofStage::Comparing | ProofStage::ComparingSrc | ProofStage::ComparingAgain => {
                    let (pattern, back) = (job.pattern.clone(), job.back.clone());
                    (Some(job.backend), Errand::Compare { pattern, back })
                }
                _ => continue,
            };
            let known = owner.and_then(|owner| self.in_flight.known(owner));
            let Some((backend, backend_id)) =
                known.map(|known| (Arc::clone(&known.backend), known.id))
            else {
                let fault = Fault::new(ErrorClass::Unsupported, "no backend allocates there");
                self.give_up_proof(at, fault);
                continue;
            };
            let command = Command {
                id: TransferId::NONE,
                backend,
                backend_id,
                kind: CommandKind::Prove { job: at, errand },
                is_apart: false,
            };
            self.later.hand_out(command, self.pace, commands);
        }
    }

    /// Takes in the result of an errand.
    pub(crate) fn handle_errand(&mut self, at: usize, found: Result<Found, Fault>) {
        let job = &mut self.proofs.jobs[at];
        let next = match (job.stage, found) {
            (ProofStage::Connecting, Ok(Found::Connected)) => {
                if self.kept.is_proven(job.link) {
                    self.proofs.proven.insert(job.link);
                    return self.let_go(at);
                }
                job.pattern = Some(scratch(pattern_byte));
                job.back = Some(poison());
                ProofStage::AllocatingSrc
            }
            (ProofStage::AllocatingSrc, Ok(Found::Scratch(buffer))) => {
                job.src = Some(buffer);
                ProofStage::AllocatingDst
            }
            (ProofStage::AllocatingDst, Ok(Found::Scratch(buffer))) => {
                job.dst = Some(buffer);
                ProofStage::Poisoning
            }
            (ProofStage::Comparing, Ok(Found::Equal(true))) => return self.prove(at),
            (ProofStage::Comparing, Ok(_)) => return self.handle_difference(at),
            (ProofStage::ComparingSrc | ProofStage::ComparingAgain, Ok(found)) => {
                return self.handle_compared_again(at, &found);
            }
            (_, Err(fault)) => return self.give_up_proof(at, fault),
            (_, Ok(_)) => return,
        };
        self.proceed(at, next);
    }

    /// Takes in the end of a transfer of a proof. `Ok(true)`: it went over its first route; `Ok(false)`: over another
    /// one.
    pub(crate) fn handle_proof_step(&mut self, at: usize, done: Result<bool, Fault>) {
        match done {
            Ok(true) => {}
            Ok(false) => self.proofs.jobs[at].note_detour(),
            Err(fault) => return self.give_up_proof(at, fault),
        }
        let next = match self.proofs.jobs[at].stage {
            ProofStage::Poisoning => ProofStage::Filling,
            ProofStage::Filling => ProofStage::Crossing,
            ProofStage::Crossing => ProofStage::Reading,
            ProofStage::Reading => ProofStage::Comparing,
            ProofStage::ReadingSrc => ProofStage::ComparingSrc,
            ProofStage::Refilling => ProofStage::ReadingAgain,
            ProofStage::ReadingAgain => ProofStage::ComparingAgain,
            _ => return,
        };
        self.proceed(at, next);
    }

    fn proceed(&mut self, at: usize, stage: ProofStage) {
        let job = &mut self.proofs.jobs[at];
        job.stage = stage;
        let Some((from, to)) = job.copy() else {
            return self.proofs.errands.push_back(at);
        };
        let sent = self.send(at, from, to, stage == ProofStage::Crossing);
        if let Err(fault) = sent {
            self.give_up_proof(at, fault);
        }
    }

    /// Submits one copy of a proof: over the link itself, or by any other way.
    fn send(&mut self, at: usize, from: Buffer, to: Buffer, over_link: bool) -> Result<(), Fault> {
        let link = self.proofs.jobs[at].link;
        let refused = |error: &dyn core::fmt::Display| {
            Fault::new(
                ErrorClass::Unsupported,
                alloc::format!("it cannot be proven: {error}"),
            )
        };
        let now = self.now;
        let plan = if over_link {
            self.planning
                .plan_of_link(link, PROOF_BYTES)
                .ok_or_else(|| refused(&"the link is gone"))?
        } else {
            let key = PlanKey::copy(from.memory(), to.memory());
            let plans = self
                .planning
                .plans(key, now)
                .map_err(|error| refused(&error))?;
            // Prefers a way that needs no proof or has one. Another unproven way will do, since a pattern that survives
            // the round trip proves all of its links.
            let ways: Vec<Arc<Plan>> = plans.alternatives(PROOF_BYTES).collect();
            let sound =
                |link: &LinkId| !link.access.needs_proof() || self.proofs.proven.contains(link);
            let trusted = ways
                .iter()
                .find(|plan| plan.links().all(|link| sound(&link)));
            let other = || {
                ways.iter()
                    .find(|plan| plan.links().all(|other| other != link))
            };
            let way = trusted.or_else(other).or(ways.first());
            let way = way.ok_or_else(|| refused(&"no way leads there"))?;
            self.proofs.jobs[at].note_way(way, trusted.is_some());
            Arc::clone(way)
        };
        let operand = |buffer: Buffer| Operand {
            buffer,
            offset: 0,
            shape: Shape::contiguous(PROOF_BYTES),
        };
        let checked = Checked::new(operand(from), operand(to)).map_err(|error| refused(&error))?;
        let terms = Terms {
            proof: Some(at),
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

    fn prove(&mut self, at: usize) {
        let link = self.proofs.jobs[at].link;
        self.proofs.proven.insert(link);
        self.note_verdict(link, Some(Judgement::Proven));
        self.let_go(at);
    }

    /// Ends a proof without a result: the link is quarantined, and proven again later.
    fn disprove(&mut self, at: usize, fault: Fault) {
        let link = self.proofs.jobs[at].link;
        let reason = alloc::format!("its proof failed: {fault}");
        self.planning.bar(link, self.now, reason);
        self.tell_why(at, fault);
    }

    /// Gives the transfers that waited for the proof its fault.
    fn tell_why(&mut self, at: usize, fault: Fault) {
        self.planning.invalidate();
        let link = self.proofs.jobs[at].link;
        let backend = self.proofs.jobs[at].backend;
        let message = alloc::format!(
            "the proof of {} → {} failed: {}",
            link.src,
            link.dst,
            fault.message
        );
        let fault = Fault {
            message: message.into(),
            ..fault
        };
        for waiting in 0..self.proofs.jobs[at].waiting.len() {
            let id = self.proofs.jobs[at].waiting[waiting];
            if let Some(active) = self.table.find_mut(id) {
                active.fault = Some((backend, fault.clone()));
            }
        }
        self.let_go(at);
    }

    /// Ends a job; the transfers that waited for it go on.
    fn let_go(&mut self, at: usize) {
        let job = &mut self.proofs.jobs[at];
        job.stage = ProofStage::Over;
        let ends = [job.src.take(), job.dst.take()];
        let scratch = ends
            .into_iter()
            .chain([job.pattern.take(), job.back.take()]);
        self.after.buffers.extend(scratch.flatten());
        for id in core::mem::take(&mut job.waiting) {
            if let Some(active) = self
                .table
                .find_mut(id)
                .filter(|active| active.stage == Stage::Proving)
            {
                active.stage = Stage::Flying;
                self.enqueue(id.index);
            }
        }
    }
}

/// No two neighbouring bytes, pages or cache lines are alike, and none is the poison.
fn pattern_byte(at: u64) -> u8 {
    let mixed = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
    if mixed == 0xA5 { 0x5A } else { mixed as u8 }
}

/// Host memory with bytes that the pattern does not contain.
fn poison() -> Buffer {
    scratch(|_| 0xA5)
}

/// Host memory of the engine's own, which begins with a page. If no other way is left, it is an end of the link under
/// proof.
fn scratch(byte: impl Fn(u64) -> u8) -> Buffer {
    let mut bytes = vec![0; (PROOF_BYTES + PROOF_ALIGNMENT) as usize];
    let start = HostSpan::of(&bytes).addr();
    let lead = (start.next_multiple_of(PROOF_ALIGNMENT) - start) as usize;
    let some = &mut bytes[lead..][..PROOF_BYTES as usize];
    for (at, to) in (0..).zip(some.iter_mut()) {
        *to = byte(at);
    }
    let host = HostSpan::of_mut(some);
    let memory = transload_core::DeviceId::CPU0.memory(transload_core::MemoryKind::Pageable);
    let info = StorageInfo {
        id: StorageId::Host,
        base: host.addr(),
        len_bytes: PROOF_BYTES,
        memory,
        backend: BackendId(memory.device.kind.0),
        writable: true,
        host: Some(host),
    };
    // SAFETY: the vector's block stays in place until the vector is dropped, and nothing but the buffer uses it.
    unsafe { Buffer::new(info, Box::new(bytes)) }
}
