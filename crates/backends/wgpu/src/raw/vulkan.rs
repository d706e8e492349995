//! Facts about Vulkan that wgpu does not show.

mod import;
mod mapped;
mod types;

pub(crate) use import::Importer;
pub(crate) use mapped::Mapper;

use ash::ext::external_memory_host;
use ash::{khr, vk};
use transload_hal::Uuid;
use wgpu::hal;
use wgpu::hal::api::Vulkan;

/// Makes an instance that knows no windows, and so connects to no display. `None` where there is no Vulkan.
///
/// If an instance can show windows, Mesa's layer for the choice of a device (`VK_LAYER_MESA_device_select`) asks the
/// compositor which device it draws with. libwayland then writes to standard error if there is none.
pub(crate) fn instance(descriptor: &wgpu::InstanceDescriptor) -> Option<wgpu::Instance> {
    const WINDOWS: [&std::ffi::CStr; 3] = [
        khr::wayland_surface::NAME,
        khr::xcb_surface::NAME,
        khr::xlib_surface::NAME,
    ];
    let leave_out = Box::new(
        |arguments: hal::vulkan::CreateInstanceCallbackArgs<'_, '_, '_>| {
            arguments.extensions.retain(|name| !WINDOWS.contains(name));
        },
    );
    let descriptor = hal::InstanceDescriptor {
        name: "transload",
        flags: descriptor.flags,
        memory_budget_thresholds: descriptor.memory_budget_thresholds,
        backend_options: descriptor.backend_options.clone(),
        telemetry: None,
        display: None,
    };
    // SAFETY: wgpu uses these extensions only to make a surface for a window, and looks first whether they are enabled.
    // No other extension that it enables needs them.
    let native =
        unsafe { hal::vulkan::Instance::init_with_callback(&descriptor, Some(leave_out)) }.ok()?;
    // SAFETY: it was just made.
    Some(unsafe { wgpu::Instance::from_hal::<Vulkan>(native) })
}

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
        move |arguments: hal::vulkan::CreateDeviceCallbackArgs<'_, '_, '_>| {
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

/// The device's UUID, which is the same in every interface and process; `None` where the driver, or its
/// version of Vulkan, has none.
pub(crate) fn uuid(device: &wgpu::Device) -> Option<Uuid> {
    // SAFETY: the device's handles are only looked at.
    let native = unsafe { device.as_hal::<Vulkan>() }?;
    let instance = native.shared_instance().raw_instance();
    let physical = native.raw_physical_device();
    // SAFETY: both are of one instance, which lives.
    let properties = unsafe { instance.get_physical_device_properties(physical) };
    let version = properties
        .api_version
        .min(native.shared_instance().instance_api_version());
    if version < vk::API_VERSION_1_1 {
        return None;
    }
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut ids);
    // SAFETY: as above; the version has the call.
    unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
    (ids.device_uuid != [0; vk::UUID_SIZE]).then_some(Uuid(ids.device_uuid))
}
