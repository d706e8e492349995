//! The same question answered the slow way: every route by recursion, every chunk size, the pipeline
//! rule at the very size, and no line, envelope or pruning anywhere.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::defaults::{LOCAL_CHUNK_BYTES, MIN_CHUNK_BYTES, RING_SLOTS, max_chunk_bytes};
use crate::{
    Curve, DeviceId, EngineId, Form, Limits, Link, LinkClass, LinkId, MemoryId, Plan, PlanKey,
    Purpose, Role, StepKind, Topology, Transformer,
};

/// 2⁻²⁶ femtoseconds: every cost of the rule is a whole number of them.
pub(super) type Units = u128;
pub(super) const PER_FS: u128 = 1 << 26;
pub(super) const PER_NS: u128 = 1_000_000 * PER_FS;

/// Returns every route of at most three links, as the links' names.
pub(super) fn routes<'a>(topology: &'a Topology, key: &PlanKey) -> Vec<Vec<&'a Link>> {
    let mut found = Vec::new();
    extend(topology, key, key.src, &mut Vec::new(), &mut found);
    found
}

fn extend<'a>(
    topology: &'a Topology,
    key: &PlanKey,
    at: MemoryId,
    path: &mut Vec<&'a Link>,
    found: &mut Vec<Vec<&'a Link>>,
) {
    for link in topology.links().iter().filter(|link| link.id.src == at) {
        let to = link.id.dst;
        // Slots in the destination's memory are the last ones.
        if at == key.dst && !path.is_empty() && to != at {
            continue;
        }
        path.push(link);
        if to == key.dst {
            found.push(path.clone());
        }
        let is_first = path.len() == 1;
        if path.len() < 3
            && (to != key.src || is_first && packs(key, 0))
            && (to != key.dst || packs(key, 1))
            && topology.memory(to).is_some_and(|info| info.staging)
            && path[..path.len() - 1]
                .iter()
                .all(|before| before.id.dst != to)
        {
            extend(topology, key, to, path, found);
        }
        path.pop();
    }
}

/// Returns whether the bytes of the source, 0, or the destination, 1, may be brought together in slots in the same memory.
pub(super) fn packs(key: &PlanKey, end: usize) -> bool {
    match (key.purpose, key.forms[end]) {
        (Purpose::Digest, form) => form == Form::Elements,
        (Purpose::Convert, _) if end == 0 => true,
        (_, form) => form != Form::Contiguous,
    }
}

/// A route with its transform: steps as (engine, cost), and the steps between which each slot is held.
struct Pipeline<'a> {
    links: Vec<&'a Link>,
    steps: Vec<(EngineId, &'a Curve)>,
    /// Each ring: its memory, and the first and last step that holds a slot of it.
    rings: Vec<(MemoryId, usize, usize)>,
}

impl<'a> Pipeline<'a> {
    /// Returns the links, with a transform after `before` of them; a digest ends in a ring.
    fn new(
        links: Vec<&'a Link>,
        transform: Option<(usize, &'a Transformer)>,
        digest: bool,
    ) -> Self {
        let mut steps: Vec<_> = links
            .iter()
            .map(|link| (link.id.engine, &link.cost))
            .collect();
        let mut position: Vec<usize> = (0..links.len()).collect();
        if let Some((before, by)) = transform {
            steps.insert(before, (by.engine, &by.cost));
            position[before..].iter_mut().for_each(|at| *at += 1);
        }
        let rings = links.iter().enumerate().filter_map(|(i, link)| {
            let until = position.get(i + 1).copied();
            let until = until.or(digest.then_some(steps.len() - 1));
            until.map(|until| (link.id.dst, position[i], until))
        });
        Pipeline {
            rings: rings.collect(),
            links,
            steps,
        }
    }

    /// Returns the chunk sizes that it may run with, each with the slots of its rings.
    fn chunks(&self, topology: &Topology, limits: &Limits) -> Vec<(u64, u16)> {
        let is_one = self.steps.len() == 1;
        let of_links = self.links.iter().map(|link| match link.class {
            LinkClass::Local
                if is_one
                    && topology.host_load(link.id.engine) == 0
                    && link.id.src.device == link.id.dst.device =>
            {
                LOCAL_CHUNK_BYTES
            }
            class => max_chunk_bytes(class),
        });
        let is_transformed = self.steps.len() > self.links.len();
        let local = is_transformed.then_some(max_chunk_bytes(LinkClass::Local));
        let largest = of_links.chain(local).min().unwrap();
        if is_one {
            return vec![(largest, RING_SLOTS)];
        }
        let rings = self.rings.len() as u64;
        let mut fitting = Vec::new();
        let mut chunk = MIN_CHUNK_BYTES;
        while chunk <= largest {
            let memories = self
                .rings
                .iter()
                .map(|(memory, ..)| topology.memory(*memory).unwrap());
            let allocatable = memories
                .into_iter()
                .all(|info| info.max_alloc_bytes >= chunk);
            let fits = |slots: &u16| {
                // A slot is added where as much as all before it stays free.
                let all = u64::from(*slots) * rings;
                let free = if *slots == 1 {
                    0
                } else {
                    all.saturating_sub(1)
                };
                (all + free) * chunk <= limits.staging_bytes
            };
            if let (true, Some(slots)) = (allocatable, (1..=RING_SLOTS).rfind(fits)) {
                fitting.push((chunk, slots));
            }
            chunk *= 2;
        }
        fitting
    }

    fn cost(&self, chunk: u64, slots: u16, bytes: u64) -> Units {
        let steps = self.steps.iter();
        let stages: Vec<_> = steps
            .map(|(engine, cost)| stage(*engine, cost, chunk, bytes))
            .collect();
        let held: Vec<_> = self
            .rings
            .iter()
            .map(|(_, first, last)| (*first, *last))
            .collect();
        rule(&stages, &held, slots, chunk, bytes)
    }
}

/// Returns every way of serving `key`, whatever bars it.
fn pipelines<'a>(topology: &'a Topology, key: &PlanKey) -> Vec<Pipeline<'a>> {
    let host = |memory| topology.memory(memory).unwrap().host_addressable;
    let by = topology.transforms().first();
    let mut all = Vec::new();
    match key.purpose {
        Purpose::Copy | Purpose::Convert => {
            let routes = routes(topology, key).into_iter();
            all.extend(routes.map(|links| Pipeline::new(links, None, false)));
        }
        Purpose::CopyWithDigest => {
            for links in routes(topology, key) {
                let slots = links[1..].iter().position(|link| host(link.id.src));
                let before = match slots {
                    Some(slot) => Some(slot + 1),
                    None if host(key.src) => Some(0),
                    None if host(key.dst) => Some(links.len()),
                    None => None,
                };
                if let (Some(before), Some(by)) = (before, by) {
                    all.push(Pipeline::new(links, Some((before, by)), false));
                }
            }
        }
        Purpose::Digest => {
            let Some(by) = by else { return all };
            if host(key.src) && key.forms[0] != Form::Elements {
                all.push(Pipeline::new(Vec::new(), Some((0, by)), true));
            }
            for end in topology.memories() {
                let is_own = end.id == key.src;
                if end.staging && end.host_addressable && (!is_own || packs(key, 0)) {
                    let routes = routes(topology, &PlanKey::copy(key.src, end.id)).into_iter();
                    let most = if is_own { 1 } else { 2 };
                    let short = routes.filter(|links| links.len() <= most);
                    all.extend(
                        short.map(|links| {
                            Pipeline::new(links.clone(), Some((links.len(), by)), true)
                        }),
                    );
                }
            }
        }
    }
    all
}

/// Returns whether a link touches the source, 0, or the destination, 1, as its bytes lie.
pub(super) fn takes(key: &PlanKey, link: &Link, end: usize) -> bool {
    // All devices are here.
    let own = [link.id.src, link.id.dst][end].device;
    let by = link.id.engine.device;
    match key.forms[end] {
        Form::Contiguous => true,
        Form::Rows => link.pitched,
        Form::Elements => link.pitched && (by == DeviceId::CPU0 || by == own),
    }
}

/// Returns the least that `key` costs at the size; `None` where there is no way.
pub(super) fn best(
    topology: &Topology,
    key: &PlanKey,
    limits: &Limits,
    usable: &dyn Fn(LinkId) -> bool,
    bytes: u64,
) -> Option<Units> {
    let pitched = |links: &[&Link]| {
        let ends = [
            links.first(),
            links.last().filter(|_| key.purpose != Purpose::Digest),
        ];
        ends.into_iter()
            .enumerate()
            .all(|(end, link)| link.is_none_or(|link| takes(key, link, end)))
    };
    pipelines(topology, key)
        .iter()
        .filter(|way| way.links.iter().all(|link| usable(link.id)) && pitched(&way.links))
        .flat_map(|way| {
            let chunks = way.chunks(topology, limits).into_iter();
            chunks.map(|(chunk, slots)| way.cost(chunk, slots, bytes))
        })
        .min()
}

/// One step for the rule: its engine, its time for a chunk in nanoseconds, and its cost at the size.
struct Stage {
    engine: EngineId,
    chunk_ns: u64,
    whole: Units,
}

fn rule(stages: &[Stage], held: &[(usize, usize)], slots: u16, chunk: u64, bytes: u64) -> Units {
    if bytes < chunk {
        return stages.iter().map(|stage| stage.whole).sum();
    }
    let mut factors: BTreeMap<EngineId, u64> = BTreeMap::new();
    for stage in stages {
        *factors.entry(stage.engine).or_default() += stage.chunk_ns;
    }
    let rings = held.iter().map(|(first, last)| {
        let time: u64 = stages[*first..=*last]
            .iter()
            .map(|stage| stage.chunk_ns)
            .sum();
        time.div_ceil(u64::from(slots))
    });
    let longest = factors.into_values().chain(rings).max().unwrap();
    let others = stages.iter().map(|stage| stage.chunk_ns).sum::<u64>() - longest;
    let per_byte = u128::from(longest) * PER_NS / u128::from(chunk);
    u128::from(others) * PER_NS + per_byte * u128::from(bytes)
}

fn stage(engine: EngineId, cost: &Curve, chunk: u64, bytes: u64) -> Stage {
    let piece = cost
        .pieces()
        .iter()
        .rfind(|piece| piece.from_bytes <= bytes)
        .unwrap();
    Stage {
        engine,
        chunk_ns: cost.part_of(chunk, bytes),
        whole: u128::from(piece.cost.fixed_ns) * PER_NS
            + u128::from(piece.cost.fs_per_byte) * PER_FS * u128::from(bytes),
    }
}

/// What a finished plan of one lane costs by the rule, from nothing but its steps and rings.
pub(super) fn cost_of(plan: &Plan, bytes: u64) -> Units {
    let lane = &plan.lanes[0];
    let stages = lane
        .steps
        .iter()
        .map(|step| stage(step.engine, &step.cost, lane.chunk_bytes, bytes))
        .collect::<Vec<_>>();
    let uses = |kind, ring| match kind {
        StepKind::Copy { from, to } => from == Role::Slot(ring) || to == Role::Slot(ring),
        StepKind::Transform { at } | StepKind::MakeVisible { at } => at == Role::Slot(ring),
    };
    let held = (0..lane.rings.len() as u8)
        .map(|ring| {
            let mut steps = lane.steps.iter();
            let first = steps.position(|step| uses(step.kind, ring)).unwrap();
            let last = lane
                .steps
                .iter()
                .rposition(|step| uses(step.kind, ring))
                .unwrap();
            (first, last)
        })
        .collect::<Vec<_>>();
    let slots = lane.rings.first().map_or(RING_SLOTS, |ring| ring.slots);
    rule(&stages, &held, slots, lane.chunk_bytes, bytes)
}

/// Rounded up to nanoseconds.
pub(super) fn ns(units: Units) -> u64 {
    u64::try_from(units.div_ceil(PER_NS)).unwrap()
}
