//! Copies of real bytes between the host's own memories.

use std::error::Error;

use transload::{AllocSpec, ByteSize, Method, Region, Request, Shape, TransferManager};

type Outcome = Result<(), Box<dyn Error>>;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect()
}

#[test]
fn a_vector_moves_to_shared_memory_and_back() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    for len in [0, 1, 63, 4096, 1 << 20, (8 << 20) + 5] {
        let wanted = bytes(len);
        let heap = manager.adopt(wanted.clone())?;
        let shared = manager.allocate(
            "cpu:0/shared".parse::<transload::Place>()?,
            AllocSpec::bytes(len as u64),
        )?;
        let report = manager
            .submit(&Request::new(&heap, &shared).verify())
            .wait()?;
        assert_eq!(report.bytes(), len as u64);
        assert_eq!(report.method(), Method::DirectCopy);
        assert!(report.checksum().is_some());
        let mut back = vec![0xEE; len];
        manager.copy_into_slice(&shared, &mut back)?;
        assert_eq!(back, wanted, "{}", ByteSize(len as u64));
        assert_eq!(&*shared.read()?, &wanted[..]);
        drop(shared);
        assert_eq!(heap.into_inner::<Vec<u8>>()?, wanted);
    }
    Ok(())
}

#[test]
fn overlapping_bytes_move_as_if_through_a_copy() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    for len in [100usize, 5000, 3 << 20] {
        for shift in [1u64, 7, 64, len as u64 / 2] {
            let mut model = bytes(len);
            let buffer = manager.adopt(model.clone())?;
            let n = len as u64 - shift;
            manager
                .copy(buffer.slice(..n)?, buffer.slice(shift..)?)
                .wait()?;
            model.copy_within(..n as usize, shift as usize);
            assert!(*buffer.read()? == model[..], "{len} up by {shift}");
            manager
                .copy(buffer.slice(shift..)?, buffer.slice(..n)?)
                .wait()?;
            model.copy_within(shift as usize.., 0);
            assert!(*buffer.read()? == model[..], "{len} down by {shift}");
        }
    }
    Ok(())
}

#[test]
fn rows_move_between_pitches_and_leave_the_gaps_alone() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let src = manager.adopt(bytes(64 * 100))?;
    let dst = manager.adopt(vec![0xEE_u8; 80 * 100])?;
    let from = Region::new(&src, 3, Shape::pitched(50, 99, 64)?)?;
    let to = Region::new(&dst, 5, Shape::pitched(50, 99, 80)?)?;
    manager.copy(from, to).wait()?;
    let (src, dst) = (src.read()?, dst.read()?);
    for row in 0..99 {
        let (from, to) = (3 + row * 64, 5 + row * 80);
        assert_eq!(dst[to..to + 50], src[from..from + 50]);
        assert!(
            dst[to + 50..(to + 80).min(dst.len())]
                .iter()
                .all(|b| *b == 0xEE)
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_transfer_is_a_future() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let src = manager.adopt(bytes(32 << 20))?;
    let dst = manager.allocate(
        "cpu:0".parse::<transload::Place>()?,
        AllocSpec::bytes(src.len()),
    )?;
    manager.copy(&src, &dst).await?;
    assert!(*dst.read()? == *src.read()?);
    Ok(())
}

#[test]
fn a_detached_transfer_still_completes() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let src = manager.adopt(bytes(64 << 20))?;
    let dst = manager.allocate(
        "cpu:0".parse::<transload::Place>()?,
        AllocSpec::bytes(src.len()),
    )?;
    drop(manager.copy(&src, &dst));
    assert!(*dst.read()? == *src.read()?);
    Ok(())
}

#[test]
fn a_prefetch_is_a_hint_that_changes_nothing() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let buffer = manager.adopt(bytes(9000))?;
    manager.prefetch(&buffer, "cpu:0".parse::<transload::Place>()?)?;
    assert!(
        manager
            .prefetch(&buffer, "cuda:3".parse::<transload::Place>()?)
            .is_err()
    );
    assert_eq!(*buffer.read()?, bytes(9000)[..]);
    Ok(())
}

#[test]
fn an_overlapping_copy_cannot_be_verified() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let buffer = manager.adopt(bytes(100))?;
    let request = Request::new(buffer.slice(..90)?, buffer.slice(10..)?).verify();
    let error = manager.submit(&request).wait().unwrap_err();
    assert!(
        matches!(error, transload::TransferError::VerifyOverlap { .. }),
        "{error}"
    );
    assert_eq!(
        *buffer.read()?,
        bytes(100)[..],
        "a refused request does nothing"
    );
    Ok(())
}

#[test]
fn rows_are_verified_where_they_lie() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let src = manager.adopt(bytes(64 * 100))?;
    let dst = manager.adopt(vec![0xEE_u8; 80 * 100])?;
    let from = Region::new(&src, 3, Shape::pitched(50, 99, 64)?)?;
    let to = Region::new(&dst, 5, Shape::pitched(50, 99, 80)?)?;
    let rows = manager.submit(&Request::new(from, to).verify()).wait()?;
    let packed: Vec<u8> = src
        .read()?
        .chunks(64)
        .take(99)
        .flat_map(|row| row[3..53].to_vec())
        .collect();
    let packed = manager.adopt(packed)?;
    let copy = manager.adopt(vec![0u8; 50 * 99])?;
    let flat = manager
        .submit(&Request::new(&packed, &copy).verify())
        .wait()?;
    assert_eq!(rows.checksum(), flat.checksum());
    Ok(())
}
