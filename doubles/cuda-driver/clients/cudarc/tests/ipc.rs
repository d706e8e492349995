//! Memory and events of another process. CUDA Driver API: Memory Management, cuIpcGetMemHandle and what
//! follows it.

use std::env;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult};
use transload_double_cudarc::{device, driver, failure, in_own_process, load, pattern};

const MEMORY: &str = "TRANSLOAD_CLIENT_MEMORY";
const EVENT: &str = "TRANSLOAD_CLIENT_EVENT";
const LAZY: u32 = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;

fn written(bytes: &[std::ffi::c_char]) -> String {
    let bytes = bytes.iter().map(|&byte| byte as u8);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// The other side's, out of the variable.
fn read(variable: &str) -> [std::ffi::c_char; 64] {
    let text = env::var(variable).unwrap();
    std::array::from_fn(|at| {
        u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap() as std::ffi::c_char
    })
}

#[test]
fn another_process_opens_memory_and_both_see_what_is_written() {
    const TEST: &str = "another_process_opens_memory_and_both_see_what_is_written";
    if env::var_os(MEMORY).is_some() {
        assert!(in_own_process(TEST, &[]));
        return other_process();
    }
    load();
    let context = device(0);
    context.bind_to_thread().unwrap();
    // SAFETY: all of it is written before it is read.
    let address = unsafe { result::malloc_sync(8192) }.unwrap();
    // SAFETY: the source is read before this returns.
    unsafe { result::memcpy_htod_sync(address, &pattern(8192, 1)) }.unwrap();
    // It returns once the bytes are staged: API Synchronization Behavior, Memcpy.
    context.synchronize().unwrap();
    let mut memory = sys::CUipcMemHandle { reserved: [0; 64] };
    assert_eq!(
        driver!(cuIpcGetMemHandle(&raw mut memory, address)),
        CUresult::CUDA_SUCCESS
    );
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
        | sys::CUevent_flags::CU_EVENT_INTERPROCESS as u32;
    let mut event = std::ptr::null_mut();
    assert_eq!(
        driver!(cuEventCreate(&raw mut event, flags)),
        CUresult::CUDA_SUCCESS
    );
    let mut named = sys::CUipcEventHandle { reserved: [0; 64] };
    assert_eq!(
        driver!(cuIpcGetEventHandle(&raw mut named, event)),
        CUresult::CUDA_SUCCESS
    );
    assert_eq!(
        driver!(cuEventRecord(event, std::ptr::null_mut())),
        CUresult::CUDA_SUCCESS
    );
    let variables = [
        (MEMORY, &*written(&memory.reserved)),
        (EVENT, &*written(&named.reserved)),
    ];
    assert!(!in_own_process(TEST, &variables));
    let mut back = vec![0_u8; 8192];
    // SAFETY: nothing else touches the place meanwhile.
    unsafe { result::memcpy_dtoh_sync(&mut back, address) }.unwrap();
    assert!(
        back[..4096] == pattern(4096, 2),
        "what the other process wrote"
    );
    assert!(back[4096..] == pattern(8192, 1)[4096..], "what it left");
    assert_eq!(driver!(cuEventDestroy_v2(event)), CUresult::CUDA_SUCCESS);
    // SAFETY: the other process has closed it.
    unsafe { result::free_sync(address) }.unwrap();
}

fn other_process() {
    let context = device(0);
    context.bind_to_thread().unwrap();
    let handle = sys::CUipcMemHandle {
        reserved: read(MEMORY),
    };
    let open = || {
        let mut address = 0;
        let opened = driver!(cuIpcOpenMemHandle_v2(&raw mut address, handle, LAZY));
        assert_eq!(opened, CUresult::CUDA_SUCCESS);
        address
    };
    let address = open();
    // Opened again it is counted, and stays where it is.
    assert_eq!(open(), address);
    assert_eq!(
        driver!(cuIpcCloseMemHandle(address)),
        CUresult::CUDA_SUCCESS
    );
    let mut event = std::ptr::null_mut();
    let named = sys::CUipcEventHandle {
        reserved: read(EVENT),
    };
    assert_eq!(
        driver!(cuIpcOpenEventHandle(&raw mut event, named)),
        CUresult::CUDA_SUCCESS
    );
    assert_eq!(driver!(cuEventSynchronize(event)), CUresult::CUDA_SUCCESS);
    let mut back = vec![0_u8; 8192];
    // SAFETY: nothing else touches the place meanwhile.
    unsafe { result::memcpy_dtoh_sync(&mut back, address) }.unwrap();
    assert!(back == pattern(8192, 1));
    // SAFETY: the source is read before this returns.
    unsafe { result::memcpy_htod_sync(address, &pattern(4096, 2)) }.unwrap();
    context.synchronize().unwrap();
    // What was opened is closed, not freed.
    // SAFETY: it is refused.
    failure(unsafe { result::free_sync(address) });
    assert_eq!(driver!(cuEventDestroy_v2(event)), CUresult::CUDA_SUCCESS);
    assert_eq!(
        driver!(cuIpcCloseMemHandle(address)),
        CUresult::CUDA_SUCCESS
    );
    let closed = driver!(cuIpcCloseMemHandle(address));
    assert_eq!(closed, CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_handle_that_names_nothing_is_not_opened() {
    let _context = device(0);
    let mut address = 0;
    let handle = sys::CUipcMemHandle { reserved: [3; 64] };
    let opened = driver!(cuIpcOpenMemHandle_v2(&raw mut address, handle, LAZY));
    assert_ne!(opened, CUresult::CUDA_SUCCESS);
    let mut memory = sys::CUipcMemHandle { reserved: [0; 64] };
    let named = driver!(cuIpcGetMemHandle(&raw mut memory, 0xdead_0000));
    assert_eq!(named, CUresult::CUDA_ERROR_INVALID_VALUE);
}
