//! The rates of PCIe links.

use core::fmt;

/// A PCIe link: lanes, and how fast each of them is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct PcieLink {
    /// Millions of transfers per second, on each lane and each way: 16 000 of PCIe 4.0.
    pub megatransfers: u32,
    /// How many lanes.
    pub lanes: u32,
}

impl PcieLink {
    /// A link of that many transfers and lanes; `None` of what PCIe does not have, such as the 255 lanes that
    /// Linux tells of a link that it knows nothing of.
    pub fn new(megatransfers: u32, lanes: u32) -> Option<PcieLink> {
        let known = generation(megatransfers).is_some() && WIDTHS.contains(&lanes);
        known.then_some(PcieLink {
            megatransfers,
            lanes,
        })
    }

    /// The link of a generation, 1 to 7.
    pub fn of_generation(generation: u32, lanes: u32) -> Option<PcieLink> {
        let index = usize::try_from(generation.checked_sub(1)?).ok()?;
        PcieLink::new(*GENERATIONS.get(index)?, lanes)
    }

    /// Which generation of PCIe brought such links.
    pub fn generation(self) -> u32 {
        generation(self.megatransfers).unwrap_or(1)
    }

    /// The rate of the signal without its encoding, in bytes per second and one direction. Headers and
    /// acknowledgements of packets are still included.
    ///
    /// PCI Express Base Specification: 8b/10b up to 5 GT/s, where ten bits carry eight (4.2.1); 128b/130b from
    /// 8 GT/s on (4.2.2); from 64 GT/s on one bit a bit, in units of 256 bytes of which 236 carry packets (4.2.3,
    /// "Flit Mode": 6 bytes are for the data link layer, 8 a check, 6 a correction).
    pub fn bytes_per_second(self) -> u64 {
        let (carried, sent) = match self.generation() {
            1 | 2 => (8, 10),
            3..=5 => (128, 130),
            _ => (236, 256),
        };
        let bits = u64::from(self.megatransfers) * 1_000_000 * u64::from(self.lanes);
        bits / 8 * carried / sent
    }

    /// The one that carries least.
    pub(super) fn narrowest(links: impl IntoIterator<Item = PcieLink>) -> Option<PcieLink> {
        links.into_iter().min_by_key(|link| link.bytes_per_second())
    }

    /// The link between two ends with these abilities: the slower signal on the fewer lanes.
    pub(super) fn of_both(self, other: PcieLink) -> PcieLink {
        PcieLink {
            megatransfers: self.megatransfers.min(other.megatransfers),
            lanes: self.lanes.min(other.lanes),
        }
    }
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCIe {} x{}", self.generation(), self.lanes)
    }
}

/// Which generation, counted from 1.
fn generation(megatransfers: u32) -> Option<u32> {
    let found = GENERATIONS.iter().position(|rate| *rate == megatransfers)?;
    u32::try_from(found + 1).ok()
}

/// The rates of PCIe 1.0 to 7.0, in megatransfers a second and lane (PCI-SIG, PCI Express Base Specifications).
const GENERATIONS: [u32; 7] = [2_500, 5_000, 8_000, 16_000, 32_000, 64_000, 128_000];

/// The widths that a link can have (PCI Express Base Specification, Link Capabilities Register, Maximum Link
/// Width).
const WIDTHS: [u32; 7] = [1, 2, 4, 8, 12, 16, 32];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_carries_what_its_encoding_leaves() {
        let rate = |megatransfers, lanes| {
            let link = PcieLink::new(megatransfers, lanes).unwrap();
            link.bytes_per_second()
        };
        assert_eq!(rate(2_500, 1), 250_000_000);
        assert_eq!(rate(5_000, 16), 8_000_000_000);
        assert_eq!(rate(8_000, 16), 15_753_846_153);
        assert_eq!(rate(16_000, 16), 31_507_692_307);
        assert_eq!(rate(32_000, 16), 63_015_384_615);
        assert_eq!(rate(64_000, 16), 118_000_000_000);
        assert_eq!(rate(128_000, 8), 118_000_000_000);
    }

    #[test]
    fn what_pcie_does_not_have_is_no_link() {
        assert_eq!(PcieLink::new(0, 16), None);
        assert_eq!(PcieLink::new(133, 16), None);
        assert_eq!(PcieLink::new(16_000, 0), None);
        assert_eq!(PcieLink::new(16_000, 255), None);
        assert_eq!(PcieLink::of_generation(0, 16), None);
        assert_eq!(PcieLink::of_generation(8, 16), None);
        let fifth = PcieLink::of_generation(5, 16).unwrap();
        assert_eq!((fifth.megatransfers, fifth.generation()), (32_000, 5));
        assert_eq!(fifth.to_string(), "PCIe 5 x16");
    }

    #[test]
    fn two_ends_agree_on_what_both_can_do() {
        let fast = PcieLink::of_generation(5, 8).unwrap();
        let wide = PcieLink::of_generation(3, 16).unwrap();
        let both = PcieLink::of_generation(3, 8).unwrap();
        assert_eq!(fast.of_both(wide), both);
        assert_eq!(PcieLink::narrowest([wide, both, fast]), Some(both));
        assert_eq!(PcieLink::narrowest([]), None);
    }
}
