//! Device memory that the host sees all the time, where both have the same memory.
//!
//! wgpu maps such buffers, too, but only while the device does not use them, and asks its user to unmap
//! them before each submission. Here the mapping stays, and the engine orders the accesses of host and
//! device to the bytes.

use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;
use transload_hal::{ErrorClass, Fault, HostSpan};
use wgpu::hal::api::Vulkan;

use super::types::Types;
use crate::exit::DriverObject;

/// All that buffers may be used for without a feature.
const USAGES: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw()
        | vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_BUFFER.as_raw()
        | vk::BufferUsageFlags::VERTEX_BUFFER.as_raw()
        | vk::BufferUsageFlags::INDEX_BUFFER.as_raw()
        | vk::BufferUsageFlags::INDIRECT_BUFFER.as_raw(),
);

/// Makes mapped buffers of one device.
pub(crate) struct Mapper {
    device: Arc<ash::Device>,
    types: Types,
}

/// Keeps the memory of a mapped buffer, even when its user destroys the buffer. It goes before its device.
pub(crate) type MemoryLease = DriverObject<(Arc<Memory>, wgpu::Device, wgpu::Queue)>;

pub(crate) struct Memory {
    device: Arc<ash::Device>,
    memory: vk::DeviceMemory,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the buffer that was bound to it is destroyed: its release holds the memory. The
        // device lives: its lease holds it, and so does wgpu while it releases a buffer. What is mapped
        // is unmapped by this.
        unsafe { self.device.free_memory(self.memory, None) };
    }
}

impl Mapper {
    /// For a device whose memory is the host's memory; `None` for others.
    pub(crate) fn of(device: &wgpu::Device) -> Option<Mapper> {
        let unified = [wgpu::DeviceType::Cpu, wgpu::DeviceType::IntegratedGpu];
        if !unified.contains(&device.adapter_info().device_type) {
            return None;
        }
        // SAFETY: the device's handles are only looked at.
        let native = unsafe { device.as_hal::<Vulkan>() }?;
        let types = Types::of(&native);
        types.shared(u32::MAX)?;
        Some(Mapper {
            device: Arc::new(native.raw_device().clone()),
            types,
        })
    }

    /// A buffer of `size` bytes, all 0, with every usage that needs no feature, and where the host
    /// sees it as long as the lease lives. `usage` is what wgpu may be asked to do with it.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// `device` is the one that this was made for, and `queue` its queue; `size` is not 0; `usage` needs no feature.
    pub(crate) unsafe fn allocate(
        &self,
        (device, queue): (&wgpu::Device, &wgpu::Queue),
        size: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<(wgpu::Buffer, HostSpan, MemoryLease), Fault> {
        let info = vk::BufferCreateInfo::default().size(size).usage(USAGES);
        // SAFETY: the device lives as long as `device`.
        let made = unsafe { self.device.create_buffer(&info, None) };
        let buffer = made.map_err(|code| fault("vkCreateBuffer", code))?;
        // SAFETY: it is new, and of this device.
        let bound = unsafe { self.bind(buffer, size) };
        let (memory, span) = match bound {
            Ok(bound) => bound,
            Err(fault) => {
                // SAFETY: no other code knows the buffer.
                unsafe { self.device.destroy_buffer(buffer, None) };
                return Err(fault);
            }
        };
        // SAFETY: the mapping is new, and no other code knows it.
        unsafe { span.fill(0) };
        let memory = Arc::new(memory);
        let (raw, kept) = (Arc::clone(&self.device), Arc::clone(&memory));
        let release = Box::new(move || {
            // SAFETY: wgpu calls this when the last command that used the buffer has ended, and keeps
            // the device until then.
            unsafe { raw.destroy_buffer(buffer, None) };
            drop(kept);
        });
        // SAFETY: the buffer is destroyed by `release` alone.
        let native =
            unsafe { wgpu::hal::vulkan::Buffer::from_raw_externally_owned(buffer, release) };
        let descriptor = wgpu::BufferDescriptor {
            label: Some("transload mapped"),
            size,
            usage,
            mapped_at_creation: false,
        };
        // SAFETY: it is of this device, as described, and its bytes are written.
        let made = unsafe { device.create_buffer_from_hal::<Vulkan>(native, &descriptor) };
        let lease = DriverObject::new((memory, device.clone(), queue.clone()));
        Ok((made, span, lease))
    }

    /// # Safety
    /// The buffer is new and of this device.
    unsafe fn bind(&self, buffer: vk::Buffer, size: u64) -> Result<(Memory, HostSpan), Fault> {
        // SAFETY: the caller's promise.
        let needs = unsafe { self.device.get_buffer_memory_requirements(buffer) };
        let Some(kind) = self.types.shared(needs.memory_type_bits) else {
            let message = "the driver has no memory type that host and device share for a buffer";
            return Err(Fault::new(ErrorClass::Unsupported, message));
        };
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(kind);
        // SAFETY: the type is one of this device.
        let made = unsafe { self.device.allocate_memory(&info, None) };
        let memory = Memory {
            device: Arc::clone(&self.device),
            memory: made.map_err(|code| fault("vkAllocateMemory", code))?,
        };
        let all = vk::MemoryMapFlags::empty();
        // SAFETY: it is visible to the host, by its type, and not mapped yet.
        let mapped = unsafe {
            self.device
                .map_memory(memory.memory, 0, vk::WHOLE_SIZE, all)
        };
        let start = mapped.map_err(|code| fault("vkMapMemory", code))?;
        // SAFETY: both are new, of this device, and fit by their requirements.
        let bound = unsafe { self.device.bind_buffer_memory(buffer, memory.memory, 0) };
        bound.map_err(|code| fault("vkBindBufferMemory", code))?;
        match (NonNull::new(start.cast::<u8>()), usize::try_from(size)) {
            (Some(start), Ok(len)) => Ok((memory, HostSpan::new(start, len))),
            _ => Err(fault("vkMapMemory", vk::Result::ERROR_MEMORY_MAP_FAILED)),
        }
    }
}

fn fault(call: &str, code: vk::Result) -> Fault {
    let class = match code {
        vk::Result::ERROR_DEVICE_LOST => ErrorClass::Lost,
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
            ErrorClass::Exhausted
        }
        _ => ErrorClass::Failed,
    };
    Fault::new(class, format!("{call}: {code}")).with_code(i64::from(code.as_raw()))
}
