//! Independence of lanes and devices: waits between lanes, and the effect of one device's loss on the others.

use crate::common;

use common::work::{Works, copy, device, part, pattern, pinned, whole};
use common::{backend, calls, control, machine};
use transload_cuda::Cuda;
use transload_cuda::raw::CUdevice;
use transload_hal::{Backend, Buffer, ConnectError, ErrorClass, Fault, Op, SubmitError};

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;

/// Two devices that reach each other, and a buffer of each.
fn two_devices() -> (Works, [Buffer; 2]) {
    let works = Works::new(backend(&[("TOPOLOGY", &machine("pcie-peer"))]));
    let buffers = [0, 1].map(|number| works.allocate(device(number), KIB));
    works.cuda.connect(device(0), device(1)).unwrap();
    works.run(&[copy(&buffers[0], &buffers[1])]);
    (works, buffers)
}

/// Asserts that device 0 still works.
fn assert_works(works: &Works, buffer: &Buffer) {
    works.upload(buffer, &pattern(3, KIB));
    assert_eq!(works.download(buffer), pattern(3, KIB));
}

fn failure(result: Result<impl Sized, SubmitError>) -> Fault {
    match result.err() {
        Some(SubmitError::Refused(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_backend_goes_while_a_lane_is_stuck_and_another_has_memory_of_its_own() {
    let works = Works::new(backend(&[]));
    let buffer = works.allocate(device(0), 8 * MIB as usize);
    let host = works.allocate(pinned(), KIB);
    let (from, to) = (part(&buffer, 0, 4 * MIB), part(&buffer, 4096, 4 * MIB));
    works.run(&[Op::Copy { src: from, dst: to }]);
    assert_eq!(calls("cuMemAlloc_v2"), 1, "the lane's own");
    control("fault stuck").unwrap();
    let dst = part(&buffer, 0, KIB as u64);
    let src = whole(&host);
    works.submit(&[Op::Copy { src, dst }]).unwrap();
    // The copy never ends.
    std::mem::forget((buffer, host));
    drop(works);
}

#[test]
fn a_device_is_not_lost_with_the_one_that_it_copies_to() {
    let (works, [own, other]) = two_devices();
    let driver: &Cuda = &works.cuda;
    // SAFETY: that device has no work in flight.
    unsafe { driver.driver().cuDevicePrimaryCtxReset_v2(CUdevice(1)) }.unwrap();
    let fault = failure(works.submit(&[copy(&own, &other)]));
    assert_eq!(fault.class, ErrorClass::Failed, "{fault}");
    assert_works(&works, &own);
}

#[test]
fn a_device_is_not_lost_with_one_that_it_cannot_be_connected_to() {
    let (works, [own, _other]) = two_devices();
    // The driver's answer for a context that is not current.
    control("fault call=cuCtxEnablePeerAccess:201").unwrap();
    match works.cuda.connect(device(0), device(1)) {
        Err(ConnectError::Failed { fault, .. }) => assert_eq!(fault.class, ErrorClass::Failed),
        other => panic!("{other:?}"),
    }
    assert_works(&works, &own);
}
