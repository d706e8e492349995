//! The driver's functions on managed memory.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;

use transload_cuda::raw::{
    CUdevice, CUdeviceptr, CUmem_advise, CUmem_range_attribute, CUmemAttach_flags, CUmemLocation,
    CUmemLocationType, CUresult, CUstream,
};

use super::WRONG;
use super::hints::{Hint, Hints, Location};
use crate::answer::{Answer, put};
use crate::bytes::Bytes;
use crate::call::{Call, driver};
use crate::engine::Action;
use crate::log::Count;
use crate::machine;
use crate::space::{Allocation, Sort};
use crate::state::State;
use crate::transfer::{self, Pass};
use crate::work::{Leg, at_once};

/// A range of one managed allocation, as offsets.
struct Part {
    id: u64,
    range: Range<u64>,
}

impl State {
    fn allocate_managed(
        &mut self,
        call: &Call,
        size: usize,
        flags: c_uint,
    ) -> Result<CUdeviceptr, CUresult> {
        let (context, device) = call.current(self)?;
        let known = [
            CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL,
            CUmemAttach_flags::CU_MEM_ATTACH_HOST,
        ];
        if size == 0 || !known.contains(&CUmemAttach_flags(flags)) {
            return Err(WRONG);
        }
        call.world.faults.on_allocation()?;
        let bytes = Bytes::anonymous(size).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let base = bytes.start().expose_provenance() as u64;
        let added = self.space.add(Allocation {
            base,
            size: size as u64,
            sort: Sort::Managed,
            device,
            context,
            flags,
            id: 0,
            bytes,
            offset: 0,
        });
        // As with pinned memory: a client may have registered addresses that it unmapped.
        added.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        call.world.log.add(Count::Allocations, 1);
        Ok(base)
    }

    /// A range that lies within one managed allocation.
    ///
    /// # Errors
    /// `INVALID_VALUE` for any other, and for an empty one.
    fn managed_part(&self, address: u64, len: u64) -> Result<Part, CUresult> {
        let at = self.space.at(address);
        let at = at.filter(|of| of.sort == Sort::Managed).ok_or(WRONG)?;
        let start = address - at.base;
        if len == 0 || len > at.size - start {
            return Err(WRONG);
        }
        Ok(Part {
            id: at.id,
            range: start..start + len,
        })
    }

    /// The place that a location means.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for an absent device, `INVALID_VALUE` for an absent node or an invalid location.
    /// `NOT_SUPPORTED` for the node that the thread is on.
    fn place_of(&self, location: CUmemLocation) -> Result<Location, CUresult> {
        use CUmemLocationType as T;
        match location.type_ {
            T::CU_MEM_LOCATION_TYPE_DEVICE => {
                let device = CUdevice(location.id);
                self.device(device)?;
                Ok(Location::Device(device))
            }
            T::CU_MEM_LOCATION_TYPE_HOST => Ok(Location::Host),
            T::CU_MEM_LOCATION_TYPE_HOST_NUMA => {
                let nodes = self.devices.iter().map(|of| of.description.numa_node);
                let mut nodes = nodes.flatten().map(i64::from).chain([0]);
                let there = nodes.any(|node| node == i64::from(location.id));
                there.then_some(Location::Node(location.id)).ok_or(WRONG)
            }
            T::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => Err(WRONG),
        }
    }

    /// Whether a device uses managed memory while others do; prefetches to it and advice about it require that.
    ///
    /// # Errors
    /// `INVALID_DEVICE` when it does not.
    fn shares_managed(&self, device: CUdevice) -> Answer {
        match self.device(device)?.description.shares_managed {
            true => Ok(()),
            false => Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
        }
    }

    /// The works that bring a part to a place, over each link by itself.
    fn prefetching(&self, call: &Call, part: &Part, to: Location) -> Leg {
        let mut bytes = BTreeMap::<_, u64>::new();
        let none = Hints::default();
        let hints = self.managed.0.get(&part.id).unwrap_or(&none);
        for (len, hint) in hints.over(&part.range) {
            *bytes
                .entry(memory_of(hint.prefetched.unwrap_or(Location::Host)))
                .or_default() += len;
        }
        let to = memory_of(to);
        let mut leg = Vec::new();
        for (from, len) in bytes.into_iter().filter(|(from, _)| *from != to) {
            for pass in passes(call, from, to) {
                transfer::count_bytes(call, pass, len);
                leg.push(transfer::work(call, pass, len));
            }
        }
        // A prefetch of memory that is already there is an operation too.
        if leg.is_empty() {
            at_once(Vec::new(), Action::Nothing)
        } else {
            leg
        }
    }

    fn prefetch(
        &mut self,
        call: &Call,
        (address, len): (CUdeviceptr, usize),
        location: CUmemLocation,
        stream: CUstream,
    ) -> Answer {
        let part = self.managed_part(address, len as u64)?;
        let to = self.place_of(location)?;
        let number = self.stream_number(stream)?;
        self.unfinished(number)?;
        let context = self.stream(number)?.context;
        self.shares_managed(self.context(context)?.device)?;
        if let Location::Device(device) = to {
            self.shares_managed(device)?;
        }
        let leg = self.prefetching(call, &part, to);
        self.enqueue(call.world, stream, vec![leg])?;
        let hints = self.managed.0.entry(part.id).or_default();
        hints.change(&part.range, |hint| hint.prefetched = Some(to));
        Ok(())
    }

    fn advise(
        &mut self,
        (address, len): (CUdeviceptr, usize),
        advice: CUmem_advise,
        location: CUmemLocation,
    ) -> Answer {
        use CUmem_advise as A;
        let part = self.managed_part(address, len as u64)?;
        let user = |state: &State| match state.place_of(location) {
            Ok(Location::Node(_)) | Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) => Err(WRONG),
            place => place.map(Location::as_device),
        };
        let change: Box<dyn Fn(&mut Hint)> = match advice {
            A::CU_MEM_ADVISE_SET_READ_MOSTLY => Box::new(|hint| hint.read_mostly = true),
            A::CU_MEM_ADVISE_UNSET_READ_MOSTLY => Box::new(|hint| hint.read_mostly = false),
            A::CU_MEM_ADVISE_SET_PREFERRED_LOCATION => {
                let to = self.place_of(location)?;
                if let Location::Device(device) = to {
                    self.shares_managed(device)?;
                }
                Box::new(move |hint| hint.preferred = Some(to))
            }
            A::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => Box::new(|hint| hint.preferred = None),
            A::CU_MEM_ADVISE_SET_ACCESSED_BY => {
                let user = user(self)?;
                if user != CUdevice::CU_DEVICE_CPU {
                    self.shares_managed(user)?;
                }
                Box::new(move |hint| _ = hint.accessed_by.insert(user))
            }
            A::CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
                let user = user(self)?;
                Box::new(move |hint| _ = hint.accessed_by.remove(&user))
            }
            _ => return Err(WRONG),
        };
        let hints = self.managed.0.entry(part.id).or_default();
        hints.change(&part.range, change);
        Ok(())
    }

    /// An attribute of a range, as 32-bit numbers: as many as `room`, which is 1 but of lists.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what is no attribute, and for room that does not fit it.
    fn range_attribute(
        &self,
        part: &Part,
        asked: CUmem_range_attribute,
        room: usize,
    ) -> Result<Vec<c_int>, CUresult> {
        use CUmem_range_attribute as A;
        let none = Hints::default();
        let hints = self.managed.0.get(&part.id).unwrap_or(&none);
        let common = |of: fn(&Hint) -> Option<Location>| hints.common(&part.range, of).flatten();
        let device = |place: Option<Location>| {
            place
                .map_or(CUdevice::CU_DEVICE_INVALID, Location::as_device)
                .0
        };
        let location = |place: Option<Location>| {
            place.map(Location::as_location).unwrap_or(CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
                id: CUdevice::CU_DEVICE_INVALID.0,
            })
        };
        let value = match asked {
            A::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
                let mut all = hints
                    .over(&part.range)
                    .map(|(_, hint)| hint.accessed_by.clone());
                let first = all.next().unwrap_or_default();
                let users = all.fold(first, |both, other| &both & &other);
                let users = users.iter().map(|device| device.0);
                let rest = std::iter::repeat(CUdevice::CU_DEVICE_INVALID.0);
                return Ok(users.chain(rest).take(room).collect());
            }
            A::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => {
                c_int::from(hints.common(&part.range, |hint| hint.read_mostly) == Some(true))
            }
            A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => device(common(|hint| hint.preferred)),
            A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => {
                device(common(|hint| hint.prefetched))
            }
            PREFERRED_LOCATION_TYPE => location(common(|hint| hint.preferred)).type_.0 as c_int,
            PREFERRED_LOCATION_ID => location(common(|hint| hint.preferred)).id,
            LAST_PREFETCH_LOCATION_TYPE => {
                location(common(|hint| hint.prefetched)).type_.0 as c_int
            }
            LAST_PREFETCH_LOCATION_ID => location(common(|hint| hint.prefetched)).id,
            _ => return Err(WRONG),
        };
        if room == 1 {
            Ok(vec![value])
        } else {
            Err(WRONG)
        }
    }
}

/// Attributes since CUDA 12.2, which the binding has no names for.
const PREFERRED_LOCATION_TYPE: CUmem_range_attribute = CUmem_range_attribute(5);
const PREFERRED_LOCATION_ID: CUmem_range_attribute = CUmem_range_attribute(6);
const LAST_PREFETCH_LOCATION_TYPE: CUmem_range_attribute = CUmem_range_attribute(7);
const LAST_PREFETCH_LOCATION_ID: CUmem_range_attribute = CUmem_range_attribute(8);

/// The end of a link that a place stands for.
fn memory_of(place: Location) -> machine::Memory {
    match place {
        Location::Device(device) => machine::Memory::Device(device.0 as usize),
        Location::Host | Location::Node(_) => machine::Memory::Pinned,
    }
}

/// The links from one place to another: through the host if there is none between two devices. Enabled peer access does
/// not matter to managed memory.
fn passes(call: &Call, from: machine::Memory, to: machine::Memory) -> Vec<Pass> {
    use machine::Memory::{Device, Pinned};
    match (from, to) {
        (Device(_), Device(_)) if call.world.machine.way(from, to).is_none() => {
            vec![(from, Pinned), (Pinned, to)]
        }
        ends => vec![ends],
    }
}

/// The location that the older functions name by a device.
fn location_of(device: CUdevice) -> CUmemLocation {
    match device {
        CUdevice::CU_DEVICE_CPU => CUmemLocation::HOST,
        device => CUmemLocation::device(device.0),
    }
}

driver! {
    /// Zeros at first, and aligned to pages.
    fn cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint), call => {
        if dptr.is_null() {
            return Err(WRONG);
        }
        let base = call.state().allocate_managed(call, bytesize, flags)?;
        // SAFETY: the caller passes a valid out-pointer for an address.
        unsafe { put(dptr, base) }
    }

    /// `CU_DEVICE_CPU` is the host.
    fn cuMemPrefetchAsync(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream), call => {
        let location = location_of(dst_device);
        call.state().prefetch(call, (dev_ptr, count), location, h_stream)
    }

    /// A range of one allocation.
    fn cuMemPrefetchAsync_v2(
        dev_ptr: CUdeviceptr,
        count: usize,
        location: CUmemLocation,
        flags: c_uint,
        h_stream: CUstream,
    ), call => {
        if flags != 0 {
            return Err(WRONG);
        }
        call.state().prefetch(call, (dev_ptr, count), location, h_stream)
    }

    /// `CU_DEVICE_CPU` is the host.
    fn cuMemAdvise(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice), call => {
        call.state().advise((dev_ptr, count), advice, location_of(device))
    }

    /// Only advice that names a place looks at the location. Users are devices and the host as a whole.
    fn cuMemAdvise_v2(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation), call => {
        call.state().advise((dev_ptr, count), advice, location)
    }

    /// The hint that all pages of a range share.
    fn cuMemRangeGetAttribute(
        data: *mut c_void,
        data_size: usize,
        attribute: CUmem_range_attribute,
        dev_ptr: CUdeviceptr,
        count: usize,
    ), call => {
        let words = data_size / size_of::<c_int>();
        if data.is_null() || words == 0 || !data_size.is_multiple_of(size_of::<c_int>()) {
            return Err(WRONG);
        }
        let state = call.state();
        let part = state.managed_part(dev_ptr, count as u64)?;
        let values = state.range_attribute(&part, attribute, words)?;
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: the caller's array is as long as it says, and no more is written.
            let place = unsafe { data.cast::<c_int>().add(index) };
            // SAFETY: as above.
            unsafe { put(place, value) }?;
        }
        Ok(())
    }

    /// Attaches all of an allocation, which changes nothing on devices that use managed memory at the same time as the
    /// host. Memory of one stream needs a stream that was created, or the thread's default stream.
    fn cuStreamAttachMemAsync(h_stream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint), call => {
        let flags = CUmemAttach_flags(flags);
        flags.name().ok_or(WRONG)?;
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        state.unfinished(number)?;
        let legacy = matches!(h_stream, CUstream::NULL | CUstream::LEGACY);
        if flags == CUmemAttach_flags::CU_MEM_ATTACH_SINGLE && legacy {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let Some(at) = state.space.at(dptr) else {
            // Pageable memory needs CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS; on a device that has it, the effect of
            // the call is not modelled.
            let of_device = state.space.is_reserved(dptr);
            return Err(if of_device { WRONG } else { CUresult::CUDA_ERROR_NOT_SUPPORTED });
        };
        let whole = dptr == at.base && (length == 0 || length as u64 == at.size);
        if at.sort != Sort::Managed || !whole {
            return Err(WRONG);
        }
        let leg = at_once(Vec::new(), Action::Nothing);
        state.enqueue(call.world, h_stream, vec![leg])?;
        Ok(())
    }
}
