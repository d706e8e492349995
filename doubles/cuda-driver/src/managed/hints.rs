//! The hints for each page of a managed allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use transload_cuda::raw::{CUdevice, CUmemLocation, CUmemLocationType};

use crate::physical::GRAIN;

/// The requested place of pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Location {
    Device(CUdevice),
    Host,
    /// A NUMA node of the host.
    Node(i32),
}

impl Location {
    /// As a device, which the host is too.
    pub(super) fn as_device(self) -> CUdevice {
        match self {
            Location::Device(device) => device,
            Location::Host | Location::Node(_) => CUdevice::CU_DEVICE_CPU,
        }
    }

    pub(super) fn as_location(self) -> CUmemLocation {
        match self {
            Location::Device(device) => CUmemLocation::device(device.0),
            Location::Host => CUmemLocation::HOST,
            Location::Node(id) => CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA,
                id,
            },
        }
    }
}

/// The hints for a page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Hint {
    pub(super) read_mostly: bool,
    pub(super) preferred: Option<Location>,
    pub(super) accessed_by: BTreeSet<CUdevice>,
    /// The place of its last prefetch.
    pub(super) prefetched: Option<Location>,
}

/// The hints of an allocation, by offsets of pages.
#[derive(Debug)]
pub(super) struct Hints {
    /// Each entry counts from its offset to the next entry.
    runs: BTreeMap<u64, Hint>,
}

impl Default for Hints {
    fn default() -> Hints {
        Hints {
            runs: BTreeMap::from([(0, Hint::default())]),
        }
    }
}

impl Hints {
    /// Changes the hints of the pages that a range touches.
    pub(super) fn change(&mut self, range: &Range<u64>, change: impl Fn(&mut Hint)) {
        let range = pages(range);
        for at in [range.start, range.end] {
            let before = self.runs.range(..=at).next_back();
            let hint = before.map(|(_, hint)| hint.clone()).unwrap_or_default();
            self.runs.insert(at, hint);
        }
        for (_, hint) in self.runs.range_mut(range) {
            change(hint);
        }
        self.join();
    }

    /// The hints of the pages that a range touches, each with its number of consecutive bytes.
    pub(super) fn over(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &Hint)> {
        let range = pages(range);
        let first = self.runs.range(..=range.start).next_back();
        let first = first.map_or(0, |(start, _)| *start);
        let starts = self.runs.range(first..range.end);
        let ends = starts.clone().skip(1).map(|(start, _)| *start);
        let ends = ends.chain([range.end]);
        starts
            .zip(ends)
            .map(move |((start, hint), end)| (end - start.max(&range.start), hint))
    }

    /// The hint that all pages of a range have in common, if they do.
    pub(super) fn common<T: PartialEq>(
        &self,
        range: &Range<u64>,
        of: impl Fn(&Hint) -> T,
    ) -> Option<T> {
        let mut all = self.over(range).map(|(_, hint)| of(hint));
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    /// Merges neighbours with equal hints.
    fn join(&mut self) {
        let mut last: Option<Hint> = None;
        self.runs.retain(|_, hint| {
            let new = last.as_ref() != Some(hint);
            if new {
                last = Some(hint.clone());
            }
            new
        });
    }
}

/// Rounded to pages. Source: cuMemAdvise: "The start address and end address of the memory range will be rounded
/// down and rounded up respectively to be aligned to CPU page size".
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / GRAIN * GRAIN..range.end.next_multiple_of(GRAIN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(node: u8) -> impl Fn(&mut Hint) {
        move |hint| hint.preferred = Some(Location::Node(node.into()))
    }

    proptest! {
        #[test]
        fn runs_say_what_a_list_of_pages_says(
            changes in prop::collection::vec((0u64..40, 1u64..20, 0u8..3), 0..30),
            asked in (0u64..40, 1u64..20),
        ) {
            // In quarters of pages, so that ranges begin and end within them.
            const QUARTER: u64 = GRAIN / 4;
            let mut hints = Hints::default();
            let mut list = [None; 16];
            for (start, len, to) in changes {
                hints.change(&(start * QUARTER..(start + len) * QUARTER), node(to));
                for page in &mut list[start as usize / 4..(start + len).div_ceil(4) as usize] {
                    *page = Some(Location::Node(to.into()));
                }
            }
            let range = asked.0 * QUARTER..(asked.0 + asked.1) * QUARTER;
            let of_list = &list[asked.0 as usize / 4..(asked.0 + asked.1).div_ceil(4) as usize];
            let told: Vec<_> = hints
                .over(&range)
                .flat_map(|(len, hint)| vec![hint.preferred; (len / GRAIN) as usize])
                .collect();
            prop_assert_eq!(&told, &of_list);
            let same = of_list.iter().all(|of| *of == of_list[0]).then_some(of_list[0]);
            prop_assert_eq!(hints.common(&range, |hint| hint.preferred), same);
        }
    }
}
