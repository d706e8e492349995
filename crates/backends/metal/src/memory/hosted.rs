//! Host memory that a device reaches in place for as long as a buffer shows it.

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use transload_hal::{
    Buffer, ErrorClass, ExternalKind, Fault, Guard, HostSpan, ImportError, MemoryId, Owner,
    StorageId, StorageInfo,
};

use super::info;
use crate::gpu::Gpu;
use crate::raw::{GoneBlock, Raw, page_bytes, pooled};

const KIND: ExternalKind = ExternalKind::Host;

/// The buffers that show host memory, by its addresses: what owns such a buffer is the memory's owner.
#[derive(Clone, Default)]
pub(crate) struct Hosted(Arc<Mutex<Vec<(u64, Raw)>>>);

impl Hosted {
    /// The buffer that shows so many bytes at an address, and where in it they begin.
    pub(crate) fn find(&self, address: u64, len_bytes: u64) -> Option<(Raw, u64)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shows = |(start, raw): &&(u64, Raw)| {
            let at = address.checked_sub(*start);
            at.is_some_and(|at| at + len_bytes <= raw.len_bytes())
        };
        let (start, raw) = all.iter().find(shows)?;
        Some((raw.clone(), address - start))
    }

    fn add(&self, address: u64, raw: Raw) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((address, raw));
    }

    fn remove(&self, handle: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(_, raw)| raw.handle() == handle);
        let gone = at.map(|at| all.swap_remove(at));
        drop(all);
        // Without the lock: Metal may call back.
        drop(gone);
    }
}

/// Whether Metal has let go of the memory.
#[derive(Default)]
struct Gone {
    is_gone: Mutex<bool>,
    told: Condvar,
}

/// What keeps memory wrapped. Ends before the memory's owner goes.
struct Wrapped {
    all: Hosted,
    handle: u64,
    gone: Arc<Gone>,
}

impl Guard for Wrapped {
    fn release(self: Box<Self>, owner: Box<dyn Owner>) {
        drop(self);
        drop(owner);
    }
}

impl Drop for Wrapped {
    /// Waits until Metal has let go: nothing of ours uses the buffer any more, and who took it for commands of their
    /// own has seen to it that these are over.
    fn drop(&mut self) {
        pooled(|_| self.all.remove(self.handle));
        let gone = &self.gone;
        let mut is_gone = gone.is_gone.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_gone {
            is_gone = gone
                .told
                .wait(is_gone)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Has a device reach host memory of the caller's in place.
///
/// # Safety
/// As `Backend::import`.
pub(crate) unsafe fn share(
    gpu: &Gpu,
    memory: MemoryId,
    (span, writable): (HostSpan, bool),
    owner: Box<dyn Owner>,
) -> Result<Buffer, ImportError> {
    let page = page_bytes();
    let (address, len) = (span.addr(), span.len() as u64);
    if len == 0 || !address.is_multiple_of(page) || !len.is_multiple_of(page) {
        let reason = format!("{len} bytes at {address:#x} are not whole pages of {page} bytes");
        return Err(ImportError::Invalid {
            memory,
            kind: KIND,
            reason: reason.into(),
        });
    }
    let failed = |fault| ImportError::Failed {
        memory,
        kind: KIND,
        fault,
    };
    if let Some(fault) = gpu.lost() {
        return Err(failed(fault.clone()));
    }
    let gone = Arc::new(Gone::default());
    let tell = Arc::clone(&gone);
    let block = GoneBlock::new(move || {
        *tell.is_gone.lock().unwrap_or_else(PoisonError::into_inner) = true;
        tell.told.notify_all();
    });
    // SAFETY: the owner keeps the memory, and goes after the guard, which waits for the block's call.
    let made = pooled(|_| unsafe { Raw::wrapping(&gpu.device, span, &block) });
    let raw = made.ok_or_else(|| {
        failed(Fault::new(
            ErrorClass::Unsupported,
            "Metal does not take this memory: newBufferWithBytesNoCopy gave nothing",
        ))
    })?;
    let guard = Wrapped {
        all: gpu.hosted.clone(),
        handle: raw.handle(),
        gone,
    };
    gpu.hosted.add(address, raw);
    // What another buffer keeps alive is that buffer's memory, whatever it is to this one.
    let (id, base) = match (&*owner as &dyn Any).downcast_ref::<Buffer>() {
        Some(buffer) => (buffer.storage_id(), buffer.position()),
        None => (StorageId::Host, address),
    };
    let info = StorageInfo {
        id,
        base,
        writable,
        host: Some(span),
        ..info(memory, 0, len)
    };
    // SAFETY: the caller says that the span is valid as long as the owner lives, and Metal lets go of it first.
    Ok(unsafe { Buffer::guarded(info, owner, Box::new(guard)) })
}
