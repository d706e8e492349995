//! Elements at strides between all memories, against a model that copies them one by one.

use std::ptr::NonNull;
use std::sync::Arc;

use transload::hal::HostSpan;
use transload::{
    AllocSpec, Axis, Buffer, Conversion, Element, HostEnd, Region, Request, Strided, TransferError,
    TransferManager,
};
use transload_testkit::sim::{Completion, OpKind, Rule};

use super::dice::Dice;
use super::fixture::{Fixture, bytes, without_peers};

fn filled(manager: &TransferManager, place: &str, bytes: &[u8]) -> Buffer {
    let spec = AllocSpec::bytes(bytes.len() as u64);
    let buffer = manager.allocate(place.parse().unwrap(), spec).unwrap();
    manager.copy_from_slice(bytes, &buffer).unwrap();
    buffer
}

/// A view of an array as programs make them: dimensions in any order, some backwards, some with gaps.
pub(crate) fn view(dice: &mut Dice, element: u64, counts: &[u64]) -> Strided {
    let mut order: Vec<usize> = (0..counts.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, dice.below(at as u64 + 1) as usize);
    }
    let mut axes = vec![Axis::new(1, 0); counts.len()];
    let mut pitch = (element * (1 + dice.below(2))) as i64;
    for at in order {
        let is_back = dice.below(4) == 0;
        axes[at] = Axis::new(counts[at], if is_back { -pitch } else { pitch });
        pitch *= (counts[at] + dice.below(3) * dice.below(2)) as i64;
    }
    Strided::new(element, &axes).unwrap()
}

/// Copies one view to another, and compares all bytes of the destination.
fn copy(
    manager: &TransferManager,
    places: [&str; 2],
    views: [&Strided; 2],
    conversion: Option<Conversion>,
) {
    const BEFORE: u64 = 5;
    let [from, to] = views;
    let sizes = conversion.map_or([1; 2], |of| [of.from(), of.to()].map(|of| of.len_bytes()));
    let data = bytes((from.extent_bytes() + 9) as usize, 1);
    let before = bytes((to.extent_bytes() + 9) as usize, 2);
    let mut wanted = before.clone();
    for number in 0..from.payload_bytes() / sizes[0] {
        let read = (from.locate(number * sizes[0]).0 + BEFORE) as usize;
        let written = (to.locate(number * sizes[1]).0 + BEFORE) as usize;
        let read = &data[read..][..sizes[0] as usize];
        let place = &mut wanted[written..][..sizes[1] as usize];
        match conversion {
            None => place.copy_from_slice(read),
            // The upper half, rounded to the nearest.
            Some(_) => {
                let bits = u32::from_le_bytes(read.try_into().unwrap());
                let is_nan = f32::from_bits(bits).is_nan();
                let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
                let bits = if is_nan { bits >> 16 | 0x40 } else { rounded };
                place.copy_from_slice(&(bits as u16).to_le_bytes());
            }
        }
    }
    let src = filled(manager, places[0], &data);
    let dst = filled(manager, places[1], &before);
    let region = |buffer: &Buffer, view: &Strided| {
        Region::strided(buffer, BEFORE + view.first(), view).unwrap()
    };
    let mut request = Request::new(region(&src, from), region(&dst, to));
    if let Some(conversion) = conversion {
        request = request.convert(conversion);
    }
    // Ends that differ in form cannot be compared.
    if conversion.is_none() && from.payload_bytes() % 3 == 0 {
        request = request.verify();
    }
    let report = manager.submit(&request).wait().unwrap();
    assert_eq!(report.bytes(), to.payload_bytes());
    let found = manager.read_to_vec(&dst).unwrap();
    assert!(found == wanted, "{places:?} {views:?} {conversion:?}");
    if places != ["cpu:0"; 2] {
        return;
    }
    // The same from and to memory that is not the manager's.
    for is_lent in [[true, true], [true, false], [false, true]] {
        let mut own = before.clone();
        let dst = filled(manager, places[1], &before);
        let lent = |start: *const u8, view: &Strided| {
            let first = start.wrapping_add((BEFORE + view.first()) as usize);
            HostEnd::strided(NonNull::new(first.cast_mut()).unwrap(), view)
        };
        let from_end = match is_lent[0] {
            true => lent(data.as_ptr(), from),
            false => region(&src, from).into(),
        };
        let to_end = match is_lent[1] {
            true => lent(own.as_mut_ptr(), to),
            false => region(&dst, to).into(),
        };
        // SAFETY: both vectors outlive the call, and nothing else touches them.
        let report = unsafe { manager.copy_host(from_end, to_end, conversion) }.unwrap();
        assert_eq!(report.bytes(), to.payload_bytes());
        if !is_lent[1] {
            own = manager.read_to_vec(&dst).unwrap();
        }
        assert!(own == wanted, "{is_lent:?} {views:?} {conversion:?}");
    }
}

/// Copies views of many shapes between two places.
pub(crate) fn copy_views(manager: &TransferManager, from: &str, to: &str, rounds: u64, most: u64) {
    let mut dice = Dice(rounds * 31 + most);
    let to_half = Conversion::new(Element::F32, Element::BF16).unwrap();
    for round in 0..rounds {
        let counts: Vec<u64> = (0..1 + dice.below(4))
            .map(|_| 1 + dice.below(most))
            .collect();
        let element = [1, 2, 4, 8, 3, 12][dice.below(6) as usize];
        let (from_view, to_view) = (
            view(&mut dice, element, &counts),
            view(&mut dice, element, &counts),
        );
        let dense = Strided::new(from_view.payload_bytes(), &[]).unwrap();
        let copy = |views| copy(manager, [from, to], views, None);
        match round % 3 {
            0 => copy([&from_view, &to_view]),
            1 => copy([&from_view, &dense]),
            _ => copy([&dense, &to_view]),
        }
        // Only the host's engine converts, on the first link.
        if from.starts_with("box2/") {
            continue;
        }
        let (floats, halves) = (view(&mut dice, 4, &counts), view(&mut dice, 2, &counts));
        self::copy(manager, [from, to], [&floats, &halves], Some(to_half));
    }
}

#[test]
fn the_hosts_memories_exchange_elements_at_strides() {
    let manager = TransferManager::builder().host().build().unwrap();
    let places = ["cpu:0", "cpu:0/shared"];
    for (from, to) in places.iter().flat_map(|from| places.map(|to| (from, to))) {
        copy_views(&manager, from, to, 60, 9);
    }
    // As many dimensions as an array has.
    let mut dice = Dice(41);
    let to_half = Conversion::new(Element::F32, Element::BF16).unwrap();
    for _ in 0..20 {
        let [from, to] = [(); 2].map(|()| view(&mut dice, 4, &[2; 8]));
        copy(&manager, ["cpu:0"; 2], [&from, &to], None);
        let half = view(&mut dice, 2, &[2; 8]);
        copy(&manager, ["cpu:0"; 2], [&from, &half], Some(to_half));
    }
    // As large as several threads share.
    copy_views(&manager, "cpu:0", "cpu:0", 6, 40);
}

#[test]
fn elements_pass_slots_in_each_completion_mode() {
    for completion in Completion::all() {
        if let Completion::Never = completion {
            continue;
        }
        let fixture = Fixture::new(&without_peers(2), completion, 64 << 20);
        let mut dice = Dice(7);
        for (from, to) in [
            ("cpu:0/pageable", "sim:0"),
            ("sim:0", "sim:1"),
            ("sim:1", "cpu:0/pinned"),
        ] {
            for _ in 0..4 {
                let counts = [20, 30, 11];
                let (from_view, to_view) =
                    (view(&mut dice, 4, &counts), view(&mut dice, 4, &counts));
                copy(&fixture.manager, [from, to], [&from_view, &to_view], None);
                let dense = Strided::new(from_view.payload_bytes(), &[]).unwrap();
                copy(&fixture.manager, [from, to], [&from_view, &dense], None);
                copy(&fixture.manager, [from, to], [&dense, &to_view], None);
            }
        }
    }
}

#[test]
fn destinations_of_one_array_may_have_its_elements_in_different_orders() {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, 64 << 20);
    let manager = &fixture.manager;
    let data = bytes(240_000, 1);
    let src = filled(manager, "cpu:0/pageable", &data);
    // 200 rows of 300, column by column; as rows of columns, and as the source has them.
    let columns = Strided::new(4, &[Axis::new(300, 4), Axis::new(200, 1200)]).unwrap();
    let back = Strided::new(4, &[Axis::new(300, -800), Axis::new(200, 4)]).unwrap();
    let dense = Strided::new(240_000, &[]).unwrap();
    let source = Region::strided(&src, 0, &columns).unwrap();
    for views in [
        [dense, columns, back, dense],
        [dense; 4],
        [columns; 4],
        [back; 4],
    ] {
        let places = ["sim:0", "sim:1", "sim:1", "cpu:0/pinned"];
        let ends = places.map(|place| filled(manager, place, &[0; 240_000]));
        let requests = ends.iter().zip(&views).map(|(end, view)| {
            Request::new(
                source.clone(),
                Region::strided(end, view.first(), view).unwrap(),
            )
        });
        let batch = manager.broadcast(&requests.collect::<Vec<_>>()).unwrap();
        batch
            .wait()
            .into_iter()
            .for_each(|result| drop(result.unwrap()));
        for (end, view) in ends.iter().zip(&views) {
            let mut wanted = vec![0; data.len()];
            for at in 0..columns.payload_bytes() {
                wanted[view.locate(at).0 as usize] = data[columns.locate(at).0 as usize];
            }
            assert!(fixture.bytes_of(end) == wanted, "{view:?}");
        }
    }
}

#[test]
fn a_wrong_element_is_found_when_the_ends_are_compared() {
    let fixture = Fixture::new(&without_peers(1), Completion::Timed, 64 << 20);
    let manager = &fixture.manager;
    let columns = Strided::new(4, &[Axis::new(300, 4), Axis::new(200, 1200)]).unwrap();
    let src = filled(manager, "cpu:0/pageable", &bytes(240_000, 1));
    let dst = filled(manager, "sim:0", &[0; 240_000]);
    fixture
        .sim
        .add_rule(Rule::corrupt(77_777).kind(OpKind::Strided));
    let region = Region::strided(&src, 0, &columns).unwrap();
    let request = Request::new(region, &dst).verify();
    match manager.submit(&request).wait() {
        Ok(report) => assert_eq!(report.fallbacks().len(), 1),
        Err(error) => assert!(matches!(error, TransferError::Differs { .. }), "{error}"),
    }
}

#[cfg(not(any(loom, transload_local)))]
#[test]
fn adapters_exchange_elements_at_strides_with_the_host() {
    let adapters = transload_wgpu::Wgpu::discover();
    if adapters.is_empty() {
        return super::adapter::skip();
    }
    let manager = TransferManager::builder()
        .host()
        .backend(Arc::new(adapters));
    let manager = manager.build().unwrap();
    for (from, to) in [("cpu:0", "wgpu:0"), ("wgpu:0", "cpu:0/shared")] {
        copy_views(&manager, from, to, 12, 9);
    }
    let mut dice = Dice(3);
    for _ in 0..4 {
        let (from, to) = (
            view(&mut dice, 4, &[5, 6, 7]),
            view(&mut dice, 4, &[5, 6, 7]),
        );
        copy(&manager, ["wgpu:0", "wgpu:0"], [&from, &to], None);
    }
}

#[test]
fn arrays_that_leave_the_memory_or_write_a_byte_twice_are_refused() {
    let manager = TransferManager::builder().host().build().unwrap();
    let buffer = manager.adopt(vec![0u8; 100]).unwrap();
    let array = |axes: &[Axis]| Strided::new(4, axes).unwrap();
    let refused = |offset, axes: &[Axis]| {
        Region::strided(&buffer, offset, &array(axes))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(0, &[Axis::new(2, -4)]),
        "an array whose first element is at byte 0 begins 4 bytes before it and spans 8 bytes: it leaves the buffer's 100 bytes \
         in cpu:0/pageable"
    );
    assert!(refused(60, &[Axis::new(6, 8), Axis::new(2, 4)]).contains("spans 48 bytes"));
    assert!(refused(u64::MAX, &[]).contains("18446744073709551615"));

    let copy = |src: Region, dst: Region| manager.copy(src, dst).wait();
    let other = manager.adopt(vec![1u8; 64]).unwrap();
    let region = |buffer: &Buffer, offset, axes: &[Axis]| {
        Region::strided(buffer, offset, &array(axes)).unwrap()
    };
    // A source's elements may share bytes, a destination's may not.
    let row = [Axis::new(5, 0), Axis::new(3, 4)];
    let twice = copy(
        region(&other, 0, &[Axis::new(15, 4)]),
        region(&buffer, 0, &row),
    )
    .unwrap_err();
    assert_eq!(
        twice.to_string(),
        "the destination has 12 bytes from byte 0 on of a buffer in cpu:0/pageable twice"
    );
    copy(
        region(&other, 0, &row),
        region(&buffer, 0, &[Axis::new(15, 4)]),
    )
    .unwrap();
    // Even columns to odd ones share none; a column to the next bytes does.
    let columns = [Axis::new(3, -32), Axis::new(4, 8)];
    copy(region(&buffer, 64, &columns), region(&buffer, 68, &columns)).unwrap();
    let overlap = copy(region(&buffer, 64, &columns), region(&buffer, 66, &columns)).unwrap_err();
    assert_eq!(
        overlap.to_string(),
        "source and destination overlap in cpu:0/pageable, and one of them is rows, blocks, or elements at strides"
    );
    // Nothing at all.
    let none = copy(
        region(&buffer, 0, &[Axis::new(0, -4)]),
        region(&other, 64, &[Axis::new(0, 4)]),
    );
    assert_eq!(none.unwrap().bytes(), 0);
}

#[test]
fn a_copy_of_lent_memory_behind_another_transfer_is_refused_and_does_nothing() {
    let manager = TransferManager::builder().host().build().unwrap();
    let (src, dst) = (
        filled(&manager, "cpu:0", &[1; 64]),
        filled(&manager, "cpu:0", &[2; 64]),
    );
    let gate = manager.event();
    let first = manager.submit(&Request::new(&src, &dst).after(&gate));
    let mut own = [7u8; 64];
    let mut copy = || {
        let lent = HostEnd::from(HostSpan::of_mut(&mut own));
        // SAFETY: the array outlives the call.
        unsafe { manager.copy_host(Region::from(&dst), lent, None) }
    };
    assert!(matches!(copy(), Err(TransferError::WouldBlock)));
    gate.set();
    first.wait().unwrap();
    copy().unwrap();
    assert_eq!(own, [1; 64]);
}
