//! Verdicts of proofs that outlast the process.
//!
//! The engine knows neither files nor drivers. [`State::recall`] tells it what earlier processes found out, and
//! `After::verdicts` reports what it finds out itself; both are read and written outside its lock. A link that was
//! proven before sends no pattern, but is still connected before it carries anything, once in each process. A link that
//! was condemned stays so.
//!
//! Only links between two devices ([`Access::Peer`]) have verdicts. An import depends on memory of this process, which
//! the next one does not have, and proving it costs next to nothing.

use alloc::string::String;
#[cfg(feature = "std")]
use alloc::vec::Vec;

use hashbrown::HashSet;
use transload_core::{Access, DeviceInfo, LinkId, MemoryId, Topology};

use super::state::State;
use crate::explain::Proof;

/// The result of a proof.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    /// A pattern came back as it went.
    Proven,
    /// The link moved wrong bytes: a sentence tells how that showed.
    Condemned(String),
}

/// A judgement with the devices at both ends, for the keeper of verdicts. Without a judgement, the kept one does not
/// hold any more.
#[cfg_attr(
    not(feature = "std"),
    expect(dead_code, reason = "nobody can keep it without an operating system")
)]
pub(crate) struct Verdict {
    pub(crate) link: LinkId,
    pub(crate) devices: [DeviceInfo; 2],
    pub(crate) judgement: Option<Judgement>,
}

/// What earlier processes found out.
#[derive(Default)]
pub(crate) struct Kept {
    /// Whether the manager keeps what this process finds out.
    pub(crate) is_wanted: bool,
    proven: HashSet<LinkId>,
    condemned: HashSet<LinkId>,
}

impl Kept {
    /// Returns whether an earlier process has proven the link, so that the engine need only connect it.
    pub(crate) fn is_proven(&self, link: LinkId) -> bool {
        self.proven.contains(&link)
    }

    /// Forgets the verdicts, so that this process proves links itself.
    pub(crate) fn forget(&mut self) {
        self.proven.clear();
        self.condemned.clear();
    }
}

/// Returns the devices at the ends of a link whose verdicts can be kept: devices with a UUID, under a driver that names
/// itself.
pub(crate) fn ends(topology: &Topology, link: LinkId) -> Option<[&DeviceInfo; 2]> {
    let told_apart = |device: &&DeviceInfo| {
        let twins = topology.devices().iter();
        let twins = twins.filter(|twin| (twin.id.kind, twin.uuid) == (device.id.kind, device.uuid));
        device.uuid.is_some() && device.driver.is_some() && twins.count() == 1
    };
    let device = |end: MemoryId| topology.device(end.device).filter(told_apart);
    if link.access != Access::Peer {
        return None;
    }
    Some([device(link.src)?, device(link.dst)?])
}

impl State {
    /// Takes in what earlier processes found out. Verdicts of this process remain.
    #[cfg(feature = "std")]
    pub(crate) fn recall(&mut self, recalled: Vec<(LinkId, Judgement)>) {
        for (link, judgement) in recalled {
            if self.proofs.is_proven(link) {
                continue;
            }
            match judgement {
                Judgement::Proven => {
                    self.kept.proven.insert(link);
                }
                Judgement::Condemned(reason) => {
                    let reason = alloc::format!("{reason}, as an earlier process found out");
                    self.planning.condemn(link, reason);
                    self.kept.condemned.insert(link);
                }
            }
        }
        self.planning.invalidate();
    }

    /// Reports a new verdict to the keeper of verdicts.
    pub(crate) fn note_verdict(&mut self, link: LinkId, judgement: Option<Judgement>) {
        if !self.kept.is_wanted {
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

    /// Bytes that went over the link, and perhaps over others, arrived changed. If the link was proven, the next
    /// process that uses it, this one included, proves it again first.
    pub(crate) fn doubt(&mut self, link: LinkId) {
        let was_proven = self.proofs.forget_link(link);
        if self.kept.proven.remove(&link) || was_proven {
            self.note_verdict(link, None);
        }
    }

    /// Called before a probe: links between devices are proven anew, those that an earlier process condemned too. Links
    /// that this process condemned stay so.
    #[cfg(feature = "std")]
    pub(crate) fn distrust_peers(&mut self) {
        let links: Vec<LinkId> = self
            .planning
            .topology()
            .links()
            .iter()
            .map(|link| link.id)
            .collect();
        for link in links.into_iter().filter(|id| id.access == Access::Peer) {
            self.proofs.forget_link(link);
        }
        for link in self.kept.condemned.drain() {
            self.planning.pardon(link);
        }
        self.kept.forget();
        self.planning.invalidate();
    }

    /// How the link came to be trusted; `None` where it needs no proof.
    pub(crate) fn proof_of(&self, link: LinkId) -> Option<Proof> {
        if !link.access.needs_proof() {
            return None;
        }
        Some(
            match (self.kept.is_proven(link), self.proofs.is_proven(link)) {
                (true, _) => Proof::Kept,
                (false, true) => Proof::Made,
                (false, false) => Proof::ToCome,
            },
        )
    }
}
