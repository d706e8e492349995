use proptest::prelude::*;

use super::*;
use crate::{Name, Shape, StorageId};

#[derive(Clone, Copy, Debug)]
enum Event {
    Insert {
        storage: u64,
        position: u64,
        len: u64,
        writes: bool,
    },
    /// Takes out one of those that are there.
    Remove(usize),
    /// Looks for what a footprint meets, and for the latest of it before some footprint.
    Search {
        storage: u64,
        position: u64,
        len: u64,
        writes: bool,
        before: u64,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let footprint = || (0u64..4, 0u64..200, 1u64..40, any::<bool>());
    let event = prop_oneof![
        3 => footprint().prop_map(|(storage, position, len, writes)| Event::Insert {
            storage, position, len, writes,
        }),
        2 => any::<usize>().prop_map(Event::Remove),
        1 => (footprint(), 0u64..140).prop_map(|((storage, position, len, writes), before)| {
            Event::Search { storage, position, len, writes, before }
        }),
    ];
    proptest::collection::vec(event, 0..120)
}

fn footprint(storage: u64, position: u64, len: u64, writes: bool) -> Footprint {
    let storage = match storage {
        0 => StorageId::Host,
        1 => StorageId::File {
            device: 1,
            inode: 7,
        },
        handle => StorageId::Native {
            backend: Name::constant("sim"),
            handle,
        },
    };
    Footprint::new(storage, position, Shape::contiguous(len), writes).unwrap()
}

proptest! {
    #[test]
    fn searches_agree_with_a_list(events in events()) {
        let mut index = Index::new();
        let mut list: Vec<usize> = Vec::new();
        let owner = |order: usize| Owner { slot: 1000 + order, order: order as u64 };
        for (order, event) in events.into_iter().enumerate() {
            match event {
                Event::Insert { storage, position, len, writes } => {
                    let footprint = footprint(storage, position, len, writes);
                    list.push(index.insert(footprint, owner(order), NIL));
                }
                Event::Remove(which) if !list.is_empty() => {
                    let node = list.swap_remove(which % list.len());
                    index.remove(node);
                    index.release(node);
                }
                Event::Remove(_) => {}
                Event::Search { storage, position, len, writes, before } => {
                    let wanted = footprint(storage, position, len, writes);
                    let mut found: Vec<usize> = index.candidates(&wanted).collect();
                    let mut expected: Vec<usize> = list
                        .iter()
                        .copied()
                        .filter(|node| wanted.conflicts_with(index.footprint(*node)))
                        .collect();
                    found.sort_unstable();
                    expected.sort_unstable();
                    let orders = expected.iter().map(|node| index.owner(*node).order);
                    let latest = orders.filter(|order| *order < before).max();
                    let latest = latest.map(|order| owner(order as usize));
                    prop_assert_eq!(index.latest(&wanted, before, None), latest);
                    let older = Some(owner(0));
                    prop_assert_eq!(index.latest(&wanted, before, older), latest.or(older));
                    prop_assert_eq!(found, expected);
                }
            }
            check(&index, index.readers);
            check(&index, index.writers);
        }
    }
}

#[test]
fn rising_positions_do_not_make_a_list_of_the_tree() {
    let mut index = Index::new();
    let nodes: Vec<usize> = (0..10_000)
        .map(|i| {
            index.insert(
                footprint(0, i * 8, 8, true),
                Owner { slot: 0, order: i },
                NIL,
            )
        })
        .collect();
    let depth = |mut node: usize| {
        let mut depth = 0;
        while node != NIL {
            node = index.nodes[node].parent;
            depth += 1;
        }
        depth
    };
    let deepest = nodes.iter().map(|node| depth(*node)).max().unwrap();
    // A random tree of n nodes is 4.31 ln n deep (Devroye 1986): 40 here.
    assert!(deepest <= 50, "{deepest} levels");
}

/// Order, links, priorities and what is below, of a whole tree.
fn check(index: &Index, root: usize) {
    let mut todo = Vec::from([root]);
    while let Some(at) = todo.pop() {
        if at == NIL {
            continue;
        }
        let node = &index.nodes[at];
        assert_eq!(node.below, index.below(at));
        for (child, left) in [(node.left, true), (node.right, false)] {
            if child == NIL {
                continue;
            }
            assert_eq!(index.nodes[child].parent, at);
            assert!(index.nodes[child].priority <= node.priority);
            assert_eq!(index.key(child) < index.key(at), left);
            todo.push(child);
        }
    }
}
