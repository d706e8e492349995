//! Verdicts as TOML.

use serde::{Deserialize, Serialize};
use transload_core::{Access, LinkId};

use super::entry::Entry;
use super::print::{EndPrint, LinkPrint};
use crate::engine::verdict::Judgement;

/// The version of the format that this library writes. It reads this one and ignores fields that it does
/// not know.
const FORMAT: u32 = 1;

/// Why a text says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unread {
    /// It is none of ours, or damaged.
    Garbled,
    /// A later version wrote it, and its verdicts are not this one's to replace.
    Newer,
}

/// Read first: what else there is depends on it.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Document {
    format: u32,
    #[serde(default, rename = "link")]
    links: Vec<LinkText>,
}

#[derive(Serialize, Deserialize)]
struct LinkText {
    verdict: String,
    reason: Option<String>,
    src: String,
    dst: String,
    engine: String,
    access: String,
    src_uuid: String,
    src_driver: String,
    src_pci: Option<String>,
    dst_uuid: String,
    dst_driver: String,
    dst_pci: Option<String>,
    library: String,
    #[serde(default)]
    simulated: bool,
}

/// Returns the entries as the text of a file; `None` where they cannot be written down.
pub(super) fn to_toml(entries: &[Entry]) -> Option<String> {
    let document = Document {
        format: FORMAT,
        links: entries.iter().map(LinkText::from).collect(),
    };
    let text = toml::to_string_pretty(&document).ok()?;
    Some(format!("{HEADER}\n{text}"))
}

/// Reads the text of a file, all of it or nothing.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, Unread> {
    let head: Head = toml::from_str(text).map_err(|_| Unread::Garbled)?;
    match head.format {
        FORMAT => {}
        0 => return Err(Unread::Garbled),
        _ => return Err(Unread::Newer),
    }
    let document: Document = toml::from_str(text).map_err(|_| Unread::Garbled)?;
    let entries = document.links.into_iter().map(LinkText::entry);
    entries.collect::<Option<_>>().ok_or(Unread::Garbled)
}

impl LinkText {
    fn entry(self) -> Option<Entry> {
        let end = |uuid: String, driver, pci: Option<String>| {
            let pci = match pci {
                Some(pci) => Some(pci.parse().ok()?),
                None => None,
            };
            let uuid = uuid.parse().ok()?;
            Some(EndPrint { uuid, driver, pci })
        };
        if self.access != Access::Peer.as_str() {
            return None;
        }
        Some(Entry {
            print: LinkPrint {
                id: LinkId {
                    src: self.src.parse().ok()?,
                    dst: self.dst.parse().ok()?,
                    engine: self.engine.parse().ok()?,
                    access: Access::Peer,
                },
                src: end(self.src_uuid, self.src_driver, self.src_pci)?,
                dst: end(self.dst_uuid, self.dst_driver, self.dst_pci)?,
                library: self.library,
                simulated: self.simulated,
            },
            judgement: match (self.verdict.as_str(), self.reason) {
                (PROVEN, _) => Judgement::Proven,
                (CONDEMNED, Some(reason)) => Judgement::Condemned(reason),
                _ => return None,
            },
        })
    }
}

impl From<&Entry> for LinkText {
    fn from(entry: &Entry) -> LinkText {
        let LinkPrint {
            id,
            src,
            dst,
            library,
            simulated,
        } = &entry.print;
        let (verdict, reason) = match &entry.judgement {
            Judgement::Proven => (PROVEN, None),
            Judgement::Condemned(reason) => (CONDEMNED, Some(reason.clone())),
        };
        LinkText {
            verdict: verdict.into(),
            reason,
            src: id.src.to_string(),
            dst: id.dst.to_string(),
            engine: id.engine.to_string(),
            access: id.access.as_str().into(),
            src_uuid: src.uuid.to_string(),
            src_driver: src.driver.clone(),
            src_pci: src.pci.map(|pci| pci.to_string()),
            dst_uuid: dst.uuid.to_string(),
            dst_driver: dst.driver.clone(),
            dst_pci: dst.pci.map(|pci| pci.to_string()),
            library: library.clone(),
            simulated: *simulated,
        }
    }
}

const PROVEN: &str = "proven";
const CONDEMNED: &str = "condemned";

const HEADER: &str = "\
# What proofs found out about the links between two devices of this machine. A link that was proven is
# connected and used; one that was condemned moved wrong bytes, and nothing goes over it. Each holds until
# the driver, a device, its slot or this library changes. Without this file, links are proven before use.
";
