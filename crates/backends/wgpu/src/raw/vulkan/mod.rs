//! What wgpu does not say of Vulkan.

mod import;
mod mapped;
mod types;

pub(crate) use import::Importer;
pub(crate) use mapped::Mapper;

use ash::ext::external_memory_host;
use wgpu::hal::api::Vulkan;

/// Opens a device that can import host memory; `None` where the adapter, or its driver, cannot.
pub(crate) fn open(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    // SAFETY: the adapter's handle is only looked at.
    let native = unsafe { adapter.as_hal::<Vulkan>() }?;
    let name = external_memory_host::NAME;
    if !native
        .physical_device_capabilities()
        .supports_extension(name)
    {
        return None;
    }
    let add = Box::new(
        move |arguments: wgpu::hal::vulkan::CreateDeviceCallbackArgs<'_, '_, '_>| {
            arguments.extensions.push(name);
        },
    );
    // SAFETY: the extension is there, and adding it takes nothing away.
    let opened = unsafe {
        native.open_with_callback(
            descriptor.required_features,
            &descriptor.required_limits,
            &descriptor.memory_hints,
            Some(add),
        )
    }
    .ok()?;
    drop(native);
    // SAFETY: it was just opened, by this adapter and with these features.
    unsafe { adapter.create_device_from_hal::<Vulkan>(opened, descriptor) }.ok()
}
