//! Two managers and the same bytes: adopted memory moves from one manager to the other, and claimed memory is refused.

use std::time::Duration;

use transload::hal::{ExternalKind, ImportError};
use transload::host::HostFile;
use transload::{
    Buffer, DeviceId, Error, IntoInnerError, IntoInnerReason, OpenError, Request, ShareError, Span,
    TransferError,
};

use crate::differential::bytes::Lay;
use crate::differential::looks::native;
use crate::differential::tally::{Kind, count, until};
use crate::differential::worker::Worker;
use crate::differential::world::{Origin, Store, World, number};

impl Worker<'_> {
    /// Takes adopted memory out of one manager, and lets the other one adopt it.
    pub(crate) fn hand_over(&mut self) {
        let from = self.any_world();
        let to = self.below(2) as usize;
        let any = self.below(8) == 0;
        let may =
            |store: &Store| store.is_loose() && (any || !matches!(store.origin, Origin::Allocated));
        let Some(mut store) = self.take(from, may) else {
            return;
        };
        let old = self.worlds[from];
        let is_lent = store.views.len() > 1;
        let view = store.views.swap_remove(0);
        let what = format!("takes {view:?} out of {}, {:?}", old.name, store.origin);
        self.doing(&what);
        let all = Lay::run(0, store.len());
        let bytes = store.bytes.clone().closed();
        let check = |found: &[u8]| old.compare("into_inner", (store.number, all), &bytes, found);
        // A pinned view goes when its device is idle, which may never happen here. A view of a file keeps the manager's
        // claim until the last transfer of the view has gone, and other threads keep the manager from being idle.
        let is_pinned = |view: &Buffer| view.memory().to_string() == "cpu:0/pinned";
        let is_file = matches!(store.origin, Origin::File { .. });
        let is_lent = is_lent && (is_file || store.views.iter().any(is_pinned));
        let world = self.worlds[to];
        let (buffer, origin) = match &store.origin {
            _ if is_lent => return store.remove_file(),
            Origin::Allocated => {
                let refused = view.into_inner::<Vec<u8>>().unwrap_err();
                assert_eq!(refused.reason, IntoInnerReason::OtherOwner);
                return;
            }
            Origin::Vector => {
                store.views.clear();
                let owner: Vec<u8> = self.inner(old, view, &what);
                check(&owner);
                count(Kind::HandOver);
                (
                    world.good("adopt", world.manager.adopt(owner)),
                    Origin::Vector,
                )
            }
            Origin::File { .. } => {
                store.views.clear();
                let file: HostFile = self.inner(old, view, &what);
                store.check_file(old);
                count(Kind::HandOverFile);
                let buffer = world.good("adopt_file", world.manager.adopt_file(file));
                (
                    buffer,
                    std::mem::replace(&mut store.origin, Origin::Allocated),
                )
            }
            Origin::Native => {
                store.views.clear();
                let place = view.memory().into();
                let own: wgpu::Buffer = self.inner(old, view, &what);
                count(Kind::HandOverNative);
                // SAFETY: the manager's own device made it.
                let buffer = unsafe { old.manager.adopt_native(place, own) };
                let buffer = old.good("adopt_native", buffer);
                let mut store = Store::new(buffer, bytes, Origin::Native);
                store.number = number();
                return old.lock().stores.push(store);
            }
        };
        let before = store.number;
        let store = Store::new(buffer, bytes, origin);
        let mut state = world.lock();
        state.note(&[store.number], || {
            format!("was store {before} of {}", old.name)
        });
        state.stores.push(store);
    }

    /// Takes the adopted owner back, once no transfer needs it any more.
    fn inner<T: std::any::Any>(&mut self, world: &World, view: Buffer, what: &str) -> T {
        let mut view = Some(view);
        let mut owner = None;
        until(what, || {
            let Some(buffer) = view.take() else {
                return Err("nothing".to_owned());
            };
            match buffer.into_inner::<T>() {
                Ok(found) => owner = Some(found),
                Err(IntoInnerError { buffer, reason, .. }) => {
                    assert_eq!(reason, IntoInnerReason::InUse);
                    let said = format!("{buffer:?} {reason}");
                    view = Some(buffer);
                    let _ = world.manager.wait_idle_timeout(Duration::from_micros(200));
                    return Err(said);
                }
            }
            Ok(())
        });
        owner.unwrap()
    }

    /// Memory of one manager is refused by the other.
    pub(crate) fn foreign(&mut self) {
        self.doing("uses a buffer with the other manager");
        let [one, other] = self.worlds;
        let some = |worker: &mut Self, world: &World| {
            let state = world.lock();
            let at = state.any(&mut worker.dice)?;
            Some(state.stores[at].view(&mut worker.dice).clone())
        };
        let (Some(mine), Some(theirs)) = (some(self, one), some(self, other)) else {
            return;
        };
        let refused = other.manager.copy(&mine, &theirs).wait();
        assert!(
            matches!(refused, Err(TransferError::ForeignBuffer { .. })),
            "{refused:?}"
        );
        let refused = one
            .manager
            .copy_into_slice(&theirs, &mut vec![0; theirs.len() as usize]);
        assert!(
            matches!(refused, Err(TransferError::ForeignBuffer { .. })),
            "{refused:?}"
        );
        let refused = other.manager.share(&mine, "cpu:0/shared".parse().unwrap());
        assert!(
            matches!(refused, Err(ShareError::ForeignBuffer { .. })),
            "{refused:?}"
        );
        let event = other.event();
        let refused = one
            .manager
            .submit(&Request::new(&mine, &mine).after(&event))
            .wait();
        assert!(
            matches!(refused, Err(TransferError::ForeignEvent)),
            "{refused:?}"
        );
        count(Kind::ForeignRefused);
    }

    /// Bytes that one manager may write are refused by the other one.
    pub(crate) fn claimed(&mut self) {
        let number = self.any_world();
        let (world, other) = (self.worlds[number], self.worlds[1 - number]);
        self.doing("takes the other manager's bytes in");
        let state = world.lock();
        let turn = self.below(state.stores.len().max(1) as u64) as usize;
        let turned = state
            .stores
            .iter()
            .cycle()
            .skip(turn)
            .take(state.stores.len());
        for store in turned {
            match (&store.origin, store.views[0].memory().to_string().as_str()) {
                (Origin::File { path, at, .. }, _) if store.views[0].is_writable() => {
                    let opened = other.manager.open_file(path);
                    let Err(OpenError::Manager { source, .. }) = opened else {
                        panic!("{}: {path:?} is written by both: {opened:?}", world.context);
                    };
                    assert!(is_claimed(&source), "{source}");
                    let range = HostFile::open_writable(path)
                        .and_then(|file| file.slice(Span::new(*at + store.len() - 1, 1)));
                    assert!(other.manager.adopt_file(range.unwrap()).is_err());
                }
                (Origin::Allocated, at @ ("cpu:0/shared" | "cuda:0/device" | "cuda:1/device"))
                    if store.views[0].is_writable() && store.is_unclaimed() =>
                {
                    let (view, at) = (store.views[0].clone(), at.parse().unwrap());
                    let kind = match view.memory().device {
                        DeviceId::CPU0 => ExternalKind::File,
                        _ => ExternalKind::DevicePointer,
                    };
                    drop(state);
                    let Ok(given) = world.manager.export(&view, kind) else {
                        return;
                    };
                    // SAFETY: the manager gave it out a moment ago, and the view keeps the bytes.
                    let answer = unsafe { other.manager.import(at, given) };
                    let error = answer.map(drop).unwrap_err();
                    assert!(is_claimed(&error), "{error}");
                    return count(Kind::ClaimRefused);
                }
                _ => continue,
            }
            return count(Kind::ClaimRefused);
        }
    }
}

impl Store {
    /// Asserts that the file holds the bytes, and that the bytes before and behind them are unchanged.
    pub(crate) fn check_file(&self, world: &World) {
        let Origin::File {
            path,
            at,
            before,
            behind,
        } = &self.origin
        else {
            return;
        };
        let all = Lay::run(0, self.len());
        let (len, end) = (self.bytes.len() as usize, *at + self.len());
        world.compare(
            "the file",
            (self.number, all),
            &self.bytes,
            &native(path, *at, len),
        );
        assert!(
            native(path, 0, before.len()) == *before,
            "before a range of a file"
        );
        assert!(
            native(path, end, behind.len()) == *behind,
            "behind a range of a file"
        );
    }
}

fn is_claimed(error: &Error) -> bool {
    matches!(error, Error::Import(ImportError::Claimed { .. }))
}
