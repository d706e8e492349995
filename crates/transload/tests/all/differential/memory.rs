//! Memory that is allocated, freed, and shared with other places.

use std::path::{Path, PathBuf};
use std::time::Duration;

use transload::hal::ExternalKind;
use transload::host::HostFile;
use transload::{AllocSpec, Span};

use crate::differential::bytes::{Bytes, Lay, fresh, near_edges};
use crate::differential::tally::{Kind, count};
use crate::differential::worker::Worker;
use crate::differential::world::{Origin, Store, World, number};

/// The most stores of a world; above this number a store is dropped before one is created.
const MOST: usize = 14;

impl Worker<'_> {
    fn any_len(&mut self) -> u64 {
        match self.below(8) {
            0 => 1 + near_edges(&mut self.dice, 3 << 20),
            1..4 => 1 + self.below(300),
            _ => 1 + near_edges(&mut self.dice, 150_000),
        }
    }

    /// Creates new memory of any sort with known bytes.
    pub(crate) fn create(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        if world.lock().stores.len() >= MOST {
            self.drop_one_of(number);
        }
        self.doing("makes memory");
        let len = self.any_len();
        let bytes = fresh(&mut self.dice, len as usize);
        let store = match self.below(16) {
            0..3 => self.adopted(world, bytes),
            3 => self.file(world, bytes),
            4 => self.mapped_file(world, bytes),
            5 | 6 => self.native(world, bytes),
            _ => {
                let at = self.below(world.places.len() as u64) as usize;
                self.allocated(world, &world.places[at], bytes)
            }
        };
        let mut state = world.lock();
        state.note(&[store.number], || {
            format!("made {:?}, {:?}", store.views, store.origin)
        });
        state.stores.push(store);
    }

    fn adopted(&mut self, world: &World, bytes: Vec<u8>) -> Store {
        count(Kind::Adopt);
        let buffer = world.good("adopt", world.manager.adopt(bytes.clone()));
        Store::new(buffer, Bytes::known(bytes), Origin::Vector)
    }

    pub(crate) fn allocated(&mut self, world: &World, place: &str, bytes: Vec<u8>) -> Store {
        count(Kind::Allocate);
        let spec = AllocSpec::bytes(bytes.len() as u64);
        let spec = if self.below(4) == 0 {
            spec.aligned(256)
        } else {
            spec
        };
        let buffer = world.good(place, world.manager.allocate(place.parse().unwrap(), spec));
        let filled = world.manager.copy_from_slice(&bytes, &buffer);
        world.good("filling", filled);
        Store::new(buffer, Bytes::known(bytes), Origin::Allocated)
    }

    /// A file of its own: created, opened, or a range of a file.
    fn file(&mut self, world: &World, bytes: Vec<u8>) -> Store {
        let path = path();
        let len = bytes.len() as u64;
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        let buffer = match self.below(3) {
            0 => {
                count(Kind::CreateFile);
                let file = world.good("create_file", world.manager.create_file(&path, len));
                world.good("filling", world.manager.copy_from_slice(&bytes, &file));
                file
            }
            1 => {
                count(Kind::OpenFile);
                std::fs::write(&path, &bytes).unwrap();
                world.good("open_file", world.manager.open_file(&path))
            }
            _ => {
                count(Kind::FileRange);
                let around = [1 + self.below(5000), self.below(5000)];
                [before, behind] = around.map(|len| fresh(&mut self.dice, len as usize));
                std::fs::write(&path, [&before[..], &bytes, &behind].concat()).unwrap();
                let span = Span::new(before.len() as u64, len);
                let file = HostFile::open_writable(&path).and_then(|file| file.slice(span));
                world.good("adopt_file", world.manager.adopt_file(file.unwrap()))
            }
        };
        let at = before.len() as u64;
        let origin = Origin::File {
            path,
            at,
            before,
            behind,
        };
        Store::new(buffer, Bytes::known(bytes), origin)
    }

    fn mapped_file(&mut self, world: &World, bytes: Vec<u8>) -> Store {
        count(Kind::MapFile);
        let path = path();
        std::fs::write(&path, &bytes).unwrap();
        // SAFETY: no other code knows the file, and its name is removed here: no other code can shorten it or write to
        // it.
        let buffer = unsafe { world.manager.map_file(&path) };
        std::fs::remove_file(&path).unwrap();
        let buffer = world.good("map_file", buffer);
        Store::new(buffer, Bytes::known(bytes), Origin::Allocated)
    }

    fn native(&mut self, world: &World, mut bytes: Vec<u8>) -> Store {
        let which = self.below(world.adapters.len().max(1) as u64) as usize;
        let Some((device, queue)) = world.adapters.get(which) else {
            return self.adopted(world, bytes);
        };
        count(Kind::AdoptNative);
        bytes.resize(bytes.len().next_multiple_of(4), 7);
        let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let own = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.len() as u64,
            usage,
            mapped_at_creation: false,
        });
        queue.write_buffer(&own, 0, &bytes);
        queue.submit([]);
        let place = format!("wgpu:{which}/device").parse().unwrap();
        // SAFETY: the manager's own device made it.
        let adopted = unsafe { world.manager.adopt_native(place, own) };
        let buffer = world.good("adopt_native", adopted);
        Store::new(buffer, Bytes::known(bytes), Origin::Native)
    }

    pub(crate) fn drop_store(&mut self) {
        let number = self.any_world();
        self.drop_one_of(number);
    }

    /// Drops some store, even while transfers use it.
    fn drop_one_of(&mut self, world: usize) {
        self.doing("drops memory");
        if let Some(store) = self.take(world, Store::is_unclaimed) {
            count(Kind::DropBuffer);
            store.remove_file();
        }
    }

    pub(crate) fn take(&mut self, world: usize, may: impl Fn(&Store) -> bool) -> Option<Store> {
        let mut state = self.worlds[world].lock();
        let turn = state.any(&mut self.dice)?;
        let mut all = (0..state.stores.len()).map(|at| (at + turn) % state.stores.len());
        let at = all.find(|at| may(&state.stores[*at]))?;
        Some(state.stores.swap_remove(at))
    }

    /// Makes another view of the same bytes.
    pub(crate) fn share(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        let state = world.lock();
        let Some(at) = state.any(&mut self.dice) else {
            return;
        };
        let store = state.stores[at].number;
        if state.stores[at].views.len() > 3 {
            return;
        }
        let view = state.stores[at].view(&mut self.dice).clone();
        drop(state);
        self.doing(format!("shares {view:?}"));
        let mut places: Vec<&str> = world.places.iter().map(String::as_str).collect();
        places.push("cpu:0/file");
        let to = places[self.below(places.len() as u64) as usize];
        let answer = if self.below(3) == 0 {
            let kind = [ExternalKind::File, ExternalKind::Host][self.below(2) as usize];
            let Ok(given) = world.manager.export(&view, kind) else {
                return count(Kind::ShareRefused);
            };
            let to = match kind {
                ExternalKind::File => "cpu:0/shared",
                _ => "cpu:0/pageable",
            };
            // SAFETY: the manager gave it out a moment ago, and the view keeps the bytes.
            let answer = unsafe { world.manager.import(to.parse().unwrap(), given) };
            answer
                .map_err(|error| error.to_string())
                .inspect(|_| count(Kind::ExportImport))
        } else {
            let answer = world.manager.share(&view, to.parse().unwrap());
            answer
                .map_err(|error| error.to_string())
                .inspect(|_| count(Kind::Share))
        };
        let Ok(shared) = answer else {
            return count(Kind::ShareRefused);
        };
        assert_eq!(shared.len(), view.len(), "{view:?} as {shared:?}");
        let mut state = world.lock();
        state.note(&[store], || format!("shared as {shared:?}"));
        if let Some(store) = state.store(store) {
            store.views.push(shared);
        }
    }

    /// Places the bytes of a store in another memory, perhaps as a copy.
    pub(crate) fn place(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        let mut state = world.lock();
        let Some(at) = state.any(&mut self.dice) else {
            return;
        };
        let all = Lay::run(0, state.stores[at].len());
        if !state.stores[at].is_free(&all.range(), false) {
            return;
        }
        let claim = state.claim(at, all.range(), false);
        let store = &state.stores[at];
        let (of, wanted) = (store.number, store.bytes.payload(all));
        let view = store.view(&mut self.dice).clone();
        drop(state);
        let to = &world.places[self.below(world.places.len() as u64) as usize];
        self.doing(format!("places {view:?} at {to}"));
        count(Kind::Place);
        let placed = world.good("place", world.manager.place(&view, to.parse().unwrap()));
        let found = world.good("read_to_vec", world.manager.read_to_vec(&placed.buffer));
        world.compare("place", (of, all), &wanted, &found);
        world.release(of, claim);
    }

    /// Calls that change no byte.
    pub(crate) fn ask(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        let manager = &world.manager;
        match self.below(8) {
            0 | 1 => {
                count(Kind::ClearCache);
                self.doing("clears the cache");
                manager.clear_cache();
            }
            2 | 3 => {
                count(Kind::WaitIdle);
                self.doing("waits until all is idle, for a moment");
                let limit = Duration::from_micros(self.below(500));
                let _is_idle = manager.wait_idle_timeout(limit);
            }
            4 | 5 => {
                count(Kind::Statistics);
                self.doing("looks at figures");
                let _ = (manager.stats(), manager.topology(), format!("{manager:?}"));
                if self.below(10) == 0 {
                    manager.reset_stats();
                }
            }
            _ => {
                count(Kind::Explain);
                self.doing("asks for an explanation");
                let places = &world.places;
                let [from, to] =
                    [(); 2].map(|()| &places[self.dice.below(places.len() as u64) as usize]);
                let bytes = self.below(1 << 22);
                let explained =
                    manager.explain_places(from.parse().unwrap(), to.parse().unwrap(), bytes);
                let _ = world.good("explain", explained).to_string();
            }
        }
    }
}

/// The path of the next file.
fn path() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    folder.join(format!("differential-{}-{}", std::process::id(), number()))
}
