//! Which device it is, in the whole process.
//!
//! wgpu compares devices by numbers, which each `wgpu::Instance` counts anew. The driver's side of a device has an address of
//! its own, which all handles of the device share.

use std::sync::atomic::{AtomicUsize, Ordering};

use wgpu::hal::{Api, api};

/// The same number for handles of one device, and another one for each other device that is alive. Of a device that is driven
/// in a way unknown here each call makes up a new one.
pub(crate) fn of(device: &wgpu::Device) -> usize {
    address_of(device).unwrap_or_else(|| {
        /// Odd, as no address is.
        static OTHERS: AtomicUsize = AtomicUsize::new(1);
        OTHERS.fetch_add(2, Ordering::Relaxed)
    })
}

/// Whether both are handles of one device.
pub(crate) fn is_same(one: &wgpu::Device, other: &wgpu::Device) -> bool {
    one == other && address_of(one) == address_of(other)
}

fn address_of(device: &wgpu::Device) -> Option<usize> {
    match device.adapter_info().backend {
        #[cfg(any(
            windows,
            target_os = "linux",
            target_os = "android",
            target_os = "freebsd"
        ))]
        wgpu::Backend::Vulkan => address::<api::Vulkan>(device),
        #[cfg(any(
            windows,
            target_os = "linux",
            target_os = "android",
            target_os = "freebsd"
        ))]
        wgpu::Backend::Gl => address::<api::Gles>(device),
        #[cfg(windows)]
        wgpu::Backend::Dx12 => address::<api::Dx12>(device),
        #[cfg(target_vendor = "apple")]
        wgpu::Backend::Metal => address::<api::Metal>(device),
        wgpu::Backend::Noop => address::<api::Noop>(device),
        _ => None,
    }
}

fn address<A: Api>(device: &wgpu::Device) -> Option<usize> {
    // SAFETY: the driver's side is only looked at.
    let native = unsafe { device.as_hal::<A>() }?;
    Some(std::ptr::from_ref::<A::Device>(&native).addr())
}
