//! The memory of buffers and textures: the host's view, and the GPU's.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use crate::ledger::{Misuse, report};
use crate::machine::{DeviceState, made};
use crate::runtime::Block;

/// `MTLStorageMode`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Mode {
    Shared = 0,
    Managed = 1,
    Private = 2,
}

impl Mode {
    /// The mode within `MTLResourceOptions`.
    pub(crate) fn in_options(options: usize) -> Option<Self> {
        Self::numbered((options >> 4) & 0xf)
    }

    pub(crate) fn numbered(mode: usize) -> Option<Self> {
        match mode {
            0 => Some(Self::Shared),
            1 => Some(Self::Managed),
            2 => Some(Self::Private),
            _ => None,
        }
    }
}

/// The bytes of one resource. It may outlive its object, if the GPU still has commands that use the bytes; then
/// `gone` is set, and nothing reads the bytes.
#[derive(Debug)]
pub(crate) struct Storage {
    /// The index of the device.
    pub(crate) device: usize,
    pub(crate) mode: Mode,
    pub(crate) len: usize,
    /// Where the GPU believes it; no address of the host's.
    pub(crate) gpu_address: u64,
    /// The memory behind `contents`; `None` where the mode is private.
    host: Option<Memory>,
    /// The GPU's memory, if that is not the host's.
    gpu: Option<Memory>,
    /// Called with the memory that no copy was made of.
    deallocator: Mutex<Option<Block>>,
    /// Set when the object has ended; held while the GPU is at the bytes.
    gone: RwLock<bool>,
    /// How many command buffers are to use it.
    uses: AtomicUsize,
    /// Whether this allocation counts for the device.
    allocated: AtomicBool,
}

/// Where bytes lie.
#[derive(Debug)]
enum Memory {
    Own(NonNull<u8>, Layout),
    Clients(NonNull<u8>),
}

// SAFETY: it is an address, and Metal's rules say which code may access the bytes there.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Storage {
    /// New bytes, zero. `None` when there is no memory.
    pub(crate) fn allocate(device: &DeviceState, mode: Mode, len: usize) -> Option<Self> {
        let host = match mode {
            Mode::Private => None,
            Mode::Shared | Mode::Managed => Some(Memory::zeroed(len)?),
        };
        let gpu = match mode {
            Mode::Shared => None,
            Mode::Private | Mode::Managed => Some(Memory::zeroed(len)?),
        };
        Some(Self::new(device, mode, len, host, gpu, None))
    }

    /// The client's bytes; `deallocator` is called when they are no longer needed.
    pub(crate) fn around(
        device: &DeviceState,
        mode: Mode,
        address: NonNull<u8>,
        len: usize,
        deallocator: Option<Block>,
    ) -> Option<Self> {
        let gpu = match mode {
            Mode::Shared => None,
            Mode::Private | Mode::Managed => {
                let memory = Memory::zeroed(len)?;
                // SAFETY: the client says that `len` bytes lie there, and the others are new.
                unsafe { address.copy_to_nonoverlapping(memory.address(), len) };
                Some(memory)
            }
        };
        let host = Some(Memory::Clients(address));
        Some(Self::new(device, mode, len, host, gpu, deallocator))
    }

    fn new(
        device: &DeviceState,
        mode: Mode,
        len: usize,
        host: Option<Memory>,
        gpu: Option<Memory>,
        deallocator: Option<Block>,
    ) -> Self {
        device.allocated.fetch_add(len as u64, Ordering::Relaxed);
        // A page lies between two of them: no address behind one is one of another.
        let room = (len as u64).next_multiple_of(GPU_PAGE) + GPU_PAGE;
        Self {
            device: device.index,
            mode,
            len,
            gpu_address: GPU_ADDRESSES.fetch_add(room, Ordering::Relaxed),
            host,
            gpu,
            deallocator: Mutex::new(deallocator),
            gone: RwLock::new(false),
            uses: AtomicUsize::new(0),
            allocated: AtomicBool::new(true),
        }
    }

    /// The host's view.
    pub(crate) fn contents(&self) -> Option<NonNull<u8>> {
        self.host.as_ref().map(Memory::address)
    }

    fn at_gpu(&self) -> NonNull<u8> {
        let memory = self.gpu.as_ref().or(self.host.as_ref());
        memory.expect("every mode has one of them").address()
    }

    /// From the host's copy to the GPU's. Both have the bytes from `at` on.
    pub(crate) fn take_in(&self, at: usize, len: usize) {
        if let (Some(host), Some(gpu)) = (&self.host, &self.gpu) {
            host.copy_to(gpu, at, len);
        }
    }

    /// Copies all bytes from the GPU's copy to the host's. Equal bytes are not written: on a Mac a thread that reads
    /// them meanwhile is not disturbed, and ThreadSanitizer must not report a race here.
    pub(crate) fn give_out(&self) {
        if let (Some(host), Some(gpu)) = (&self.host, &self.gpu) {
            gpu.copy_changes_to(host, self.len);
        }
    }

    /// A command buffer is to use it, until [`Storage::used`].
    pub(crate) fn use_later(&self) {
        self.uses.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn used(&self) {
        self.uses.fetch_sub(1, Ordering::AcqRel);
    }

    /// The object has ended. Memory of the client's goes back.
    pub(crate) fn end(&self, what: &str) {
        if self.uses.load(Ordering::Acquire) > 0 {
            let told = "ended while a command buffer that does not retain it was to use it";
            report(Misuse::FreedInUse, format!("a {what} {told}"));
        }
        *self.gone.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.give_back();
        if let (Some(Memory::Clients(address)), Some(deallocator)) =
            (&self.host, self.deallocator().take())
        {
            // SAFETY: `newBufferWithBytesNoCopy:length:options:deallocator:` takes a block of a pointer and a length.
            unsafe { deallocator.call_pointer_length(address.as_ptr().cast(), self.len) };
        }
    }

    fn deallocator(&self) -> MutexGuard<'_, Option<Block>> {
        self.deallocator
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self) {
        if self.allocated.swap(false, Ordering::AcqRel) {
            let device = &made().devices[self.device];
            device
                .allocated
                .fetch_sub(self.len as u64, Ordering::Relaxed);
        }
    }

    /// Has the GPU at the bytes of `both`, from source to destination, unless one is gone.
    pub(crate) fn with(
        source: &Self,
        destination: &Self,
        work: impl FnOnce(NonNull<u8>, NonNull<u8>),
    ) -> Result<(), Gone> {
        let _source = source.hold()?;
        // One lock taken twice by one thread could wait for a writer between them.
        let same = std::ptr::eq(source, destination);
        let _destination = if same {
            None
        } else {
            Some(destination.hold()?)
        };
        work(source.at_gpu(), destination.at_gpu());
        Ok(())
    }

    /// The same for one.
    pub(crate) fn with_one(&self, work: impl FnOnce(NonNull<u8>)) -> Result<(), Gone> {
        let _held = self.hold()?;
        work(self.at_gpu());
        Ok(())
    }

    fn hold(&self) -> Result<impl Drop + '_, Gone> {
        let gone = self.gone.read().unwrap_or_else(PoisonError::into_inner);
        if *gone { Err(Gone) } else { Ok(gone) }
    }
}

/// The object has ended, and its bytes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

impl Memory {
    fn zeroed(len: usize) -> Option<Self> {
        // Buffers begin at pages, as those of Metal do.
        let layout = Layout::from_size_align(len.max(1), made().machine.page_size).ok()?;
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) }).map(|address| Self::Own(address, layout))
    }

    fn address(&self) -> NonNull<u8> {
        let (Self::Own(address, _) | Self::Clients(address)) = self;
        *address
    }

    fn copy_to(&self, other: &Self, at: usize, len: usize) {
        // SAFETY: the callers' ranges lie in the storage, and both of its memories are as long as it.
        let from = unsafe { self.address().add(at) };
        // SAFETY: as above.
        let to = unsafe { other.address().add(at) };
        // SAFETY: as above, and the two never overlap: one of them was allocated here.
        unsafe { from.copy_to_nonoverlapping(to, len) };
    }

    /// Byte by byte where a word differs.
    fn copy_changes_to(&self, other: &Self, len: usize) {
        let at = |memory: &Self, offset: usize| {
            // SAFETY: both memories are as long as the storage, and so is `len`.
            unsafe { memory.address().add(offset) }
        };
        let same_word = |offset: usize| {
            let (from, to) = (
                at(self, offset).cast::<u64>(),
                at(other, offset).cast::<u64>(),
            );
            // SAFETY: a whole word lies there; buffers begin with pages, so it is aligned.
            let from = unsafe { from.read() };
            // SAFETY: as above.
            from == unsafe { to.read() }
        };
        for word in (0..len).step_by(size_of::<u64>()) {
            let end = (word + size_of::<u64>()).min(len);
            if end - word == size_of::<u64>() && same_word(word) {
                continue;
            }
            for offset in word..end {
                // SAFETY: the byte lies in the storage.
                let new = unsafe { at(self, offset).read() };
                // SAFETY: as above.
                if unsafe { at(other, offset).read() } != new {
                    // SAFETY: as above.
                    unsafe { at(other, offset).write(new) };
                }
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Own(address, layout) = self {
            // SAFETY: it was allocated with this layout, and ends here.
            unsafe { dealloc(address.as_ptr(), *layout) };
        }
    }
}

/// Far from all host addresses: an access to such an address by mistake faults.
static GPU_ADDRESSES: AtomicU64 = AtomicU64::new(0x7a11_0000_0000_0000);
const GPU_PAGE: u64 = 16 << 10;
