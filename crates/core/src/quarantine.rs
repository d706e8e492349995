//! Links that failed, and how long transfers avoid them.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::{Instant, LinkId};

/// Bars a link that failed: 30 s, twice as long after each further failure in a row, 300 s at most.
///
/// A bar ends by itself when its time has come. The number of failures before it is kept until a transfer over the link
/// [succeeds](Quarantine::succeeded). A link whose proof failed is [condemned](Quarantine::condemn): barred until it is
/// cleared by hand.
///
/// Plans that were chosen under one [generation](Quarantine::generation) hold under that one only. Bars end at their
/// time, but the generation changes only in [`Quarantine::release_due`]: an owner of plans calls it before it looks one
/// up, which costs a comparison while no bar is due.
#[derive(Clone, Debug)]
pub struct Quarantine {
    records: BTreeMap<LinkId, Record>,
    /// The earliest end of a bar that was not released yet.
    due: Option<Instant>,
    generation: u64,
    max_links: usize,
}

/// Why a link is barred, and until when.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Bar {
    /// The first moment at which the link may be used again; `None` for a link that was condemned.
    pub until: Option<Instant>,
    /// The failure, as a sentence.
    pub reason: Cow<'static, str>,
    /// How many failures in a row led to it, without those that happened while the link was barred.
    pub failures: u32,
}

#[derive(Clone, Debug)]
struct Record {
    bar: Bar,
    /// Whether a new generation announced the end of the bar.
    released: bool,
}

impl Default for Quarantine {
    fn default() -> Quarantine {
        Quarantine::new()
    }
}

impl Quarantine {
    /// The first bar: long enough for a driver to reset a device, short enough that a user need not restart after
    /// fixing the cause.
    pub const FIRST: Duration = Duration::from_secs(30);

    /// The longest bar: a link that always fails costs one failed attempt in five minutes.
    pub const LONGEST: Duration = Duration::from_secs(300);

    /// How many failed links are kept unless [`Quarantine::with_max_links`] says otherwise. The largest machine that
    /// was examined, 8 devices and a switch, has fewer than 200 links.
    pub const MAX_LINKS: usize = 1024;

    /// Makes an empty quarantine. Allocates nothing.
    pub const fn new() -> Quarantine {
        Quarantine::with_max_links(Quarantine::MAX_LINKS)
    }

    /// The same with another limit of links that are kept, at least 1. When the limit is reached, the link whose bar
    /// ends first is forgotten. Condemned links do not count and are never forgotten: there are at most as many as the
    /// machine has links.
    pub const fn with_max_links(max_links: usize) -> Quarantine {
        Quarantine {
            records: BTreeMap::new(),
            due: None,
            generation: 0,
            max_links: if max_links == 0 { 1 } else { max_links },
        }
    }

    /// Bars a link that has failed at `now`, and returns the bar that holds from now on.
    ///
    /// A failure while the link is barred changes nothing: that transfer was under way when the first one failed, and
    /// tells nothing new.
    pub fn bar(&mut self, link: LinkId, now: Instant, reason: impl Into<Cow<'static, str>>) -> Bar {
        let before = match self.records.get(&link) {
            Some(record) if record.bar.holds(now) => return record.bar.clone(),
            Some(record) => record.bar.failures,
            None => {
                self.make_room();
                0
            }
        };
        let failures = before.saturating_add(1);
        let bar = Bar {
            until: Some(now + length_of_bar(failures)),
            reason: reason.into(),
            failures,
        };
        let record = Record {
            bar: bar.clone(),
            released: false,
        };
        self.records.insert(link, record);
        self.changed();
        bar
    }

    /// Bars a link until [`Quarantine::clear`] or [`Quarantine::clear_link`]: it moved wrong bytes,
    /// and time does not make it trustworthy.
    pub fn condemn(&mut self, link: LinkId, reason: impl Into<Cow<'static, str>>) {
        let old = self.records.get(&link).map(|record| &record.bar);
        if old.is_some_and(|bar| bar.until.is_none()) {
            return;
        }
        let failures = old.map_or(0, |bar| bar.failures).saturating_add(1);
        let bar = Bar {
            until: None,
            reason: reason.into(),
            failures,
        };
        let released = false;
        self.records.insert(link, Record { bar, released });
        self.changed();
    }

    /// Returns whether no link has failed.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Ends the row of failures: a transfer over the link has succeeded at `now`. A success while
    /// the link is barred changes nothing, as that transfer was under way before.
    pub fn succeeded(&mut self, link: LinkId, now: Instant) {
        if self.records.is_empty() || self.barred(link, now).is_some() {
            return;
        }
        if self
            .records
            .remove(&link)
            .is_some_and(|record| !record.released)
        {
            self.changed();
        }
    }

    /// Returns the bar that keeps transfers from the link at `now`, if there is one.
    pub fn barred(&self, link: LinkId, now: Instant) -> Option<&Bar> {
        let bar = &self.records.get(&link)?.bar;
        bar.holds(now).then_some(bar)
    }

    /// Returns every link that is barred at `now`, in the order of their names.
    pub fn all_barred(&self, now: Instant) -> impl Iterator<Item = (LinkId, &Bar)> {
        self.records
            .iter()
            .map(|(link, record)| (*link, &record.bar))
            .filter(move |(_, bar)| bar.holds(now))
    }

    /// Returns when the next bar ends, at least `now`; `None` when none ends by itself. No thread has to wake up for
    /// it.
    pub fn next_release(&self, now: Instant) -> Option<Instant> {
        self.due.map(|due| due.max(now))
    }

    /// Announces the bars that have ended by a new generation; returns how many they are.
    pub fn release_due(&mut self, now: Instant) -> usize {
        if self.due.is_none_or(|due| due > now) {
            return 0;
        }
        let mut released = 0;
        for record in self.records.values_mut() {
            if !record.released && !record.bar.holds(now) {
                record.released = true;
                released += 1;
            }
        }
        self.changed();
        released
    }

    /// Forgets all links, condemned ones too.
    pub fn clear(&mut self) {
        if !self.records.is_empty() {
            self.records.clear();
            self.changed();
        }
    }

    /// Forgets one link. Returns false when the link was not known.
    pub fn clear_link(&mut self, link: LinkId) -> bool {
        let known = self.records.remove(&link).is_some();
        if known {
            self.changed();
        }
        known
    }

    /// Returns a number that changes whenever a link is barred, released or cleared.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Forgets the link whose bar ends first, or ended longest ago, when there are too many.
    fn make_room(&mut self) {
        let ends = |(link, record): (&LinkId, &Record)| record.bar.until.map(|end| (end, *link));
        let passing = self.records.iter().filter_map(ends);
        if passing.clone().count() >= self.max_links
            && let Some((_, first)) = passing.min()
        {
            self.records.remove(&first);
            self.changed();
        }
    }

    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.due = self
            .records
            .values()
            .filter(|record| !record.released)
            .filter_map(|record| record.bar.until)
            .min();
    }
}

impl Bar {
    /// Returns whether the bar keeps transfers away at `now`.
    pub fn holds(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// Returns the length of the bar after `failures` failures in a row.
fn length_of_bar(failures: u32) -> Duration {
    let doubled = 1u32.checked_shl(failures.saturating_sub(1));
    doubled
        .and_then(|times| Quarantine::FIRST.checked_mul(times))
        .unwrap_or(Quarantine::LONGEST)
        .min(Quarantine::LONGEST)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::{Access, DeviceId, DeviceKind, EngineId, MemoryKind};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn bars_double_from_30_to_300_seconds() {
        let mut quarantine = Quarantine::new();
        let mut now = Instant(7);
        for (failures, seconds) in (1..).zip([30, 60, 120, 240, 300, 300, 300]) {
            let end = now.plus_ns(seconds * SECOND);
            let bar = quarantine.bar(link(0), now, "the device refused");
            assert_eq!((bar.until, bar.failures), (Some(end), failures));
            assert!(quarantine.barred(link(0), Instant(end.0 - 1)).is_some());
            assert_eq!(quarantine.barred(link(0), end), None);
            now = end;
        }
        assert_eq!(length_of_bar(u32::MAX), Quarantine::LONGEST);
    }

    #[test]
    fn failures_of_transfers_that_were_under_way_do_not_lengthen_a_bar() {
        let mut quarantine = Quarantine::new();
        let first = quarantine.bar(link(0), at(0), "first");
        let generation = quarantine.generation();
        assert_eq!(quarantine.bar(link(0), at(29), "second"), first);
        assert_eq!(quarantine.generation(), generation);
        assert_eq!(quarantine.barred(link(0), at(29)), Some(&first));
    }

    #[test]
    fn only_a_success_after_the_bar_ends_the_row() {
        let mut quarantine = Quarantine::new();
        quarantine.bar(link(0), at(0), "first");
        quarantine.succeeded(link(0), at(29));
        assert!(quarantine.barred(link(0), at(29)).is_some());
        let second = quarantine.bar(link(0), at(30), "second");
        assert_eq!(second.until, Some(at(90)));
        assert_eq!(quarantine.next_release(at(30)), Some(at(90)));
        quarantine.succeeded(link(0), at(90));
        let third = quarantine.bar(link(0), at(91), "third");
        assert_eq!((third.until, third.failures), (Some(at(121)), 1));
    }

    #[test]
    fn a_condemned_link_stays_barred_until_it_is_cleared() {
        let mut quarantine = Quarantine::new();
        quarantine.bar(link(0), at(0), "refused");
        quarantine.condemn(link(0), "byte 17 differed");
        assert_eq!(quarantine.next_release(at(0)), None);
        assert_eq!(quarantine.release_due(Instant::FAR), 0);
        quarantine.succeeded(link(0), Instant::FAR);
        quarantine.bar(link(0), at(1), "refused again");
        let bar = quarantine.barred(link(0), Instant::FAR).unwrap();
        assert_eq!((bar.until, &*bar.reason), (None, "byte 17 differed"));
        assert!(quarantine.clear_link(link(0)));
        assert_eq!(quarantine.barred(link(0), at(1)), None);
        assert!(!quarantine.clear_link(link(0)));
    }

    #[test]
    fn the_generation_changes_with_the_set_of_barred_links_and_else_never() {
        let mut quarantine = Quarantine::new();
        let mut last = quarantine.generation();
        let mut changed = |quarantine: &Quarantine| {
            let before = core::mem::replace(&mut last, quarantine.generation());
            before != last
        };
        quarantine.succeeded(link(0), at(0));
        assert_eq!(quarantine.release_due(at(0)), 0);
        quarantine.clear();
        assert!(!changed(&quarantine), "nothing was barred");
        quarantine.bar(link(0), at(0), "refused");
        assert!(changed(&quarantine), "barred");
        assert_eq!(quarantine.release_due(at(29)), 0);
        assert!(!changed(&quarantine), "not due");
        assert_eq!(quarantine.release_due(at(30)), 1);
        assert!(changed(&quarantine), "released");
        assert_eq!(quarantine.release_due(at(31)), 0);
        quarantine.succeeded(link(0), at(31));
        assert!(!changed(&quarantine), "known to be free");
        quarantine.bar(link(0), at(40), "refused");
        assert!(changed(&quarantine), "barred again");
        // A plan that was made at 70 may use the link, so one kept from before must not outlive this.
        quarantine.condemn(link(0), "wrong bytes");
        assert!(changed(&quarantine), "condemned");
        quarantine.condemn(link(0), "wrong bytes");
        assert!(!changed(&quarantine), "condemned already");
        quarantine.clear();
        assert!(changed(&quarantine), "cleared");
    }

    #[test]
    fn a_success_makes_an_ended_bar_known() {
        let mut quarantine = Quarantine::new();
        quarantine.bar(link(0), at(0), "refused");
        let generation = quarantine.generation();
        quarantine.succeeded(link(0), at(30));
        assert_ne!(quarantine.generation(), generation);
        assert_eq!(quarantine.next_release(at(30)), None);
    }

    #[test]
    fn bars_are_released_at_their_times() {
        let mut quarantine = Quarantine::new();
        assert_eq!(quarantine.next_release(at(0)), None);
        quarantine.bar(link(1), at(10), "refused");
        quarantine.bar(link(0), at(0), "refused");
        quarantine.condemn(link(2), "wrong bytes");
        assert_eq!(quarantine.next_release(at(10)), Some(at(30)));
        assert_eq!(quarantine.next_release(at(33)), Some(at(33)));
        assert_eq!(quarantine.release_due(at(33)), 1);
        assert_eq!(quarantine.next_release(at(33)), Some(at(40)));
        let barred: Vec<LinkId> = quarantine
            .all_barred(at(33))
            .map(|(link, _)| link)
            .collect();
        assert_eq!(barred, [link(1), link(2)]);
        assert_eq!(quarantine.release_due(at(40)), 1);
        assert_eq!(quarantine.next_release(at(40)), None);
    }

    #[test]
    fn the_bound_forgets_the_bar_that_ends_first_and_no_condemned_link() {
        let mut quarantine = Quarantine::with_max_links(2);
        quarantine.condemn(link(9), "wrong bytes");
        quarantine.bar(link(0), at(5), "refused");
        quarantine.bar(link(1), at(0), "refused");
        quarantine.bar(link(2), at(6), "refused");
        let barred: Vec<LinkId> = quarantine.all_barred(at(7)).map(|(link, _)| link).collect();
        assert_eq!(barred, [link(0), link(2), link(9)]);
        assert_eq!(quarantine.next_release(at(7)), Some(at(35)));
        // A link that is known already needs no room.
        quarantine.bar(link(0), at(35), "refused");
        assert_eq!(quarantine.all_barred(at(35)).count(), 3);
    }

    #[test]
    fn a_bar_at_the_end_of_time_does_not_wrap() {
        let mut quarantine = Quarantine::new();
        let late = Instant(u64::MAX - 1);
        assert_eq!(
            quarantine.bar(link(0), late, "refused").until,
            Some(Instant::FAR)
        );
        assert!(quarantine.barred(link(0), late).is_some());
    }

    fn at(seconds: u64) -> Instant {
        Instant(seconds * SECOND)
    }

    fn link(index: u32) -> LinkId {
        let device = DeviceId::new(DeviceKind::SIM, index);
        LinkId {
            src: DeviceId::CPU0.memory(MemoryKind::Pinned),
            dst: device.memory(MemoryKind::Device),
            engine: EngineId { device, index: 0 },
            access: Access::Import,
        }
    }
}
