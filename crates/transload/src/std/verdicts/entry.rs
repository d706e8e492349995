//! The entries of the file, and how new verdicts change them.

use super::print::LinkPrint;
use crate::engine::verdict::{Judgement, Verdict};

/// An entry of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) print: LinkPrint,
    pub(super) judgement: Judgement,
}

/// Replaces the entries of the links of these verdicts. Returns false when nothing has changed.
pub(super) fn merge(entries: &mut Vec<Entry>, verdicts: &[Verdict]) -> bool {
    let mut changed = false;
    for verdict in verdicts {
        let [src, dst] = &verdict.devices;
        let Some(print) = LinkPrint::new(verdict.link, [src, dst]) else {
            continue;
        };
        let new = verdict.judgement.clone().map(|judgement| Entry {
            print: print.clone(),
            judgement,
        });
        if new.as_ref().is_some_and(|new| entries.contains(new)) {
            continue;
        }
        let before = entries.len();
        entries.retain(|entry| !entry.print.is_same_link(&print));
        changed |= new.is_some() || entries.len() < before;
        entries.extend(new);
    }
    let surplus = entries.len().saturating_sub(MOST_ENTRIES);
    entries.drain(..surplus);
    changed
}

/// The most entries; the oldest are removed when there are more. A machine of 16 devices has 240 links between them,
/// and a home folder may serve several machines.
pub(super) const MOST_ENTRIES: usize = 2048;
