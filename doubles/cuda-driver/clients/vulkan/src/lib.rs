//! Buffers of wgpu whose memory other interfaces import, and the devices of this machine that have them.
//!
//! The tests show that the double of NVIDIA's driver accepts memory that Vulkan drivers export. That depends on each
//! driver: see the double's `external`.

use std::env;
use std::fs;
use std::io::Write as _;
use std::os::fd::{FromRawFd, OwnedFd};

use ash::{khr, vk};
use wgpu::hal::api::Vulkan;

/// A device that can export its memory, with its queue.
#[derive(Debug)]
pub struct Gpu {
    /// The device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
}

impl Gpu {
    /// Every device of this machine's Vulkan drivers that can export memory as a file descriptor.
    ///
    /// # Panics
    /// When a driver that says that it can does not open so.
    #[must_use]
    pub fn all() -> Vec<Gpu> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        let instance = wgpu::Instance::new(descriptor);
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let able = adapters.into_iter().filter(|adapter| {
            let features = adapter.features();
            features.contains(wgpu::Features::VULKAN_EXTERNAL_MEMORY_FD)
        });
        able.map(|adapter| {
            let descriptor = wgpu::DeviceDescriptor {
                required_features: wgpu::Features::VULKAN_EXTERNAL_MEMORY_FD,
                ..Default::default()
            };
            let opened = pollster::block_on(adapter.request_device(&descriptor));
            let (device, queue) = opened.expect("a feature that the adapter has");
            Gpu { device, queue }
        })
        .collect()
    }

    /// What the driver calls the device.
    #[must_use]
    pub fn name(&self) -> String {
        self.device.adapter_info().name
    }

    /// A buffer that can be copied from and to, with its memory as a file descriptor.
    ///
    /// # Errors
    /// What the driver says.
    pub fn exported(&self, size: u64) -> Result<Exported, vk::Result> {
        // SAFETY: the device's handles are only used while it lives: the buffer that is made holds it.
        let native = unsafe { self.device.as_hal::<Vulkan>() };
        let native = native.ok_or(vk::Result::ERROR_INCOMPATIBLE_DRIVER)?;
        let device = native.raw_device().clone();
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(OPAQUE_FD);
        let info = vk::BufferCreateInfo::default()
            .size(size)
            .usage(vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST)
            .push_next(&mut external);
        // SAFETY: the device lives, here and below.
        let buffer = unsafe { device.create_buffer(&info, None) }?;
        // SAFETY: as above.
        let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(OPAQUE_FD);
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(needs.memory_type_bits.trailing_zeros())
            .push_next(&mut export)
            .push_next(&mut dedicated);
        // SAFETY: the type is one that the buffer may lie in.
        let memory = unsafe { device.allocate_memory(&info, None) }?;
        // SAFETY: both are new, and fit by the buffer's requirements.
        unsafe { device.bind_buffer_memory(buffer, memory, 0) }?;
        let instance = native.shared_instance().raw_instance();
        let extension = khr::external_memory_fd::Device::new(instance, &device);
        let wanted = vk::MemoryGetFdInfoKHR::default()
            .memory(memory)
            .handle_type(OPAQUE_FD);
        // SAFETY: the memory was allocated to be given out so, and the extension came with the feature.
        let fd = unsafe { extension.get_memory_fd(&wanted) }?;
        // SAFETY: the driver gave it to us.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let release = Box::new(move || {
            // SAFETY: wgpu calls this when the last command that used the buffer has ended, and keeps the device
            // until then.
            unsafe { device.destroy_buffer(buffer, None) };
            // SAFETY: as above; the buffer was all that was bound to it.
            unsafe { device.free_memory(memory, None) };
        });
        // SAFETY: the buffer is destroyed by `release` alone.
        let wrapped =
            unsafe { wgpu::hal::vulkan::Buffer::from_raw_externally_owned(buffer, release) };
        drop(native);
        let descriptor = wgpu::BufferDescriptor {
            label: Some("exported"),
            size,
            usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        // SAFETY: it is of this device and as long as described. Its bytes are what the driver made them: tests
        // write before they read.
        let buffer = unsafe {
            self.device
                .create_buffer_from_hal::<Vulkan>(wrapped, &descriptor)
        };
        Ok(Exported {
            buffer,
            file,
            memory_bytes: needs.size,
        })
    }
}

/// A buffer with memory of its own that other interfaces import.
#[derive(Debug)]
pub struct Exported {
    /// The buffer.
    pub buffer: wgpu::Buffer,
    /// Its memory.
    pub file: OwnedFd,
    /// The size of the memory, which is no less than the buffer's.
    pub memory_bytes: u64,
}

const OPAQUE_FD: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

/// Reports that a test shows nothing on this machine, and the reason: on standard error, and in the file that
/// `TRANSLOAD_SKIPS` names, which `cargo xtask test` reads.
pub fn skip(test: &str, why: &str) {
    eprintln!("{test} skipped: {why}");
    let Some(path) = env::var_os("TRANSLOAD_SKIPS") else {
        return;
    };
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    let told = file.and_then(|mut file| writeln!(file, "{test}: {why}"));
    if let Err(error) = told {
        eprintln!("that was not told: {error}");
    }
}
