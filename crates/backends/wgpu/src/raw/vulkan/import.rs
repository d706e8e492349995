//! Buffers that show the host's own memory.
//!
//! Host memory is imported as `VK_EXT_external_memory_host` describes it: whole pages at an address,
//! which the device then reads and writes in place.

use std::ffi::c_void;
use std::sync::Arc;

use ash::ext::external_memory_host;
use ash::vk;
use transload_hal::{ErrorClass, Fault, HostSpan};
use wgpu::hal::api::Vulkan;

use super::types::Types;

/// The kind of host memory that is imported: allocations of the process.
const ALLOCATION: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// The usages that the two ends of a copy need.
const TRANSFER: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw() | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// Imports host memory into one device.
pub(crate) struct Importer {
    device: Arc<ash::Device>,
    extension: external_memory_host::Device,
    types: Types,
    page: u64,
}

impl Importer {
    /// Makes an importer for a device that was opened with the extension.
    ///
    /// # Errors
    /// The reason why the device imports no memory.
    pub(crate) fn of(device: &wgpu::Device) -> Result<Importer, &'static str> {
        // SAFETY: the device's handles are only looked at, and outlive what is made with them: see
        // `import`.
        let Some(native) = (unsafe { device.as_hal::<Vulkan>() }) else {
            return Err("it is not driven through Vulkan");
        };
        let name = external_memory_host::NAME;
        if !native.enabled_device_extensions().contains(&name) {
            return Err("it was opened without VK_EXT_external_memory_host");
        }
        let instance = native.shared_instance().raw_instance();
        let physical = native.raw_physical_device();
        let mut limits = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut limits);
        // SAFETY: the extension needs Vulkan 1.1, which has the call.
        unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
        Ok(Importer {
            device: Arc::new(native.raw_device().clone()),
            extension: external_memory_host::Device::new(instance, native.raw_device()),
            types: Types::of(&native),
            page: limits.min_imported_host_pointer_alignment,
        })
    }

    /// Start and length of imported memory must be multiples of this power of two.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// Makes a buffer of `gpu` that shows the pages, with the usages `COPY_SRC` and `COPY_DST`. `told`
    /// is called when the device no longer uses the pages: the buffer and every command that used it
    /// are dropped.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// `gpu` is the device that this was made for. The pages lie at a multiple of [`Importer::page`],
    /// at least one of them, and stay valid, for writes too if commands write the buffer, until `told`
    /// is called.
    pub(crate) unsafe fn import(
        &self,
        gpu: &wgpu::Device,
        pages: HostSpan,
        told: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<wgpu::Buffer, Fault> {
        debug_assert!((pages.addr() | pages.len() as u64).is_multiple_of(self.page));
        let size = pages.len() as u64;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(ALLOCATION);
        let info = vk::BufferCreateInfo::default()
            .size(size)
            .usage(TRANSFER)
            .push_next(&mut external);
        // SAFETY: the device lives as long as `gpu`.
        let made = unsafe { self.device.create_buffer(&info, None) };
        let buffer = made.map_err(|code| fault("vkCreateBuffer", code))?;
        // SAFETY: the caller's promises are passed on.
        let bound = unsafe { self.bind(buffer, pages) };
        let memory = match bound {
            Ok(memory) => memory,
            Err(fault) => {
                // SAFETY: no other code knows the buffer.
                unsafe { self.device.destroy_buffer(buffer, None) };
                return Err(fault);
            }
        };
        let device = Arc::clone(&self.device);
        let release = Box::new(move || {
            // SAFETY: wgpu calls this when the last command that used the buffer has ended, and keeps
            // the device until then.
            unsafe { device.destroy_buffer(buffer, None) };
            // SAFETY: as above; the buffer was all that it was bound to.
            unsafe { device.free_memory(memory, None) };
            told();
        });
        // SAFETY: the buffer is destroyed by `release` alone.
        let native =
            unsafe { wgpu::hal::vulkan::Buffer::from_raw_externally_owned(buffer, release) };
        let descriptor = wgpu::BufferDescriptor {
            label: Some("transload pages"),
            size,
            usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        // SAFETY: it is of this device, as long as described, and its bytes are initialized.
        Ok(unsafe { gpu.create_buffer_from_hal::<Vulkan>(native, &descriptor) })
    }

    /// # Safety
    /// As [`Importer::import`]; the buffer is new.
    unsafe fn bind(&self, buffer: vk::Buffer, pages: HostSpan) -> Result<vk::DeviceMemory, Fault> {
        let start = pages.as_ptr().cast::<c_void>();
        let mut host = vk::MemoryHostPointerPropertiesEXT::default();
        let ask = self.extension.fp().get_memory_host_pointer_properties_ext;
        // SAFETY: the pointer is the caller's, and the extension is enabled.
        let code = unsafe { ask(self.extension.device(), ALLOCATION, start, &mut host) };
        if code != vk::Result::SUCCESS {
            return Err(fault("vkGetMemoryHostPointerPropertiesEXT", code));
        }
        // SAFETY: the buffer is of this device.
        let needs = unsafe { self.device.get_buffer_memory_requirements(buffer) };
        let kinds = host.memory_type_bits & needs.memory_type_bits;
        let kind = self.types.seen_by_both(kinds);
        let Some(kind) = kind.filter(|_| needs.size <= pages.len() as u64) else {
            let message = "the driver has no coherent memory type for this host memory";
            return Err(Fault::new(ErrorClass::Unsupported, message));
        };
        let mut import = vk::ImportMemoryHostPointerInfoEXT::default()
            .handle_type(ALLOCATION)
            .host_pointer(start);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(pages.len() as u64)
            .memory_type_index(kind)
            .push_next(&mut import);
        // SAFETY: pointer, alignment and length are the caller's promise.
        let made = unsafe { self.device.allocate_memory(&info, None) };
        let memory = made.map_err(|code| fault("vkAllocateMemory", code))?;
        // SAFETY: both are new, of this device, and fit by the check above.
        if let Err(code) = unsafe { self.device.bind_buffer_memory(buffer, memory, 0) } {
            // SAFETY: nothing is bound to it.
            unsafe { self.device.free_memory(memory, None) };
            return Err(fault("vkBindBufferMemory", code));
        }
        Ok(memory)
    }
}

/// A refusal to import says nothing against the device, only against this memory, unless the device
/// is lost.
fn fault(call: &str, code: vk::Result) -> Fault {
    let class = match code {
        vk::Result::ERROR_DEVICE_LOST => ErrorClass::Lost,
        _ => ErrorClass::Unsupported,
    };
    Fault::new(class, format!("{call}: {code}")).with_code(i64::from(code.as_raw()))
}
