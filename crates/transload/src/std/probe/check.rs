//! Checks whether the bytes that arrive are those that were sent, and finds the link to blame where they are not.

use std::collections::HashSet;

use transload_core::{LinkId, MemoryId, Topology};

use super::cell::{Cell, State};
use super::ground::{Ground, HOME, Role, Stopped, What};
use super::way::shortest;
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

/// A pattern that came back changed: the cell, and every link that it went over.
struct Suspicion {
    cell: usize,
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

    /// Sends a pattern over the link of each cell. A pattern that comes back has passed other links too, so changed
    /// ones are sent again over links that proved sound.
    pub(super) fn links(
        &mut self,
        ground: &mut Ground<'_>,
        cells: &mut [Cell],
        go_on: &mut dyn FnMut() -> bool,
    ) {
        let mut suspicions = Vec::new();
        for (at, cell) in cells.iter_mut().enumerate() {
            if !go_on() {
                break;
            }
            let Some(ways) = self.check(ground, cell) else {
                continue;
            };
            if cell.state == State::Wrong {
                let links = ways.links().chain(cell.over).collect();
                suspicions.push(Suspicion { cell: at, links });
            }
        }
        self.settle(ground, cells, suspicions);
    }

    /// Sends a pattern over the link of a cell, avoiding links that cannot carry it there or back, and returns the way
    /// that it took.
    fn check(&mut self, ground: &mut Ground<'_>, cell: &mut Cell) -> Option<Ways> {
        let (over, bytes) = (cell.over, cell.bytes);
        loop {
            let sound = |link: &LinkId| !self.broken.contains(&(*link, bytes));
            // Preferably without the link itself; a slot may have no other link in or out.
            let ways = self.ways(cell, &|link| sound(link) && Some(*link) != over);
            let Some(ways) = ways.or_else(|| self.ways(cell, &sound)) else {
                // If a way existed, the cell's state already tells what stopped the pattern.
                if cell.state == State::Unknown {
                    cell.state = State::Failed("no way leads there from the host and back".into());
                }
                return None;
            };
            let broken = self.broken.len();
            cell.state = self.send(ground, cell, &ways);
            let by_itself = over.is_some_and(|link| self.broken.contains(&(link, bytes)));
            if by_itself || self.broken.len() == broken {
                return Some(ways);
            }
        }
    }

    /// Finds the links that the suspicions are about.
    fn settle(
        &mut self,
        ground: &mut Ground<'_>,
        cells: &mut [Cell],
        mut suspicions: Vec<Suspicion>,
    ) {
        // The fewer links, the likelier each of them is the faulty one.
        suspicions.sort_by_key(|suspicion| suspicion.links.len());
        for suspicion in &suspicions {
            let cell = &mut cells[suspicion.cell];
            let bytes = cell.bytes;
            let ways = self.ways(cell, &|link| self.trusted.contains(&(*link, bytes)));
            let Some(ways) = ways else { continue };
            cell.state = self.send(ground, cell, &ways);
            if cell.state == State::Wrong {
                self.faulty.extend(cell.over);
            }
        }
        for suspicion in suspicions {
            let explained = suspicion
                .links
                .iter()
                .any(|link| self.faulty.contains(link));
            let cell = &mut cells[suspicion.cell];
            if !explained {
                // No link was found that moves wrong bytes each time. One did so while this one was checked.
                self.faulty.extend(cell.over);
                cell.state = State::Wrong;
            }
        }
        for cell in cells {
            let guilty = cell.over.is_some_and(|link| self.faulty.contains(&link));
            if cell.state == State::Wrong && !guilty {
                cell.state =
                    State::Failed("every way there passes a link that moves wrong bytes".into());
            }
        }
    }

    /// Sends a pattern from memory to memory, over the planner's choice.
    pub(super) fn pairs(
        &mut self,
        ground: &mut Ground<'_>,
        cells: &mut [Cell],
        go_on: &mut dyn FnMut() -> bool,
    ) {
        for cell in cells {
            if !go_on() {
                return;
            }
            let bytes = cell.bytes;
            let sound = |link: &LinkId| {
                !self.faulty.contains(link) && !self.broken.contains(&(*link, bytes))
            };
            let trusted = |link: &LinkId| sound(link) && self.trusted.contains(&(*link, bytes));
            cell.state = match self
                .ways(cell, &trusted)
                .or_else(|| self.ways(cell, &sound))
            {
                Some(ways) => self.send(ground, cell, &ways),
                None => State::Failed("no sound way leads there from the host and back".into()),
            };
        }
    }

    fn ways(&self, cell: &Cell, may_use: &dyn Fn(&LinkId) -> bool) -> Option<Ways> {
        let way = |from: MemoryId, to: MemoryId| shortest(self.topology, from, to, may_use);
        Some(Ways {
            to_src: way(HOME, cell.src)?,
            to_dst: way(HOME, cell.dst)?,
            back: way(cell.dst, HOME)?,
        })
    }

    fn send(&mut self, ground: &mut Ground<'_>, cell: &Cell, ways: &Ways) -> State {
        let number = self.number;
        self.number += 1;
        match try_send(ground, cell, ways, number) {
            Ok(true) => {
                let links = ways.links().chain(cell.over);
                self.trusted.extend(links.map(|link| (link, cell.bytes)));
                State::Right
            }
            Ok(false) => State::Wrong,
            Err(Stopped {
                at: Some(link),
                why,
            }) => {
                self.broken.insert((link, cell.bytes));
                let (src, dst) = (link.src, link.dst);
                State::Failed(format!("the way there passes {src} → {dst}: {why}"))
            }
            Err(Stopped { at: None, why }) => {
                let condemned = |link: &LinkId| ground.manager().is_condemned(*link);
                if let Some(link) = cell.over.filter(condemned) {
                    // The engine's own proof found it first.
                    self.faulty.insert(link);
                    return State::Wrong;
                }
                self.broken.extend(cell.over.map(|link| (link, cell.bytes)));
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
    ground: &mut Ground<'_>,
    cell: &Cell,
    ways: &Ways,
    number: usize,
) -> Result<bool, Stopped> {
    let own = |error: Error| Stopped {
        at: None,
        why: error.to_string(),
    };
    let src = ground
        .buffer(cell.src, cell.bytes, Role::From)
        .map_err(own)?;
    let dst = ground.buffer(cell.dst, cell.bytes, Role::To).map_err(own)?;
    ground.bring(What::Poison(number), &dst, &ways.to_dst)?;
    ground.bring(What::Pattern(number), &src, &ways.to_src)?;
    let arrived = ground.cross(cell).map_err(own)?;
    ground.compare(number, &arrived, &ways.back)
}
