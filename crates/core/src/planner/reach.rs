//! The links that can be part of a way, by their place on it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{PlanKey, Purpose};
use crate::{MemoryId, Topology};

/// The links of all ways, in one row: the direct ones, then those that are the first, the middle or the last one of a
/// way. Each sort is in the order of preference. Memories and links are places in the lists of the topology.
#[derive(Debug)]
pub(super) struct Reach {
    direct: Vec<usize>,
    /// The link, and the staging memory that it leads to.
    first: Vec<(usize, usize)>,
    /// The staging memory that the link leaves, the link, and the one that it leads to.
    middle: Vec<(usize, usize, usize)>,
    /// The staging memory that the link leaves, and the link.
    last: Vec<(usize, usize)>,
}

impl Reach {
    /// At most so many links of each sort are considered, so that a plan for a machine with thousands of memories next
    /// to the source still takes milliseconds.
    const MOST: usize = 4096;

    /// Looks around both memories. `key.dst` is the source where the bytes go nowhere.
    pub(super) fn new(topology: &Topology, key: &PlanKey) -> Reach {
        let digest = key.purpose == Purpose::Digest;
        let staging = |memory: MemoryId| {
            let at = topology.place_of(memory)?;
            (topology.memories()[at].staging && key.may_stage_in(memory)).then_some(at)
        };
        let from = |link: usize| staging(topology.links()[link].id.src);
        let to = |link: usize| staging(topology.links()[link].id.dst);

        let (leaving, arriving) = (topology.leaving(key.src), topology.arriving(key.dst));
        // A source may have links to thousands of machines, each of which is a destination.
        let around = if leaving.len() <= arriving.len() || digest {
            leaving
        } else {
            arriving
        };
        let is_direct = |link: &usize| {
            let id = topology.links()[*link].id;
            !digest && id.src == key.src && id.dst == key.dst
        };
        let direct = around.iter().copied().filter(is_direct).take(Reach::MOST);
        let last = arriving
            .iter()
            .filter_map(|link| Some((from(*link)?, *link)));
        let mut last: Vec<_> = last.filter(|_| !digest).take(Reach::MOST).collect();
        last.sort_unstable();
        let leads_on = |_: &&usize| digest || !last.is_empty();
        let first = leaving.iter().take_while(leads_on);
        let mut first: Vec<_> = first.filter_map(|link| Some((*link, to(*link)?))).collect();

        if first.len() > Reach::MOST {
            // Those first from whose memories the destination is one link away.
            let ends: BTreeSet<usize> = last.iter().map(|(from, _)| *from).collect();
            first.sort_by_key(|(link, to)| (!ends.contains(to), *link));
            first.truncate(Reach::MOST);
            first.sort_unstable();
        }
        let entered: BTreeSet<usize> = first.iter().map(|(_, to)| *to).collect();
        let left: BTreeSet<usize> = last.iter().map(|(from, _)| *from).collect();
        let id = |memory: usize| topology.memories()[memory].id;
        let middle = |link: usize| {
            let (from, to) = (from(link)?, to(link)?);
            let is_between = entered.contains(&from) && (digest || left.contains(&to));
            // No slot is copied within its memory, nor back to where the bytes come from, nor away from where they go.
            let is_onward = id(to) != key.src && id(from) != key.dst;
            (is_between && from != to && is_onward).then_some((from, link, to))
        };
        // From the side with fewer memories.
        let mut middle: Vec<_> = if digest || entered.len() <= left.len() {
            let links = entered.iter().flat_map(|from| topology.leaving(id(*from)));
            links
                .filter_map(|link| middle(*link))
                .take(Reach::MOST)
                .collect()
        } else {
            let links = left.iter().flat_map(|to| topology.arriving(id(*to)));
            links
                .filter_map(|link| middle(*link))
                .take(Reach::MOST)
                .collect()
        };
        middle.sort_unstable();
        Reach {
            direct: direct.collect(),
            first,
            middle,
            last,
        }
    }

    /// Returns all links, in the order of their numbers: those of other methods.
    pub(super) fn links(&self) -> impl Iterator<Item = usize> + '_ {
        let direct = self.direct.iter().copied();
        let first = self.first.iter().map(|(link, _)| *link);
        let middle = self.middle.iter().map(|(_, link, _)| *link);
        let last = self.last.iter().map(|(_, link)| *link);
        direct.chain(first).chain(middle).chain(last)
    }

    /// Returns the links from the source to the destination.
    pub(super) fn direct(&self) -> impl Iterator<Item = u16> + use<> {
        numbers(0, 0..self.direct.len())
    }

    /// Returns the links from the source, with the staging memories that they lead to.
    pub(super) fn first(&self) -> impl Iterator<Item = (u16, usize)> + '_ {
        let to = self.first.iter().map(|(_, to)| *to);
        numbers(self.direct.len(), 0..self.first.len()).zip(to)
    }

    /// Returns the links from a staging memory to others, with those.
    pub(super) fn middle(&self, slot: usize) -> impl Iterator<Item = (u16, usize)> + '_ {
        let start = self.middle.partition_point(|(from, ..)| *from < slot);
        let end = self.middle.partition_point(|(from, ..)| *from <= slot);
        let to = self.middle[start..end].iter().map(|(.., to)| *to);
        numbers(self.direct.len() + self.first.len(), start..end).zip(to)
    }

    /// Returns the links from a staging memory to the destination.
    pub(super) fn last(&self, slot: usize) -> impl Iterator<Item = u16> + use<> {
        let before = self.direct.len() + self.first.len() + self.middle.len();
        let start = self.last.partition_point(|(from, _)| *from < slot);
        let end = self.last.partition_point(|(from, _)| *from <= slot);
        numbers(before, start..end)
    }
}

/// The numbers of links, of which there are at most four times [`Reach::MOST`].
fn numbers(before: usize, at: core::ops::Range<usize>) -> impl Iterator<Item = u16> {
    at.map(move |at| (before + at) as u16)
}
