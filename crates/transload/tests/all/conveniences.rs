//! Calls that save a program a cast, a copy or some arithmetic.

use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::fixture::{Fixture, Outcome, bytes, without_peers};
use transload::{
    Adopt, Batch, Buffer, Error, Event, OwnedSlice, Prepared, Rect, Region, RegionError, Request,
    Shape, StagingBudget, Transfer, TransferError, TransferManager,
};
use transload_testkit::sim::{Completion, Rule, Script};

const MIB: u64 = 1 << 20;

fn host() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

fn floats(len: usize) -> Vec<f32> {
    (0..len).map(|i| i as f32 * 0.5 - 7.0).collect()
}

/// Adopts `owner`, whose elements lie at `at`, and checks that the buffer's bytes lie there too.
fn adopted<T: Adopt>(owner: T, at: *const f32, wanted: &[f32]) -> Buffer {
    let buffer = host().adopt(owner).unwrap();
    assert_eq!(buffer.len(), size_of_val(wanted) as u64);
    assert_eq!(buffer.is_writable(), T::WRITABLE);
    let seen = buffer.read().unwrap();
    assert_eq!(seen.as_ptr(), at.cast::<u8>(), "it was copied");
    assert_eq!(bytemuck::cast_slice::<u8, f32>(&seen), wanted);
    drop(seen);
    buffer
}

#[test]
fn vectors_and_boxes_of_plain_data_are_adopted_and_come_back() -> Outcome {
    let wanted = floats(1001);
    let owner = wanted.clone();
    let (at, capacity) = (owner.as_ptr(), owner.capacity());
    let buffer = adopted(owner, at, &wanted);
    bytemuck::cast_slice_mut::<u8, f32>(&mut buffer.write()?)[7] = 99.0;
    let buffer = buffer.into_inner::<Vec<u8>>().unwrap_err().buffer;
    let back: Vec<f32> = buffer.into_inner()?;
    assert_eq!((back.as_ptr(), back.capacity()), (at, capacity));
    assert_eq!((back[6], back[7]), (wanted[6], 99.0));

    let owner: Box<[f32]> = wanted.clone().into();
    let at = owner.as_ptr();
    let back: Box<[f32]> = adopted(owner, at, &wanted).into_inner()?;
    assert_eq!((back.as_ptr(), &*back), (at, &*wanted));
    Ok(())
}

#[test]
fn elements_of_any_size_are_adopted() -> Outcome {
    let manager = host();
    for (buffer, len_bytes) in [
        (manager.adopt(vec![[0u16; 37]; 3])?, 37 * 2 * 3),
        (manager.adopt(vec![u128::MAX; 2])?, 32),
        (manager.adopt(vec![(); 5])?, 0),
        (manager.adopt(Vec::<f64>::new())?, 0),
    ] {
        assert_eq!(buffer.len(), len_bytes);
    }
    Ok(())
}

#[test]
fn counted_and_static_slices_are_adopted_read_only_and_shared() -> Outcome {
    static FIXED: [f32; 3] = [1.0, 2.0, 3.0];
    let wanted = floats(1001);
    let slice: Arc<[f32]> = wanted.clone().into();
    let buffer = adopted(Arc::clone(&slice), slice.as_ptr(), &wanted);
    assert_eq!(*slice, *wanted, "the program's own handle shows them too");
    assert!(buffer.write().is_err());
    assert!(Arc::ptr_eq(&buffer.into_inner::<Arc<[f32]>>()?, &slice));

    let vector = Arc::new(wanted.clone());
    let buffer = adopted(Arc::clone(&vector), vector.as_ptr(), &wanted);
    assert!(Arc::ptr_eq(&buffer.into_inner::<Arc<Vec<f32>>>()?, &vector));

    adopted(&FIXED[..], FIXED.as_ptr(), &FIXED);
    // Enums and similar types may be read as bytes, but not written as bytes.
    let flags: Arc<[bool]> = vec![true, false, true].into();
    assert_eq!(*host().adopt(flags)?.read()?, [1, 0, 1]);
    Ok(())
}

#[test]
fn a_slice_that_another_object_owns_is_adopted_with_its_owner() -> Outcome {
    struct Model {
        name: &'static str,
        weights: Vec<f32>,
        head: [f32; 4],
    }
    let model = Arc::new(Model {
        name: "small",
        weights: floats(1001),
        head: [1.0, 2.0, 3.0, 4.0],
    });
    let weights = OwnedSlice::new(Arc::clone(&model), |model| &model.weights[1..]);
    let weights = adopted(weights, &model.weights[1], &model.weights[1..]);
    // A part of the owning object itself can be adopted: the `Arc` keeps it in place.
    let head = OwnedSlice::new(Arc::clone(&model), |model| &model.head);
    let head = adopted(head, &model.head[0], &model.head);
    assert_eq!(Arc::strong_count(&model), 3);
    drop(head);
    let slice: OwnedSlice<Model> = weights.into_inner()?;
    let back = slice.into_owner();
    assert!(Arc::ptr_eq(&back, &model) && back.name == "small");
    drop(back);
    assert_eq!(Arc::strong_count(&model), 1, "a handle was left behind");

    // Unsized owners can be adopted.
    let any: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(vec![1u8, 2, 3]);
    let buffer = host().adopt(OwnedSlice::new(any, |any| any.as_ref()))?;
    assert_eq!(*buffer.read()?, [1, 2, 3]);
    Ok(())
}

/// The engine asks an owner only once, as it may return another slice each time.
#[test]
fn an_owner_that_changes_its_mind_is_asked_once() -> Outcome {
    use std::sync::atomic::{AtomicUsize, Ordering};
    struct Fickle([Vec<u8>; 2], AtomicUsize);
    impl AsRef<[u8]> for Fickle {
        fn as_ref(&self) -> &[u8] {
            &self.0[self.1.fetch_add(1, Ordering::Relaxed) % 2]
        }
    }
    let fickle = Arc::new(Fickle([vec![1; 10], vec![2; 20]], AtomicUsize::new(0)));
    let slice = OwnedSlice::new(Arc::clone(&fickle), |fickle| fickle.as_ref());
    let buffer = host().adopt(slice)?;
    assert_eq!(*buffer.read()?, [1; 10]);
    assert_eq!(fickle.1.load(Ordering::Relaxed), 1);
    Ok(())
}

#[test]
fn uninitialised_memory_is_filled_from_every_memory() -> Outcome {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, MIB);
    let wanted = bytes(10_000, 1);
    for at in ["cpu:0", "cpu:0/pinned", "sim:1"] {
        let src = fixture.filled(at, &wanted);
        let mut memory = vec![MaybeUninit::uninit(); wanted.len()];
        let start = memory.as_ptr();
        let (bytes, report) = fixture.manager.copy_into_uninit(&src, &mut memory)?;
        assert!(*bytes == wanted[..], "{at}");
        assert_eq!((bytes.as_ptr(), report.bytes()), (start.cast(), 10_000));
        bytes[0] ^= 1;
        let rows = Region::new(&src, 10, Shape::pitched(3, 50, 100)?)?;
        let picked: Vec<u8> = wanted[10..]
            .chunks(100)
            .take(50)
            .flat_map(|row| row[..3].to_vec())
            .collect();
        assert_eq!(fixture.manager.read_to_vec(rows)?, picked, "{at}");
    }
    let nothing = fixture.empty("sim:0", 0);
    assert!(fixture.manager.read_to_vec(&nothing)?.is_empty());
    let (bytes, _) = fixture.manager.copy_into_uninit(&nothing, &mut [])?;
    assert!(bytes.is_empty());
    Ok(())
}

#[test]
fn uninitialised_memory_of_another_length_is_refused() {
    let fixture = Fixture::new(&without_peers(1), Completion::Timed, MIB);
    let src = fixture.filled("sim:0", &bytes(100, 1));
    for len in [0, 99, 101] {
        let mut memory = vec![MaybeUninit::uninit(); len];
        let error = fixture
            .manager
            .copy_into_uninit(&src, &mut memory)
            .unwrap_err();
        let dst_bytes = len as u64;
        assert_eq!(
            error,
            TransferError::LengthMismatch {
                src_bytes: 100,
                dst_bytes
            }
        );
    }
}

#[test]
fn a_read_that_fails_gives_no_bytes() -> Outcome {
    let budget = Arc::new(StagingBudget::new(MIB));
    let over = ("sim:0/device".parse()?, "cpu:0/pageable".parse()?);
    let also = ("sim:0/device".parse()?, "cpu:0/pinned".parse()?);
    let script = Script::new()
        .with(Rule::fail_after(0).over(over.0, over.1))
        .with(Rule::fail_after(0).over(also.0, also.1));
    let fixture = Fixture::scripted(&without_peers(1), Completion::Timed, &budget, script);
    let src = fixture.filled("sim:0", &bytes(100, 1));
    let error = fixture.manager.read_to_vec(&src).unwrap_err();
    assert!(
        matches!(error, Error::Transfer(TransferError::Failed(_))),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_file_is_read_into_uninitialised_memory() -> Outcome {
    let wanted = bytes(100_000, 2);
    let path = std::env::temp_dir().join(format!("transload-uninit-{}", std::process::id()));
    std::fs::write(&path, &wanted)?;
    let manager = host();
    let file = manager.open_file(&path)?;
    std::fs::remove_file(&path)?;
    assert!(manager.read_to_vec(&file)? == wanted);
    Ok(())
}

/// Compares every rectangle of a small image, and some that stick out of it, with a rectangle that is cut out element
/// by element.
#[test]
fn a_rectangle_is_what_its_elements_are() -> Outcome {
    const PITCH: u64 = 11;
    // Three rows of three elements of 3 bytes; two bytes lie between the rows, and none after the last.
    let image = bytes(2 * PITCH as usize + 9, 3);
    let manager = host();
    let buffer = manager.adopt(image.clone())?;
    for (x, y, width, height) in (0..5u64.pow(4)).map(|i| (i % 5, i / 5 % 5, i / 25 % 5, i / 125)) {
        let rect = Rect {
            x,
            y,
            width,
            height,
            element_bytes: 3,
            row_pitch_bytes: PITCH,
        };
        let cut = |row: u64| {
            let start = row * PITCH + x * 3;
            let bytes = image.get(start as usize..(start + width * 3) as usize);
            bytes.filter(|_| x + width <= 3)
        };
        let wanted: Option<Vec<&[u8]>> = (y..y + height).map(cut).collect();
        let found = Region::rect(&buffer, rect).map(|region| manager.read_to_vec(region).unwrap());
        match (wanted, found) {
            (Some(wanted), Ok(found)) => assert_eq!(found, wanted.concat(), "{rect:?}"),
            // An empty rectangle may start anywhere up to the buffer's end.
            (_, found) if width * height == 0 => {
                assert!(found.is_ok_and(|bytes| bytes.is_empty()) || x + width > 3 || y > 2)
            }
            (None, Err(_)) => {}
            (wanted, found) => panic!("{rect:?} is {wanted:?}, and gave {found:?}"),
        }
    }
    Ok(())
}

#[test]
fn rectangles_that_stick_out_name_their_figures() -> Outcome {
    let buffer = host().adopt(vec![0u8; 64 * 10])?;
    let memory = buffer.memory();
    let inside = Rect {
        x: 12,
        y: 8,
        width: 4,
        height: 2,
        element_bytes: 4,
        row_pitch_bytes: 64,
    };
    assert!(Region::rect(&buffer, inside).is_ok());
    for (x, width) in [(13, 4), (u64::MAX, 4), (12, u64::MAX), (1 << 62, 1 << 62)] {
        let error = Region::rect(&buffer, Rect { x, width, ..inside }).unwrap_err();
        let wanted = RegionError::PastRow {
            memory,
            x,
            width,
            element_bytes: 4,
            row_pitch_bytes: 64,
        };
        assert_eq!(error, wanted);
        let said =
            format!("{width} elements of 4 bytes from column {x} on end past rows of 64 bytes");
        assert!(error.to_string().contains(&said), "{error}");
    }
    for (y, height) in [(9, 2), (u64::MAX, 2), (8, u64::MAX), (1 << 58, 1)] {
        let error = Region::rect(
            &buffer,
            Rect {
                y,
                height,
                ..inside
            },
        )
        .unwrap_err();
        let wanted = RegionError::PastLastRow {
            memory,
            y,
            height,
            row_pitch_bytes: 64,
            limit: 640,
        };
        assert_eq!(error, wanted);
        let said =
            format!("{height} rows from row {y} on, 64 bytes apart, end past the buffer's 640");
        assert!(error.to_string().contains(&said), "{error}");
    }
    Ok(())
}

/// A program may catch a panic and go on using the manager that the closure borrowed.
#[test]
fn handles_cross_a_caught_panic() -> Outcome {
    use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};
    fn safe<T: UnwindSafe + RefUnwindSafe>() {}
    safe::<TransferManager>();
    safe::<Buffer>();
    safe::<Event>();
    safe::<Region>();
    safe::<Request>();
    safe::<Prepared>();
    safe::<Transfer>();
    safe::<Batch>();

    let manager = host();
    let buffer = manager.adopt(vec![7u8; 100])?;
    let event = manager.event();
    let transfer =
        manager.submit(&Request::new(&buffer, &manager.adopt(vec![0u8; 100])?).after(&event));
    let caught = catch_unwind(|| {
        let _guard = buffer.read().unwrap();
        event.set();
        panic!("the program's own");
    });
    assert!(caught.is_err());
    assert_eq!(transfer.wait()?.bytes(), 100);
    assert_eq!(manager.read_to_vec(&buffer)?, [7; 100]);
    drop(buffer.write()?);
    Ok(())
}
