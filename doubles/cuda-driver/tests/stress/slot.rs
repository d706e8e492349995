//! A buffer of some kind, and its expected bytes.

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::ptr;

use transload_cuda::raw::{CUdeviceptr, CUmemAttach_flags, Driver};

use crate::common::bytes::{allocate, free, pattern};

/// The memory of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Pageable,
    Pinned,
    Registered,
    Managed,
    Device,
}

pub(crate) const KINDS: [Kind; 5] = [
    Kind::Pageable,
    Kind::Pinned,
    Kind::Registered,
    Kind::Managed,
    Kind::Device,
];

/// A buffer. The driver writes it behind the back of the compiler, so it is only reached through its address.
pub(crate) struct Slot {
    pub(crate) kind: Kind,
    /// Of its context: the first or the second.
    pub(crate) device: usize,
    pub(crate) address: CUdeviceptr,
    /// The bytes after all submitted work has been done.
    pub(crate) model: Vec<u8>,
    /// The lane that used it last, unless the thread has waited for that lane.
    pub(crate) last: Option<usize>,
}

impl Slot {
    /// Memory of the current context, which is that of `device`.
    pub(crate) fn new(driver: &Driver, kind: Kind, device: usize, len: usize) -> Slot {
        let address = match kind {
            Kind::Device => allocate(driver, len),
            Kind::Managed => {
                let mut address = 0;
                let all = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
                // SAFETY: the out-pointer is a local variable.
                unsafe { driver.cuMemAllocManaged(&raw mut address, len, all) }.unwrap();
                address
            }
            Kind::Pinned => {
                let mut start: *mut c_void = ptr::null_mut();
                // SAFETY: the out-pointer is a local variable.
                unsafe { driver.cuMemHostAlloc(&raw mut start, len, 0) }.unwrap();
                start.expose_provenance() as u64
            }
            Kind::Pageable | Kind::Registered => {
                // SAFETY: the length is not 0.
                let start = unsafe { alloc::alloc_zeroed(layout(len)) };
                assert!(!start.is_null());
                if kind == Kind::Registered {
                    // SAFETY: the memory stays until it is taken back.
                    unsafe { driver.cuMemHostRegister_v2(start.cast(), len, 0) }.unwrap();
                }
                start.expose_provenance() as u64
            }
        };
        let mut slot = Slot {
            kind,
            device,
            address,
            model: vec![0; len],
            last: None,
        };
        slot.write(driver, &pattern(address, len));
        slot
    }

    pub(crate) fn len(&self) -> usize {
        self.model.len()
    }

    pub(crate) fn is_host(&self) -> bool {
        self.kind != Kind::Device
    }

    /// Memory of the host's, or managed memory.
    pub(crate) fn start(&self) -> *mut u8 {
        assert!(self.is_host());
        ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// Writes all of it, when nothing uses it.
    pub(crate) fn write(&mut self, driver: &Driver, bytes: &[u8]) {
        assert_eq!(self.last, None);
        if self.is_host() {
            // SAFETY: the buffer is as long, and no code uses it.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start(), bytes.len()) };
        } else {
            super::common::bytes::upload(driver, self.address, bytes);
        }
        self.model.copy_from_slice(bytes);
    }

    /// Reads all of it, when nothing writes it.
    pub(crate) fn read(&self, driver: &Driver) -> Vec<u8> {
        assert_eq!(self.last, None);
        if !self.is_host() {
            return super::common::bytes::download(driver, self.address, self.len());
        }
        let mut bytes = vec![0; self.len()];
        // SAFETY: the buffer is as long, and no code writes it.
        unsafe { ptr::copy_nonoverlapping(self.start(), bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Gives it back, when nothing uses it.
    pub(crate) fn free(self, driver: &Driver) {
        assert_eq!(self.last, None);
        match self.kind {
            Kind::Device | Kind::Managed => free(driver, self.address),
            // SAFETY: the memory is the driver's.
            Kind::Pinned => unsafe { driver.cuMemFreeHost(self.start().cast()) }.unwrap(),
            Kind::Pageable | Kind::Registered => {
                if self.kind == Kind::Registered {
                    // SAFETY: the memory is registered.
                    unsafe { driver.cuMemHostUnregister(self.start().cast()) }.unwrap();
                }
                // SAFETY: it was allocated so, and no code uses it.
                unsafe { alloc::dealloc(self.start(), layout(self.len())) };
            }
        }
    }
}

/// Whole pages, so that no two registrations share one.
fn layout(len: usize) -> Layout {
    Layout::from_size_align(len.next_multiple_of(4096), 4096).unwrap()
}
