//! Many copies in one call.

use crate::common;

use std::ptr;

use common::bytes::{Host, allocate, download, pattern, uploaded};
use common::work::{query, result, stream, synchronize};
use common::{GIGABYTE, machine_in_context, now};
use transload_cuda::raw::{CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUresult, CUstream, Driver};

const WRONG: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
const STREAM: CUmemcpySrcAccessOrder = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
const DURING: CUmemcpySrcAccessOrder =
    CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
const ANY: CUmemcpySrcAccessOrder = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_ANY;

fn attributes(order: CUmemcpySrcAccessOrder) -> CUmemcpyAttributes {
    CUmemcpyAttributes {
        srcAccessOrder: order,
        ..CUmemcpyAttributes::default()
    }
}

/// The arguments of a call.
#[derive(Clone)]
struct Batch {
    /// Destination, source and length.
    copies: Vec<(u64, u64, usize)>,
    attributes: Vec<(CUmemcpyAttributes, usize)>,
    stream: CUstream,
}

impl Batch {
    /// The answers of both versions of the function, and the index of the copy that the first one blames. The batch
    /// runs twice.
    fn run(&self, driver: &Driver) -> (Result<(), CUresult>, usize) {
        let mut dsts: Vec<u64> = self.copies.iter().map(|copy| copy.0).collect();
        let mut srcs: Vec<u64> = self.copies.iter().map(|copy| copy.1).collect();
        let mut sizes: Vec<usize> = self.copies.iter().map(|copy| copy.2).collect();
        let mut attrs: Vec<_> = self.attributes.iter().map(|of| of.0).collect();
        let mut firsts: Vec<usize> = self.attributes.iter().map(|of| of.1).collect();
        let (dsts, srcs, sizes) = (dsts.as_mut_ptr(), srcs.as_mut_ptr(), sizes.as_mut_ptr());
        let (attrs, firsts) = (attrs.as_mut_ptr(), firsts.as_mut_ptr());
        let (count, kinds) = (self.copies.len(), self.attributes.len());
        let mut failed = 4711;
        let place = &raw mut failed;
        // SAFETY: the arrays have the stated length, here and below.
        let older = result(unsafe {
            driver.cuMemcpyBatchAsync(
                dsts,
                srcs,
                sizes,
                count,
                attrs,
                firsts,
                kinds,
                place,
                self.stream,
            )
        });
        // SAFETY: as above.
        let newer = result(unsafe {
            driver.cuMemcpyBatchAsync_v2(
                dsts,
                srcs,
                sizes,
                count,
                attrs,
                firsts,
                kinds,
                self.stream,
            )
        });
        assert_eq!(older, newer);
        (older, failed)
    }
}

/// A batch of one copy.
fn with(
    driver: &Driver,
    stream: CUstream,
    (mut dst, mut src, mut len): (u64, u64, usize),
    order: CUmemcpySrcAccessOrder,
) {
    let (mut attributes, mut first) = (attributes(order), 0);
    let (dst, src, len) = (&raw mut dst, &raw mut src, &raw mut len);
    let (place, first) = (&raw mut attributes, &raw mut first);
    // SAFETY: each array has one entry; the memory stays until the test has synchronised.
    unsafe { driver.cuMemcpyBatchAsync_v2(dst, src, len, 1, place, first, 1, stream) }.unwrap();
}

#[test]
fn copies_of_a_batch_start_together_and_end_as_one() {
    let driver = machine_in_context(&GIGABYTE);
    let bytes = pattern(1, 3000);
    let host = Host::pinned(&driver, &bytes);
    let out = Host::pinned(&driver, &[0; 1000]);
    let device = allocate(&driver, 3000);
    let full = uploaded(&driver, &bytes);
    let made = stream(&driver, 1);
    let batch = Batch {
        copies: vec![
            (device, host.address(), 1000),
            (device + 2000, host.address() + 2000, 1000),
            (out.address(), full + 500, 1000),
            (0, 0, 0),
        ],
        attributes: vec![(attributes(STREAM), 0), (attributes(ANY), 2)],
        stream: made,
    };
    let begun = now();
    assert_eq!(batch.run(&driver), (Ok(()), 4711));
    assert!(query(&driver, made).is_err());
    synchronize(&driver, made).unwrap();
    // Twice two copies over one link; the third overlaps.
    assert_eq!(now() - begun, 4000);
    assert_eq!(download(&driver, device, 1000), bytes[..1000]);
    assert_eq!(download(&driver, device + 2000, 1000), bytes[2000..]);
    assert_eq!(out.read(), bytes[500..1500]);
}

#[test]
fn a_batch_is_checked_as_a_whole() {
    let driver = machine_in_context(&GIGABYTE);
    let device = allocate(&driver, 64);
    let pinned = Host::pinned(&driver, &[7; 64]).address();
    let made = stream(&driver, 1);
    let kinds = |firsts: &[usize]| -> Vec<_> {
        let with = |first: &usize| (attributes(STREAM), *first);
        firsts.iter().map(with).collect()
    };
    let good = Batch {
        copies: vec![(device, pinned, 8), (device + 8, pinned, 8)],
        attributes: kinds(&[0]),
        stream: made,
    };
    for firsts in [&[][..], &[1], &[0, 0], &[0, 2], &[0, 1, 1]] {
        let batch = Batch {
            attributes: kinds(firsts),
            ..good.clone()
        };
        assert_eq!(batch.run(&driver), (WRONG, usize::MAX), "{firsts:?}");
    }
    for stream in [CUstream::NULL, CUstream::LEGACY] {
        let batch = Batch {
            stream,
            ..good.clone()
        };
        assert_eq!(batch.run(&driver), (WRONG, usize::MAX));
    }
    let no_order = CUmemcpySrcAccessOrder(0);
    let flagged = CUmemcpyAttributes {
        flags: 2,
        ..attributes(STREAM)
    };
    for bad in [attributes(no_order), flagged] {
        let batch = Batch {
            attributes: vec![(bad, 0)],
            ..good.clone()
        };
        assert_eq!(batch.run(&driver), (WRONG, usize::MAX));
    }
    let out_of_range = Batch {
        copies: vec![(device, pinned, 8), (device + 60, pinned, 8)],
        ..good.clone()
    };
    assert_eq!(out_of_range.run(&driver), (WRONG, 1));
    let empty = Batch {
        copies: Vec::new(),
        ..good.clone()
    };
    assert_eq!(empty.run(&driver).0, WRONG);
    let mut attribute = attributes(STREAM);
    let (place, none) = (&raw mut attribute, ptr::null_mut());
    let mut first = 0usize;
    // SAFETY: the double refuses null arrays.
    let null = result(unsafe {
        let first = &raw mut first;
        driver.cuMemcpyBatchAsync_v2(none, none, ptr::null_mut(), 1, place, first, 1, made)
    });
    assert_eq!(null, WRONG);
    let own = CUstream::PER_THREAD;
    let fine = Batch {
        stream: own,
        ..good
    };
    assert_eq!(fine.run(&driver), (Ok(()), 4711));
    synchronize(&driver, own).unwrap();
    assert_eq!(download(&driver, device, 16), [7; 16]);
}

#[test]
fn when_a_source_is_read_is_as_was_said() {
    let driver = machine_in_context(&GIGABYTE);
    let (old, new) = (pattern(1, 100), pattern(2, 100));
    let pinned = Host::pinned(&driver, &old);
    let pageable = Host::pageable(&old);
    let device = allocate(&driver, 100);
    let made = stream(&driver, 0);
    for (host, order, arrives) in [
        (pinned, STREAM, &new),
        (pinned, ANY, &new),
        (pinned, DURING, &old),
        (pageable, STREAM, &old),
        (pageable, ANY, &new),
        (pageable, DURING, &old),
    ] {
        host.write(&old);
        with(&driver, made, (device, host.address(), 100), order);
        assert!(query(&driver, made).is_err(), "{order:?}");
        host.write(&new);
        assert_eq!(download(&driver, device, 100), *arrives, "{order:?}");
    }
}

#[test]
fn what_is_read_during_the_call_is_not_what_the_stream_is_about_to_write() {
    let driver = machine_in_context(&GIGABYTE);
    let (old, new) = (pattern(1, 100), pattern(2, 100));
    let [between, dst] = [0; 2].map(|_| uploaded(&driver, &old));
    let src = Host::pinned(&driver, &new);
    let made = stream(&driver, 0);
    for (order, arrives) in [(DURING, &old), (STREAM, &new)] {
        with(&driver, made, (between, src.address(), 100), STREAM);
        with(&driver, made, (dst, between, 100), order);
        assert_eq!(download(&driver, dst, 100), *arrives, "{order:?}");
    }
}
