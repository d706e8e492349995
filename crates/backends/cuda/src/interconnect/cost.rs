//! The estimated cost of copies over links, until a probe has measured them.

use transload_hal::defaults::link_cost;
use transload_hal::{Cost, Curve, LinkClass};

use super::links::{DeviceLinks, NvLinks, PairLinks};
use super::pcie::PcieLink;

/// A copy between pinned host memory and the device.
pub fn host_cost(links: &DeviceLinks) -> Curve {
    let usual = link_cost(LinkClass::Pcie);
    Curve::from(links.to_host.map_or(usual, over_pcie))
}

/// A copy inside the device's memory.
pub fn local_cost(links: &DeviceLinks) -> Curve {
    let copied = links.memory_bytes_per_second.map(|rate| part(rate, COPIED));
    let rate = copied.unwrap_or(COPIED_WHERE_UNKNOWN);
    Curve::from(Cost::from_rate(submission_ns(), rate))
}

/// A copy from one device to another in one pass, and the class of the link that it takes.
///
/// `native_atomics` is what the driver says of the pair (`CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`): true
/// over NVLink and false over PCIe (CUDA C++ Programming Guide, Peer-to-Peer Memory Access), so it tells NVLink
/// from PCIe where NVML is not there to ask.
pub fn peer_cost(between: &PairLinks, native_atomics: bool) -> (LinkClass, Curve) {
    let usual = |class| (class, Curve::from(link_cost(class)));
    match (between.nvlinks, between.pcie) {
        (Some(links), _) if links.count > 0 => {
            let known = over_nvlinks(links).map(|cost| (LinkClass::Fabric, Curve::from(cost)));
            known.unwrap_or_else(|| usual(LinkClass::Fabric))
        }
        (None, _) if native_atomics => usual(LinkClass::Fabric),
        (_, Some(link)) => (LinkClass::Pcie, Curve::from(over_pcie(link))),
        (_, None) => usual(LinkClass::Pcie),
    }
}

fn over_pcie(link: PcieLink) -> Cost {
    let share = match link.generation() {
        ..=4 => UNTIL_PCIE_4,
        _ => FROM_PCIE_5,
    };
    Cost::from_rate(submission_ns(), part(link.bytes_per_second(), share))
}

fn over_nvlinks(links: NvLinks) -> Option<Cost> {
    let raw = links.bytes_per_second.checked_mul(links.count.into())?;
    let fixed = link_cost(LinkClass::Fabric).fixed_ns;
    (raw > 0).then(|| Cost::from_rate(fixed, part(raw, OVER_NVLINK)))
}

/// From the call to the news of the end, as with every copy over a bus.
const fn submission_ns() -> u64 {
    link_cost(LinkClass::Pcie).fixed_ns
}

/// A share of a rate, in percent.
fn part(bytes_per_second: u64, percent: u64) -> u64 {
    bytes_per_second / 100 * percent
}

/// The share of a link's rate without encoding that a copy engine reaches, in percent: 55 of the 63.0 GB/s of PCIe 5
/// x16 (sample output of nvbandwidth, host_to_device_memcpy_ce, <https://developer.nvidia.com/blog/?p=115566>). The
/// rest are packets' headers.
const FROM_PCIE_5: u64 = 87;

/// The same of earlier links: 24 to 26 of the 31.5 GB/s of PCIe 4 x16 (`transload_core::defaults`).
const UNTIL_PCIE_4: u64 = 79;

/// The share of its NVLinks' rate that a peer copy reaches, in percent: 375 GB/s over 18 links of 26.562 GB/s of an
/// H100 (<https://github.com/NVIDIA/nccl/issues/1264>). NCCL's own table has 20.6 GB/s of each (`src/graph/topo.h`).
const OVER_NVLINK: u64 = 78;

/// The share of the memory's rate that a copy reaches, in percent: each byte is read and written, and a tenth is
/// lost. An H100 of 3.35 TB/s reads and writes 3.0 TB/s.
const COPIED: u64 = 45;

/// Copied bytes per second of a memory of which nothing is known: that share of a GeForce RTX 4090's 1008 GB/s.
const COPIED_WHERE_UNKNOWN: u64 = 450_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn gigabytes(curve: &Curve) -> u64 {
        1_000_000 / curve.cost_at(1 << 30).fs_per_byte
    }

    #[test]
    fn a_link_costs_what_engines_get_of_it() {
        let of = |generation, lanes| DeviceLinks {
            to_host: PcieLink::of_generation(generation, lanes),
            ..DeviceLinks::default()
        };
        assert_eq!(gigabytes(&host_cost(&of(3, 16))), 12);
        assert_eq!(gigabytes(&host_cost(&of(4, 16))), 24);
        assert_eq!(gigabytes(&host_cost(&of(5, 16))), 54);
        assert_eq!(gigabytes(&host_cost(&of(5, 8))), 27);
        assert_eq!(gigabytes(&host_cost(&of(6, 16))), 102);
        let unknown = host_cost(&DeviceLinks::default());
        assert_eq!(unknown, Curve::from(link_cost(LinkClass::Pcie)));
        assert_eq!(host_cost(&of(5, 16)).at(0), unknown.at(0));
    }

    #[test]
    fn a_device_copies_at_less_than_half_of_its_memorys_rate() {
        let of = |rate| DeviceLinks {
            memory_bytes_per_second: rate,
            ..DeviceLinks::default()
        };
        let h100 = local_cost(&of(Some(3_352_320_000_000)));
        assert_eq!(h100.cost_at(0).fs_per_byte, 663);
        assert_eq!(gigabytes(&local_cost(&of(None))), 449);
    }

    #[test]
    fn peers_take_nvlinks_where_there_are_some() {
        let nvlinks = |count, bytes_per_second| {
            Some(NvLinks {
                count,
                bytes_per_second,
            })
        };
        let pcie = PcieLink::of_generation(4, 16);
        let of = |nvlinks, pcie| PairLinks {
            nvlinks,
            pcie,
            ancestor: None,
        };
        let (class, cost) = peer_cost(&of(nvlinks(18, 26_562_000_000), pcie), true);
        assert_eq!((class, gigabytes(&cost)), (LinkClass::Fabric, 372));
        // A count without a rate has the usual one.
        let (class, cost) = peer_cost(&of(nvlinks(4, 0), pcie), true);
        assert_eq!(class, LinkClass::Fabric);
        assert_eq!(cost, Curve::from(link_cost(LinkClass::Fabric)));
        // That there are none is known better than what atomics hint at.
        let (class, cost) = peer_cost(&of(nvlinks(0, 0), pcie), true);
        assert_eq!((class, gigabytes(&cost)), (LinkClass::Pcie, 24));
        // The NVLinks were not counted.
        assert_eq!(peer_cost(&of(None, pcie), true).0, LinkClass::Fabric);
        assert_eq!(peer_cost(&of(None, pcie), false).0, LinkClass::Pcie);
        let (class, cost) = peer_cost(&of(None, None), false);
        assert_eq!(class, LinkClass::Pcie);
        assert_eq!(cost, Curve::from(link_cost(LinkClass::Pcie)));
    }
}
