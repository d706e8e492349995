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
    /// Looks for what a footprint meets.
    Search {
        storage: u64,
        position: u64,
        len: u64,
        writes: bool,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let footprint = || (0u64..4, 0u64..200, 1u64..40, any::<bool>());
    let event = prop_oneof![
        3 => footprint().prop_map(|(storage, position, len, writes)| Event::Insert {
            storage, position, len, writes,
        }),
        2 => any::<usize>().prop_map(Event::Remove),
        1 => footprint().prop_map(|(storage, position, len, writes)| Event::Search {
            storage, position, len, writes,
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
        for event in events {
            match event {
                Event::Insert { storage, position, len, writes } => {
                    list.push(index.insert(footprint(storage, position, len, writes), 0, NIL));
                }
                Event::Remove(which) if !list.is_empty() => {
                    let node = list.swap_remove(which % list.len());
                    index.remove(node);
                    index.release(node);
                }
                Event::Remove(_) => {}
                Event::Search { storage, position, len, writes } => {
                    let wanted = footprint(storage, position, len, writes);
                    let mut found: Vec<usize> = index.candidates(&wanted).collect();
                    let mut expected: Vec<usize> = list
                        .iter()
                        .copied()
                        .filter(|node| wanted.conflicts_with(index.footprint(*node)))
                        .collect();
                    found.sort_unstable();
                    expected.sort_unstable();
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
        .map(|i| index.insert(footprint(0, i * 8, 8, true), 0, NIL))
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

/// Order, links, priorities and furthest ends of a whole tree.
fn check(index: &Index, root: usize) {
    let mut todo = Vec::from([root]);
    while let Some(at) = todo.pop() {
        if at == NIL {
            continue;
        }
        let node = &index.nodes[at];
        assert_eq!(node.furthest, index.furthest_below(at));
        for (child, left) in [(node.left, true), (node.right, false)] {
            if child == NIL {
                continue;
            }
            let below = &index.nodes[child];
            assert_eq!(below.parent, at);
            assert!(below.priority <= node.priority);
            let (point, below) = (node.footprint.first_point(), below.footprint.first_point());
            assert!(if left { below <= point } else { below >= point });
            todo.push(child);
        }
    }
}
