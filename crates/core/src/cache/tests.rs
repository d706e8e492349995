//! The cache, with plans of a machine of two links.

use alloc::sync::Arc;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{
    Access, BackendId, Cost, DeviceId, DeviceKind, EngineId, Inventory, Limits, Link, LinkClass,
    LinkId, MemoryId, MemoryInfo, MemoryKind, Name, Passage, Topology, plan,
};

const BACKEND: BackendId = BackendId(Name::constant("sim"));

fn memory(n: u32) -> MemoryId {
    DeviceId::new(DeviceKind::SIM, n).memory(MemoryKind::Device)
}

/// One link that is good for small payloads and one that is good for large ones.
fn plans() -> Arc<PlanSet> {
    let link = |index, cost: Cost| Link {
        id: LinkId {
            src: memory(0),
            dst: memory(1),
            engine: EngineId {
                device: DeviceId::new(DeviceKind::SIM, 0),
                index,
            },
            access: Access::Native,
        },
        backend: BACKEND,
        class: LinkClass::Pcie,
        cost: cost.into(),
        pitched: false,
        depth: 2,
    };
    let info = |n| MemoryInfo {
        id: memory(n),
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: u64::MAX,
        alignment: 1,
        host_addressable: false,
        staging: false,
        passage: Passage::default(),
    };
    let mut topology = Topology::new();
    let inventory = Inventory {
        backend: BACKEND,
        devices: Vec::new(),
        memories: [info(0), info(1)].into(),
        links: [
            link(0, Cost::new(0, 1_000_000)),
            link(1, Cost::new(1000, 500_000)),
        ]
        .into(),
        lacks: Vec::new(),
        transform: None,
    };
    topology.add(inventory).unwrap();
    let key = PlanKey::copy(memory(0), memory(1));
    let limits = Limits {
        lanes: 1,
        ..Limits::default()
    };
    Arc::new(plan(&topology, &key, &limits, &|_| None).unwrap())
}

fn key(n: u32) -> PlanKey {
    PlanKey::copy(memory(n), memory(n + 1))
}

#[test]
fn a_plan_for_one_size_is_never_given_to_another() {
    let mut cache = PlanCache::default();
    let sizes = [0, 1, 1999, 2000, 2001, 4096, 1 << 30, u64::MAX];
    // Whatever size comes first, it decides nothing for those after it.
    for first in sizes {
        cache.invalidate();
        cache.insert(key(0), plans());
        let engine = |cache: &mut PlanCache, bytes| {
            let plans = cache.get(&key(0)).unwrap();
            plans.choose(bytes).links().next().unwrap().engine.index
        };
        engine(&mut cache, first);
        for bytes in sizes {
            assert_eq!(
                engine(&mut cache, bytes),
                u16::from(bytes > 2000),
                "{bytes} after {first}"
            );
        }
    }
}

#[test]
fn keys_that_differ_in_anything_are_apart() {
    let base = key(0);
    let others = [
        PlanKey {
            src: memory(9),
            ..base
        },
        PlanKey {
            dst: memory(9),
            ..base
        },
        base.pitched([true, false]),
        base.pitched([false, true]),
        PlanKey::copy_with_digest(base.src, base.dst),
        PlanKey::digest(base.src),
        PlanKey::copy(base.src.device.memory(MemoryKind::Pinned), base.dst),
    ];
    let mut cache = PlanCache::default();
    cache.insert(base, plans());
    for other in others {
        assert!(cache.get(&other).is_none(), "{other:?}");
    }
    assert!(cache.get(&base).is_some());
}

#[test]
fn the_set_used_longest_ago_makes_room() {
    let mut cache = PlanCache::new(2);
    cache.insert(key(0), plans());
    cache.insert(key(1), plans());
    assert!(cache.get(&key(0)).is_some());
    cache.insert(key(2), plans());
    assert!(cache.get(&key(1)).is_none());
    assert!(cache.get(&key(0)).is_some() && cache.get(&key(2)).is_some());
    // Renewing what is there evicts nothing.
    cache.insert(key(0), plans());
    assert_eq!((cache.len(), cache.stats().evictions), (2, 1));
}

#[test]
fn invalidation_forgets_everything_and_starts_an_epoch() {
    let mut cache = PlanCache::default();
    cache.insert(key(0), plans());
    let epoch = cache.epoch();
    cache.invalidate();
    assert!(cache.is_empty() && cache.get(&key(0)).is_none());
    assert_eq!(cache.epoch(), epoch + 1);
}

#[test]
fn look_ups_are_counted_and_shown() {
    let mut cache = PlanCache::new(0);
    assert_eq!(cache.capacity(), 1);
    cache.get(&key(0));
    cache.insert(key(0), plans());
    cache.get(&key(0));
    cache.get(&key(0));
    let stats = CacheStats {
        hits: 2,
        misses: 1,
        evictions: 0,
        invalidations: 0,
    };
    assert_eq!(cache.stats(), stats);
    let shown = alloc::format!("{cache:?}");
    assert!(
        shown.contains("len: 1") && shown.contains("hits: 2"),
        "{shown}"
    );
}

#[test]
fn a_hit_and_its_choice_allocate_nothing() {
    let mut cache = PlanCache::default();
    cache.insert(key(0), plans());
    let counted = allocation_counter::measure(|| {
        for bytes in 0..100 {
            let plans = cache.get(&key(0)).unwrap();
            assert!(plans.choose(bytes * 100).chunk_bytes() > 0);
        }
    });
    assert_eq!(counted.count_total, 0);
}

proptest! {
    #[test]
    fn the_cache_holds_what_a_naive_list_would(
        capacity in 1..6usize,
        uses in proptest::collection::vec((0..8u32, any::<bool>()), 0..60),
    ) {
        let mut cache = PlanCache::new(capacity);
        let set = plans();
        // The most recent last.
        let mut list: Vec<u32> = Vec::new();
        for (n, inserts) in uses {
            let known = list.iter().position(|held| *held == n);
            if inserts {
                cache.insert(key(n), Arc::clone(&set));
            } else {
                prop_assert_eq!(cache.get(&key(n)).is_some(), known.is_some());
            }
            if let Some(at) = known {
                list.remove(at);
            }
            if inserts || known.is_some() {
                list.push(n);
            }
            if list.len() > capacity {
                list.remove(0);
            }
            prop_assert_eq!(cache.len(), list.len());
        }
    }
}
