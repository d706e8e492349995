//! Stand-ins for builds in which wgpu has no Vulkan: nothing is imported, and nothing stays mapped.

use transload_hal::{Fault, HostSpan, Uuid};

/// Imports nothing.
pub(crate) enum Importer {}

pub(crate) fn instance(_: &wgpu::InstanceDescriptor) -> Option<wgpu::Instance> {
    None
}

pub(crate) fn open(
    _: &wgpu::Adapter,
    _: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    None
}

pub(crate) fn uuid(_: &wgpu::Device) -> Option<Uuid> {
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

/// Maps nothing.
pub(crate) enum Mapper {}

/// Keeps nothing.
pub(crate) type MemoryLease = crate::exit::DriverObject<std::convert::Infallible>;

impl Mapper {
    pub(crate) fn of(_: &wgpu::Device) -> Option<Mapper> {
        None
    }

    /// # Safety
    /// It is never called.
    pub(crate) unsafe fn allocate(
        &self,
        _: (&wgpu::Device, &wgpu::Queue),
        _: u64,
        _: wgpu::BufferUsages,
    ) -> Result<(wgpu::Buffer, HostSpan, MemoryLease), Fault> {
        match *self {}
    }
}
