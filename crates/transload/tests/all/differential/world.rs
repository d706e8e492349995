//! A manager, its memory, and the expected bytes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use transload::{Buffer, Event, Region, StagingBudget, TransferManager};

use crate::dice::Dice;
use crate::differential::bytes::{Bytes, Fate, Lay, Pending};
use crate::differential::tally;

/// The origin of a store's memory.
#[derive(Debug)]
pub(crate) enum Origin {
    Allocated,
    Vector,
    /// A range of a file that is deleted with the store: the bytes before and behind the range never change.
    File {
        path: PathBuf,
        at: u64,
        before: Vec<u8>,
        behind: Vec<u8>,
    },
    /// A `wgpu::Buffer`.
    Native,
}

/// Some memory: all views show the same bytes.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) number: u32,
    pub(crate) views: Vec<Buffer>,
    pub(crate) bytes: Bytes,
    pub(crate) origin: Origin,
    pub(crate) is_mapped: bool,
    /// Shared by the terms of transfers whose handles exist: each handle keeps its ends, even when the transfer is
    /// over.
    pub(crate) in_use: Arc<()>,
    claims: Vec<Claim>,
}

/// The bytes of a call that blocks. No thread submits conflicting work while the call lasts, so the call's place in the
/// order does not matter.
#[derive(Debug)]
struct Claim {
    number: u32,
    range: Range<u64>,
    writes: bool,
}

pub(crate) struct State {
    pub(crate) stores: Vec<Store>,
    pending: BTreeMap<u32, Pending>,
    log: VecDeque<(Vec<u32>, String)>,
}

pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) manager: TransferManager,
    pub(crate) budget: Arc<StagingBudget>,
    /// The places where memory can be allocated.
    pub(crate) places: Vec<String>,
    /// The adapters' own handles, for reading their memory in another way.
    pub(crate) adapters: Vec<(wgpu::Device, wgpu::Queue)>,
    /// Held during a submission, so that the order here is the engine's.
    state: Mutex<State>,
    pub(crate) context: String,
}

static NUMBERS: AtomicU32 = AtomicU32::new(1);

pub(crate) fn number() -> u32 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Store {
    pub(crate) fn new(buffer: Buffer, bytes: Bytes, origin: Origin) -> Store {
        Store {
            number: number(),
            is_mapped: buffer.memory().kind == transload::MemoryKind::Mapped,
            views: vec![buffer],
            bytes,
            origin,
            in_use: Arc::default(),
            claims: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.bytes.len()
    }

    pub(crate) fn view(&self, dice: &mut Dice) -> &Buffer {
        &self.views[dice.below(self.views.len() as u64) as usize]
    }

    /// A view through which the store may be written.
    pub(crate) fn writable(&self, dice: &mut Dice) -> Option<&Buffer> {
        Some(self.view(dice)).filter(|view| view.is_writable())
    }

    pub(crate) fn is_free(&self, range: &Range<u64>, writes: bool) -> bool {
        let meets = |claim: &Claim| claim.range.start < range.end && range.start < claim.range.end;
        let mut claims = self.claims.iter();
        !claims.any(|claim| (writes || claim.writes) && meets(claim))
    }

    /// Whether a device's engine moves its bytes.
    pub(crate) fn is_of_device(&self) -> bool {
        self.views[0].memory().device != transload::DeviceId::CPU0
    }

    /// Whether no handle of a transfer keeps the store.
    pub(crate) fn is_loose(&self) -> bool {
        self.is_unclaimed() && Arc::strong_count(&self.in_use) == 1
    }

    pub(crate) fn is_unclaimed(&self) -> bool {
        self.claims.is_empty()
    }

    /// Removes the store's file if no other view shows its bytes.
    pub(crate) fn remove_file(&self) {
        if let Origin::File { path, .. } = &self.origin {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl State {
    /// The place of some store in the list.
    pub(crate) fn any(&self, dice: &mut Dice) -> Option<usize> {
        let len = self.stores.len() as u64;
        (len > 0).then(|| dice.below(len) as usize)
    }

    /// Some store that is mapped for both sides, or any store if none is.
    pub(crate) fn any_mapped(&self, dice: &mut Dice) -> Option<usize> {
        let all = self.stores.iter().enumerate();
        let mapped = all.filter(|(_, store)| store.is_mapped);
        let mapped: Vec<usize> = mapped.map(|(at, _)| at).collect();
        match mapped.len() as u64 {
            0 => self.any(dice),
            many => Some(mapped[dice.below(many) as usize]),
        }
    }

    pub(crate) fn store(&mut self, number: u32) -> Option<&mut Store> {
        let mut stores = self.stores.iter_mut();
        stores.find(|store| store.number == number)
    }

    /// Logs an operation, to help a developer find the cause of a failure.
    pub(crate) fn note(&mut self, stores: &[u32], what: impl FnOnce() -> String) {
        if self.log.len() == 1000 {
            self.log.pop_front();
        }
        self.log.push_back((stores.to_vec(), what()));
    }

    /// Records a submitted copy. Returns its number if it may fail.
    pub(crate) fn copied(
        &mut self,
        src: (usize, Lay),
        dst: (usize, Lay),
        fallible: bool,
    ) -> Option<u32> {
        let payload = self.stores[src.0].bytes.payload(src.1).closed();
        let to = &mut self.stores[dst.0];
        if !fallible {
            to.bytes.put(dst.1, &payload);
            return None;
        }
        let number = number();
        let before = to.bytes.payload(dst.1);
        to.bytes.open(dst.1, number);
        let pending = Pending {
            store: to.number,
            dst: dst.1,
            payload,
            before,
        };
        self.pending.insert(number, pending);
        Some(number)
    }

    /// Records the end of a copy that was allowed to fail; `None` where the test does not learn the end.
    pub(crate) fn settle(&mut self, number: u32, fate: Option<Fate>) {
        let Some(pending) = self.pending.remove(&number) else {
            return;
        };
        self.note(&[pending.store], || {
            format!("copy {number} ended: {fate:?}")
        });
        if let (Some(fate), Some(store)) = (fate, self.store(pending.store)) {
            store.bytes.settle(number, &pending, fate);
        }
    }

    pub(crate) fn claim(&mut self, at: usize, range: Range<u64>, writes: bool) -> u32 {
        let number = number();
        self.stores[at].claims.push(Claim {
            number,
            range,
            writes,
        });
        number
    }
}

impl World {
    pub(crate) fn new(
        name: &'static str,
        (manager, budget): (TransferManager, Arc<StagingBudget>),
        adapters: Vec<(wgpu::Device, wgpu::Queue)>,
        context: String,
    ) -> World {
        let memories = manager.memories().into_iter();
        let places =
            memories.filter(|memory| !memory.staging || memory.id.to_string() == "cpu:0/pinned");
        let places: Vec<String> = places.map(|memory| memory.id.to_string()).collect();
        World {
            name,
            places: places.into_iter().filter(|at| at != "cpu:0/file").collect(),
            manager,
            budget,
            adapters,
            state: Mutex::new(State {
                stores: Vec::new(),
                pending: BTreeMap::new(),
                log: VecDeque::new(),
            }),
            context,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        tally::lock(&self.state)
    }

    pub(crate) fn release(&self, store: u32, claim: u32) {
        if let Some(store) = self.lock().store(store) {
            store.claims.retain(|held| held.number != claim);
        }
    }

    /// Panics where known bytes differ from the expected ones, and prints the operations on the store.
    pub(crate) fn compare(
        &self,
        what: &str,
        (store, lay): (u32, Lay),
        wanted: &Bytes,
        found: &[u8],
    ) {
        let Some(at) = wanted.difference(found) else {
            return;
        };
        let state = self.lock();
        let touched = state
            .log
            .iter()
            .filter(|(stores, _)| stores.contains(&store));
        for (_, line) in touched {
            eprintln!("  {line}");
        }
        let place = state.stores.iter().find(|known| known.number == store);
        let place = place.map(|known| format!("{:?}", known.views));
        let position = lay.rows().flatten().nth(at);
        let ends = |bytes: &[u8]| bytes[at..(at + 16).min(bytes.len())].to_vec();
        let differ = wanted
            .values
            .iter()
            .zip(found)
            .filter(|(a, b)| a != b)
            .count();
        panic!(
            "{}, {}: {what} of store {store} {lay:?}, {place:?}: byte {at}, at {position:?}, {differ} differ or are not \
             known\n wanted {:?}\n  found {:?}",
            self.context,
            self.name,
            ends(&wanted.values),
            ends(found)
        );
    }

    /// Unwraps an answer that must be `Ok`, or panics with the log.
    pub(crate) fn good<T, E: std::fmt::Display>(&self, what: &str, answer: Result<T, E>) -> T {
        answer.unwrap_or_else(|error| panic!("{}, {}: {what}: {error}", self.context, self.name))
    }

    pub(crate) fn region(&self, view: &Buffer, lay: Lay) -> Region {
        self.good("region", Region::new(view, lay.at, lay.shape))
    }

    pub(crate) fn event(&self) -> Event {
        self.manager.event()
    }
}
