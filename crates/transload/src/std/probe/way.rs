//! Ways from the host to a memory and back, link by link.

use std::collections::{HashMap, VecDeque};

use transload_core::{LinkId, MemoryId, Topology};

/// Returns the fewest links that lead from one memory to another; empty where they are the same, and `None`
/// where none do. Of equal ways the one whose links are listed first.
pub(super) fn shortest(
    topology: &Topology,
    from: MemoryId,
    to: MemoryId,
    may_use: &dyn Fn(&LinkId) -> bool,
) -> Option<Vec<LinkId>> {
    let mut reached_by: HashMap<MemoryId, Option<LinkId>> = HashMap::from([(from, None)]);
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        if at == to {
            break;
        }
        let links = topology.links().iter().map(|link| link.id);
        for link in links.filter(|link| link.src == at && may_use(link)) {
            // An end that no backend here has leads nowhere.
            if topology.memory(link.dst).is_some() && !reached_by.contains_key(&link.dst) {
                reached_by.insert(link.dst, Some(link));
                queue.push_back(link.dst);
            }
        }
    }
    let mut way = Vec::new();
    let mut at = to;
    while let Some(link) = reached_by.get(&at)? {
        way.push(*link);
        at = link.src;
    }
    way.reverse();
    Some(way)
}
