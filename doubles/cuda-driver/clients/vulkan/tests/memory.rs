//! The double of NVIDIA's driver imports memory that wgpu exports.

use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::mpsc;

use transload_cuda::raw::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_DEDICATED,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUcontext, CUdevice, CUdeviceptr, CUexternalMemory,
    CUexternalMemoryHandleType, CUresult, CallError, Driver, ExternalHandle,
};
use transload_double_vulkan::{Gpu, skip};

const SIZE: u64 = 100_000;

fn double() -> Driver {
    // SAFETY: the functions are the double's, which stay loaded.
    let driver = unsafe { Driver::from_table(cuda::table(), "the double") };
    // SAFETY: flags are zero.
    unsafe { driver.cuInit(0) }.unwrap();
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(0)) }.unwrap();
    // SAFETY: the context is the driver's.
    unsafe { driver.cuCtxSetCurrent(context) }.unwrap();
    driver
}

/// Takes the file descriptor over if it succeeds.
fn import(driver: &Driver, fd: i32, size: u64) -> Result<CUexternalMemory, CallError> {
    let desc = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
        type_: CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
        handle: ExternalHandle { fd },
        size,
        flags: CUDA_EXTERNAL_MEMORY_DEDICATED,
        reserved: [0; 16],
    };
    let mut memory = CUexternalMemory::NULL;
    // SAFETY: the out-pointers are local variables.
    unsafe { driver.cuImportExternalMemory(&raw mut memory, &desc) }.map(|()| memory)
}

fn buffer(driver: &Driver, memory: CUexternalMemory, size: u64) -> CUdeviceptr {
    let desc = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        size,
        ..Default::default()
    };
    let mut address = 0;
    // SAFETY: the places are ours, and the memory is the driver's.
    unsafe { driver.cuExternalMemoryGetMappedBuffer(&raw mut address, memory, &desc) }.unwrap();
    address
}

/// Bytes that no shift and no other seed has.
fn pattern(seed: u32) -> Vec<u8> {
    let bytes = (0..SIZE as u32).map(|at| (at.wrapping_mul(2_654_435_761) ^ seed) >> 13);
    bytes.map(|word| word as u8).collect()
}

fn finish(gpu: &Gpu, submitted: wgpu::SubmissionIndex) {
    let until = wgpu::PollType::Wait {
        submission_index: Some(submitted),
        timeout: None,
    };
    gpu.device.poll(until).unwrap();
}

/// The bytes that the device itself reads from a buffer.
fn read(gpu: &Gpu, src: &wgpu::Buffer) -> Vec<u8> {
    let dst = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: SIZE,
        usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
        mapped_at_creation: false,
    });
    let mut commands = gpu.device.create_command_encoder(&Default::default());
    commands.copy_buffer_to_buffer(src, 0, &dst, 0, SIZE);
    let submitted = gpu.queue.submit([commands.finish()]);
    let (sender, receiver) = mpsc::channel();
    dst.map_async(wgpu::MapMode::Read, .., move |mapped| {
        sender.send(mapped).unwrap()
    });
    finish(gpu, submitted);
    receiver.recv().unwrap().unwrap();
    dst.get_mapped_range(..).unwrap().to_vec()
}

#[test]
fn bytes_are_equal_both_ways() {
    let gpus = Gpu::all();
    if gpus.is_empty() {
        let why = "no Vulkan driver here gives memory out as a file descriptor";
        return skip("bytes_are_equal_both_ways", why);
    }
    let driver = double();
    for gpu in gpus {
        let exported = gpu.exported(SIZE).unwrap();
        let fd = exported.file.as_raw_fd();
        let refused = import(&driver, fd, exported.memory_bytes + (1 << 20)).unwrap_err();
        assert!(refused.is(CUresult::CUDA_ERROR_INVALID_VALUE), "{refused}");
        let fd = exported.file.into_raw_fd();
        let memory = import(&driver, fd, exported.memory_bytes).unwrap();
        let address = buffer(&driver, memory, SIZE);

        let from_vulkan = pattern(1);
        gpu.queue.write_buffer(&exported.buffer, 0, &from_vulkan);
        finish(&gpu, gpu.queue.submit([]));
        let mut seen = vec![0; SIZE as usize];
        // SAFETY: the buffer has that length.
        unsafe { driver.cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), address, seen.len()) }.unwrap();
        assert!(seen == from_vulkan, "{}: from Vulkan to CUDA", gpu.name());

        let from_cuda = pattern(2);
        // SAFETY: the buffer has that length.
        unsafe { driver.cuMemcpyHtoD_v2(address, from_cuda.as_ptr().cast(), from_cuda.len()) }
            .unwrap();
        // SAFETY: no argument is a pointer.
        unsafe { driver.cuCtxSynchronize() }.unwrap();
        let seen = read(&gpu, &exported.buffer);
        assert!(seen == from_cuda, "{}: from CUDA to Vulkan", gpu.name());

        // SAFETY: the address is ours, and nothing uses it.
        unsafe { driver.cuMemFree_v2(address) }.unwrap();
        // SAFETY: the memory is the test's, and nothing of it is mapped.
        unsafe { driver.cuDestroyExternalMemory(memory) }.unwrap();
        println!("{}: equal", gpu.name());
    }
}
