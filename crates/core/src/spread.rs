//! From which memory each destination of a copy to many gets its bytes.

use alloc::collections::{BTreeMap, BTreeSet};
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

/// What a giver's copy of the whole payload to a destination takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sending {
    /// The time of the copy alone in nanoseconds.
    pub ns: u64,
    /// The time of its first chunk.
    pub first_ns: u64,
    /// For how long the copy keeps resources busy that other copies use, too.
    pub loads: Vec<Load>,
}

/// How many of the destinations placed last, and of those that begin first, are considered as givers of the next one: where all
/// are alike, a chain wants the last one, and a tree the first ones that are free. Each costs a prediction.
const CONSIDERED: usize = 16;

/// Chooses for each destination from where it gets the bytes, so that the busiest resource is busy for as short as
/// possible, and then so that the destination begins as soon as possible: destinations pass on what they get, as a chain where
/// all are alike, and as a tree where some links are faster than others.
///
/// `sending` predicts the copy of a giver to a destination; `None` where no route joins the two. Destinations that nothing
/// reaches get [`Giver::Source`]. Takes up to 33 predictions for each destination.
pub fn spread(
    destinations: usize,
    mut sending: impl FnMut(Giver, usize) -> Option<Sending>,
) -> Vec<Giver> {
    let mut givers = alloc::vec![Giver::Source; destinations];
    // The fastest from the source first: the others get their bytes from those.
    let mut order: Vec<(u64, usize)> = (0..destinations)
        .map(|to| (sending(Giver::Source, to).map_or(u64::MAX, |of| of.ns), to))
        .collect();
    order.sort_unstable();
    let mut busy = BTreeMap::<Resource, u64>::new();
    // The busiest resource so far: who adds less is as good as who adds nothing.
    let mut most = 0;
    // When each destination has its first bytes, and in which time it has all.
    let mut begins = alloc::vec![(0, 0); destinations];
    // The destinations placed so far, and the same by the time of their first bytes.
    let (mut placed, mut first) = (Vec::with_capacity(destinations), BTreeSet::new());
    for (_, to) in order {
        let recent = placed.iter().rev().take(CONSIDERED).copied();
        let early = first.iter().take(CONSIDERED).map(|(_, at)| *at);
        let others = recent.chain(early).map(Giver::Destination);
        let mut best: Option<((u64, u64, usize), Giver, Sending)> = None;
        for (rank, giver) in others.chain([Giver::Source]).enumerate() {
            let Some(of) = sending(giver, to) else {
                continue;
            };
            let held = of.loads.iter().map(|load| {
                // What is added to what the resource does for others already.
                busy.get(&load.of).copied().unwrap_or(0) + load.ns
            });
            let (begun, rate) = match giver {
                Giver::Source => (0, 0),
                Giver::Destination(at) => begins[at],
            };
            let rate = held.max().unwrap_or(0).max(of.ns).max(rate);
            let cost = (rate.max(most), begun + of.first_ns, rank);
            if best.as_ref().is_none_or(|(other, ..)| cost < *other) {
                best = Some((cost, giver, of));
            }
        }
        if let Some(((rate, begun, _), giver, of)) = best {
            for load in of.loads {
                *busy.entry(load.of).or_insert(0) += load.ns;
            }
            most = rate;
            givers[to] = giver;
            begins[to] = (begun, rate);
            first.insert((begun, to));
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

    fn sent(of: Resource, ns: u64) -> Option<Sending> {
        Some(Sending {
            ns,
            first_ns: ns / 10,
            loads: alloc::vec![Load { of, ns }],
        })
    }

    #[test]
    fn machines_that_are_alike_make_a_chain() {
        // Each machine sends over an engine of its own; machine 0 has the source.
        let sender = |giver| match giver {
            Giver::Source => 0,
            Giver::Destination(at) => at as u32 + 1,
        };
        let givers = spread(1000, |giver, _| sent(engine(sender(giver)), 100));
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
    fn a_fast_link_serves_several_before_a_slow_one_is_the_limit() {
        // Machines of four devices: within one it takes a tenth of the time, over an engine of the giver's.
        let machine = |giver| match giver {
            Giver::Source => (0, 0),
            Giver::Destination(at) => ((at + 1) / 4, at + 1),
        };
        let givers = spread(15, |giver, to| {
            let ((from, at), there) = (machine(giver), (to + 1) / 4);
            let within = engine(100 + at as u32);
            match from == there {
                true => sent(within, 10),
                false => sent(engine(at as u32), 100),
            }
        });
        let apart = (0..15).filter(|to| machine(givers[*to]).0 != (to + 1) / 4);
        assert_eq!(apart.count(), 3, "{givers:?}");
        let depth = |mut to: usize| {
            let mut depth = 1;
            while let Giver::Destination(at) = givers[to] {
                (to, depth) = (at, depth + 1);
            }
            depth
        };
        assert!((0..15).map(depth).max() <= Some(4), "{givers:?}");
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
        let givers = spread(4, |giver, to| sent(engine(sender(giver)), ns(giver, to)));
        assert!(
            givers.iter().all(|giver| *giver != Giver::Destination(1)),
            "{givers:?}"
        );
    }

    #[test]
    fn destinations_that_only_the_source_reaches_get_their_bytes_from_it() {
        let givers = spread(5, |giver, _| {
            (giver == Giver::Source).then(|| sent(engine(0), 100))?
        });
        assert_eq!(givers, [Giver::Source; 5]);
        assert_eq!(spread(2, |_, _| None), [Giver::Source; 2]);
        assert!(spread(0, |_, _| None).is_empty());
    }
}
