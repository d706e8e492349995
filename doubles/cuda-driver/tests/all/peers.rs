//! Between devices: peer access, and the route of bytes.

use crate::common;

use common::bytes::{Host, allocate, copy, download, pattern, upload, uploaded};
use common::work::{query, result, stream, synchronize};
use common::{GIGABYTE, advance, control, counter, enter, machine, now};
use transload_cuda::raw::{
    CUDA_MEMCPY3D_PEER, CUcontext, CUdevice, CUdevice_P2PAttribute, CUdeviceptr, CUmemorytype,
    CUresult, CUstream, Driver,
};

const MIB: usize = 1 << 20;
const TIME: u64 = MIB as u64;

const NO_PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/topologies/no-peer.toml");
const ONE_WAY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/topologies/one-way-peer.toml");
const PCIE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/topologies/pcie-peer.toml");
const NVLINK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/topologies/nvlink-full.toml");

fn enable(driver: &Driver, peer: CUcontext) -> Result<(), CUresult> {
    // SAFETY: no argument is a pointer that is looked into, here and below.
    result(unsafe { driver.cuCtxEnablePeerAccess(peer, 0) })
}

fn disable(driver: &Driver, peer: CUcontext) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuCtxDisablePeerAccess(peer) })
}

fn can_access(driver: &Driver, device: i32, peer: i32) -> Result<i32, CUresult> {
    let mut can = -1;
    let (device, peer) = (CUdevice(device), CUdevice(peer));
    // SAFETY: the out-pointer is a local variable.
    let answer = result(unsafe { driver.cuDeviceCanAccessPeer(&raw mut can, device, peer) });
    answer.map(|()| can)
}

/// Memory of device 1 with something in it, memory of device 0, and both contexts, that of device 0 current.
struct Pair {
    near: CUcontext,
    far: CUcontext,
    src: CUdeviceptr,
    dst: CUdeviceptr,
    bytes: Vec<u8>,
}

fn pair(driver: &Driver) -> Pair {
    let bytes = pattern(5, MIB);
    let near = enter(driver, 0);
    let src = uploaded(driver, &bytes);
    let far = enter(driver, 1);
    let dst = allocate(driver, MIB);
    Pair {
        near,
        far,
        src,
        dst,
        bytes,
    }
}

#[test]
fn without_access_a_copy_goes_over_the_host_and_is_counted_so() {
    let driver = machine(&GIGABYTE);
    let pair = pair(&driver);
    let made = stream(&driver, 1);
    let begun = now();
    copy(&driver, pair.dst, pair.src, MIB, made).unwrap();
    advance(2 * TIME - 1);
    assert!(query(&driver, made).is_err());
    synchronize(&driver, made).unwrap();
    assert_eq!(now() - begun, 2 * TIME, "over one link, then the other");
    assert!(download(&driver, pair.dst, MIB) == pair.bytes);
    let counts = ["peer-copies-staged", "peer-copies-direct"].map(counter);
    assert_eq!(counts, [1, 0]);
    assert_eq!(counter("bytes device 0 -> pinned"), TIME);
    assert_eq!(counter("bytes pinned -> device 1"), TIME);
}

#[test]
fn with_access_either_way_a_copy_goes_directly() {
    let driver = machine(&GIGABYTE);
    let pair = pair(&driver);
    let made = stream(&driver, 1);
    for (own, other) in [(pair.near, pair.far), (pair.far, pair.near)] {
        // SAFETY: the context is there.
        unsafe { driver.cuCtxSetCurrent(own) }.unwrap();
        enable(&driver, other).unwrap();
        let begun = now();
        copy(&driver, pair.dst, pair.src, MIB, made).unwrap();
        synchronize(&driver, made).unwrap();
        assert_eq!(now() - begun, TIME / 2);
        disable(&driver, other).unwrap();
    }
    assert_eq!(counter("peer-copies-direct"), 2);
    copy(&driver, pair.dst, pair.src, MIB, made).unwrap();
    synchronize(&driver, made).unwrap();
    let counts = ["peer-copies-staged", "peer-copies-direct"].map(counter);
    assert_eq!(counts, [1, 2], "access was taken back");
    assert_eq!(counter("bytes device 0 -> device 1"), 2 * TIME);
    enter(&driver, 1);
    assert!(download(&driver, pair.dst, MIB) == pair.bytes);
}

#[test]
fn access_is_the_contexts_alone() {
    let driver = machine(&GIGABYTE);
    let pair = pair(&driver);
    let mut third = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuCtxCreate_v2(&raw mut third, 0, CUdevice(1)) }.unwrap();
    enable(&driver, pair.near).unwrap();
    copy(&driver, pair.dst, pair.src, MIB, CUstream::NULL).unwrap();
    assert_eq!(counter("peer-copies-direct"), 0, "not of this context");
    let own = allocate(&driver, MIB);
    copy(&driver, own, pair.src, MIB, CUstream::NULL).unwrap();
    assert_eq!(counter("peer-copies-direct"), 1);
    // SAFETY: the context is there.
    unsafe { driver.cuCtxDestroy_v2(pair.near) }.unwrap_err();
    // SAFETY: as above.
    unsafe { driver.cuCtxDestroy_v2(third) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuCtxSetCurrent(pair.near) }.unwrap();
    let gone = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(enable(&driver, third), gone);
}

#[test]
fn enabling_has_its_errors() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_TOPOLOGY", ONE_WAY)]);
    let [first, second] = [0, 1].map(|device| enter(&driver, device));
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    let unsupported = Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    assert_eq!(enable(&driver, first), unsupported, "from 1 to 0");
    assert_eq!(enable(&driver, second), invalid, "of itself");
    enter(&driver, 0);
    let not_enabled = Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    assert_eq!(disable(&driver, second), not_enabled);
    assert_eq!(enable(&driver, second), Ok(()));
    let already = Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    assert_eq!(enable(&driver, second), already);
    assert_eq!(disable(&driver, second), Ok(()));
    assert_eq!(disable(&driver, second), not_enabled);
    assert_eq!(enable(&driver, CUcontext::NULL), invalid);
    assert_eq!(disable(&driver, CUcontext::NULL), invalid);
    // SAFETY: no argument is a pointer that is looked into.
    let flagged = result(unsafe { driver.cuCtxEnablePeerAccess(second, 1) });
    assert_eq!(flagged, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    assert_eq!(can_access(&driver, 0, 1), Ok(1));
    assert_eq!(can_access(&driver, 1, 0), Ok(0));
    assert_eq!(can_access(&driver, 0, 0), Ok(0));
    let no_device = Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(can_access(&driver, 0, 2), no_device);
    let back = Host::pinned(&driver, &[0; 8]);
    let src = allocate(&driver, 8);
    copy(&driver, back.address(), src, 8, CUstream::NULL).unwrap();
}

#[test]
fn one_way_access_is_of_no_use_the_other_way() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_TOPOLOGY", ONE_WAY)]);
    let far = enter(&driver, 1);
    let there = uploaded(&driver, &pattern(1, 64));
    enter(&driver, 0);
    let here = allocate(&driver, 64);
    enable(&driver, far).unwrap();
    copy(&driver, here, there, 64, CUstream::NULL).unwrap();
    assert_eq!(counter("peer-copies-staged"), 1);
    copy(&driver, there, here, 64, CUstream::NULL).unwrap();
    assert_eq!(counter("peer-copies-direct"), 1);
    assert!(download(&driver, here, 64) == pattern(1, 64));
}

#[test]
fn where_there_is_no_link_copies_arrive_all_the_same() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_TOPOLOGY", NO_PEER)]);
    let pair = pair(&driver);
    let unsupported = Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    assert_eq!(enable(&driver, pair.near), unsupported);
    copy(&driver, pair.dst, pair.src, MIB, CUstream::NULL).unwrap();
    assert!(download(&driver, pair.dst, MIB) == pair.bytes);
    assert_eq!(counter("peer-copies-staged"), 1);
}

#[test]
fn a_link_that_corrupts_does_so_directly_and_one_way() {
    let driver = machine(&GIGABYTE);
    control("fault peer-corrupts=0>1").unwrap();
    let pair = pair(&driver);
    copy(&driver, pair.dst, pair.src, MIB, CUstream::NULL).unwrap();
    assert!(download(&driver, pair.dst, MIB) == pair.bytes, "staged");
    enable(&driver, pair.near).unwrap();
    for len in [1, 4096, MIB] {
        upload(&driver, pair.dst, &vec![0; MIB]);
        copy(&driver, pair.dst, pair.src, len, CUstream::NULL).unwrap();
        let arrived = download(&driver, pair.dst, MIB);
        assert!(arrived[..len] != pair.bytes[..len]);
        assert!(arrived[len..].iter().all(|byte| *byte == 0));
    }
    upload(&driver, pair.dst, &pair.bytes);
    copy(&driver, pair.src, pair.dst, MIB, CUstream::NULL).unwrap();
    assert!(download(&driver, pair.src, MIB) == pair.bytes, "back");
}

#[test]
fn a_copy_between_contexts_says_whose_memory_it_is() {
    let driver = machine(&GIGABYTE);
    let pair = pair(&driver);
    let (far, near) = ((pair.dst, pair.far), (pair.src, pair.near));
    let copy = |dst: (u64, CUcontext), src: (u64, CUcontext), len| {
        // SAFETY: the double refuses anything that is no memory and no context.
        result(unsafe { driver.cuMemcpyPeerAsync(dst.0, dst.1, src.0, src.1, len, CUstream::NULL) })
    };
    assert_eq!(copy(far, near, MIB), Ok(()));
    assert!(query(&driver, CUstream::NULL).is_err(), "it waits for none");
    assert!(download(&driver, pair.dst, MIB) == pair.bytes);
    let wrong = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(copy((pair.dst, pair.near), near, MIB), wrong, "mixed up");
    assert_eq!(copy(far, (pair.src, pair.far), MIB), wrong, "mixed up");
    assert_eq!(copy(far, near, MIB + 1), wrong);
    assert_eq!(copy(far, near, 0), Ok(()));
    let null = (pair.dst, CUcontext::NULL);
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(copy(null, near, MIB), invalid);
    assert_eq!(copy(null, near, 0), invalid);
    let local = Host::pageable(&[0; 8]).address();
    assert_eq!(copy(far, (local, pair.near), 8), wrong);
}

#[test]
fn planes_go_between_contexts() {
    let driver = machine(&GIGABYTE);
    let pair = pair(&driver);
    let mut planes = CUDA_MEMCPY3D_PEER {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: pair.src,
        srcContext: pair.near,
        srcXInBytes: 3,
        srcPitch: 64,
        srcHeight: 8,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: pair.dst,
        dstContext: pair.far,
        dstPitch: 16,
        dstHeight: 4,
        dstZ: 1,
        WidthInBytes: 10,
        Height: 3,
        Depth: 2,
        ..CUDA_MEMCPY3D_PEER::default()
    };
    upload(&driver, pair.dst, &[0; 256]);
    // SAFETY: the description is one, here and below.
    unsafe { driver.cuMemcpy3DPeerAsync(&raw const planes, CUstream::NULL) }.unwrap();
    let arrived = download(&driver, pair.dst, 256);
    let mut expected = vec![0; 256];
    for (plane, row) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
        let (from, to) = ((plane * 8 + row) * 64 + 3, ((plane + 1) * 4 + row) * 16);
        expected[to..to + 10].copy_from_slice(&pair.bytes[from..from + 10]);
    }
    assert_eq!(arrived, expected);
    planes.dstContext = pair.near;
    // SAFETY: as above.
    let mixed = result(unsafe { driver.cuMemcpy3DPeerAsync(&raw const planes, CUstream::NULL) });
    assert_eq!(mixed, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    let host = Host::pinned(&driver, &[0; 256]);
    planes.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
    planes.dstHost = host.start.cast();
    planes.dstContext = CUcontext::NULL;
    // SAFETY: as above.
    unsafe { driver.cuMemcpy3DPeerAsync(&raw const planes, CUstream::NULL) }.unwrap();
    synchronize(&driver, CUstream::NULL).unwrap();
    assert_eq!(host.read(), expected);
}

#[test]
fn a_bus_has_no_atomics() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_TOPOLOGY", PCIE)]);
    let mut value = -7;
    let attribute = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let [src, dst] = [0, 1].map(CUdevice);
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuDeviceGetP2PAttribute(&raw mut value, attribute, src, dst) }.unwrap();
    assert_eq!(value, 0);
}

#[test]
fn links_are_ranked_by_their_time() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_TOPOLOGY", NVLINK)]);
    use CUdevice_P2PAttribute as A;
    let ask = |attribute, src, dst| {
        let mut value = -7;
        let (src, dst) = (CUdevice(src), CUdevice(dst));
        let place = &raw mut value;
        // SAFETY: the out-pointer is a local variable.
        let answer = result(unsafe { driver.cuDeviceGetP2PAttribute(place, attribute, src, dst) });
        answer.map(|()| value)
    };
    assert_eq!(
        ask(A::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 7),
        Ok(0)
    );
    assert_eq!(
        ask(A::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 7),
        Ok(1)
    );
    assert_eq!(
        ask(A::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 7),
        Ok(1)
    );
    let some = A::CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED;
    assert_eq!(ask(some, 0, 7), Ok(0));
    let no_device = Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    for (src, dst) in [(0, 0), (8, 0), (0, 8), (-1, 0)] {
        let rank = A::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
        assert_eq!(ask(rank, src, dst), no_device);
    }
    let wrong = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(ask(A(99), 0, 1), wrong);
}
