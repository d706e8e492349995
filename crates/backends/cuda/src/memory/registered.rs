//! The user's host memory, locked in place as long as buffers show it.
//!
//! A driver registers memory only once. Buffers of the same bytes share a registration, and memory that the user has
//! registered or allocated with the driver is used as it is.

use std::any::Any;
use std::sync::Arc;

use transload_hal::{
    Buffer, ExternalKind, Fault, Guard, HostSpan, ImportError, Owner, StorageId, StorageInfo,
};

use super::pinned::Registration;
use super::pointer::{Sort, query};
use super::storage::info;
use super::uses::{User, Uses};
use crate::context::Context;
use crate::gpu::{Gpu, Opened, by_any};
use crate::ids::PINNED;

/// Memory that was registered here.
#[derive(Default)]
pub(crate) struct Registrations(Arc<Uses<Range, Shared>>);

/// Start and length.
type Range = (u64, u64);

struct Shared {
    writable: bool,
    _registration: Registration,
}

/// Keeps memory registered. Dropped before the memory's owner.
struct Registered {
    context: Arc<Context>,
    user: User<Range, Shared>,
}

/// Registers the caller's memory for the life of the buffer, unless it is registered already.
///
/// # Safety
/// As `Backend::import`.
pub(super) unsafe fn register(
    gpus: &[Gpu],
    all: &Registrations,
    (span, writable): (HostSpan, bool),
    owner: Box<dyn Owner>,
) -> Result<Buffer, ImportError> {
    let registered = match span.is_empty() {
        true => None,
        // A refusal would be the same on every device; a failure may concern only this device.
        false => by_any(gpus, |opened| match all.use_of(opened, (span, writable)) {
            Err(ImportError::Failed { fault, .. }) => Err(fault),
            answer => Ok(answer),
        })
        .map_err(failed)??,
    };
    // If the owner is another buffer, the identity is that buffer's.
    let (id, base) = match (&*owner as &dyn Any).downcast_ref::<Buffer>() {
        Some(buffer) => (buffer.storage_id(), buffer.position()),
        None => (StorageId::Host, span.addr()),
    };
    let info = StorageInfo {
        writable,
        host: Some(span),
        ..info(PINNED, id, base, span.len() as u64)
    };
    Ok(match registered {
        // SAFETY: the caller says that the span is valid as long as the owner lives, and the registration goes first.
        Some(registered) => unsafe { Buffer::guarded(info, owner, Box::new(registered)) },
        // SAFETY: the same, and there is no registration.
        None => unsafe { Buffer::new(info, owner) },
    })
}

impl Registrations {
    /// Registers the span, or shares this backend's registration of it. `None` if other code has registered it.
    fn use_of(
        &self,
        opened: &Opened,
        asked: (HostSpan, bool),
    ) -> Result<Option<Registered>, ImportError> {
        match self.try_use_of(opened, asked) {
            // The conflicting registration may be about to end: its last buffer was dropped, and it ends when devices
            // are idle.
            Err(ImportError::Invalid { .. }) if opened.context.reapers.common.settle() => {
                self.try_use_of(opened, asked)
            }
            answer => answer,
        }
    }

    fn try_use_of(
        &self,
        opened: &Opened,
        (span, writable): (HostSpan, bool),
    ) -> Result<Option<Registered>, ImportError> {
        let (start, len) = (span.addr(), span.len() as u64);
        let end = start.saturating_add(len);
        let registered = |user| Registered {
            context: Arc::clone(&opened.context),
            user,
        };
        let mut all = self.0.lock();
        // Registrations do not overlap: all earlier ones end before the last one that begins before `end`.
        while let Some((&(at, held), used)) = all.range_mut(..(end, 0)).next_back()
            && at + held > start
        {
            let Some(shared) = &used.what else {
                all = self.0.wait(all);
                continue;
            };
            if at > start || at + held < end {
                let (from, to) = (start.max(at) - start, end.min(at + held) - start);
                return Err(invalid(format!(
                    "its bytes {from} to {to} are registered for another buffer, and the rest is not"
                )));
            }
            if writable && !shared.writable {
                return Err(invalid(
                    "it is registered for another buffer, which devices may only read".into(),
                ));
            }
            let user = User::another(&self.0, ((at, held), used));
            return Ok(Some(registered(user)));
        }
        let user = User::before(&self.0, &mut all, (start, len));
        // Without the lock: if there is no memory left, this waits until other users have freed theirs.
        drop(all);
        if is_registered(opened, span)? {
            return Ok(None);
        }
        let registration = Registration::new(opened, span, writable).map_err(failed)?;
        user.bring(Shared {
            writable,
            _registration: registration,
        });
        Ok(Some(registered(user)))
    }
}

impl Guard for Registered {
    /// The owner goes to the reaper with the registration, because registered memory must not be freed and reused.
    fn release(self: Box<Self>, owner: Box<dyn Owner>) {
        let Registered { context, user } = *self;
        context.reapers.common.free(move || {
            drop(user);
            drop(owner);
        });
    }
}

/// Whether the driver has all of a span registered for other code, or allocated it itself.
fn is_registered(opened: &Opened, span: HostSpan) -> Result<bool, ImportError> {
    let _current = opened.context.enter().map_err(failed)?;
    let known = query(&opened.context.driver, span.addr());
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
