//! The part of the machine that a key concerns: its links, and every way over them.

use alloc::vec::Vec;

use super::reach::Reach;
use super::way::{Act, Flaw, Region, Way};
use super::{Barred, Form, Limits, NoPlan, PlanKey, Purpose};
use crate::defaults::{
    LOCAL_CHUNK_BYTES, MIN_CHUNK_BYTES, host_load, max_chunk_bytes, visible_cost,
};
use crate::estimate::Line;
use crate::{
    BackendId, Correction, Curve, DeviceId, EngineId, Link, LinkClass, LinkId, MemoryInfo,
    Topology, Transformer,
};

/// Exponents of the chunk sizes that are considered: powers of two from [`MIN_CHUNK_BYTES`] to the largest of any way.
pub(super) const MIN_LOG2: u32 = MIN_CHUNK_BYTES.ilog2();
const MAX_LOG2: u32 = LOCAL_CHUNK_BYTES.ilog2();
const CHUNK_SIZES: usize = (MAX_LOG2 - MIN_LOG2 + 1) as usize;

/// At most so many ways are compared, the shortest ones: planning takes some 500 ns for each.
const MOST_WAYS: usize = 4096;

/// Nanoseconds for one chunk of each size.
type ChunkTimes = [u64; CHUNK_SIZES];

/// A link that a way may take.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    pub(super) link: Link,
    pub(super) barred: Option<Barred>,
    /// How much of the host the engine keeps busy ([`host_load`]).
    load: u16,
    /// How uncertain its cost is, in parts of 1024.
    doubt: u16,
    chunk_ns: ChunkTimes,
}

impl Hop {
    fn new(topology: &Topology, link: &Link, barred: &dyn Fn(LinkId) -> Option<Barred>) -> Hop {
        let barred = barred(link.id);
        Hop {
            link: link.clone(),
            load: topology.host_load(link.id.engine),
            doubt: topology.doubt(link.id),
            chunk_ns: match &barred {
                None => times(&link.cost),
                Some(_) => [0; CHUNK_SIZES],
            },
            barred,
        }
    }
}

impl Hop {
    /// Whether an engine of a device's copies within its memory.
    fn is_within(&self) -> bool {
        let LinkId { src, dst, .. } = self.link.id;
        self.load == 0 && src.device == dst.device
    }
}

/// The input of a set of plans, and the only part of the topology that the set keeps.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    pub(super) key: PlanKey,
    pub(super) limits: Limits,
    pub(super) hops: Vec<Hop>,
    pub(super) transformers: Vec<(Transformer, ChunkTimes)>,
    /// The corrections of routes that were measured as a whole.
    corrections: Vec<Correction>,
    /// The owners of the memories of source and destination.
    owners: [Owner; 2],
    /// In the order of preference among equals: fewer passes, then links that are listed earlier.
    pub(super) ways: Vec<Way>,
}

/// The device of a memory, which may have to make it visible before other engines touch it.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) backend: BackendId,
    pub(super) engine: EngineId,
    /// Whether the device has to make it visible.
    hides: bool,
    /// What that costs for a chunk.
    pub(super) visible: Curve,
}

impl Survey {
    /// Looks over the topology for `key`.
    pub(super) fn new(
        topology: &Topology,
        key: &PlanKey,
        limits: &Limits,
        barred: &dyn Fn(LinkId) -> Option<Barred>,
    ) -> Result<Survey, NoPlan> {
        let mut key = *key;
        if key.purpose == Purpose::Digest {
            key.dst = key.src;
        }
        let known = |id| {
            topology
                .memory(id)
                .ok_or(NoPlan::UnknownMemory { memory: id })
        };
        let (src, dst) = (known(key.src)?, known(key.dst)?);
        let mut survey = Survey {
            key,
            limits: *limits,
            hops: Vec::new(),
            transformers: Vec::new(),
            corrections: Vec::new(),
            owners: [src, dst].map(Owner::of),
            ways: Vec::new(),
        };
        if matches!(key.purpose, Purpose::CopyWithDigest | Purpose::Digest) {
            let transforms = topology.transforms().iter();
            survey.transformers = transforms.map(|t| (t.clone(), times(&t.cost))).collect();
        }
        let reach = Reach::new(topology, &key);
        for link in reach.links() {
            let hop = Hop::new(topology, &topology.links()[link], barred);
            survey.hops.push(hop);
        }
        survey.list_ways(&reach, topology.memories(), src, dst);
        if key.purpose == Purpose::Copy && topology.has_corrections() {
            survey.take_corrections(topology);
        }
        survey.doubt_staging();
        Ok(survey)
    }

    /// Returns how uncertain the costs of a way's links are, in parts of 1024.
    pub(super) fn doubt(&self, way: &Way) -> u16 {
        let hops = way.copies().map(|hop| self.hops[usize::from(hop)].doubt);
        hops.max().unwrap_or(0)
    }

    /// Where measurements are too uncertain to decide between a way in one pass and one that stages, the simpler one is
    /// taken: the other must be faster by what the costs are uncertain.
    fn doubt_staging(&mut self) {
        let doubt = |way: &Way| self.doubt(way);
        let direct = self
            .ways
            .iter()
            .filter(|way| way.rings() == 0 && way.chunks.is_ok());
        let Some(least) = direct.map(doubt).max() else {
            return;
        };
        let doubts: Vec<u16> = self.ways.iter().map(|way| doubt(way).max(least)).collect();
        for (way, doubt) in self.ways.iter_mut().zip(doubts) {
            if way.rings() > 0 {
                way.handicap = doubt;
            }
        }
    }

    fn take_corrections(&mut self, topology: &Topology) {
        for way in &mut self.ways {
            let hops = way.copies().map(|hop| &self.hops[usize::from(hop)]);
            let links: Vec<LinkId> = hops.map(|hop| hop.link.id).collect();
            let known = topology.correction(&links);
            if let (Some(known), Ok(number)) = (known, u16::try_from(self.corrections.len())) {
                self.corrections.push(known.clone());
                way.correction = Some(number);
            }
        }
    }

    /// Returns the correction of a way's route.
    pub(super) fn correction(&self, way: &Way) -> Option<&Correction> {
        way.correction.map(|at| &self.corrections[usize::from(at)])
    }

    /// Corrects the lines of a way from the position `start` on.
    pub(super) fn correct(&self, way: &Way, start: usize, lines: &mut Vec<(u64, Line)>) {
        let Some(correction) = self.correction(way) else {
            return;
        };
        let plain = lines.split_off(start);
        for (at, (from, line)) in plain.iter().enumerate() {
            let until = plain.get(at + 1).map(|(from, _)| *from);
            let pieces = correction.pieces(*from, until);
            lines.extend(pieces.map(|(from, factor)| (from, line.scaled(factor))));
        }
    }

    /// Returns how many nanoseconds `act` takes for a chunk of 2^`log2` bytes.
    pub(super) fn chunk_ns(&self, act: Act, log2: u32) -> u64 {
        let size = (log2 - MIN_LOG2) as usize;
        match act {
            Act::Copy(hop) => self.hops[usize::from(hop)].chunk_ns[size],
            Act::Transform(by) => self.transformers[usize::from(by)].1[size],
            Act::MakeVisible(region) => self.owner(region).visible.at(1 << log2),
        }
    }

    /// Returns how many nanoseconds `act` takes for a chunk of 2^`log2` bytes of a payload of `whole` bytes.
    pub(super) fn part_ns(&self, act: Act, log2: u32, whole: u64) -> u64 {
        match self.curve(act) {
            curve if curve.has_caches => curve.part_of(1 << log2, whole),
            _ => self.chunk_ns(act, log2),
        }
    }

    /// Returns the next size above `from` at which the chunks of a way have another cost.
    pub(super) fn next_change(&self, way: &Way, from: u64) -> Option<u64> {
        let curves = way.acts().iter().map(|act| self.curve(*act));
        let cached = curves.filter(|curve| curve.has_caches);
        cached.filter_map(|curve| curve.piece_at(from).1).min()
    }

    /// Returns how much of the host `act` keeps busy, of 1024.
    pub(super) fn host_load(&self, act: Act) -> u16 {
        match act {
            Act::Copy(hop) => self.hops[usize::from(hop)].load,
            Act::Transform(_) => host_load(true, false),
            Act::MakeVisible(_) => 0,
        }
    }

    /// Returns the cost of `act` as a function of size.
    pub(super) fn curve(&self, act: Act) -> &Curve {
        match act {
            Act::Copy(hop) => &self.hops[usize::from(hop)].link.cost,
            Act::Transform(by) => &self.transformers[usize::from(by)].0.cost,
            Act::MakeVisible(region) => &self.owner(region).visible,
        }
    }

    /// Returns the owner of a region's memory.
    pub(super) fn owner(&self, region: Region) -> &Owner {
        match region {
            Region::Src => &self.owners[0],
            Region::Dst => &self.owners[1],
        }
    }

    /// Returns whether the region must be made visible before the act touches it.
    fn is_hidden(&self, act: Act, region: Region) -> bool {
        let owner = self.owner(region);
        let by = match act {
            Act::Copy(hop) => self.hops[usize::from(hop)].link.id.engine,
            Act::Transform(by) => self.transformers[usize::from(by)].0.engine,
            Act::MakeVisible(_) => return false,
        };
        owner.hides && by.device != owner.engine.device
    }

    /// Lists every way, shorter ones first and each length in the order of its links.
    fn list_ways(
        &mut self,
        reach: &Reach,
        memories: &[MemoryInfo],
        src: &MemoryInfo,
        dst: &MemoryInfo,
    ) {
        if self.key.purpose == Purpose::Digest {
            if src.host_addressable && self.key.forms[0] != Form::Elements {
                self.add(&[], memories, src, dst, &[]);
            }
            for (first, slot) in reach.first() {
                self.add(&[first], memories, src, dst, &[slot]);
            }
            for (first, slot) in reach.first() {
                for (last, end) in reach.middle(slot) {
                    self.add(&[first, last], memories, src, dst, &[slot, end]);
                }
            }
            return;
        }
        for only in reach.direct() {
            self.add(&[only], memories, src, dst, &[]);
        }
        for (first, slot) in reach.first() {
            for last in reach.last(slot) {
                self.add(&[first, last], memories, src, dst, &[slot]);
            }
        }
        for (first, slot) in reach.first() {
            for (middle, second) in reach.middle(slot) {
                for last in reach.last(second) {
                    let links = [first, middle, last];
                    self.add(&links, memories, src, dst, &[slot, second]);
                }
            }
        }
    }

    /// Adds the way over `links` with rings in the staging memories `slots`, once for each engine
    /// that could transform on it.
    fn add(
        &mut self,
        links: &[u16],
        memories: &[MemoryInfo],
        src: &MemoryInfo,
        dst: &MemoryInfo,
        slots: &[usize],
    ) {
        if self.ways.len() >= MOST_WAYS {
            return;
        }
        let in_slot = |at: usize| memories[slots[at]].host_addressable;
        // How many of the copies come before the transform.
        let copies_before = match self.key.purpose {
            Purpose::Copy | Purpose::Convert => {
                let way = Way::new(links, None, slots.len());
                self.push(way, memories, slots, None);
                return;
            }
            Purpose::Digest if slots.is_empty() => Some(0),
            Purpose::Digest => in_slot(slots.len() - 1).then_some(slots.len()),
            Purpose::CopyWithDigest => (0..slots.len())
                .find(|at| in_slot(*at))
                .map(|at| at + 1)
                .or(src.host_addressable.then_some(0))
                .or(dst.host_addressable.then_some(links.len())),
        };
        match copies_before {
            // A digest that ends where the host cannot read is no way.
            None if self.key.purpose == Purpose::Digest => {}
            Some(before) if !self.transformers.is_empty() => {
                for by in 0..self.transformers.len() as u16 {
                    let way = Way::new(links, Some((before, by)), slots.len());
                    self.push(way, memories, slots, None);
                }
            }
            _ => {
                let way = Way::new(links, None, slots.len());
                self.push(way, memories, slots, Some(Flaw::NoTransform));
            }
        }
    }

    fn push(&mut self, way: Way, memories: &[MemoryInfo], slots: &[usize], flaw: Option<Flaw>) {
        let mut way = way.made_visible(|act, region| self.is_hidden(act, region));
        way.chunks = match self.flaw(&way).or(flaw) {
            Some(flaw) => Err(flaw),
            None => self.chunks(&way, memories, slots),
        };
        way.group_by(|act| match act {
            Act::Copy(hop) => self.hops[usize::from(hop)].link.id.engine,
            Act::Transform(by) => self.transformers[usize::from(by)].0.engine,
            Act::MakeVisible(region) => self.owner(region).engine,
        });
        self.ways.push(way);
    }

    fn flaw(&self, way: &Way) -> Option<Flaw> {
        let copies = || way.copies().map(|hop| (hop, &self.hops[usize::from(hop)]));
        if let Some((hop, _)) = copies().find(|(_, hop)| hop.barred.is_some()) {
            return Some(Flaw::Barred(hop));
        }
        let converts = |hop: &&Hop| {
            let LinkId { engine, dst, .. } = hop.link.id;
            engine.device == DeviceId::CPU0 && !dst.kind.is_file()
        };
        let first = copies().next().filter(|(_, hop)| !converts(hop));
        if let (Purpose::Convert, Some((hop, _))) = (self.key.purpose, first) {
            return Some(Flaw::ConvertsNothing(hop));
        }
        if self.key.forms == [Form::Contiguous; 2] {
            return None;
        }
        // Slots are contiguous: only acts on a region must support its gaps.
        let last = copies().count().wrapping_sub(1);
        let is_written = self.key.purpose != Purpose::Digest;
        let takes = |hop: &Hop, end: usize| self.key.forms[end].is_taken_by(&hop.link, end);
        let fits = |at: usize, hop| {
            (at > 0 || takes(hop, 0)) && (at < last || !is_written || takes(hop, 1))
        };
        copies()
            .enumerate()
            .find(|(at, (_, hop))| !fits(*at, hop))
            .map(|(_, (hop, _))| Flaw::NotPitched(hop))
    }

    /// Returns the exponents of the chunk sizes that the way can run with.
    fn chunks(
        &self,
        way: &Way,
        memories: &[MemoryInfo],
        slots: &[usize],
    ) -> Result<(u8, u8), Flaw> {
        let visible = |act: &&Act| !matches!(act, Act::MakeVisible(_));
        let is_one = way.acts().iter().filter(visible).count() == 1;
        let copies = way.copies().map(|hop| &self.hops[usize::from(hop)]);
        let of_copies = copies.map(|hop| match hop.link.class {
            LinkClass::Local if is_one && hop.is_within() => LOCAL_CHUNK_BYTES,
            class => max_chunk_bytes(class),
        });
        // A transform is the work of a processor on its own memory.
        let local = way.transform().map(|_| max_chunk_bytes(LinkClass::Local));
        let largest = of_copies.chain(local).min();
        let largest = largest.unwrap_or(MIN_CHUNK_BYTES).ilog2();
        if is_one {
            return Ok((largest as u8, largest as u8));
        }
        let mut most = largest;
        for (ring, slot) in slots.iter().enumerate() {
            let room = memories[*slot].max_alloc_bytes;
            if room < MIN_CHUNK_BYTES {
                return Err(Flaw::SlotTooLarge {
                    ring: ring as u8,
                    max_alloc_bytes: room,
                });
            }
            most = most.min(room.ilog2());
        }
        if !slots.is_empty() {
            let each = self.limits.staging_bytes / slots.len() as u64;
            if each < MIN_CHUNK_BYTES {
                return Err(Flaw::NoRoom);
            }
            most = most.min(each.ilog2());
        }
        Ok((MIN_LOG2 as u8, most as u8))
    }
}

impl Owner {
    fn of(memory: &MemoryInfo) -> Owner {
        Owner {
            backend: memory.backend,
            engine: EngineId {
                device: memory.id.device,
                index: 0,
            },
            hides: memory.id.is_hidden(),
            visible: visible_cost(memory.id.kind).into(),
        }
    }
}

fn times(cost: &Curve) -> ChunkTimes {
    core::array::from_fn(|i| cost.at(1 << (MIN_LOG2 as usize + i)))
}
