//! Objects in stores as memory: a backend that reads ranges of them into memory of the host.

mod fetch;
mod files;
mod queue;

use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use transload::hal::{
    Access, AllocError, Backend, BackendId, Buffer, CompletionSink, ConnectError, Cost, DeviceId,
    DeviceInfo, DeviceKind, EngineId, ErrorClass, External, ExternalKind, Fault, Fence,
    GUEST_KINDS, ImportError, Inventory, Link, LinkClass, LinkId, MemoryId, MemoryInfo, MemoryKind,
    Name, Op, Passage, StorageId, StorageInfo, SubmitError, Waited, check_ends, check_fences,
    link_between,
};
use transload::{AllocSpec, TransferManager};

use fetch::{Causes, Object, Requests};
use queue::Queue;

pub(crate) use fetch::read_bytes;

const BACKEND: BackendId = BackendId(Name::constant("remote"));
const DEVICE: DeviceId = DeviceId::new(DeviceKind(Name::constant("remote")), 0);
/// The memory of all objects, of any store.
pub(crate) const MEMORY: MemoryId = DEVICE.memory(MemoryKind::File);
const ENGINE: EngineId = EngineId {
    device: DEVICE,
    index: 0,
};

/// The backend of objects in stores: S3, HTTP servers, and what else the crate `object_store` reaches.
///
/// It has one memory, `remote:0/file`, whose bytes are read by requests for ranges, many at a time. Its requests run on one
/// thread of its own, which starts with the first request and ends when the backend is dropped. So its functions may be
/// called within and without an asynchronous runtime of the program.
///
/// Register it with each manager that loads from stores: one backend serves all stores.
#[derive(Debug, Default)]
pub struct Remote {
    queue: Queue,
}

/// An object in a store, as it was when it was found.
///
/// All reads are of the object with that length and ETag, or, in stores without ETags, that time of change. If another one
/// has taken its place, reads fail and say so.
#[derive(Clone, Debug)]
pub struct RemoteObject(Arc<Object>);

impl Remote {
    /// Makes a backend. Starts no thread yet.
    pub fn new() -> Remote {
        Remote::default()
    }

    /// Finds the object at `path` in a store, by a request for its first bytes. Blocks on the network.
    ///
    /// # Errors
    /// When the store does not have the object, does not answer requests for ranges, or cannot be reached, and when the
    /// object is empty.
    pub fn find(
        &self,
        store: &Arc<dyn ObjectStore>,
        path: impl AsRef<Path>,
    ) -> io::Result<RemoteObject> {
        let found = self.first(store, path.as_ref(), 1)?;
        Ok(found.0)
    }

    /// Finds an object, and reads up to so many of its first bytes.
    fn first(
        &self,
        store: &Arc<dyn ObjectStore>,
        path: &Path,
        most_bytes: u64,
    ) -> io::Result<(RemoteObject, Vec<u8>)> {
        let (store, path) = (Arc::clone(store), path.to_owned());
        let found = self
            .queue
            .block_on(async move { Object::find(store, path, most_bytes).await })?;
        let told = |error: io::Error| io::Error::new(error.kind(), Causes(&error).to_string());
        let (object, bytes) = found.map_err(told)?;
        Ok((RemoteObject(Arc::new(object)), bytes))
    }
}

impl RemoteObject {
    /// Returns the path by which it was found.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns how many bytes it has.
    pub fn len_bytes(&self) -> u64 {
        self.0.len_bytes
    }

    /// Takes the object into a manager as a read-only buffer in `remote:0/file`. Does not block.
    ///
    /// # Errors
    /// When the manager has no [`Remote`] backend.
    pub fn adopt(&self, manager: &TransferManager) -> Result<transload::Buffer, transload::Error> {
        // SAFETY: an object is read by requests alone, which ask nothing of the caller: changes by others show as errors.
        unsafe { manager.adopt_native(MEMORY.into(), self.clone()) }
    }
}

fn inventory() -> Inventory {
    let device = DeviceInfo {
        id: DEVICE,
        backend: BACKEND,
        name: "object stores".into(),
        // The host's processors take the bytes out of its sockets.
        software: true,
        simulated: false,
        memory_bytes: None,
        driver: None,
        uuid: None,
        pci: None,
        numa_node: None,
    };
    let memory = MemoryInfo {
        id: MEMORY,
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: i64::MAX as u64,
        alignment: 1,
        host_addressable: false,
        staging: false,
        passage: Passage::default(),
    };
    let links = GUEST_KINDS.map(|kind| Link {
        id: LinkId {
            src: MEMORY,
            dst: DeviceId::CPU0.memory(kind),
            engine: ENGINE,
            access: Access::Native,
        },
        backend: BACKEND,
        class: LinkClass::Network,
        // Stores answer after 20 to 50 ms, and then as fast as the network is, here 10 Gbit/s.
        cost: Cost::from_rate(20_000_000, 1_200_000_000).into(),
        pitched: true,
        depth: queue::IN_FLIGHT as u16,
    });
    Inventory {
        backend: BACKEND,
        devices: vec![device],
        memories: vec![memory],
        links: links.into(),
        lacks: vec![],
        transform: None,
    }
}

// SAFETY: `submit` checks all operations before it starts a request; requests write within the operands; the queue settles
// each fence once, when no request of it is left.
unsafe impl Backend for Remote {
    fn inventory(&self) -> Inventory {
        inventory()
    }

    fn allocate(&self, memory: MemoryId, _: &AllocSpec) -> Result<Buffer, AllocError> {
        match memory {
            MEMORY => Err(AllocError::Unsupported {
                memory,
                what: "objects in stores are read and not made".into(),
            }),
            memory => Err(AllocError::UnknownMemory { memory }),
        }
    }

    /// Takes in a [`RemoteObject`] as an [`External::Object`].
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        if memory != MEMORY {
            return Err(ImportError::UnknownMemory { memory });
        }
        let kind = external.kind();
        let taken = match external {
            External::Object(object) => (object as Box<dyn Any>).downcast::<RemoteObject>().ok(),
            _ => None,
        };
        let object = taken.ok_or_else(|| ImportError::Unsupported {
            memory,
            kind,
            reason: "it takes a RemoteObject".into(),
        })?;
        let info = StorageInfo {
            id: StorageId::Native {
                backend: BACKEND.0,
                handle: Arc::as_ptr(&object.0).addr() as u64,
            },
            base: 0,
            len_bytes: object.len_bytes(),
            memory,
            backend: BACKEND,
            writable: false,
            host: None,
        };
        // SAFETY: the storage is the object, whose address is its own while the buffer holds it; the host has no address
        // of its bytes, and nothing writes them.
        Ok(unsafe { Buffer::new(info, object) })
    }

    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        Err(ImportError::Unsupported {
            memory: buffer.memory(),
            kind,
            reason: "an object in a store has no handle".into(),
        })
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        link_between(&inventory(), src, dst).map(|link| link.id.access)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        check_fences(BACKEND, after)?;
        if let Some(open) = after.iter().find(|fence| self.queue.is_open(fence)) {
            return Err(SubmitError::unawaited(open));
        }
        let mut requests = Requests::default();
        for (index, op) in ops.iter().enumerate() {
            check_ends(via, index, op)?;
            requests.add(op).ok_or_else(|| SubmitError::Unsupported {
                index,
                reason: "the remote backend copies from objects to host memory alone".into(),
            })?;
        }
        self.queue.start(requests)
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.queue.attach(sink)
    }

    fn completes_unattended(&self) -> bool {
        true
    }

    fn pump(&self) {}

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        self.queue.wait(&[fence], limit)
    }

    fn wait_any(&self, fences: &[Fence], limit: Duration) -> Waited {
        self.queue.wait(fences, limit)
    }

    fn progress(&self, fence: Fence) -> u64 {
        self.queue.progress(fence)
    }

    /// Ends requests that wait, stall or bring bytes. As they bring bytes in any order, no leading ones are known.
    fn stop(&self, fence: Fence) -> u64 {
        self.queue.stop(fence);
        0
    }
}

/// The fault of a read.
///
/// Its class keeps the link in use and ends the transfer: `object_store` has repeated what may be repeated, no other link
/// leads to the store, and one object or store that fails says nothing of others behind the same link.
fn fault(message: String) -> Fault {
    Fault::new(ErrorClass::Caller, message)
}
