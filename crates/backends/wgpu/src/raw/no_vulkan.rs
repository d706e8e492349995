//! Where wgpu knows no Vulkan, nothing is imported.

use transload_hal::{Fault, HostSpan};

/// Imports nothing.
pub(crate) enum Importer {}

pub(crate) fn open(
    _: &wgpu::Adapter,
    _: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    None
}

impl Importer {
    pub(crate) fn of(_: &wgpu::Device) -> Result<Importer, &'static str> {
        Err("on this system it is not driven through Vulkan")
    }

    pub(crate) fn page(&self) -> u64 {
        match *self {}
    }

    /// # Safety
    /// It is never called.
    pub(crate) unsafe fn import(
        &self,
        _: &wgpu::Device,
        _: HostSpan,
        _: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<wgpu::Buffer, Fault> {
        match *self {}
    }
}
