//! Copies of rows and of planes.

use crate::common;

use common::bytes::{Host, allocate, download, pattern, upload};
use common::work::{query, result, stream, synchronize};
use common::{GIGABYTE, machine_in_context, now};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use transload_cuda::raw::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUdevice, CUdevice_attribute, CUmemorytype, CUresult,
    CUstream, Driver,
};

const WRONG: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
const LEN: usize = 4096;

fn rows(driver: &Driver, copy: &CUDA_MEMCPY2D) -> Result<(), CUresult> {
    // SAFETY: the description is a valid object, and the double refuses wrong values in it, here and below.
    result(unsafe { driver.cuMemcpy2DAsync_v2(copy, CUstream::NULL) })?;
    synchronize(driver, CUstream::NULL)
}

fn planes(driver: &Driver, copy: &CUDA_MEMCPY3D_PEER) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuMemcpy3DPeerAsync(copy, CUstream::NULL) })
}

fn between(src: u64, dst: u64) -> CUDA_MEMCPY2D {
    CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcDevice: src,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstDevice: dst,
        ..CUDA_MEMCPY2D::default()
    }
}

#[test]
fn rows_go_between_the_host_and_a_device_and_take_the_time_of_their_bytes() {
    let driver = machine_in_context(&GIGABYTE);
    let bytes = pattern(1, LEN);
    let src = Host::pinned(&driver, &bytes);
    let back = Host::pinned(&driver, &[0; LEN]);
    let device = allocate(&driver, LEN);
    let up = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: src.start.cast(),
        srcPitch: 100,
        srcXInBytes: 7,
        srcY: 2,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: device,
        dstPitch: 64,
        WidthInBytes: 50,
        Height: 20,
        ..CUDA_MEMCPY2D::default()
    };
    let made = stream(&driver, 1);
    // SAFETY: the description is one.
    unsafe { driver.cuMemcpy2DAsync_v2(&raw const up, made) }.unwrap();
    assert!(query(&driver, made).is_err());
    synchronize(&driver, made).unwrap();
    assert_eq!(now(), 1000);
    let down = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: device,
        srcPitch: 64,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: back.start.cast(),
        dstPitch: 100,
        dstXInBytes: 7,
        dstY: 2,
        WidthInBytes: 50,
        Height: 20,
        ..CUDA_MEMCPY2D::default()
    };
    rows(&driver, &down).unwrap();
    assert_eq!(now(), 2000);
    let mut expected = [0; LEN];
    for row in 2..22 {
        let at = row * 100 + 7;
        expected[at..at + 50].copy_from_slice(&bytes[at..at + 50]);
    }
    assert_eq!(back.read(), expected);
}

#[test]
fn a_pageable_source_is_staged_row_by_row() {
    let driver = machine_in_context(&GIGABYTE);
    let bytes = pattern(1, LEN);
    let src = Host::pageable(&bytes);
    let device = allocate(&driver, 1000);
    let copy = CUDA_MEMCPY2D {
        srcPitch: 200,
        dstPitch: 100,
        WidthInBytes: 100,
        Height: 10,
        ..between(src.address(), device)
    };
    rows(&driver, &copy).unwrap();
    src.write(&[0; LEN]);
    let expected: Vec<u8> = (0..10)
        .flat_map(|row| bytes[row * 200..row * 200 + 100].to_vec())
        .collect();
    assert_eq!(download(&driver, device, 1000), expected);
}

#[test]
fn within_a_device_pitches_are_such_as_it_gives() {
    let driver = machine_in_context(&GIGABYTE);
    let mut pitch = 0;
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuDeviceGetAttribute(&raw mut pitch, attribute, CUdevice(0)) }.unwrap();
    let pitch = pitch as usize;
    let [first, second] = [0; 2].map(|_| allocate(&driver, 8 * pitch));
    let copy = |src_pitch, dst_pitch, height| CUDA_MEMCPY2D {
        srcPitch: src_pitch,
        dstPitch: dst_pitch,
        WidthInBytes: 100,
        Height: height,
        ..between(first, second)
    };
    assert_eq!(rows(&driver, &copy(pitch, pitch, 8)), Ok(()));
    for odd in [copy(pitch, 100, 8), copy(100, pitch, 8)] {
        assert_eq!(rows(&driver, &odd), WRONG);
    }
    assert_eq!(
        rows(&driver, &copy(100, 100, 1)),
        Ok(()),
        "one row has none"
    );
    let host = Host::pinned(&driver, &[0; LEN]);
    let down = CUDA_MEMCPY2D {
        dstDevice: host.address(),
        ..copy(100, 100, 8)
    };
    assert_eq!(rows(&driver, &down), Ok(()), "from device to host");
}

#[test]
fn descriptions_that_mean_nothing_are_refused() {
    let driver = machine_in_context(&GIGABYTE);
    let device = allocate(&driver, LEN);
    let host = Host::pinned(&driver, &[0; LEN]);
    let good = CUDA_MEMCPY2D {
        srcPitch: 64,
        dstPitch: 64,
        WidthInBytes: 32,
        Height: 64,
        ..between(host.address(), device)
    };
    assert_eq!(rows(&driver, &good), Ok(()));
    let refuse = |change: fn(&mut CUDA_MEMCPY2D), answer| {
        let mut copy = good;
        change(&mut copy);
        assert_eq!(rows(&driver, &copy), answer, "{copy:?}");
    };
    refuse(|copy| copy.srcPitch = 31, WRONG);
    refuse(|copy| copy.dstPitch = 31, WRONG);
    refuse(|copy| copy.srcXInBytes = 33, WRONG);
    refuse(|copy| copy.dstXInBytes = usize::MAX, WRONG);
    refuse(|copy| copy.srcPitch = 0, WRONG);
    refuse(|copy| copy.srcPitch = 1 << 31, WRONG);
    refuse(|copy| copy.Height = 65, WRONG);
    refuse(|copy| copy.srcY = 1, WRONG);
    refuse(|copy| copy.dstY = usize::MAX, WRONG);
    refuse(|copy| copy.srcMemoryType = CUmemorytype(0), WRONG);
    refuse(|copy| copy.dstMemoryType = CUmemorytype(5), WRONG);
    refuse(
        |copy| copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST,
        WRONG,
    );
    let arrays = Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    refuse(
        |copy| copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY,
        arrays,
    );
    refuse(|copy| copy.Height = 0, Ok(()));
    refuse(|copy| copy.WidthInBytes = 0, Ok(()));
    // SAFETY: the double refuses a null description.
    let null = result(unsafe { driver.cuMemcpy2DAsync_v2(std::ptr::null(), CUstream::NULL) });
    assert_eq!(null, WRONG);
    let local = Host::pageable(&[0; 8]);
    let no_devices = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: local.address(),
        WidthInBytes: 8,
        Height: 1,
        ..good
    };
    assert_eq!(rows(&driver, &no_devices), WRONG);
}

#[test]
fn planes_have_rows_and_rooms_that_are_kept_empty() {
    let driver = machine_in_context(&GIGABYTE);
    let device = allocate(&driver, LEN);
    let host = Host::pinned(&driver, &[0; LEN]);
    let good = CUDA_MEMCPY3D_PEER {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcDevice: host.address(),
        srcPitch: 32,
        srcHeight: 4,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstDevice: device,
        dstPitch: 32,
        dstHeight: 4,
        WidthInBytes: 8,
        Height: 4,
        Depth: 32,
        ..CUDA_MEMCPY3D_PEER::default()
    };
    assert_eq!(planes(&driver, &good), Ok(()));
    let refuse = |change: fn(&mut CUDA_MEMCPY3D_PEER), answer| {
        let mut copy = good;
        change(&mut copy);
        assert_eq!(planes(&driver, &copy), answer, "{copy:?}");
    };
    refuse(|copy| copy.srcHeight = 3, WRONG);
    refuse(|copy| copy.dstHeight = 0, WRONG);
    refuse(|copy| copy.srcY = 1, WRONG);
    refuse(|copy| copy.srcZ = 1, WRONG);
    refuse(|copy| copy.Depth = 33, WRONG);
    refuse(|copy| copy.srcLOD = 1, WRONG);
    refuse(|copy| copy.dstLOD = 1, WRONG);
    refuse(|copy| copy.dstPitch = 7, WRONG);
    refuse(|copy| copy.Depth = 0, Ok(()));
    refuse(|copy| (copy.Depth, copy.srcHeight) = (1, 0), Ok(()));
}

/// Where a copy takes its rows from, or puts them.
#[derive(Clone, Copy, Debug)]
struct Side {
    buffer: usize,
    x: usize,
    y: usize,
    z: usize,
    /// More than is needed.
    pitch: usize,
    rows: usize,
}

impl Side {
    fn steps(&self, (width, height, _): (usize, usize, usize)) -> (usize, usize) {
        let pitch = self.x + width + self.pitch;
        (pitch, self.y + height + self.rows)
    }

    fn at(&self, shape: (usize, usize, usize), row: usize, plane: usize) -> usize {
        let (pitch, rows) = self.steps(shape);
        ((self.z + plane) * rows + self.y + row) * pitch + self.x
    }
}

fn side(buffers: std::ops::Range<usize>) -> impl Strategy<Value = Side> {
    let all = (
        buffers,
        0..5usize,
        0..3usize,
        0..3usize,
        0..6usize,
        0..3usize,
    );
    all.prop_map(|(buffer, x, y, z, pitch, rows)| Side {
        buffer,
        x,
        y,
        z,
        pitch,
        rows,
    })
}

#[test]
fn planes_of_any_shape_are_what_a_plain_model_makes_of_them() {
    let driver = machine_in_context(&GIGABYTE);
    // Sources, then destinations: pageable, pinned, the device's.
    let host = [0; 2].map(|_| {
        let pageable = Host::pageable(&[0; LEN]);
        [pageable, Host::pinned(&driver, &[0; LEN])]
    });
    let device = [0; 2].map(|_| allocate(&driver, LEN));
    let address = |end: usize, buffer: usize| match buffer {
        2 => device[end],
        _ => host[end][buffer].address(),
    };
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(256)
    });
    let shape = (1..20usize, 1..6usize, 1..5usize);
    let run = runner.run(&(side(0..3), side(0..3), shape), |(src, dst, shape)| {
        let (bytes, mut expected) = (pattern(1, LEN), pattern(2, LEN));
        for (end, contents) in [&bytes, &expected].into_iter().enumerate() {
            host[end].iter().for_each(|of| of.write(contents));
            upload(&driver, device[end], contents);
        }
        let (width, height, depth) = shape;
        let copy = CUDA_MEMCPY3D_PEER {
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            srcDevice: address(0, src.buffer),
            srcPitch: src.steps(shape).0,
            srcHeight: src.steps(shape).1,
            srcXInBytes: src.x,
            srcY: src.y,
            srcZ: src.z,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            dstDevice: address(1, dst.buffer),
            dstPitch: dst.steps(shape).0,
            dstHeight: dst.steps(shape).1,
            dstXInBytes: dst.x,
            dstY: dst.y,
            dstZ: dst.z,
            WidthInBytes: width,
            Height: height,
            Depth: depth,
            ..CUDA_MEMCPY3D_PEER::default()
        };
        let last = [src, dst].map(|side| side.at(shape, height - 1, depth - 1) + width);
        let answer = planes(&driver, &copy);
        // The driver cannot know the end of memory that is unknown to it; shapes are small enough to fit there.
        prop_assert!(last.iter().all(|last| *last <= LEN), "{last:?}");
        prop_assert_eq!(answer, Ok(()));
        for plane in 0..depth {
            for row in 0..height {
                let (from, to) = (src.at(shape, row, plane), dst.at(shape, row, plane));
                expected[to..to + width].copy_from_slice(&bytes[from..from + width]);
            }
        }
        synchronize(&driver, CUstream::NULL).unwrap();
        let arrived = match dst.buffer {
            2 => download(&driver, device[1], LEN),
            buffer => host[1][buffer].read(),
        };
        prop_assert_eq!(arrived, expected);
        Ok(())
    });
    run.unwrap();
}
