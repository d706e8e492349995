//! From which memory each destination of a copy to many gets its bytes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::flight::{Load, Resource};

/// Where the bytes of a destination come from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Giver {
    /// The source itself.
    Source,
    /// The destination of that number, which passes on what has arrived.
    Destination(usize),
}

/// The most recent destinations that are considered as givers of the next one. A chain wants the last one alone; where
/// devices differ a few more are worth a look, and each costs a prediction.
const CONSIDERED: usize = 8;

/// Chooses for each destination from where it gets the bytes, so that the busiest resource is busy for as short as
/// possible: destinations pass on what they get, as a chain where all are alike.
///
/// `loads` predicts for how long each resource is busy when a giver sends the whole payload to a destination, and the time of
/// that copy alone in nanoseconds; `None` where no route joins the two. Destinations that nothing reaches get
/// [`Giver::Source`]. The first destinations that a giver has come first. Takes `O(n log n)` and up to nine predictions for
/// each destination.
pub fn spread(
    destinations: usize,
    mut loads: impl FnMut(Giver, usize) -> Option<(u64, Vec<Load>)>,
) -> Vec<Giver> {
    let mut givers = alloc::vec![Giver::Source; destinations];
    // The fastest from the source first: the others get their bytes from those.
    let mut order: Vec<(u64, usize)> = (0..destinations)
        .map(|to| (loads(Giver::Source, to).map_or(u64::MAX, |(ns, _)| ns), to))
        .collect();
    order.sort_unstable();
    let mut busy = BTreeMap::<Resource, u64>::new();
    // The time in which each destination has its bytes, if those before it arrive in the meantime.
    let mut rates = alloc::vec![0; destinations];
    let mut placed = Vec::with_capacity(destinations);
    for (_, to) in order {
        let recent = placed.iter().rev().take(CONSIDERED).copied();
        let recent = recent.map(Giver::Destination);
        let mut best: Option<((u64, usize), Giver, Vec<Load>)> = None;
        for (depth, giver) in recent.chain([Giver::Source]).enumerate() {
            let Some((ns, of)) = loads(giver, to) else {
                continue;
            };
            let held = of.iter().map(|load| {
                // What is added to what the resource does for others already.
                busy.get(&load.of).copied().unwrap_or(0) + load.ns
            });
            let behind = match giver {
                Giver::Source => 0,
                Giver::Destination(at) => rates[at],
            };
            let rate = held.max().unwrap_or(0).max(ns).max(behind);
            let cost = (rate, depth);
            if best.as_ref().is_none_or(|(other, ..)| cost < *other) {
                best = Some((cost, giver, of));
            }
        }
        if let Some(((rate, _), giver, of)) = best {
            for load in of {
                *busy.entry(load.of).or_insert(0) += load.ns;
            }
            givers[to] = giver;
            rates[to] = rate;
        }
        placed.push(to);
    }
    givers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceId, DeviceKind, EngineId};

    fn engine(index: u32) -> Resource {
        let device = DeviceId::new(DeviceKind::SIM, index);
        Resource::Engine(EngineId { device, index: 0 })
    }

    fn load(of: Resource, ns: u64) -> Load {
        Load { of, ns }
    }

    #[test]
    fn machines_that_are_alike_make_a_chain() {
        // Each machine sends over an engine of its own; machine 0 has the source.
        let sender = |giver| match giver {
            Giver::Source => 0,
            Giver::Destination(at) => at as u32 + 1,
        };
        let givers = spread(1000, |giver, _| {
            Some((100, alloc::vec![load(engine(sender(giver)), 100)]))
        });
        let from_source = givers
            .iter()
            .filter(|giver| **giver == Giver::Source)
            .count();
        assert_eq!(from_source, 1);
        for at in 0..1000 {
            let passes_on = givers
                .iter()
                .filter(|giver| **giver == Giver::Destination(at))
                .count();
            assert!(passes_on <= 1, "{at} sends to {passes_on}");
        }
    }

    #[test]
    fn a_slow_destination_passes_nothing_on() {
        // To and from destination 1 everything takes ten times as long.
        let ns = |giver, to| {
            if to == 1 || giver == Giver::Destination(1) {
                1000
            } else {
                100
            }
        };
        let sender = |giver| match giver {
            Giver::Source => 0,
            Giver::Destination(at) => at as u32 + 1,
        };
        let givers = spread(4, |giver, to| {
            let ns = ns(giver, to);
            Some((ns, alloc::vec![load(engine(sender(giver)), ns)]))
        });
        assert!(
            givers.iter().all(|giver| *giver != Giver::Destination(1)),
            "{givers:?}"
        );
    }

    #[test]
    fn destinations_that_only_the_source_reaches_get_their_bytes_from_it() {
        let givers = spread(5, |giver, _| {
            (giver == Giver::Source).then(|| (100, alloc::vec![load(engine(0), 100)]))
        });
        assert_eq!(givers, [Giver::Source; 5]);
        assert_eq!(spread(2, |_, _| None), [Giver::Source; 2]);
        assert!(spread(0, |_, _| None).is_empty());
    }
}
