//! Host memory of the user's, locked in place for as long as buffers show it.
//!
//! A driver registers memory once. Buffers that show the same bytes share a registration, and what the user has
//! registered or allocated with the driver is taken as it is.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transload_hal::{
    Buffer, ExternalKind, Fault, HostSpan, ImportError, Owner, StorageId, StorageInfo,
};

use super::pinned::Registration;
use super::pointer::{Sort, look_up};
use super::{PINNED, info};
use crate::gpu::{Gpu, Opened, any};

/// Memory that was registered here, by where it begins.
#[derive(Default)]
pub(crate) struct Registrations(Mutex<BTreeMap<u64, Shared>>);

struct Shared {
    len: u64,
    writable: bool,
    /// How many buffers show some of it.
    users: usize,
    _registration: Registration,
}

/// Somebody who uses a registration; the last one to go ends it.
struct User {
    all: Arc<Registrations>,
    start: u64,
}

/// Registers memory of the caller's for as long as the buffer lives, unless it is registered.
///
/// # Safety
/// As `Backend::import`.
pub(super) unsafe fn register(
    gpus: &[Gpu],
    all: &Arc<Registrations>,
    (span, writable): (HostSpan, bool),
    owner: Box<dyn Owner>,
) -> Result<Buffer, ImportError> {
    let user = match span.is_empty() {
        true => None,
        false => {
            let opened = any(gpus).map_err(failed)?;
            all.use_of(opened, (span, writable))?
        }
    };
    // What another buffer keeps alive is that buffer's memory, whatever it is to this one.
    let (id, base) = match (&*owner as &dyn Any).downcast_ref::<Buffer>() {
        Some(buffer) => (buffer.storage_id(), buffer.position()),
        None => (StorageId::Host, span.addr()),
    };
    let info = StorageInfo {
        writable,
        host: Some(span),
        ..info(PINNED, id, base, span.len() as u64)
    };
    // SAFETY: the caller says that the span is valid as long as the owner lives, and the registration goes first.
    Ok(unsafe { Buffer::guarded(info, owner, Box::new(user)) })
}

impl Registrations {
    /// Sees to it that the span is registered; none where somebody else has done that.
    fn use_of(
        self: &Arc<Self>,
        opened: &Opened,
        (span, writable): (HostSpan, bool),
    ) -> Result<Option<User>, ImportError> {
        let (start, len) = (span.addr(), span.len() as u64);
        let end = start.saturating_add(len);
        let mut shared = self.lock();
        // Those before the last one that begins before the end have ended by its beginning.
        if let Some((at, found)) = shared.range_mut(..end).next_back()
            && at + found.len > start
        {
            if *at > start || at + found.len < end {
                let (from, to) = (start.max(*at) - start, end.min(at + found.len) - start);
                return Err(invalid(format!(
                    "its bytes {from} to {to} are registered for another buffer, and the rest is not"
                )));
            }
            if writable && !found.writable {
                return Err(invalid(
                    "it is registered for another buffer, which devices may only read".into(),
                ));
            }
            found.users += 1;
            return Ok(Some(self.user(*at)));
        }
        if is_registered(opened, span)? {
            return Ok(None);
        }
        let registration = Registration::new(opened, span, writable).map_err(failed)?;
        let new = Shared {
            len,
            writable,
            users: 1,
            _registration: registration,
        };
        shared.insert(start, new);
        Ok(Some(self.user(start)))
    }

    fn user(self: &Arc<Self>, start: u64) -> User {
        let all = Arc::clone(self);
        User { all, start }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Shared>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // The lock is held until the driver has let go: who registers the memory anew waits for that.
        let mut shared = self.all.lock();
        if let Some(found) = shared.get_mut(&self.start) {
            found.users -= 1;
            if found.users == 0 {
                shared.remove(&self.start);
            }
        }
    }
}

/// Whether the driver has all of a span registered for somebody else, or gave it out itself.
fn is_registered(opened: &Opened, span: HostSpan) -> Result<bool, ImportError> {
    let _current = opened.context.enter().map_err(failed)?;
    let known = look_up(&opened.context.driver, span.addr());
    let Some(known) = known.map_err(|error| failed(opened.blame(error)))? else {
        return Ok(false);
    };
    if known.sort != Sort::Host {
        let home = known.home();
        return Err(invalid(format!(
            "{:#x} is an address in {home}",
            span.addr()
        )));
    }
    let (left, len) = (known.left(span.addr()), span.len());
    match left >= len as u64 {
        true => Ok(true),
        false => Err(invalid(format!(
            "only the first {left} of its {len} bytes are registered with the driver"
        ))),
    }
}

fn failed(fault: Fault) -> ImportError {
    ImportError::Failed {
        memory: PINNED,
        kind: ExternalKind::Host,
        fault,
    }
}

fn invalid(reason: String) -> ImportError {
    ImportError::Invalid {
        memory: PINNED,
        kind: ExternalKind::Host,
        reason: reason.into(),
    }
}
