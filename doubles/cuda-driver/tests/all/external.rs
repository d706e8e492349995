//! Memory of other interfaces.

use crate::common;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use common::{control, machine, machine_in_context, refused};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use transload_cuda::raw::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_DEDICATED,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUcontext, CUdevice, CUdeviceptr, CUexternalMemory,
    CUexternalMemoryHandleType, CUipcMemHandle, CUresult, CallError, Driver, ExternalHandle,
};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NO_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;

fn memory(len: u64) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

fn describe(fd: RawFd, size: u64) -> CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
        type_: CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
        handle: ExternalHandle { fd },
        size,
        flags: CUDA_EXTERNAL_MEMORY_DEDICATED,
        reserved: [0; 16],
    }
}

fn import(
    driver: &Driver,
    desc: &CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> Result<CUexternalMemory, CallError> {
    let mut handle = CUexternalMemory::NULL;
    // SAFETY: the places are ours; the file is given away where this succeeds.
    unsafe { driver.cuImportExternalMemory(&raw mut handle, desc) }.map(|()| handle)
}

/// Gives a file of that size away.
fn imported(driver: &Driver, file: OwnedFd, size: u64) -> CUexternalMemory {
    import(driver, &describe(file.into_raw_fd(), size)).unwrap()
}

fn buffer(
    driver: &Driver,
    memory: CUexternalMemory,
    offset: u64,
    size: u64,
) -> Result<CUdeviceptr, CallError> {
    let desc = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        offset,
        size,
        ..Default::default()
    };
    let mut address = 0;
    // SAFETY: the out-pointers are local variables; the double refuses anything that is no memory.
    let answer = unsafe { driver.cuExternalMemoryGetMappedBuffer(&raw mut address, memory, &desc) };
    answer.map(|()| address)
}

fn destroy(driver: &Driver, memory: CUexternalMemory) -> Result<(), CallError> {
    // SAFETY: the double refuses anything that is no memory.
    unsafe { driver.cuDestroyExternalMemory(memory) }
}

fn free(driver: &Driver, address: CUdeviceptr) -> Result<(), CallError> {
    // SAFETY: the double refuses anything that is no address.
    unsafe { driver.cuMemFree_v2(address) }
}

fn fill(driver: &Driver, address: CUdeviceptr, byte: u8, len: usize) {
    // SAFETY: the address is ours.
    unsafe { driver.cuMemsetD8_v2(address, byte, len) }.unwrap();
    // SAFETY: no argument is a pointer.
    unsafe { driver.cuCtxSynchronize() }.unwrap();
}

fn read(driver: &Driver, address: CUdeviceptr, len: usize) -> Result<Vec<u8>, CallError> {
    let mut bytes = vec![0; len];
    // SAFETY: the buffer has that length.
    unsafe { driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, len) }.map(|()| bytes)
}

#[test]
fn bytes_are_those_of_the_file() {
    let driver = machine_in_context(&[]);
    let file = memory(10_000);
    let ours = File::from(file.as_fd().try_clone_to_owned().unwrap());
    ours.write_all_at(b"from the other interface", 5000)
        .unwrap();
    let memory = imported(&driver, file, 9000);
    let whole = buffer(&driver, memory, 0, 9000).unwrap();
    let part = buffer(&driver, memory, 4900, 200).unwrap();
    assert_eq!(
        read(&driver, whole + 5000, 24).unwrap(),
        b"from the other interface"
    );
    assert_eq!(
        read(&driver, part + 100, 24).unwrap(),
        b"from the other interface"
    );
    assert_eq!(part % 4, 4900 % 4);
    fill(&driver, part, 7, 100);
    let mut seen = [0; 102];
    ours.read_exact_at(&mut seen, 4899).unwrap();
    assert_eq!(
        (seen[0], &seen[1..101], seen[101]),
        (0, &[7; 100][..], b'f')
    );
    assert_eq!(refused(read(&driver, whole + 8999, 2).map(drop)), INVALID);
    let mut handle = CUipcMemHandle::default();
    // SAFETY: the out-pointer is a local variable.
    let shared = unsafe { driver.cuIpcGetMemHandle(&raw mut handle, whole) };
    assert_eq!(refused(shared), INVALID, "it is not of cuMemAlloc");

    assert_eq!(control("leaks").unwrap().matches("xternal").count(), 3);
    free(&driver, part).unwrap();
    destroy(&driver, memory).unwrap();
    assert_eq!(refused(destroy(&driver, memory)), NO_HANDLE);
    assert_eq!(refused(buffer(&driver, memory, 0, 1).map(drop)), NO_HANDLE);
    assert_eq!(
        read(&driver, whole + 5000, 4).unwrap(),
        b"from",
        "it is freed by itself"
    );
    free(&driver, whole).unwrap();
    assert_eq!(refused(free(&driver, whole)), INVALID);
    assert_eq!(control("leaks").unwrap().lines().count(), 1, "the context");
}

#[test]
fn memory_after_a_header_is_found() {
    let driver = machine_in_context(&[]);
    let file = memory(3 * 4096);
    let ours = File::from(file.as_fd().try_clone_to_owned().unwrap());
    ours.write_all_at(&(3 * 4096u64).to_le_bytes(), 0).unwrap();
    ours.write_all_at(&4096u64.to_le_bytes(), 8).unwrap();
    ours.write_all_at(b"memory", 4096).unwrap();
    let fd = file.as_raw_fd();
    let desc = describe(fd, 2 * 4096 + 1);
    assert_eq!(
        refused(import(&driver, &desc).map(drop)),
        INVALID,
        "the header is no memory"
    );
    let memory = imported(&driver, file, 2 * 4096);
    let whole = buffer(&driver, memory, 0, 2 * 4096).unwrap();
    assert_eq!(read(&driver, whole, 6).unwrap(), b"memory");
}

#[test]
fn a_file_is_given_away_by_success_alone() {
    let driver = machine_in_context(&[]);
    let is_open = |fd: RawFd| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok();
    let file = memory(4096);
    let fd = file.as_raw_fd();
    let refusal = |change: &dyn Fn(&mut CUDA_EXTERNAL_MEMORY_HANDLE_DESC)| {
        let mut desc = describe(fd, 4096);
        change(&mut desc);
        let answer = refused(import(&driver, &desc).map(drop));
        assert!(is_open(fd));
        answer
    };
    use CUexternalMemoryHandleType as Type;
    assert_eq!(refusal(&|desc| desc.size = 4097), INVALID);
    assert_eq!(refusal(&|desc| desc.size = 0), INVALID);
    assert_eq!(refusal(&|desc| desc.flags = 2), INVALID);
    assert_eq!(refusal(&|desc| desc.type_ = Type(0)), INVALID);
    assert_eq!(refusal(&|desc| desc.type_ = Type(10)), INVALID);
    let not_modelled = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    let windows = Type::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32;
    assert_eq!(refusal(&|desc| desc.type_ = windows), not_modelled);
    let dma_buf = Type::CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD;
    assert_eq!(refusal(&|desc| desc.type_ = dma_buf), not_modelled);
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(
        refusal(&|desc| desc.handle.fd = reader.as_raw_fd()),
        NO_HANDLE
    );
    assert_eq!(refusal(&|desc| desc.handle.fd = -1), NO_HANDLE);
    assert_eq!(refusal(&|desc| desc.handle.fd = 100_000), NO_HANDLE);
    imported(&driver, file, 4096);
    assert!(!is_open(fd));
}

#[test]
fn a_buffer_lies_within_its_memory() {
    let driver = machine(&[]);
    let file = memory(4096);
    let desc = describe(file.as_raw_fd(), 4096);
    let none = CUresult::CUDA_ERROR_INVALID_CONTEXT;
    assert_eq!(refused(import(&driver, &desc).map(drop)), none);
    common::enter(&driver, 0);
    let memory = imported(&driver, file, 4000);
    let refusal = |offset, size| refused(buffer(&driver, memory, offset, size).map(drop));
    assert_eq!(refusal(0, 0), INVALID);
    assert_eq!(refusal(0, 4001), INVALID);
    assert_eq!(refusal(3999, 2), INVALID);
    assert_eq!(refusal(u64::MAX, 2), INVALID);
    buffer(&driver, memory, 3999, 1).unwrap();
    let flagged = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        size: 1,
        flags: 1,
        ..Default::default()
    };
    let mut address = 0;
    // SAFETY: the out-pointers are local variables.
    let answer =
        unsafe { driver.cuExternalMemoryGetMappedBuffer(&raw mut address, memory, &flagged) };
    assert_eq!(refused(answer), INVALID);
}

#[test]
fn external_memory_goes_with_its_context() {
    let driver = machine_in_context(&[]);
    let mut own = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxCreate_v2(&raw mut own, 0, CUdevice(0)) }.unwrap();
    let gone = imported(&driver, memory(4096), 4096);
    // SAFETY: the context is the driver's.
    unsafe { driver.cuCtxDestroy_v2(own) }.unwrap();
    let stays = imported(&driver, memory(4096), 4096);
    assert_eq!(refused(buffer(&driver, gone, 0, 8).map(drop)), NO_HANDLE);
    assert_eq!(refused(destroy(&driver, gone)), NO_HANDLE);
    destroy(&driver, stays).unwrap();
    assert!(!control("leaks").unwrap().contains("external"));
}
