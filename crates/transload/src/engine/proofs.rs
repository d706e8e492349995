//! Proofs of links under way, and what is known of links from proofs.
//!
//! The first transfer over a link that needs a proof waits while a job carries one out; [`Proof`] holds the rules. The
//! verdict holds as long as the manager lives, or until its caches are cleared. Where verdicts are kept, later
//! processes use it too ([`super::verdict`]): a link that was proven before sends no pattern, but is still connected
//! before it carries anything, once in each process.
//!
//! [`Proofs`] changes nothing but itself. It returns [`Effects`], which its caller must carry out.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use hashbrown::HashSet;
use transload_core::proof::{Action, Proof, Scratch, Verdict, Way};
use transload_core::{LinkId, Plan};
use transload_hal::{BackendId, Buffer, ErrorClass, Fault};

use super::errand::{Errand, Found, pattern, poison};
use super::types::TransferId;
use super::verdict::Judgement;

/// The proofs of links, and what is known from them.
#[derive(Default)]
pub(crate) struct Proofs {
    /// The jobs under way, by their numbers. A number is used again when its job is over.
    jobs: Vec<Option<Job>>,
    errands: VecDeque<Assigned>,
    /// The links that may carry transfers of users.
    proven: HashSet<LinkId>,
    /// The links that earlier processes have proven.
    proven_before: HashSet<LinkId>,
    /// The links that earlier processes have condemned.
    condemned_before: HashSet<LinkId>,
    /// Whether verdicts are kept for later processes.
    keeps: bool,
}

struct Job {
    link: LinkId,
    /// The backend that serves the link.
    backend: BackendId,
    proof: Proof,
    /// By [`Scratch`].
    memory: [Option<Buffer>; 4],
    /// The end that memory is being allocated for.
    wanted: Option<Scratch>,
    /// The way that was chosen for the copy under way.
    way: Way,
    /// Why the last action failed.
    fault: Option<Fault>,
    /// Buffers that the proof no longer uses.
    freed: Vec<Buffer>,
    waiting: Vec<TransferId>,
}

/// An errand, its job, and the backend that serves the link under proof.
pub(crate) type Assigned = (usize, BackendId, Errand);

/// Changes that follow from an input, in order.
pub(crate) type Effects = ArrayVec<Effect, 3>;

/// A change outside of [`Proofs`].
pub(crate) enum Effect {
    /// Copy all bytes: over this link alone, or by the way that [`Proofs::choose_way`] chooses. Then call
    /// [`Proofs::handle_copied`].
    Send {
        job: usize,
        from: Buffer,
        to: Buffer,
        over: Option<LinkId>,
    },
    /// Tell the writer of verdicts. Without a judgement, the kept one does not hold any more.
    Report {
        link: LinkId,
        judgement: Option<Judgement>,
    },
    /// Bar the link for a while.
    Bar { link: LinkId, reason: String },
    /// Bar the link for good.
    Condemn { link: LinkId, reason: String },
    /// Let the transfers go on, after a failure with this fault, and drop the buffers: the job is over.
    Release {
        waiting: Vec<TransferId>,
        fault: Option<(BackendId, Fault)>,
        buffers: Vec<Buffer>,
    },
}

impl Proofs {
    /// Decides whether verdicts are reported for later processes.
    #[cfg(feature = "std")]
    pub(crate) fn keep(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// Returns whether verdicts are reported for later processes.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Returns whether this process has proven or connected the link, so that it may carry transfers of users.
    pub(crate) fn is_proven(&self, link: LinkId) -> bool {
        self.proven.contains(&link)
    }

    /// Returns whether an earlier process has proven the link.
    pub(crate) fn was_proven_before(&self, link: LinkId) -> bool {
        self.proven_before.contains(&link)
    }

    /// Returns the first link of the plan that needs a proof and has none.
    pub(crate) fn first_unproven(&self, plan: &Plan) -> Option<LinkId> {
        plan.links()
            .find(|link| link.access.needs_proof() && !self.proven.contains(link))
    }

    /// Returns whether the job is sending its pattern over the link itself.
    pub(crate) fn is_crossing(&self, job: usize) -> bool {
        matches!(self.jobs.get(job), Some(Some(job)) if job.proof.is_crossing())
    }

    /// Makes a transfer wait for the proof of a link that `backend` serves. The proof begins with the first transfer.
    #[must_use]
    pub(crate) fn enter(
        &mut self,
        link: LinkId,
        backend: BackendId,
        waiting: TransferId,
    ) -> Effects {
        let mut running = self.jobs.iter_mut().flatten();
        if let Some(job) = running.find(|job| job.link == link) {
            job.waiting.push(waiting);
            return Effects::new();
        }
        let free = self.jobs.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.jobs.push(None);
            self.jobs.len() - 1
        });
        self.jobs[at] = Some(Job {
            link,
            backend,
            proof: Proof::new(),
            memory: [const { None }; 4],
            wanted: None,
            way: Way::Detour,
            fault: None,
            freed: Vec::new(),
            waiting: vec![waiting],
        });
        self.advance(at)
    }

    /// Returns the next errand to run outside the lock. Its result goes to [`Proofs::handle_found`].
    pub(crate) fn poll_errand(&mut self) -> Option<Assigned> {
        self.errands.pop_front()
    }

    /// Chooses the way of a copy: the first one whose links need no proof or have one, else the first one without the
    /// link under proof, else the first one. An unproven way will do, since a pattern that survives the round trip
    /// proves all of its links.
    pub(crate) fn choose_way(&mut self, job: usize, ways: &[Arc<Plan>]) -> Option<Arc<Plan>> {
        let trusted = ways.iter().find(|way| self.first_unproven(way).is_none());
        let is_trusted = trusted.is_some();
        let Some(Some(job)) = self.jobs.get_mut(job) else {
            return None;
        };
        let other = || {
            ways.iter()
                .find(|way| way.links().all(|link| link != job.link))
        };
        let way = trusted.or_else(other).or(ways.first())?;
        let links = way.links().collect();
        job.way = Way::Chosen { links, is_trusted };
        Some(Arc::clone(way))
    }

    /// Takes in the end of a copy. `Ok(true)`: it went over its first way; `Ok(false)`: over another one.
    #[must_use]
    pub(crate) fn handle_copied(&mut self, at: usize, done: Result<bool, Fault>) -> Effects {
        let Some(Some(job)) = self.jobs.get_mut(at) else {
            return Effects::new();
        };
        let way = core::mem::replace(&mut job.way, Way::Detour);
        match done {
            Ok(true) => job.proof.handle_copied(way),
            Ok(false) => job.proof.handle_copied(Way::Detour),
            Err(fault) => job.fail(fault),
        }
        self.advance(at)
    }

    /// Takes in the result of an errand.
    #[must_use]
    pub(crate) fn handle_found(&mut self, at: usize, found: Result<Found, Fault>) -> Effects {
        let Some(Some(job)) = self.jobs.get_mut(at) else {
            return Effects::new();
        };
        match found {
            Ok(Found::Connected) => {
                let was_proven = self.proven_before.contains(&job.link);
                job.proof.handle_connected(was_proven);
            }
            Ok(Found::Scratch(buffer)) => {
                if let Some(end) = job.wanted.take() {
                    job.memory[end as usize] = Some(buffer);
                    job.proof.handle_allocated();
                }
            }
            Ok(Found::Equal(equal)) => job.proof.handle_compared(equal),
            Err(fault) => job.fail(fault),
        }
        self.advance(at)
    }

    /// Takes in what an earlier process found out. A verdict of this process remains.
    #[cfg(feature = "std")]
    #[must_use]
    pub(crate) fn recall(&mut self, link: LinkId, judgement: Judgement) -> Option<Effect> {
        if self.proven.contains(&link) {
            return None;
        }
        match judgement {
            Judgement::Proven => {
                self.proven_before.insert(link);
                None
            }
            Judgement::Condemned(reason) => {
                self.condemned_before.insert(link);
                let reason = alloc::format!("{reason}, as an earlier process found out");
                Some(Effect::Condemn { link, reason })
            }
        }
    }

    /// Bytes that went over the link, and perhaps over others, arrived changed. If the link was proven, the next
    /// process that uses it, this one included, proves it again first.
    #[must_use]
    pub(crate) fn doubt(&mut self, link: LinkId) -> Option<Effect> {
        let was_proven = self.proven.remove(&link);
        let judgement = None;
        (self.proven_before.remove(&link) || was_proven)
            .then_some(Effect::Report { link, judgement })
    }

    /// Forgets what earlier processes found out, and the proofs of these links. Returns the links that earlier
    /// processes condemned.
    #[cfg(feature = "std")]
    pub(crate) fn distrust(&mut self, links: impl Iterator<Item = LinkId>) -> HashSet<LinkId> {
        for link in links {
            self.proven.remove(&link);
        }
        self.proven_before.clear();
        core::mem::take(&mut self.condemned_before)
    }

    /// Forgets the verdicts of this process and of earlier ones.
    pub(crate) fn forget(&mut self) {
        self.proven.clear();
        self.proven_before.clear();
        self.condemned_before.clear();
    }

    /// Lets a proof go on until it waits for something, or is over.
    fn advance(&mut self, at: usize) -> Effects {
        let mut effects = Effects::new();
        let Some(job) = &mut self.jobs[at] else {
            return effects;
        };
        match job.next() {
            Some(Next::Run(errand)) => self.errands.push_back((at, job.backend, errand)),
            Some(Next::Copy { from, to, over }) => effects.push(Effect::Send {
                job: at,
                from,
                to,
                over,
            }),
            Some(Next::Finish(verdict)) => {
                if let Verdict::Connected | Verdict::Proven = verdict {
                    self.proven.insert(job.link);
                }
                if let Some(job) = self.jobs[at].take() {
                    job.end(verdict, &mut effects);
                }
            }
            None => {}
        }
        effects
    }
}

/// What a job waits for.
enum Next {
    Run(Errand),
    Copy {
        from: Buffer,
        to: Buffer,
        over: Option<LinkId>,
    },
    Finish(Verdict),
}

impl Job {
    fn next(&mut self) -> Option<Next> {
        let LinkId { src, dst, .. } = self.link;
        loop {
            return Some(match self.proof.poll_action()? {
                Action::Connect => Next::Run(Errand::Connect { src, dst }),
                Action::Allocate(end) => {
                    self.wanted = Some(end);
                    let memory = if end == Scratch::Src { src } else { dst };
                    Next::Run(Errand::Allocate { memory })
                }
                Action::Poison => {
                    self.memory[Scratch::Pattern as usize].get_or_insert_with(pattern);
                    let before = self.memory[Scratch::Back as usize].replace(poison());
                    self.freed.extend(before);
                    continue;
                }
                Action::Copy {
                    from,
                    to,
                    over_link,
                } => {
                    // Until another way is chosen.
                    self.way = Way::Chosen {
                        links: vec![self.link],
                        is_trusted: false,
                    };
                    let ends = [from, to].map(|end| self.memory[end as usize].clone());
                    let [Some(from), Some(to)] = ends else {
                        self.proof.handle_failed();
                        continue;
                    };
                    let over = over_link.then_some(self.link);
                    Next::Copy { from, to, over }
                }
                Action::Compare => Next::Run(Errand::Compare {
                    pattern: self.memory[Scratch::Pattern as usize].clone(),
                    back: self.memory[Scratch::Back as usize].clone(),
                }),
                Action::Free(end) => {
                    self.freed.extend(self.memory[end as usize].take());
                    continue;
                }
                Action::Finish(verdict) => Next::Finish(verdict),
            });
        }
    }

    fn fail(&mut self, fault: Fault) {
        self.fault = Some(fault);
        self.proof.handle_failed();
    }

    fn end(mut self, verdict: Verdict, effects: &mut Effects) {
        let link = self.link;
        let why = |fault: &Fault| alloc::format!("its proof failed: {fault}");
        let fault = match verdict {
            Verdict::Connected => None,
            Verdict::Proven => {
                let judgement = Some(Judgement::Proven);
                effects.push(Effect::Report { link, judgement });
                None
            }
            Verdict::Condemned { alone } => {
                let message = "a pattern that was sent over the link came back changed";
                let fault = Fault::new(ErrorClass::Failed, message);
                // Other processes are told only if no other link can have changed the pattern.
                if alone {
                    let judgement = Some(Judgement::Condemned(why(&fault)));
                    effects.push(Effect::Report { link, judgement });
                }
                let reason = why(&fault);
                effects.push(Effect::Condemn { link, reason });
                Some(fault)
            }
            Verdict::GivenUp => {
                let other_way = || Fault::new(ErrorClass::Failed, "the pattern took another way");
                let fault = self.fault.take().unwrap_or_else(other_way);
                let reason = why(&fault);
                effects.push(Effect::Bar { link, reason });
                Some(fault)
            }
        };
        let fault = fault.map(|mut fault| {
            let LinkId { src, dst, .. } = link;
            let message = alloc::format!("the proof of {src} → {dst} failed: {}", fault.message);
            fault.message = message.into();
            (self.backend, fault)
        });
        self.freed.extend(self.memory.into_iter().flatten());
        effects.push(Effect::Release {
            waiting: self.waiting,
            fault,
            buffers: self.freed,
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
