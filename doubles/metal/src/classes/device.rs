//! `MTLDevice`, and the functions that give devices out.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::Ordering;

use super::array::Array;
use super::buffer::Buffer;
use super::descriptor::Descriptor;
use super::event::{self, Event};
use super::queue::CommandQueue;
use super::string::Text;
use super::texture::Texture;
use crate::bytes::{Mode, Storage};
use crate::faults::has_room;
use crate::ledger::{COUNTS, Misuse, report};
use crate::machine::{DeviceState, made};
use crate::runtime::{BlockArgument, Bool, Id, Instance, Method, Receiver, Ref};

/// A device as clients have it. It is there as long as the process.
#[derive(Debug)]
pub(crate) struct Device(&'static DeviceState);

class!(c"MTLDevice" "_OBJC_CLASS_MTLDevice", Device, methods);

impl Deref for Device {
    type Target = DeviceState;

    fn deref(&self) -> &DeviceState {
        self.0
    }
}

impl Device {
    /// The storage of a new buffer. `None` for nil.
    fn storage(&self, len: usize, options: usize) -> Option<Storage> {
        let mode = self.mode(options)?;
        if !self.takes(len) {
            return None;
        }
        let storage = Storage::allocate(self, mode, len)?;
        match mode {
            Mode::Shared => COUNTS.shared_buffers.one(),
            Mode::Managed => COUNTS.managed_buffers.one(),
            Mode::Private => COUNTS.private_buffers.one(),
        }
        Some(storage)
    }

    fn mode(&self, options: usize) -> Option<Mode> {
        let mode = Mode::in_options(options);
        if mode.is_none() {
            let told = format!("buffers have no storage mode as in the options {options:#x}");
            report(Misuse::BadArgument, told);
        }
        mode
    }

    fn takes(&self, len: usize) -> bool {
        if len == 0 {
            report(Misuse::BadArgument, "a buffer has at least one byte".into());
            return false;
        }
        len <= self.is.max_buffer_bytes && has_room(self, len)
    }

    fn around(
        &self,
        address: *mut c_void,
        len: usize,
        options: usize,
        deallocator: BlockArgument,
    ) -> Option<Ref<Buffer>> {
        let page = made().machine.page_size;
        let mode = self.mode(options)?;
        if mode == Mode::Private {
            let told = "a private buffer cannot be made of the host's memory";
            report(Misuse::StorageMode, told.into());
            return None;
        }
        // "Pointer must be page aligned, length a multiple of the page size": else the answer is nil.
        if !address.addr().is_multiple_of(page) || !len.is_multiple_of(page) || !self.takes(len) {
            return None;
        }
        let address = NonNull::new(address)?.cast();
        let storage = Storage::around(self, mode, address, len, deallocator.copy())?;
        COUNTS.no_copy_buffers.one();
        Some(Buffer::new(storage, options))
    }
}

/// The answer of a method whose name begins with `new`.
fn new<T: Instance>(object: Option<Ref<T>>) -> Id {
    object.map_or(Id::NIL, Ref::into_id)
}

fn methods() -> Vec<Method> {
    let mut methods = properties();
    methods.extend(makers());
    methods
}

fn properties() -> Vec<Method> {
    methods![Receiver<Device>;
        c"name" => fn(this) -> Id {
            Text::new(&this.is.name).autoreleased()
        }
        c"registryID" => fn(this) -> u64 {
            this.is.registry_id
        }
        c"hasUnifiedMemory" => fn(this) -> Bool {
            Bool::from(this.is.unified)
        }
        c"isLowPower" => fn(this) -> Bool {
            Bool::from(this.is.low_power)
        }
        c"isHeadless" => fn(this) -> Bool {
            Bool::from(this.is.headless)
        }
        c"isRemovable" => fn(this) -> Bool {
            Bool::from(this.is.removable)
        }
        c"location" => fn(this) -> usize {
            this.is.location.number()
        }
        c"locationNumber" => fn(this) -> usize {
            this.is.location_number
        }
        c"maxTransferRate" => fn(this) -> u64 {
            this.is.max_transfer_rate
        }
        c"peerGroupID" => fn(this) -> u64 {
            this.is.peer_group
        }
        c"recommendedMaxWorkingSetSize" => fn(this) -> u64 {
            this.is.memory_bytes
        }
        c"maxBufferLength" => fn(this) -> usize {
            this.is.max_buffer_bytes
        }
        c"currentAllocatedSize" => fn(this) -> usize {
            this.allocated.load(Ordering::Relaxed) as usize
        }
        c"minimumLinearTextureAlignmentForPixelFormat:" => fn(this, _format: usize) -> usize {
            this.is.linear_alignment
        }
    ]
}

fn makers() -> Vec<Method> {
    methods![Receiver<Device>;
        c"newBufferWithLength:options:" => fn(this, len: usize, options: usize) -> Id {
            new(this.storage(len, options).map(|storage| Buffer::new(storage, options)))
        }
        c"newBufferWithBytes:length:options:" => fn(this, bytes: *const c_void, len: usize, options: usize) -> Id {
            let Some(storage) = this.storage(len, options) else {
                return Id::NIL;
            };
            let Some(contents) = storage.contents() else {
                report(Misuse::StorageMode, "the host cannot write a private buffer's bytes".into());
                return Id::NIL;
            };
            // SAFETY: the caller says that `len` bytes lie there for as long as this call lasts.
            let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), len) };
            // SAFETY: the storage is new and has `len` bytes.
            unsafe { contents.copy_from_nonoverlapping(NonNull::from(bytes).cast(), len) };
            storage.take_in(0, len);
            Buffer::new(storage, options).into_id()
        }
        c"newBufferWithBytesNoCopy:length:options:deallocator:" => fn(
            this, address: *mut c_void, len: usize, options: usize, deallocator: BlockArgument
        ) -> Id {
            new(this.around(address, len, options, deallocator))
        }
        c"newTextureWithDescriptor:" => fn(this, descriptor: Id) -> Id {
            let descriptor = descriptor.get::<Descriptor>();
            new(descriptor.and_then(|descriptor| Texture::allocate(&this, &descriptor.get())))
        }
        c"newCommandQueue" => fn(this) -> Id {
            new(CommandQueue::new(&this, COMMAND_BUFFERS))
        }
        c"newCommandQueueWithMaxCommandBufferCount:" => fn(this, most: usize) -> Id {
            new(CommandQueue::new(&this, most))
        }
        c"newSharedEvent" => fn(this) -> Id {
            new(Event::new(&this, &event::CLASS))
        }
        c"newEvent" => fn(this) -> Id {
            new(Event::new(&this, &event::LOCAL))
        }
    ]
}

/// The system's default device, or nil: "returns a device that the caller owns" (`MTLCreateSystemDefaultDevice`).
#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> Id {
    let mut present = present();
    present.next().map_or(Id::NIL, Ref::into_id)
}

/// All devices, in an array that the caller owns.
#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCopyAllDevices() -> Id {
    Array::of(present()).into_id()
}

/// The number of command buffers of a queue that may be in flight unless its maker sets another: "will only allow up to
/// 64 non-completed command buffers" (`MTLDevice`, newCommandQueue).
const COMMAND_BUFFERS: usize = 64;

/// The devices that were not removed.
fn present() -> impl Iterator<Item = Ref<Device>> {
    let devices = made().devices.iter();
    devices
        .filter(|device| !device.is_removed())
        .filter_map(|device| {
            let make = || Ref::new(Device(device)).forever();
            Id::forever(device.object.get_or_init(make)).retained()
        })
}
