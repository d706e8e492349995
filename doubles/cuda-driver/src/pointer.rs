//! Queries about addresses.
//!
//! Source: CUDA Driver API, Unified Addressing: cuPointerGetAttribute, cuPointerGetAttributes;
//! and `CUpointer_attribute`, which describes the attributes that the functions do not. Truth values have the size of
//! an `int`, and handle types that of a 64-bit number, as in NVIDIA's own binding for Python.
//!
//! A context must be current only if the answer depends on it.

use std::ffi::{c_uint, c_void};
use std::ops::Range;

use transload_cuda::raw::{
    CUcontext, CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemorytype, CUpointer_attribute,
    CUresult,
};

use crate::access::Access;
use crate::answer::{Answer, put};
use crate::bytes::Memory;
use crate::call::{Call, driver};
use crate::space::{Allocation, Sort};
use crate::state::State;

const WRONG: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// An answer, by its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    Word(u32),
    Long(u64),
}

impl Value {
    /// # Safety
    /// As [`put`], for a number of the value's size.
    unsafe fn put(self, place: *mut c_void) -> Answer {
        match self {
            // SAFETY: the caller keeps the same promise.
            Value::Word(word) => unsafe { put(place.cast(), word) },
            // SAFETY: as above.
            Value::Long(long) => unsafe { put(place.cast(), long) },
        }
    }

    /// A zero of the size of an attribute.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what is no attribute, `NOT_SUPPORTED` for one that is not modelled.
    fn zero(of: CUpointer_attribute) -> Result<Value, CUresult> {
        use CUpointer_attribute as A;
        Ok(match of {
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE
            | A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
            | A::CU_POINTER_ATTRIBUTE_IS_MANAGED
            | A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
            | A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
            | A::CU_POINTER_ATTRIBUTE_MAPPED
            | A::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
            | A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Value::Word(0),
            A::CU_POINTER_ATTRIBUTE_CONTEXT
            | A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
            | A::CU_POINTER_ATTRIBUTE_HOST_POINTER
            | A::CU_POINTER_ATTRIBUTE_BUFFER_ID
            | A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
            | A::CU_POINTER_ATTRIBUTE_RANGE_SIZE
            | A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
            | A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
            | A::CU_POINTER_ATTRIBUTE_MAPPING_SIZE
            | A::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
            | A::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Value::Long(0),
            // Tokens are for a kernel driver; the two others came with CUDA 13.
            A::CU_POINTER_ATTRIBUTE_P2P_TOKENS | A(21 | 22) => {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            _ => return Err(WRONG),
        })
    }
}

impl State {
    /// One attribute of an address that the driver knows.
    ///
    /// # Errors
    /// `INVALID_VALUE` where it does not know the address, and where the attribute does not apply.
    fn attribute(
        &self,
        call: &Call,
        asked: CUpointer_attribute,
        address: u64,
    ) -> Result<Value, CUresult> {
        use CUpointer_attribute as A;
        let zero = Value::zero(asked)?;
        let reservation = self.vmm.reservation(address);
        let Some(at) = self.space.at(address) else {
            return self.unmapped(asked, reservation.ok_or(WRONG)?);
        };
        let range = reservation.unwrap_or(at.range());
        let truth = |is: bool| Value::Word(u32::from(is));
        Ok(match asked {
            A::CU_POINTER_ATTRIBUTE_CONTEXT => Value::Long(at.context.0.addr() as u64),
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Value::Word(match at.memory() {
                Memory::Pinned | Memory::Pageable => CUmemorytype::CU_MEMORYTYPE_HOST.0,
                Memory::Managed | Memory::Device(_) => CUmemorytype::CU_MEMORYTYPE_DEVICE.0,
            }),
            A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => {
                let may = self.may(call.current(self)?, at);
                let reads = may != CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
                reads.then_some(Value::Long(address)).ok_or(WRONG)?
            }
            A::CU_POINTER_ATTRIBUTE_HOST_POINTER => match at.memory() {
                Memory::Device(_) => return Err(WRONG),
                _ => Value::Long(address),
            },
            A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => truth(false),
            A::CU_POINTER_ATTRIBUTE_BUFFER_ID if at.sort == Sort::Registered => return Err(WRONG),
            A::CU_POINTER_ATTRIBUTE_BUFFER_ID => Value::Long(at.id),
            A::CU_POINTER_ATTRIBUTE_IS_MANAGED => truth(at.memory() == Memory::Managed),
            A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Word(at.device.0.cast_unsigned()),
            A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => truth(at.sort == Sort::Device),
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Value::Long(range.start),
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE => Value::Long(range.end - range.start),
            A::CU_POINTER_ATTRIBUTE_MAPPED => truth(true),
            A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => match at.sort {
                Sort::Mapped { piece, .. } => {
                    Value::Long(u64::from(self.vmm.handle_types(piece).0))
                }
                _ => zero,
            },
            A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
                Value::Word(self.may(call.current(self)?, at).0)
            }
            A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => match at.sort {
                Sort::Pool { pool, .. } => Value::Long(pool.0.addr() as u64),
                _ => zero,
            },
            A::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => Value::Long(at.size),
            A::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Value::Long(at.base),
            A::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => match at.sort {
                // Handles are never numbers of allocations.
                Sort::Mapped { piece, .. } => Value::Long(piece),
                _ => Value::Long(at.id),
            },
            // No memory here is reached by other devices on the bus.
            _ => zero,
        })
    }

    /// One attribute of an address that is reserved but not mapped.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the attribute is one of memory.
    fn unmapped(&self, asked: CUpointer_attribute, range: Range<u64>) -> Result<Value, CUresult> {
        use CUpointer_attribute as A;
        match asked {
            A::CU_POINTER_ATTRIBUTE_MAPPED => Ok(Value::Word(0)),
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Ok(Value::Long(range.start)),
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE => Ok(Value::Long(range.end - range.start)),
            _ => Err(WRONG),
        }
    }

    /// The access of a device to an allocation, by the access of its contexts.
    fn may(
        &self,
        (context, device): (CUcontext, CUdevice),
        allocation: &Allocation,
    ) -> CUmemAccess_flags {
        let access = allocation.access();
        if access != Access::ALL {
            return access.of(device);
        }
        let of_host = !matches!(allocation.memory(), Memory::Device(_));
        let peer = self
            .context(context)
            .is_ok_and(|of| of.peers.contains(&allocation.context));
        let own = allocation.device == device || allocation.context == context;
        if of_host || own || peer {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE
        }
    }
}

driver! {
    /// One attribute. Memory unknown to the driver (pageable host memory or freed memory) has none.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr), call => {
        let value = call.state().attribute(call, attribute, ptr)?;
        // SAFETY: the caller passes a valid out-pointer for the attribute.
        unsafe { value.put(data) }
    }

    /// Several attributes. Those that do not apply are zeros; for an unknown address all are. An invalid attribute or a
    /// null place fails the whole call.
    fn cuPointerGetAttributes(
        num_attributes: c_uint,
        attributes: *mut CUpointer_attribute,
        data: *mut *mut c_void,
        ptr: CUdeviceptr,
    ), call => {
        if num_attributes == 0 || attributes.is_null() || data.is_null() {
            return Err(WRONG);
        }
        let state = call.state();
        let mut answers = Vec::new();
        for index in 0..num_attributes as usize {
            // SAFETY: the caller's arrays are as long as it says, here and below.
            let attribute = unsafe { attributes.add(index) };
            // SAFETY: as above.
            let attribute = unsafe { attribute.read_unaligned() };
            // SAFETY: as above.
            let place = unsafe { data.add(index) };
            // SAFETY: as above.
            let place = unsafe { place.read_unaligned() };
            let zero = Value::zero(attribute)?;
            if place.is_null() {
                return Err(WRONG);
            }
            let value = match state.attribute(call, attribute, ptr) {
                Err(WRONG) => zero,
                answer => answer?,
            };
            answers.push((place, value));
        }
        for (place, value) in answers {
            // SAFETY: the caller passes a valid out-pointer for this attribute.
            unsafe { value.put(place) }?;
        }
        Ok(())
    }
}
