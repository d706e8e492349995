//! Verdicts of proofs of links between devices, kept for later processes.
//!
//! A file beside the saved profile lists links and verdicts in clear text ([`text`]). Each holds for two devices by
//! their UUIDs, in their slots, under their drivers, and for one version of this library ([`print`]). The manager reads
//! the file when a backend is registered. When a proof has ended, a thread of its own writes the file ([`writer`]): it
//! reads the file again, merges, and replaces it whole ([`store`]). A failure here is no error: a link without a
//! verdict is proven.

mod entry;
mod print;
mod store;
mod text;
mod writer;

use transload_core::{BackendId, LinkId, Topology};

use self::entry::Entry;
use self::print::LinkPrint;
use crate::TransferManager;
use crate::engine::verdict::{Judgement, ends};

pub(crate) use writer::VerdictWriter;

impl TransferManager {
    /// Takes in the verdicts of earlier processes about the links of that backend, if the manager keeps verdicts.
    /// Blocks on the file.
    pub(crate) fn recall_verdicts(&self, backend: BackendId) {
        let Some(writer) = &self.shared.writer else {
            return;
        };
        let recalled = holding(&writer.read(), &self.opened(), backend);
        if !recalled.is_empty() {
            self.shared.change(|state| state.recall(recalled));
        }
    }

    /// Makes a probe prove all links between devices itself.
    pub(super) fn distrust_peers(&self) {
        self.shared.change(|state| state.distrust_peers());
    }

    /// Keeps the results of a probe beyond the proofs of its links: links that moved wrong bytes.
    pub(super) fn keep_condemned(&self, links: impl Iterator<Item = LinkId>, reason: &str) {
        self.shared.change(|state| {
            for link in links {
                state.note_verdict(link, Some(Judgement::Condemned(reason.into())));
            }
        });
    }
}

/// Returns the judgements that hold for links that the backend serves or has an end of.
fn holding(entries: &[Entry], topology: &Topology, backend: BackendId) -> Vec<(LinkId, Judgement)> {
    let mut found = Vec::new();
    for link in topology.links() {
        let Some(devices) = ends(topology, link.id) else {
            continue;
        };
        let theirs = devices.iter().any(|device| device.backend == backend);
        if !theirs && link.backend != backend {
            continue;
        }
        let Some(here) = LinkPrint::new(link.id, devices) else {
            continue;
        };
        let entry = entries.iter().find(|entry| entry.print.holds_for(&here));
        found.extend(entry.map(|entry| (link.id, entry.judgement.clone())));
    }
    found
}

#[cfg(test)]
mod tests {
    use transload_core::{Access, DeviceInfo, EngineId, Name};

    use super::entry::{MOST_ENTRIES, merge};
    use super::*;
    use crate::engine::verdict::Verdict;

    fn device(id: &str, uuid: u8) -> DeviceInfo {
        DeviceInfo {
            id: id.parse().unwrap(),
            backend: BackendId(Name::constant("sim")),
            name: "card".into(),
            software: false,
            simulated: true,
            memory_bytes: None,
            driver: Some("1.0".into()),
            uuid: Some(transload_core::Uuid([uuid; 16])),
            pci: Some("0000:01:00.0".parse().unwrap()),
            numa_node: None,
        }
    }

    fn verdict(link: LinkId, devices: [DeviceInfo; 2], judgement: Option<Judgement>) -> Verdict {
        Verdict {
            link,
            devices,
            judgement,
        }
    }

    fn link(src: &str, dst: &str, engine: &str) -> LinkId {
        LinkId {
            src: format!("{src}/device").parse().unwrap(),
            dst: format!("{dst}/device").parse().unwrap(),
            engine: engine.parse::<EngineId>().unwrap(),
            access: Access::Peer,
        }
    }

    fn print(link: LinkId, devices: &[DeviceInfo; 2]) -> LinkPrint {
        let [src, dst] = devices;
        LinkPrint::new(link, [src, dst]).unwrap()
    }

    #[test]
    fn a_verdict_holds_for_its_slots_and_its_engine_and_whatever_the_numbers_are() {
        let cards = [device("sim:0", 1), device("sim:1", 2)];
        let here = print(link("sim:0", "sim:1", "sim:0#2"), &cards);
        let holds = |link: LinkId, devices: &[DeviceInfo; 2]| {
            let other = print(link, devices);
            (here.is_same_link(&other), here.holds_for(&other))
        };
        let renumbered = [device("sim:5", 1), device("sim:3", 2)];
        assert_eq!(
            holds(link("sim:5", "sim:3", "sim:5#2"), &renumbered),
            (true, true)
        );
        // Another engine, or whose it is.
        for engine in ["sim:5#1", "sim:3#2", "sim:0#2"] {
            let other = link("sim:5", "sim:3", engine);
            assert_eq!(holds(other, &renumbered), (false, false), "{engine}");
        }
        let cuda = [device("cuda:0", 1), device("cuda:1", 2)];
        assert_eq!(
            holds(link("cuda:0", "cuda:1", "cuda:0#2"), &cuda),
            (false, false)
        );
        // A stand-in that bears the UUID of a real device.
        let mut real = cards.clone();
        real.iter_mut().for_each(|card| card.simulated = false);
        assert_eq!(holds(here.id, &real), (false, false));
        for end in [0, 1] {
            let mut moved = cards.clone();
            moved[end].pci = Some("0000:02:00.0".parse().unwrap());
            assert_eq!(holds(here.id, &moved), (true, false), "another slot");
            moved[end].pci = None;
            assert_eq!(holds(here.id, &moved), (true, false), "no slot");
        }
    }

    #[test]
    fn the_last_verdict_on_a_link_replaces_the_others_and_one_that_was_withdrawn_leaves_none() {
        let cards = || [device("sim:0", 1), device("sim:1", 2)];
        let there = link("sim:0", "sim:1", "sim:0#2");
        let back = link("sim:1", "sim:0", "sim:1#2");
        let mut entries = Vec::new();
        let proven = |link, devices| verdict(link, devices, Some(Judgement::Proven));
        let [left, right] = cards();
        let both = [proven(there, cards()), proven(back, [right, left])];
        assert!(merge(&mut entries, &both));
        assert!(!merge(&mut entries, &both), "known");
        assert_eq!(entries.len(), 2);
        let lied = || Judgement::Condemned("\"it\nlied\" = [[link]]".into());
        assert!(merge(
            &mut entries,
            &[verdict(there, cards(), Some(lied()))]
        ));
        assert_eq!(entries.len(), 2);
        assert_eq!(
            (entries[1].print.id, &entries[1].judgement),
            (there, &lied())
        );
        let text = text::to_toml(&entries).unwrap();
        assert_eq!(text::parse(&text), Ok(entries.clone()));
        assert!(merge(&mut entries, &[verdict(there, cards(), None)]));
        assert!(
            !merge(&mut entries, &[verdict(there, cards(), None)]),
            "gone"
        );
        assert_eq!(entries.len(), 1);
        let mut nameless = verdict(there, cards(), Some(lied()));
        nameless.devices[1].driver = None;
        assert!(!merge(&mut entries, &[nameless]));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut entries = Vec::new();
        for index in 0..=MOST_ENTRIES {
            let mut cards = [device("sim:0", 1), device("sim:1", 2)];
            let bytes = (index as u128).to_be_bytes();
            cards[0].uuid = Some(transload_core::Uuid(bytes));
            let of = link("sim:0", "sim:1", "sim:0#2");
            merge(&mut entries, &[verdict(of, cards, Some(Judgement::Proven))]);
        }
        assert_eq!(entries.len(), MOST_ENTRIES);
        assert_eq!(entries[0].print.src.uuid.0[15], 1);
        let text = text::to_toml(&entries).unwrap();
        assert!(text.len() as u64 * 2 < store::MOST_BYTES, "{}", text.len());
    }
}
