//! The conformance suite over the driver's double, on machines of one, two and eight devices.
#![cfg(all(target_os = "linux", not(transload_local)))]

#[path = "all/common/mod.rs"]
mod common;

use std::time::Duration;

use common::ages::{AGES, driver_of};
use common::{assert_clean, backend, machine, made_up};
use transload_cuda::Cuda;
use transload_cuda::raw::Version;
use transload_hal::{Backend, Buffer, HostSpan};
use transload_testkit::conformance::{self, Exceptions, Harness, SIZES};

struct OfCuda(Cuda);

impl OfCuda {
    /// The driver's address of a byte of a buffer.
    fn address(buffer: &Buffer, offset: u64) -> u64 {
        buffer.position() + offset
    }
}

impl Harness for OfCuda {
    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    /// Fills by the driver's synchronous copies, which the backend never uses.
    fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> bool {
        if let Some(span) = buffer.host(offset, bytes.len() as u64) {
            // SAFETY: the suite fills buffers that no operation uses, and keeps them alive.
            unsafe { HostSpan::of(bytes).copy_to(span) };
            return true;
        }
        let driver = self.0.driver();
        let to = OfCuda::address(buffer, offset);
        let context = Context::of(&self.0, buffer);
        // SAFETY: the range lies within the buffer.
        let copied = unsafe { driver.cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) };
        copied.unwrap();
        // A copy from pageable memory returns before the bytes have arrived.
        // SAFETY: the call takes no arguments.
        unsafe { driver.cuCtxSynchronize() }.unwrap();
        drop(context);
        true
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> bool {
        if let Some(span) = buffer.host(offset, out.len() as u64) {
            // SAFETY: the suite reads buffers that no operation writes, and keeps them alive.
            unsafe { span.copy_to(HostSpan::of_mut(out)) };
            return true;
        }
        let driver = self.0.driver();
        let from = OfCuda::address(buffer, offset);
        let context = Context::of(&self.0, buffer);
        // SAFETY: the range lies within the buffer.
        let copied = unsafe { driver.cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), from, out.len()) };
        copied.unwrap();
        drop(context);
        true
    }

    /// Between more than two devices the long ones would show what they show between two.
    fn sizes(&self) -> Vec<u64> {
        let mut sizes = SIZES.to_vec();
        if self.0.inventory().devices.len() > 2 {
            sizes.retain(|size| *size < 1 << 16);
        }
        sizes
    }

    /// Yields the processor to the lanes' threads, for longer than the modelled links take.
    fn drive(&self) {
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_micros(200) {
            std::thread::yield_now();
        }
    }
}

/// The primary context of a buffer's device, as a user of the CUDA runtime sees it.
struct Context<'a> {
    cuda: &'a Cuda,
    device: transload_cuda::raw::CUdevice,
}

impl<'a> Context<'a> {
    fn of(cuda: &'a Cuda, buffer: &Buffer) -> Context<'a> {
        let device = transload_cuda::raw::CUdevice(buffer.memory().device.index as i32);
        let mut context = transload_cuda::raw::CUcontext::NULL;
        let driver = cuda.driver();
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, device) }.unwrap();
        // SAFETY: the context was retained.
        unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
        Context { cuda, device }
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        let mut popped = transload_cuda::raw::CUcontext::NULL;
        let driver = self.cuda.driver();
        // SAFETY: it was pushed above.
        unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) }.unwrap();
        // SAFETY: it was retained above.
        unsafe { driver.cuDevicePrimaryCtxRelease_v2(self.device) }.unwrap();
    }
}

fn conforms(cuda: Cuda) {
    let harness = OfCuda(cuda);
    let report = conformance::run(&harness, &Exceptions::none());
    println!("{report}");
    report.assert_passed();
    drop(harness);
    assert_clean();
}

#[test]
fn one_device_conforms() {
    conforms(backend(&[("DEVICES", "1")]));
}

#[test]
fn two_devices_without_peer_access_conform() {
    conforms(backend(&[("TOPOLOGY", &machine("no-peer"))]));
}

#[test]
fn two_devices_on_one_bus_conform() {
    conforms(backend(&[("TOPOLOGY", &machine("pcie-peer"))]));
}

#[test]
fn access_in_one_direction_conforms() {
    conforms(backend(&[("TOPOLOGY", &machine("one-way-peer"))]));
}

#[test]
fn eight_devices_on_a_switch_conform() {
    conforms(backend(&[("TOPOLOGY", &machine("nvlink-full"))]));
}

/// Two devices on one bus, and a driver of that version. What each version between has is in the tests `ages`; the machines
/// above have the newest.
fn conforms_on(age: Version) {
    assert!(AGES.contains(&age));
    let driver = driver_of(age, &[("TOPOLOGY", &machine("pcie-peer"))]);
    conforms(Cuda::with_driver(driver).unwrap());
}

#[test]
fn a_driver_of_11_0_conforms() {
    conforms_on(Version::new(11, 0));
}

#[test]
fn a_driver_of_12_4_conforms() {
    conforms_on(Version::new(12, 4));
}

/// One device walks the host's page tables; the other device and the host take turns in using managed memory.
#[test]
fn devices_that_reach_the_hosts_memory_otherwise_conform() {
    conforms(backend(&[("TOPOLOGY", &made_up("page-tables"))]));
}
