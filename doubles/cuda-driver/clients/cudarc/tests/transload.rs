//! Transload adopts memory that cudarc allocated; both use the same driver.

use std::sync::Arc;
use std::sync::mpsc::channel;

use bytemuck::AnyBitPattern;
use cudarc::driver::result::ctx;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, DevicePtr};
use transload::cuda_backend::cudarc::{Slice, event, stream};
use transload::cuda_backend::raw::Driver;
use transload::cuda_backend::{Cuda, StreamError};
use transload::{Buffer, Error, IntoInnerReason, Request, TransferManager};
use transload_double_cudarc::{control, counter, device, driver, in_own_process, load, pattern};

/// The host and the devices, through the driver that cudarc has loaded.
fn manager() -> TransferManager {
    load();
    let driver = Driver::load_from("libcuda.so.1").expect("it is on the loader's path");
    let cuda = Cuda::with_driver(driver).expect("the machine has devices");
    let builder = TransferManager::builder().host();
    builder.backend(Arc::new(cuda)).build().unwrap()
}

fn backend(manager: &TransferManager) -> Arc<Cuda> {
    manager.backend::<Cuda>().expect("it was registered")
}

fn adopt<T: AnyBitPattern>(
    manager: &TransferManager,
    place: &str,
    slice: CudaSlice<T>,
) -> Result<Buffer, Error> {
    let slice = Slice::new(slice).expect("its work ends well");
    // SAFETY: a `Slice` has no other owner.
    unsafe { manager.adopt_native(place.parse().unwrap(), slice) }
}

#[test]
fn a_slice_is_written_by_transfers_and_comes_back_with_their_bytes() {
    let manager = manager();
    let stream = device(0).new_stream().unwrap();
    let values: Vec<f32> = (0..10_000u16).map(f32::from).collect();
    let slice = stream.clone_htod(&values).unwrap();
    let (address, _) = slice.device_ptr(&stream);
    let buffer = adopt(&manager, "cuda:0", slice).unwrap();
    assert_eq!(buffer.len(), 40_000);
    assert_eq!(buffer.raw().position(), address, "it was not copied");

    let mut bytes = vec![0; 40_000];
    manager.copy_into_slice(&buffer, &mut bytes).unwrap();
    let wanted: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    assert!(bytes == wanted);
    manager
        .copy_from_slice(&[0; 4], buffer.slice(4..8).unwrap())
        .unwrap();

    let slice: CudaSlice<f32> = buffer.into_inner().unwrap();
    let back = stream.clone_dtoh(&slice).unwrap();
    assert_eq!((back[0], back[1], back[2]), (0.0, 0.0, 2.0));
    assert!(back[2..] == values[2..]);
    assert_eq!(counter("bytes device 0 -> device 1"), 0);
}

#[test]
fn an_adopted_slice_has_all_that_was_under_way_in_it() {
    let manager = manager();
    let context = device(0);
    let [first, second] = [0; 2].map(|_| context.new_stream().unwrap());
    let mut slice = first.alloc_zeros::<u8>(4 << 20).unwrap();
    let bytes = pattern(4 << 20, 7);
    // The copy uses another stream than its own, from pinned memory, so that no call has waited for it.
    // SAFETY: all byte values are valid.
    let mut pinned = unsafe { context.alloc_pinned::<u8>(4 << 20) }.unwrap();
    pinned.as_mut_slice().unwrap().copy_from_slice(&bytes);
    second.memcpy_htod(&pinned, &mut slice).unwrap();
    let buffer = adopt(&manager, "cuda:0", slice).unwrap();
    // A read that bypasses the order of both cudarc and Transload.
    let mut there = vec![0u8; 4 << 20];
    let place = there.as_mut_ptr().cast();
    let copied = driver!(cuMemcpyDtoH_v2(place, buffer.raw().position(), there.len()));
    assert_eq!(copied, CUresult::CUDA_SUCCESS);
    assert!(there == bytes);
}

#[test]
fn the_place_has_to_be_the_slices_own() {
    let manager = manager();
    let slice = device(1)
        .new_stream()
        .unwrap()
        .alloc_zeros::<u64>(8)
        .unwrap();
    let error = adopt(&manager, "cuda:0", slice).unwrap_err();
    assert!(error.to_string().contains("cuda:1/device"), "{error}");
    // SAFETY: it is refused.
    let error = unsafe { manager.adopt_native("cuda:0".parse().unwrap(), 5u8) }.unwrap_err();
    assert!(error.to_string().contains("an object"), "{error}");
}

#[test]
fn a_slice_comes_back_as_what_it_was_and_when_nobody_uses_it() {
    let manager = manager();
    let stream = device(0).new_stream().unwrap();
    let slice = stream.alloc_zeros::<f32>(8).unwrap();
    let buffer = adopt(&manager, "cuda:0", slice).unwrap();
    let error = buffer.into_inner::<CudaSlice<u8>>().unwrap_err();
    assert_eq!(error.reason, IntoInnerReason::OtherOwner);
    let view = error.buffer.clone();
    let error = error.buffer.into_inner::<CudaSlice<f32>>().unwrap_err();
    assert_eq!(error.reason, IntoInnerReason::InUse);
    drop(view);
    let slice = error.buffer.into_inner::<CudaSlice<f32>>().unwrap();
    assert_eq!(slice.len(), 8);
}

#[test]
fn taking_a_slice_over_leaves_the_threads_context_alone() {
    let manager = manager();
    let [slice, other] = [0; 2].map(|_| {
        let stream = device(0).new_stream().unwrap();
        stream.alloc_zeros::<u8>(64).unwrap()
    });
    // SAFETY: no context is one that may be current.
    unsafe { ctx::set_current(std::ptr::null_mut()) }.unwrap();
    let slice = Slice::new(slice).unwrap();
    assert_eq!(ctx::get_current().unwrap(), None);
    let second = device(1);
    second.bind_to_thread().unwrap();
    let before = ctx::get_current().unwrap();
    assert!(before.is_some());
    let other = Slice::new(other).unwrap();
    assert_eq!(ctx::get_current().unwrap(), before);
    // SAFETY: a `Slice` has no other owner.
    let buffer = unsafe { manager.adopt_native("cuda:0".parse().unwrap(), slice) }.unwrap();
    manager.copy_from_slice(&[1; 64], &buffer).unwrap();
    assert_eq!(ctx::get_current().unwrap(), before);
    drop(other);
}

#[test]
fn transfers_and_streams_wait_for_each_other() {
    let manager = manager();
    let cuda = backend(&manager);
    let context = device(0);
    let theirs = context.new_stream().unwrap();
    let slice = theirs.alloc_zeros::<u8>(1 << 20).unwrap();
    let source = adopt(&manager, "cuda:0", slice).unwrap();
    let place = "cuda:0".parse().unwrap();
    let target = manager
        .allocate(place, transload::AllocSpec::bytes(1 << 20))
        .unwrap();

    // The stream's own work, then a transfer, then work of the stream again, without a wait in between.
    let address = source.raw().position();
    let handle = theirs.cu_stream();
    assert_eq!(
        driver!(cuMemsetD8Async(address, 7, 1 << 20, handle)),
        CUresult::CUDA_SUCCESS
    );
    let done = manager.event();
    // SAFETY: the stream is cudarc's, and so is the driver.
    unsafe { cuda.when_done(stream(&theirs), done.setter()) }.unwrap();
    let mut transfer = manager.submit(&Request::new(&source, &target).after(&done));
    // Once the event is set, any thread that turns the engine submits the transfer.
    let fences = loop {
        if let Some(fences) = transfer.fences() {
            break fences;
        }
        manager.turn();
    };
    // SAFETY: as above.
    unsafe { cuda.follow(stream(&theirs), &fences) }.unwrap();
    let (from, to) = (target.raw().position(), address);
    let back = driver!(cuMemcpyDtoDAsync_v2(to, from, 1 << 20, handle));
    assert_eq!(back, CUresult::CUDA_SUCCESS);
    theirs.synchronize().unwrap();
    assert!(
        transfer
            .wait_timeout(std::time::Duration::MAX)
            .unwrap()
            .is_ok()
    );
    let mut bytes = vec![0; 1 << 20];
    manager.copy_into_slice(&source, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));

    let recorded = theirs.record_event(None).unwrap();
    let (tell, told) = channel();
    // SAFETY: the event lives until the end.
    unsafe { cuda.when_event(event(&recorded), move || tell.send(()).unwrap()) }.unwrap();
    told.recv().unwrap();
}

#[test]
fn a_slice_whose_work_failed_is_given_back() {
    if !in_own_process("a_slice_whose_work_failed_is_given_back", &[]) {
        return;
    }
    let manager = manager();
    let stream_of_slice = device(0).new_stream().unwrap();
    let mut slice = stream_of_slice.alloc_zeros::<u8>(4096).unwrap();
    stream_of_slice.synchronize().unwrap();
    control("fault ecc");
    let _ = stream_of_slice.memset_zeros(&mut slice);
    let error = Slice::new(slice).unwrap_err();
    assert_eq!(error.source.0, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_eq!(error.slice.len(), 4096);
    let cuda = backend(&manager);
    // SAFETY: the stream is cudarc's, and so is the driver.
    let refused = unsafe { cuda.when_done(stream(&stream_of_slice), || ()) };
    assert!(matches!(refused, Err(StreamError::Lost { .. })));
}
