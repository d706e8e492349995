//! Profiles: measured costs of a machine's links, on disk.
//!
//! [`TransferManager::probe`](crate::TransferManager::probe) makes a [`Profile`]; its costs replace the planner's
//! default figures. A profile is a TOML file with a format version, under the [`Fingerprint`] of the machine that it
//! was measured on. A profile of another machine, or one that is out of date, garbled or of a later version, is refused
//! with a reason and has no effect.
//!
//! [`TransferManager::discover`](crate::TransferManager::discover) reads the saved profile from [`saved_path`]. The
//! verdicts of proofs of links between devices are kept beside it, at [`verdicts_path`]
//! ([`Builder::keep_verdicts`](crate::Builder::keep_verdicts)).

mod error;
mod fingerprint;
mod store;
mod text;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use transload_core::defaults::MIN_CHUNK_BYTES;
use transload_core::{Compared, Correction, Curve, DeviceId, DeviceInfo, LinkId, Timing, Topology};

pub use error::{FORMAT, ProfileError};
pub use fingerprint::{DevicePrint, Fingerprint};
pub use store::{ENVIRONMENT, saved_path, verdicts_path};

use crate::TransferManager;

/// The measured costs of a machine's links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    machine: Fingerprint,
    links: Vec<MeasuredLink>,
    routes: Vec<MeasuredRoute>,
    origin: Option<PathBuf>,
}

/// A route whose measured times differ from those that its links predict.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeasuredRoute {
    /// The links, in order.
    pub links: Vec<LinkId>,
    /// The predicted and the measured times, by rising size.
    pub points: Vec<Compared>,
}

impl MeasuredRoute {
    /// The measurements of a route, by rising size.
    pub fn new(links: Vec<LinkId>, points: Vec<Compared>) -> MeasuredRoute {
        MeasuredRoute { links, points }
    }
}

/// The measurements of one link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeasuredLink {
    /// The link.
    pub id: LinkId,
    /// The times, by rising size. Empty for a faulty link.
    pub points: Vec<Point>,
    /// The link moved wrong bytes and is not used.
    pub faulty: bool,
}

/// The time that copies of one size took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Point {
    /// The size in bytes.
    pub bytes: u64,
    /// The median, in nanoseconds.
    pub ns: u64,
    /// The lower end of the median's confidence interval, in nanoseconds.
    pub low_ns: u64,
    /// The upper end of the interval, in nanoseconds.
    pub high_ns: u64,
    /// The number of timed copies.
    pub samples: u32,
}

impl Point {
    /// Makes a point from the size in bytes, the median, the confidence interval (both in nanoseconds) and the number
    /// of timed copies.
    pub fn new(bytes: u64, ns: u64, interval_ns: RangeInclusive<u64>, samples: u32) -> Point {
        let (low_ns, high_ns) = interval_ns.into_inner();
        Point {
            bytes,
            ns,
            low_ns,
            high_ns,
            samples,
        }
    }
}

impl MeasuredLink {
    /// The measurements of a link that moved all bytes, by rising size.
    pub fn new(id: LinkId, points: Vec<Point>) -> MeasuredLink {
        MeasuredLink {
            id,
            points,
            faulty: false,
        }
    }

    /// A link that moved wrong bytes.
    pub fn faulty(id: LinkId) -> MeasuredLink {
        MeasuredLink {
            id,
            points: Vec::new(),
            faulty: true,
        }
    }

    /// Returns the cost as a function of size, through the medians ([`Curve::through`]); `None` where the link has no
    /// usable measurements.
    pub fn curve(&self) -> Option<Curve> {
        let timing = |point: &Point| Timing {
            bytes: point.bytes,
            ns: point.ns,
        };
        let timings: Vec<Timing> = self.points.iter().map(timing).collect();
        // A clock that did not move has measured nothing.
        let moved = timings.last().is_some_and(|last| last.ns > 0);
        (moved && !self.faulty)
            .then(|| Curve::through(&timings).ok())
            .flatten()
    }
}

/// A median of fewer times has no interval of 95 %. It is taken to be uncertain by a quarter at least.
const FEW: u32 = 6;

impl MeasuredLink {
    /// Returns how uncertain the medians are, in parts of 1024: the longest half of an interval as a part of its median,
    /// at most a half.
    fn doubt(&self) -> u16 {
        let of = |point: &Point| {
            let half =
                (point.high_ns.saturating_sub(point.ns)).max(point.ns.saturating_sub(point.low_ns));
            let part = u128::from(half) * 1024 / u128::from(point.ns.max(1));
            let part = u16::try_from(part).unwrap_or(u16::MAX);
            if point.samples < FEW {
                part.max(256)
            } else {
                part
            }
        };
        // Small copies decide nothing about chunks, and are noisy.
        let chunks = { self.points.iter() }.filter(|point| point.bytes >= MIN_CHUNK_BYTES);
        let all = chunks
            .map(of)
            .max()
            .or_else(|| self.points.iter().map(of).max());
        all.unwrap_or(0).min(512)
    }
}

impl Profile {
    /// Makes a profile of the machine with that topology.
    pub fn new(topology: &Topology, links: Vec<MeasuredLink>) -> Profile {
        Profile {
            machine: Fingerprint::of(topology),
            links,
            routes: Vec::new(),
            origin: None,
        }
    }

    /// The same profile with measured routes.
    #[must_use]
    pub fn with_routes(mut self, routes: Vec<MeasuredRoute>) -> Profile {
        self.routes = routes;
        self
    }

    /// Returns the routes whose predicted times are corrected, because measured ones differ from them by more than the
    /// measurement's interval.
    pub fn routes(&self) -> &[MeasuredRoute] {
        &self.routes
    }

    /// Returns the machine that it was measured on.
    pub fn machine(&self) -> &Fingerprint {
        &self.machine
    }

    /// Returns the measured links.
    pub fn links(&self) -> &[MeasuredLink] {
        &self.links
    }

    /// Returns the file that it was read from; `None` where it was not read from a file.
    pub fn origin(&self) -> Option<&Path> {
        self.origin.as_deref()
    }

    /// Checks that the profile is of the machine with that topology. Only backends that the topology has count: a
    /// program without a backend uses the measurements of the others. Other machines do not count either: the profile holds
    /// for the links that it has.
    ///
    /// # Errors
    /// [`ProfileError::Foreign`] and [`ProfileError::Stale`], which name every difference.
    pub fn check(&self, topology: &Topology) -> Result<(), ProfileError> {
        let here = Fingerprint::of(topology);
        let Some((foreign, differences)) = self.machine.differences(&here) else {
            return Ok(());
        };
        let path = self.origin.clone();
        Err(match foreign {
            true => ProfileError::Foreign { path, differences },
            false => ProfileError::Stale { path, differences },
        })
    }
}

impl Profile {
    /// The profile without links and routes to devices of other machines that are others now.
    fn holding(&self, topology: &Topology) -> Profile {
        let here = Fingerprint::of(topology);
        let holds = |link: &LinkId| {
            let ends = [link.src.device, link.dst.device];
            ends.into_iter()
                .all(|end| !self.machine.is_another(end, &here))
        };
        let mut holding = self.clone();
        holding.links.retain(|link| holds(&link.id));
        holding.routes.retain(|route| route.links.iter().all(holds));
        holding
    }
}

impl TransferManager {
    /// Plans with the costs of a profile from now on. Links that the profile does not know keep their costs, and so do those
    /// to a device of another machine that is no longer the one that was measured; faulty ones are not used until
    /// [`TransferManager::clear_cache`].
    ///
    /// A kind of device that opens later ([`Builder::discover`](crate::Builder::discover)) takes its costs from the
    /// profile then. Links of a device that differs from the measured one keep their costs.
    ///
    /// # Errors
    /// When the profile is of another machine or out of date ([`Profile::check`]), as far as devices are open. The costs
    /// are unchanged then.
    pub fn apply_profile(&self, profile: &Profile) -> Result<(), ProfileError> {
        let topology = self
            .shared
            .inspect(|state| state.planning.topology().clone())?;
        profile.check(&topology)?;
        self.adopt_profile(&profile.holding(&topology));
        Ok(())
    }

    /// The same for a profile that was measured here just now.
    pub(super) fn adopt_profile(&self, profile: &Profile) {
        self.plan_with(Some(profile.clone()), &Topology::new());
    }

    /// Plans with the costs of the kept profile for the links that were not there `before`: a kind of device was opened.
    pub(super) fn adopt_kept_profile(&self, before: &Topology) {
        self.plan_with(None, before);
    }

    /// Keeps a profile, if there is a new one, and plans with the costs of the kept one for the links that were not there
    /// `before`. Leaves out links and routes of devices that differ from those that were measured: their kind has opened
    /// since the profile was checked.
    fn plan_with(&self, new: Option<Profile>, before: &Topology) {
        // In one section under the lock: of two threads the later one sees the newer profile, and all kinds.
        self.shared.change(|state| {
            let kept = self.shared.kinds.profile.lock();
            let mut kept = kept.unwrap_or_else(PoisonError::into_inner);
            if new.is_some() {
                *kept = new;
            }
            // A probe that had no time for any link teaches nothing, and the manager goes on learning.
            let profile = kept.as_ref();
            let profile = profile.filter(|of| !of.links.is_empty() || !of.routes.is_empty());
            let Some(profile) = profile else { return };
            let opened = state.planning.topology();
            let is_other = |device: &&DeviceInfo| !profile.machine.has(device);
            let others = opened.devices().iter().filter(is_other);
            let others: Vec<DeviceId> = others.map(|device| device.id).collect();
            let holds = |link: &LinkId| {
                let devices = [link.src.device, link.dst.device, link.engine.device];
                !devices.iter().any(|id| others.contains(id))
            };
            let links = profile.links.iter();
            // A link that is not open yet comes here again: only then is it known whether it is the measured one.
            let is_new = |id: LinkId| before.link(id).is_none() && opened.link(id).is_some();
            let links = links.filter(|link| is_new(link.id) && holds(&link.id));
            let measured: Vec<_> = links.map(|link| (link, link.curve())).collect();
            let corrected = profile.routes.iter();
            let corrected = corrected.filter(|route| route.links.iter().all(holds));
            let corrections = corrected
                .map(|route| (route.links.clone(), Correction::new(&route.points)))
                .collect();
            for (link, curve) in measured {
                if let Some(curve) = curve {
                    state.planning.set_cost(link.id, curve, link.doubt());
                }
                if link.faulty {
                    state.planning.condemn(link.id, FAULTY.into());
                }
            }
            state.planning.set_corrections(corrections);
        });
    }
}

/// Why a link of a profile is not used.
pub(super) const FAULTY: &str = "it moved wrong bytes when the machine was probed";

/// The costs that a builder uses.
#[derive(Debug, Default)]
pub(crate) enum Costs {
    /// The backends' own figures.
    #[default]
    Default,
    /// The saved profile's, where it is of this machine.
    Saved,
    /// The profile's.
    Given(Box<Profile>),
}

impl Costs {
    /// Returns where verdicts are kept with such costs, unless the program names another file.
    pub(crate) fn verdicts(&self) -> Option<PathBuf> {
        match self {
            Costs::Saved => Some(verdicts_path(&saved_path()?)),
            Costs::Default | Costs::Given(_) => None,
        }
    }

    /// # Errors
    /// When the profile that was given is not of this machine. A saved profile that is not of this machine is ignored.
    pub(crate) fn apply(self, manager: &TransferManager) -> Result<(), ProfileError> {
        match self {
            Costs::Default => Ok(()),
            Costs::Given(profile) => manager.apply_profile(&profile),
            Costs::Saved => {
                if let Ok(Some(profile)) = Profile::saved() {
                    let _ = manager.apply_profile(&profile);
                }
                Ok(())
            }
        }
    }
}

#[cfg(all(test, threads, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_newer_profile_is_not_replaced_by_an_older_one_that_a_thread_brings_late() {
        let manager = TransferManager::builder().host().build().unwrap();
        let opened = manager.opened();
        let link = opened.links()[0].id;
        let profile = |ns| {
            let points = [4096, 1 << 20].map(|bytes| Point::new(bytes, ns, ns..=ns, 40));
            Profile::new(&opened, vec![MeasuredLink::new(link, points.into())])
        };
        let (older, newer) = (profile(10), profile(20));
        manager.adopt_profile(&older);
        let before = Topology::new();
        thread::scope(|scope| {
            manager.shared.state.with(|_| {
                // As after a kind of device was opened.
                scope.spawn(|| manager.adopt_kept_profile(&before));
                while manager.shared.state.waiting() == 0 {
                    thread::yield_now();
                }
                let mut kept = manager.shared.kinds.profile.lock().unwrap();
                *kept = Some(newer.clone());
            });
        });
        let cost = manager.opened().link(link).unwrap().cost.clone();
        assert_eq!(Some(cost), newer.links()[0].curve());
    }
}
