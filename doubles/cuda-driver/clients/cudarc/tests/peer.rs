//! Copies between devices. CUDA Driver API: Peer Context Memory Access; Memory Management, cuMemcpyPeerAsync.

use cudarc::driver::sys::{self, CUresult};
use transload_double_cudarc::{MACHINE, counter, device, driver, in_own_process, pattern};

fn reaches(from: i32, to: i32) -> bool {
    let mut can = -1;
    let asked = driver!(cuDeviceCanAccessPeer(&raw mut can, from, to));
    assert_eq!(asked, CUresult::CUDA_SUCCESS);
    can == 1
}

/// 1 MiB from device 0 to device 1 and back to the host, through cudarc.
fn copy_across() {
    let streams = [0, 1].map(|ordinal| device(ordinal).new_stream().unwrap());
    let sent = pattern(1 << 20, 1);
    let here = streams[0].clone_htod(&sent).unwrap();
    let there = streams[1].clone_dtod(&here).unwrap();
    let back = streams[1].clone_dtoh(&there).unwrap();
    streams[1].synchronize().unwrap();
    assert!(back == sent);
}

/// Lets a device reach what is allocated from another one's pool.
fn let_in(of: i32, to: i32) {
    let mut pool = std::ptr::null_mut();
    let asked = driver!(cuDeviceGetDefaultMemPool(&raw mut pool, of));
    assert_eq!(asked, CUresult::CUDA_SUCCESS);
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            __bindgen_anon_1: sys::CUmemLocation_st__bindgen_ty_1 { id: to },
        },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let set = driver!(cuMemPoolSetAccess(pool, &raw const access, 1));
    assert_eq!(set, CUresult::CUDA_SUCCESS);
}

/// How many copies went straight, and how many through the host.
fn copies() -> (u64, u64) {
    (counter("peer-copies-direct"), counter("peer-copies-staged"))
}

#[test]
fn access_is_enabled_once_and_copies_go_straight() {
    if !in_own_process("access_is_enabled_once_and_copies_go_straight", &[]) {
        return;
    }
    let (first, second) = (device(0), device(1));
    assert!(reaches(0, 1) && reaches(1, 0) && !reaches(0, 0));
    second.bind_to_thread().unwrap();
    let enable = || driver!(cuCtxEnablePeerAccess(first.cu_ctx(), 0));
    let disable = || driver!(cuCtxDisablePeerAccess(first.cu_ctx()));
    assert_eq!(disable(), CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    assert_eq!(enable(), CUresult::CUDA_SUCCESS);
    assert_eq!(enable(), CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    let own = driver!(cuCtxEnablePeerAccess(second.cu_ctx(), 0));
    assert_eq!(own, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    first.bind_to_thread().unwrap();
    assert_eq!(
        driver!(cuCtxEnablePeerAccess(second.cu_ctx(), 0)),
        CUresult::CUDA_SUCCESS
    );
    // cudarc allocates from pools, whose memory peers reach only when the pool says so (CUDA C++ Programming
    // Guide, Stream Ordered Memory Allocator, Device Accessibility for Multi-GPU Support).
    copy_across();
    assert_eq!(copies(), (0, 1));
    for (of, to) in [(0, 1), (1, 0)] {
        let_in(of, to);
    }
    copy_across();
    assert_eq!(copies(), (1, 1));
    second.bind_to_thread().unwrap();
    assert_eq!(disable(), CUresult::CUDA_SUCCESS);
    assert_eq!(disable(), CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

#[test]
fn without_access_the_copy_succeeds_through_the_host() {
    let machine = [(MACHINE, "no-peer")];
    if !in_own_process(
        "without_access_the_copy_succeeds_through_the_host",
        &machine,
    ) {
        return;
    }
    let (first, second) = (device(0), device(1));
    assert!(!reaches(0, 1) && !reaches(1, 0));
    second.bind_to_thread().unwrap();
    let enabled = driver!(cuCtxEnablePeerAccess(first.cu_ctx(), 0));
    assert_eq!(enabled, CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    copy_across();
    assert_eq!(copies(), (0, 1));
}

#[test]
fn a_machine_may_reach_across_one_way_only() {
    let machine = [(MACHINE, "one-way-peer")];
    if !in_own_process("a_machine_may_reach_across_one_way_only", &machine) {
        return;
    }
    let _context = device(1);
    assert_ne!(reaches(0, 1), reaches(1, 0));
}
