//! Copies bring the right bytes and change no other.

use transload::Request;
use wasm_bindgen_test::wasm_bindgen_test;

use crate::page::{Page, part, pattern};

const MIB: u64 = 1 << 20;

#[wasm_bindgen_test]
async fn bytes_go_there_on_and_come_back() {
    let page = Page::open().await;
    for len in [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        MIB - 1,
        MIB,
        MIB + 1,
        9 * MIB + 5,
        40 * MIB + 5,
    ] {
        let sent = pattern(len, len);
        let (src, there) = (page.adopt(&sent), page.on_device(len));
        let report = page.manager.copy(&src, &there).await.unwrap();
        assert_eq!(report.bytes(), len);
        assert!(page.look(&there).await == sent, "{len} bytes there");
        let on = page.on_device(len);
        page.manager.copy(&there, &on).await.unwrap();
        assert!(page.look(&on).await == sent, "{len} bytes on");
        let back = page.adopt(&vec![0xA5; len as usize]);
        page.manager.copy(&on, &back).await.unwrap();
        assert!(*back.read().unwrap() == *sent, "{len} bytes back");
    }
}

#[wasm_bindgen_test]
async fn no_byte_is_a_copy_too() {
    let page = Page::open().await;
    let (src, there) = (page.adopt(&[7; 4]), page.on_device(4));
    let nothing = (part(&src, 2, 0), part(&there, 3, 0));
    assert_eq!(
        page.manager
            .copy(&nothing.0, &nothing.1)
            .await
            .unwrap()
            .bytes(),
        0
    );
    page.manager.copy(&nothing.1, &nothing.0).await.unwrap();
    assert_eq!(page.look(&there).await, [0; 4]);
}

/// Every length of 0 to 9 bytes from every position in a word to every other. All copies are in flight at once, each in
/// a field of its own.
async fn fields(from_host: bool, to_host: bool) {
    const FIELD: u64 = 32;
    let page = Page::open().await;
    let places = (0..4).flat_map(|from| (0..4).map(move |to| (from, to)));
    let cases: Vec<(u64, u64, u64)> = places
        .flat_map(|(from, to)| (0..10).map(move |len| (from, to, len)))
        .collect();
    let all = FIELD * cases.len() as u64;
    let (sent, blank) = (pattern(all, 11), vec![0x5A; all as usize]);
    let src = if from_host {
        page.adopt(&sent)
    } else {
        page.holding(&sent)
    };
    let dst = if to_host {
        page.adopt(&blank)
    } else {
        page.holding(&blank)
    };
    let mut wanted = blank;
    let mut transfers = Vec::new();
    for (number, (from, to, len)) in (0..).zip(cases) {
        let (from, to) = (number * FIELD + 8 + from, number * FIELD + 8 + to);
        let (src, dst) = (part(&src, from, len), part(&dst, to, len));
        transfers.push(page.manager.copy(&src, &dst));
        wanted[to as usize..(to + len) as usize]
            .copy_from_slice(&sent[from as usize..(from + len) as usize]);
    }
    for transfer in transfers {
        transfer.await.unwrap();
    }
    let found = page.bytes(&dst).await;
    for (number, field) in found.chunks(FIELD as usize).enumerate() {
        let at = number * FIELD as usize;
        assert_eq!(field, &wanted[at..at + field.len()], "field {number}");
    }
}

#[wasm_bindgen_test]
async fn any_place_and_length_goes_to_the_device_and_leaves_the_neighbours_alone() {
    fields(true, false).await;
}

#[wasm_bindgen_test]
async fn any_place_and_length_comes_back_and_leaves_the_neighbours_alone() {
    fields(false, true).await;
}

#[wasm_bindgen_test]
async fn any_place_and_length_goes_within_the_device_and_leaves_the_neighbours_alone() {
    fields(false, false).await;
}

/// Lengths around those that one pass moves, at odd offsets.
#[wasm_bindgen_test]
async fn long_ranges_at_odd_places_leave_the_neighbours_alone() {
    let page = Page::open().await;
    let all = 2 * MIB + 64;
    for (from, to, len) in [
        (1, 2, MIB - 1),
        (3, 1, MIB),
        (2, 2, MIB + 1),
        (0, 3, 2 * MIB + 5),
        (5, 0, 2 * MIB - 3),
    ] {
        let (sent, blank) = (pattern(all, len), vec![0x5A; all as usize]);
        let host = page.adopt(&sent);
        let there = page.holding(&blank);
        let moved = |found: &[u8], src: u64, dst: u64| {
            let mut wanted = vec![0x5A; all as usize];
            let bytes = &sent[from as usize..(from + len) as usize];
            wanted[dst as usize..(dst + len) as usize].copy_from_slice(bytes);
            assert!(found == wanted, "{len} bytes from {src} to {dst}");
        };
        page.manager
            .copy(part(&host, from, len), part(&there, to, len))
            .await
            .unwrap();
        moved(&page.look(&there).await, from, to);
        let on = page.holding(&blank);
        page.manager
            .copy(part(&there, to, len), part(&on, from, len))
            .await
            .unwrap();
        moved(&page.look(&on).await, to, from);
        let back = page.adopt(&blank);
        page.manager
            .copy(part(&on, from, len), part(&back, to, len))
            .await
            .unwrap();
        moved(&back.read().unwrap(), from, to);
    }
}

#[wasm_bindgen_test]
async fn both_ends_are_compared_for_who_asks() {
    let page = Page::open().await;
    let sent = pattern(3 * MIB + 7, 2);
    let (src, there) = (page.adopt(&sent), page.on_device(sent.len() as u64));
    let request = Request::new(&src, &there).verify();
    page.manager.submit(&request).await.unwrap();
    assert!(page.look(&there).await == sent);
}

#[wasm_bindgen_test]
async fn bytes_go_from_one_device_of_the_page_to_another() {
    let page = Page::with_two().await;
    let sent = pattern(3 * MIB + 1, 8);
    let src = page.holding(&sent);
    let place = "wgpu:1".parse().unwrap();
    let spec = transload::AllocSpec::bytes(sent.len() as u64);
    let other = page.manager.allocate(place, spec).unwrap();
    let report = page.manager.copy(&src, &other).await.unwrap();
    assert_eq!(report.method(), transload::Method::HostStaged, "{report}");
    let back = page.adopt(&vec![0; sent.len()]);
    page.manager.copy(&other, &back).await.unwrap();
    assert!(*back.read().unwrap() == *sent);
}
