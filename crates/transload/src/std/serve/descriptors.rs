//! Descriptors of leases, for processes of this machine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use transload_core::{DeviceId, MemoryId, MemoryKind};
#[cfg(target_os = "linux")]
pub(super) use transload_remote::Descriptors;

use super::guest::Leased;
use crate::TransferManager;

/// The memory whose leases have descriptors.
const SHARED: MemoryId = DeviceId::CPU0.memory(MemoryKind::Shared);

/// The most descriptors that a server's leases have at once, half of what a process usually may have. Further leases are not
/// mapped.
const MOST_FILES: usize = 512;

/// Other systems than Linux have none.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(super) enum Descriptors {}

/// The leases whose descriptors a server gives out.
pub(super) struct Files {
    leases: Arc<Leases>,
    /// What names the socket.
    pub(super) name: [u8; 16],
}

/// Leases by their tokens.
#[derive(Default)]
struct Leases(Mutex<HashMap<[u8; 16], Weak<Leased>>>);

/// The token of a lease in a server's list, which it leaves when this is dropped.
pub(super) struct Listed {
    leases: Arc<Leases>,
    pub(super) token: [u8; 16],
}

impl Files {
    /// Listens for processes that want descriptors, if that memory is offered. Returns `None` also where the system has
    /// none: all clients are of other machines then.
    #[cfg(target_os = "linux")]
    pub(super) fn serve(
        manager: &TransferManager,
        offered: &[MemoryId],
    ) -> Option<(Files, Descriptors)> {
        if !offered.contains(&SHARED) {
            return None;
        }
        let leases = Arc::new(Leases::default());
        let (manager, known) = (manager.clone(), Arc::clone(&leases));
        let find = move |token: &[u8; 16]| {
            let lease = known.all().get(token)?.upgrade()?;
            descriptor(&manager, &lease)
        };
        let socket = Descriptors::serve(find).ok()?;
        let name = socket.name();
        Some((Files { leases, name }, socket))
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn serve(_: &TransferManager, _: &[MemoryId]) -> Option<(Files, Descriptors)> {
        None
    }

    /// Returns whether the next allocation in a memory has a descriptor, if it is made for sharing.
    pub(super) fn have(&self, memory: MemoryId) -> bool {
        memory == SHARED && self.leases.all().len() < MOST_FILES
    }

    /// Has the descriptor of a lease given out by a token. The lease was allocated for sharing.
    pub(super) fn list(&self, token: [u8; 16], lease: &Weak<Leased>) -> Listed {
        self.leases.all().insert(token, Weak::clone(lease));
        let leases = Arc::clone(&self.leases);
        Listed { leases, token }
    }
}

impl Leases {
    fn all(&self) -> MutexGuard<'_, HashMap<[u8; 16], Weak<Leased>>> {
        // Each change is whole when it may panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.leases.all().remove(&self.token);
    }
}

#[cfg(target_os = "linux")]
fn descriptor(manager: &TransferManager, lease: &Leased) -> Option<std::os::fd::OwnedFd> {
    use transload_hal::{External, ExternalKind};

    let backend = manager.backend_of(SHARED)?;
    // SAFETY: memory that was allocated for sharing has its file from the start, so no byte moves.
    let external = unsafe { backend.export(lease.buffer.raw(), ExternalKind::File) };
    let Ok(External::Handle { handle, .. }) = external else {
        return None;
    };
    // SAFETY: the client that gets the descriptor uses the bytes as it uses its leases: in its own order, and where others
    // use them in that of this server. The length is sealed.
    Some(unsafe { handle.into_owned() })
}
