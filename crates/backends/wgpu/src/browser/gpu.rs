//! One device, and the state that all its users share.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use transload_hal::{
    Buffer, CompletionSink, ErrorClass, Fault, Fence, ImportError, Outcome, Owner, StorageId,
    StorageInfo,
};
use transload_hal::{DeviceId, MemoryId};

use super::errors::Scopes;
use super::readback::Readbacks;
use crate::raw::{CHUNK, Shifter, Shifts};
use crate::storage::{BACKEND, handle_of, info};

/// One device.
///
/// The device's queue executes one command after the other, including writes of the host. So there is one
/// of each scratch buffer on the way in, and the next copy overwrites it after the last one.
pub(crate) struct Gpu {
    pub(crate) id: DeviceId,
    /// 0: the page has one instance, whose objects have numbers of their own.
    pub(crate) identity: usize,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(super) shifts: Shifts,
    /// Why the device is lost.
    pub(super) lost: Arc<OnceLock<Fault>>,
    /// The buffers from which the host fetches bytes.
    pub(super) readbacks: Readbacks,
    /// This backend opened the device and has not given out its handles.
    is_private: Cell<bool>,
    /// Made for the first copy that wgpu's own commands cannot do.
    shifter: RefCell<Option<Arc<Shifter>>>,
    /// Receives the host's writes, from which commands copy them to their place.
    inlet: RefCell<Option<wgpu::Buffer>>,
    /// Allocations that the browser refused, after it had handed them out.
    refused: RefCell<Vec<(StorageId, Fault)>>,
    completions: Rc<Completions>,
    /// Fences of this device that have not settled.
    pending: RefCell<HashSet<u64>>,
}

/// Where outcomes of all devices go.
#[derive(Default)]
pub(super) struct Completions {
    pub(super) sink: OnceCell<Arc<dyn CompletionSink>>,
    /// The last fence that was given out.
    last: Cell<u64>,
}

/// The number of refusals that are remembered; for older ones the fault has WebGPU's own text.
const REFUSALS: usize = 256;

impl Gpu {
    /// A storage of this device's.
    ///
    /// # Safety
    /// As [`Buffer::new`].
    pub(crate) unsafe fn storage(&self, info: StorageInfo, owner: impl Owner) -> Buffer {
        // SAFETY: the caller's promise.
        unsafe { Buffer::new(info, Box::new(owner)) }
    }

    /// Makes a storage of a buffer of wgpu that no address shows.
    pub(crate) fn wrap(&self, memory: MemoryId, buffer: wgpu::Buffer, len: u64) -> Buffer {
        let handle = handle_of(self.identity, &buffer);
        // SAFETY: the host cannot reach it; the handle names the buffer.
        unsafe { self.storage(info(memory, handle, len), buffer) }
    }

    pub(super) fn new(
        id: DeviceId,
        (device, queue): (wgpu::Device, wgpu::Queue),
        completions: &Rc<Completions>,
    ) -> Rc<Gpu> {
        let lost = Arc::new(OnceLock::new());
        let told = Arc::clone(&lost);
        // In the browser this replaces no other callback. The browser calls it before it ends the work
        // under way (WebGPU, "lose the device"), so that work that a lost device dropped does not count as
        // done.
        device.set_device_lost_callback(move |reason, message| {
            let message = format!("the browser gave the device up ({reason:?}): {message}");
            let _ = told.set(Fault::new(ErrorClass::Lost, message));
        });
        let is_software = device.adapter_info().device_type == wgpu::DeviceType::Cpu;
        Rc::new(Gpu {
            id,
            identity: 0,
            device,
            queue,
            shifts: if is_software {
                Shifts::Texels
            } else {
                Shifts::Shader
            },
            lost,
            readbacks: Readbacks::default(),
            is_private: Cell::new(false),
            shifter: RefCell::default(),
            inlet: RefCell::default(),
            refused: RefCell::default(),
            completions: Rc::clone(completions),
            pending: RefCell::default(),
        })
    }

    /// Whether the device is private, so that no user's buffer can belong to it.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private.get()
    }

    pub(super) fn set_private(&self, is_private: bool) {
        self.is_private.set(is_private);
    }

    /// Does nothing: the browser reports only later that a user's object is unusable. Transfers of an
    /// object of another device then fail as its owner's mistake.
    #[allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "where there is a driver, it tells at once"
    )]
    pub(crate) fn try_out(
        &self,
        _memory: MemoryId,
        _write: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<(), ImportError> {
        Ok(())
    }

    pub(super) fn shifter(&self) -> Arc<Shifter> {
        let mut kept = self.shifter.borrow_mut();
        Arc::clone(kept.get_or_insert_with(|| Arc::new(Shifter::new(&self.device))))
    }

    /// A buffer for a chunk and the rest of its last word.
    pub(super) fn inlet(&self) -> wgpu::Buffer {
        let make = || {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("transload inlet"),
                size: CHUNK,
                usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        self.inlet.borrow_mut().get_or_insert_with(make).clone()
    }

    /// Drops the scratch buffers after a failed copy, since they may have failed it; the next copy makes
    /// new ones.
    pub(super) fn forget_scratch(&self) {
        self.shifter.take();
        self.inlet.take();
    }

    /// Records the browser's later report whether it has room for an allocation.
    pub(super) fn watch_allocation(self: &Rc<Self>, storage: StorageId, scopes: Scopes) {
        let (gpu, heard) = (Rc::clone(self), scopes.end());
        wasm_bindgen_futures::spawn_local(async move {
            if let Some(fault) = heard.first().await {
                let mut refused = gpu.refused.borrow_mut();
                if refused.len() == REFUSALS {
                    refused.remove(0);
                }
                refused.push((storage, fault));
            }
        });
    }

    /// Why the browser refused an allocation.
    pub(super) fn refusal(&self, storage: StorageId) -> Option<Fault> {
        let refused = self.refused.borrow();
        let of_it = refused.iter().find(|(id, _)| *id == storage);
        of_it.map(|(_, fault)| fault.clone())
    }

    pub(super) fn is_pending(&self, number: u64) -> bool {
        self.pending.borrow().contains(&number)
    }

    /// The number of a new fence, which is pending from now on.
    pub(super) fn begin(&self) -> u64 {
        let number = self.completions.last.get() + 1;
        self.completions.last.set(number);
        self.pending.borrow_mut().insert(number);
        number
    }

    /// Settles a fence and reports its outcome.
    pub(super) fn settle(&self, number: u64, outcome: Outcome) {
        self.pending.borrow_mut().remove(&number);
        if let Some(sink) = self.completions.sink.get() {
            sink.settle(Fence::new(BACKEND, number), outcome);
        }
    }
}
