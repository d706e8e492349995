//! Checks whether the bytes that arrive are those that were sent, and finds the link to blame where they are not.

use std::collections::HashSet;

use transload_core::{LinkId, MemoryId, Topology};

use super::measurement::{Measurement, State};
use super::way::shortest;
use super::workspace::{HOME, Role, Stopped, What, Workspace};
use crate::Error;

/// The state of the checks.
pub(super) struct Checks<'a> {
    topology: &'a Topology,
    /// Links over which a pattern of that size has come back unchanged.
    trusted: HashSet<(LinkId, u64)>,
    /// Links that could not carry a pattern of that size.
    broken: HashSet<(LinkId, u64)>,
    faulty: HashSet<LinkId>,
    /// The number of the next pattern.
    number: usize,
}

/// The ways that a pattern takes: to the source, to the destination (for the poison), and back.
struct Ways {
    to_src: Vec<LinkId>,
    to_dst: Vec<LinkId>,
    back: Vec<LinkId>,
}

/// A pattern that came back changed: the measurement, and every link that it went over.
struct Suspicion {
    measurement: usize,
    links: Vec<LinkId>,
}

impl<'a> Checks<'a> {
    pub(super) fn new(topology: &'a Topology) -> Checks<'a> {
        Checks {
            topology,
            trusted: HashSet::new(),
            broken: HashSet::new(),
            faulty: HashSet::new(),
            number: 0,
        }
    }

    /// Returns the links that were found to move wrong bytes.
    pub(super) fn faulty(&self) -> &HashSet<LinkId> {
        &self.faulty
    }

    /// Sends a pattern over the link of each measurement. A pattern that comes back has passed other links too, so changed
    /// ones are sent again over links that proved sound.
    pub(super) fn links(
        &mut self,
        workspace: &mut Workspace<'_>,
        measurements: &mut [Measurement],
        go_on: &mut dyn FnMut() -> bool,
    ) {
        let (mut suspicions, mut is_cut) = (Vec::new(), false);
        for (at, measurement) in measurements.iter_mut().enumerate() {
            is_cut = !go_on();
            if is_cut {
                break;
            }
            let Some(ways) = self.check(workspace, measurement) else {
                continue;
            };
            if measurement.state == State::Wrong {
                let links = ways.links().chain(measurement.over).collect();
                suspicions.push(Suspicion {
                    measurement: at,
                    links,
                });
            }
        }
        self.settle(workspace, measurements, suspicions, is_cut);
    }

    /// Sends a pattern over the link of a measurement, avoiding links that cannot carry it there or back, and returns the way
    /// that it took.
    fn check(
        &mut self,
        workspace: &mut Workspace<'_>,
        measurement: &mut Measurement,
    ) -> Option<Ways> {
        let (over, bytes) = (measurement.over, measurement.bytes);
        loop {
            let sound = |link: &LinkId| !self.broken.contains(&(*link, bytes));
            // Preferably without the link itself; a slot may have no other link in or out.
            let ways = self.ways(measurement, &|link| sound(link) && Some(*link) != over);
            let Some(ways) = ways.or_else(|| self.ways(measurement, &sound)) else {
                // If a way existed, the measurement's state already tells what stopped the pattern.
                if measurement.state == State::Unknown {
                    measurement.state =
                        State::Failed("no way leads there from the host and back".into());
                }
                return None;
            };
            let broken = self.broken.len();
            measurement.state = self.send(workspace, measurement, &ways);
            let by_itself = over.is_some_and(|link| self.broken.contains(&(link, bytes)));
            if by_itself || self.broken.len() == broken {
                return Some(ways);
            }
        }
    }

    /// Finds the links that the suspicions are about. Not every link was checked if the checks were cut short.
    fn settle(
        &mut self,
        workspace: &mut Workspace<'_>,
        measurements: &mut [Measurement],
        mut suspicions: Vec<Suspicion>,
        is_cut: bool,
    ) {
        // The fewer links, the likelier each of them is the faulty one.
        suspicions.sort_by_key(|suspicion| suspicion.links.len());
        for suspicion in &suspicions {
            let measurement = &mut measurements[suspicion.measurement];
            let bytes = measurement.bytes;
            let ways = self.ways(measurement, &|link| self.trusted.contains(&(*link, bytes)));
            let Some(ways) = ways else { continue };
            measurement.state = self.send(workspace, measurement, &ways);
            if measurement.state == State::Wrong {
                self.faulty.extend(measurement.over);
            }
        }
        for suspicion in suspicions {
            let explained = suspicion
                .links
                .iter()
                .any(|link| self.faulty.contains(link));
            let measurement = &mut measurements[suspicion.measurement];
            let mut others = suspicion.links.iter();
            if !explained && is_cut && others.any(|link| Some(*link) != measurement.over) {
                // The link to blame may be one that was not reached.
                measurement.state = State::Unknown;
            } else if !explained {
                // No link was found that moves wrong bytes each time. One did so while this one was checked.
                self.faulty.extend(measurement.over);
                measurement.state = State::Wrong;
            }
        }
        for measurement in measurements {
            let guilty = measurement
                .over
                .is_some_and(|link| self.faulty.contains(&link));
            if measurement.state == State::Wrong && !guilty {
                measurement.state =
                    State::Failed("every way there passes a link that moves wrong bytes".into());
            }
        }
    }

    /// Sends a pattern from memory to memory, over the planner's choice.
    pub(super) fn pairs(
        &mut self,
        workspace: &mut Workspace<'_>,
        measurements: &mut [Measurement],
        go_on: &mut dyn FnMut() -> bool,
    ) {
        for measurement in measurements {
            if !go_on() {
                return;
            }
            let bytes = measurement.bytes;
            let sound = |link: &LinkId| {
                !self.faulty.contains(link) && !self.broken.contains(&(*link, bytes))
            };
            let trusted = |link: &LinkId| sound(link) && self.trusted.contains(&(*link, bytes));
            measurement.state = match self
                .ways(measurement, &trusted)
                .or_else(|| self.ways(measurement, &sound))
            {
                Some(ways) => self.send(workspace, measurement, &ways),
                None => State::Failed("no sound way leads there from the host and back".into()),
            };
        }
    }

    fn ways(&self, measurement: &Measurement, may_use: &dyn Fn(&LinkId) -> bool) -> Option<Ways> {
        let way = |from: MemoryId, to: MemoryId| shortest(self.topology, from, to, may_use);
        Some(Ways {
            to_src: way(HOME, measurement.src)?,
            to_dst: way(HOME, measurement.dst)?,
            back: way(measurement.dst, HOME)?,
        })
    }

    fn send(
        &mut self,
        workspace: &mut Workspace<'_>,
        measurement: &Measurement,
        ways: &Ways,
    ) -> State {
        let number = self.number;
        self.number += 1;
        match try_send(workspace, measurement, ways, number) {
            Ok(true) => {
                let links = ways.links().chain(measurement.over);
                self.trusted
                    .extend(links.map(|link| (link, measurement.bytes)));
                State::Right
            }
            Ok(false) => State::Wrong,
            Err(Stopped {
                at: Some(link),
                why,
            }) => {
                self.broken.insert((*link, measurement.bytes));
                let (src, dst) = (link.src, link.dst);
                State::Failed(format!("the way there passes {src} → {dst}: {why}"))
            }
            Err(Stopped { at: None, why }) => {
                let condemned = |link: &LinkId| workspace.manager().is_condemned(*link);
                if let Some(link) = measurement.over.filter(condemned) {
                    // The engine's own proof found it first.
                    self.faulty.insert(link);
                    return State::Wrong;
                }
                self.broken
                    .extend(measurement.over.map(|link| (link, measurement.bytes)));
                State::Failed(why)
            }
        }
    }
}

impl Ways {
    /// Returns the links that the pattern goes over. The way of the poison proves nothing.
    fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.to_src.iter().chain(&self.back).copied()
    }
}

/// Returns whether the pattern came back as it went.
fn try_send(
    workspace: &mut Workspace<'_>,
    measurement: &Measurement,
    ways: &Ways,
    number: usize,
) -> Result<bool, Stopped> {
    let own = |error: Error| Stopped {
        at: None,
        why: error.to_string(),
    };
    let src = workspace
        .buffer(measurement.src, measurement.bytes, Role::From)
        .map_err(own)?;
    let dst = workspace
        .buffer(measurement.dst, measurement.bytes, Role::To)
        .map_err(own)?;
    workspace.bring(What::Poison(number), &dst, &ways.to_dst)?;
    workspace.bring(What::Pattern(number), &src, &ways.to_src)?;
    let arrived = workspace.cross(measurement).map_err(own)?;
    workspace.compare(number, &arrived, &ways.back)
}
