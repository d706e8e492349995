//! Reads and writes of the host itself: guards, borrowed slices, the file system, hints.

use std::mem::MaybeUninit;

use transload::{
    Advice, Buffer, GuardError, MemoryKind, ReadGuard, Transfer, TransferError, WriteGuard,
};

use crate::differential::bytes::{Bytes, Lay, any_run, fresh};
use crate::differential::tally::{Kind, count};
use crate::differential::worker::Worker;
use crate::differential::world::{Origin, State, World};

/// Some bytes of a store, and their expected values.
struct Look<'a> {
    world: &'a World,
    store: u32,
    lay: Lay,
    wanted: Bytes,
}

impl Look<'_> {
    fn check(&self, what: &str, found: &[u8]) {
        self.world
            .compare(what, (self.store, self.lay), &self.wanted, found);
    }
}

fn has_guards(view: &Buffer) -> bool {
    let kind = view.memory().kind;
    let shown = [
        MemoryKind::Pageable,
        MemoryKind::Shared,
        MemoryKind::Managed,
        MemoryKind::Pinned,
    ];
    shown.contains(&kind)
}

impl<'a> Worker<'a> {
    /// Copies borrowed bytes to a store or from one, which blocks.
    pub(crate) fn borrow(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        let way = if self.words {
            self.below(2)
        } else {
            self.below(5)
        };
        let writes = way == 0;
        self.doing(format!("borrows, way {way}"));
        let mut state = world.lock();
        let Some(at) = (match self.words && writes {
            true => state.any_mapped(&mut self.dice),
            false => state.any(&mut self.dice),
        }) else {
            return;
        };
        let store = &state.stores[at];
        let limit = if self.words && writes {
            24.min(store.len())
        } else {
            store.len()
        };
        let lay = any_run(&mut self.dice, limit);
        let view = match writes {
            true => store.writable(&mut self.dice).cloned(),
            false => Some(store.view(&mut self.dice).clone()),
        };
        let Some(view) = view.filter(|_| store.is_free(&lay.range(), writes)) else {
            return;
        };
        let claim = state.claim(at, lay.range(), writes);
        let store = &mut state.stores[at];
        let look = Look {
            world,
            store: store.number,
            lay,
            wanted: store.bytes.payload(lay),
        };
        let sent = writes.then(|| fresh(&mut self.dice, lay.len()));
        if let Some(sent) = &sent {
            store.bytes.put(lay, &Bytes::known(sent.clone()));
        }
        let file = match &store.origin {
            Origin::File { path, at, .. } => Some((path.clone(), *at)),
            _ => None,
        };
        let seat = self.seat;
        state.note(&[look.store], || {
            format!("{seat}: borrows, way {way}, {lay:?}")
        });
        drop(state);
        let region = world.region(&view, lay);
        let manager = &world.manager;
        match way {
            0 => {
                count(Kind::FromSlice);
                let report = manager.copy_from_slice(&sent.unwrap_or_default(), region);
                world.good("copy_from_slice", report);
            }
            1 | 2 => {
                count(Kind::IntoSlice);
                // No copy may write the room around the bytes.
                let mut found = vec![0xE7; lay.len() + 32];
                let middle = 16..16 + lay.len();
                let report = manager.copy_into_slice(region, &mut found[middle.clone()]);
                world.good("copy_into_slice", report);
                look.check("copy_into_slice", &found[middle.clone()]);
                let beside = [&found[..16], &found[middle.end..]].concat();
                assert!(
                    beside.iter().all(|byte| *byte == 0xE7),
                    "beside {lay:?}: {beside:?}"
                );
                if let Some((path, at)) = file {
                    count(Kind::NativeRead);
                    look.check("the file", &native(&path, at + lay.at, lay.len()));
                }
            }
            3 => {
                count(Kind::IntoUninit);
                let mut found = vec![MaybeUninit::new(0xE7u8); lay.len()];
                let answer = manager.copy_into_uninit(region, &mut found);
                look.check("copy_into_uninit", world.good("copy_into_uninit", answer).0);
            }
            _ => {
                count(Kind::ReadToVec);
                let found = world.good("read_to_vec", manager.read_to_vec(region));
                look.check("read_to_vec", &found);
            }
        }
        world.release(look.store, claim);
    }

    /// Takes a guard of some kind, on some bytes.
    pub(crate) fn guard(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        let writes = self.below(2) == 0;
        let way = self.below(4);
        self.doing(format!("takes a guard, way {way}, writes {writes}"));
        let mut state = world.lock();
        let Some(at) = state.any(&mut self.dice) else {
            return;
        };
        let store = &state.stores[at];
        let lay = any_run(&mut self.dice, store.len());
        let view = store.view(&mut self.dice).clone();
        if !store.is_free(&lay.range(), writes) {
            return;
        }
        let part = world.good("slice", view.slice(lay.range()));
        if !has_guards(&view) || (writes && !view.is_writable()) {
            let refused = match writes {
                true => part.try_write().map(drop),
                false => part.try_read().map(drop),
            };
            let refused = refused.unwrap_err();
            let is_typed = match &refused {
                GuardError::ReadOnly { .. } => has_guards(&view),
                GuardError::NotExclusive { .. } => view.memory().kind == MemoryKind::Mapped,
                GuardError::NotHostAddressable { .. } => true,
                _ => false,
            };
            assert!(is_typed, "{refused}");
            return count(Kind::GuardRefused);
        }
        let look = Look {
            world,
            store: store.number,
            lay,
            wanted: store.bytes.payload(lay),
        };
        let seat = self.seat;
        let note = format!("{seat}: guard, way {way}, writes {writes}, {lay:?}");
        state.note(&[look.store], || note);
        let sent = fresh(&mut self.dice, lay.len());
        let filled = Bytes::known(sent.clone());
        // The guard is taken with the model locked, so that both have the same order; or a claim makes the order
        // irrelevant.
        match (way, writes) {
            (0, false) => {
                count(Kind::Reader);
                let claim = state.claim(at, lay.range(), false);
                drop(state);
                self.read(&look, world.good("read", part.read()));
                world.release(look.store, claim);
            }
            (0, true) => {
                count(Kind::Writer);
                let claim = state.claim(at, lay.range(), true);
                state.stores[at].bytes.put(lay, &filled);
                drop(state);
                self.write(&look, world.good("write", part.write()), &sent);
                world.release(look.store, claim);
            }
            (1, false) => match part.try_read() {
                Ok(guard) => {
                    count(Kind::TryReader);
                    drop(state);
                    self.read(&look, guard);
                }
                Err(error) => try_refused(&error),
            },
            (1, true) => match part.try_write() {
                Ok(guard) => {
                    count(Kind::TryWriter);
                    state.stores[at].bytes.put(lay, &filled);
                    drop(state);
                    self.write(&look, guard, &sent);
                }
                Err(error) => try_refused(&error),
            },
            (_, false) => {
                let future = part.read_async();
                drop(state);
                if self.below(6) == 0 {
                    return count(Kind::GuardForgone);
                }
                count(Kind::ReaderAsync);
                self.read(&look, world.good("read_async", pollster::block_on(future)));
            }
            (_, true) => {
                if self.below(6) == 0 {
                    drop(part.write_async());
                    return count(Kind::GuardForgone);
                }
                let future = part.write_async();
                state.stores[at].bytes.put(lay, &filled);
                drop(state);
                count(Kind::WriterAsync);
                let guard = world.good("write_async", pollster::block_on(future));
                self.write(&look, guard, &sent);
            }
        }
    }

    /// The bytes must stay as they are while the guard lives.
    fn read(&mut self, look: &Look<'_>, guard: ReadGuard) {
        look.check("a guard", &guard);
        let seen = guard.to_vec();
        self.pass();
        assert!(
            *guard == *seen,
            "{}: bytes under a guard that reads",
            look.world.context
        );
    }

    /// No other thread writes the bytes while the guard lives; other threads see the new bytes when it has gone.
    fn write(&mut self, look: &Look<'_>, mut guard: WriteGuard, sent: &[u8]) {
        look.check("a guard that writes", &guard);
        guard.fill(0xD7);
        self.pass();
        let stayed = guard.iter().all(|byte| *byte == 0xD7);
        assert!(
            stayed,
            "{}: bytes under a guard that writes",
            look.world.context
        );
        if self.below(6) == 0 && !guard.is_empty() {
            self.held_up(look);
        }
        guard.copy_from_slice(sent);
        self.pass();
        assert!(
            *guard == *sent,
            "{}: bytes under a guard that writes",
            look.world.context
        );
    }

    /// A call that would wait for this thread's own guard returns an error.
    fn held_up(&mut self, look: &Look<'_>) {
        let mut state = look.world.lock();
        let Some(store) = state.store(look.store) else {
            return;
        };
        let Some(view) = store
            .writable(&mut self.dice)
            .filter(|view| has_guards(view))
            .cloned()
        else {
            return;
        };
        let behind = self.copy_behind(&mut state, look, &view);
        drop(state);
        if let Some(behind) = behind {
            let refused = behind.wait();
            assert!(
                matches!(refused, Err(TransferError::GuardHeld { .. })),
                "{refused:?}"
            );
        }
        count(Kind::GuardHeld);
        let part = look.world.good("slice", view.slice(look.lay.range()));
        let refused = part.read().map(drop).unwrap_err();
        assert!(matches!(refused, GuardError::GuardHeld { .. }), "{refused}");
        let sent = vec![0u8; look.lay.len()];
        let refused = look.world.manager.copy_from_slice(&sent, &part);
        assert!(
            matches!(refused, Err(TransferError::GuardHeld { .. })),
            "{refused:?}"
        );
        let mut found = vec![0u8; look.lay.len()];
        let refused = look.world.manager.copy_into_slice(&part, &mut found);
        assert!(
            matches!(refused, Err(TransferError::GuardHeld { .. })),
            "{refused:?}"
        );
    }

    /// Submits a copy of the bytes under this thread's guard; the copy goes on when the guard has gone.
    fn copy_behind(
        &mut self,
        state: &mut State,
        look: &Look<'_>,
        view: &Buffer,
    ) -> Option<Transfer> {
        let (mut stores, len) = (state.stores.iter(), look.lay.len() as u64);
        let from = stores.position(|store| store.number == look.store)?;
        let to = state.any(&mut self.dice).filter(|to| *to != from)?;
        let (store, lay) = (&state.stores[to], Lay::run(0, len));
        let target = store.writable(&mut self.dice).cloned()?;
        if store.len() < len || !store.is_free(&lay.range(), true) {
            return None;
        }
        let world = look.world;
        let ends = (world.region(view, look.lay), world.region(&target, lay));
        let (numbers, seat) = ([look.store, store.number], self.seat);
        state.note(&numbers, || {
            format!("{seat}: copies from under its guard, {lay:?}")
        });
        let transfer = world.manager.copy(ends.0, ends.1);
        state.copied((from, look.lay), (to, lay), false);
        Some(transfer)
    }

    /// Yields to other threads for a moment.
    fn pass(&mut self) {
        for _ in 0..self.below(20) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn hint(&mut self) {
        let number = self.any_world();
        let world = self.worlds[number];
        let state = world.lock();
        let Some(at) = state.any(&mut self.dice) else {
            return;
        };
        let lay = any_run(&mut self.dice, state.stores[at].len());
        let view = state.stores[at].view(&mut self.dice).clone();
        drop(state);
        let devices = world.manager.devices();
        let device = devices[self.below(devices.len() as u64) as usize].id;
        let region = world.region(&view, lay);
        self.doing(format!("hints at {lay:?} of {view:?}, {device}"));
        if self.below(2) == 0 {
            count(Kind::Prefetch);
            world.good("prefetch", world.manager.prefetch(region, device.into()));
        } else {
            count(Kind::Advise);
            let all = [
                Advice::Sequential,
                Advice::Random,
                Advice::WillNeed,
                Advice::DontNeed,
                Advice::MostlyRead,
                Advice::NotMostlyRead,
                Advice::KeptAt(device),
                Advice::KeptAnywhere,
                Advice::UsedBy(device),
                Advice::NotUsedBy(device),
            ];
            let advice = all[self.below(all.len() as u64) as usize];
            world.good("advise", world.manager.advise(region, advice));
        }
    }
}

fn try_refused(error: &GuardError) {
    assert!(matches!(error, GuardError::WouldBlock { .. }), "{error}");
    count(Kind::TryRefused);
}

/// The bytes that the file system returns.
pub(crate) fn native(path: &std::path::Path, at: u64, len: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;
    let mut found = vec![0; len];
    let file = std::fs::File::open(path).unwrap();
    file.read_exact_at(&mut found, at).unwrap();
    found
}
