//! Rows at a pitch, in two and three dimensions.

use transload::{Buffer, Region, Shape};
use wasm_bindgen_test::wasm_bindgen_test;

use crate::page::{Page, pattern};

/// Rows of `row` bytes, `pitch` apart, from byte `at` on.
#[derive(Clone, Copy, Debug)]
struct Rows {
    at: u64,
    row: u64,
    rows: u64,
    pitch: u64,
}

impl Rows {
    fn region(self, buffer: &Buffer) -> Region {
        let shape = Shape::pitched(self.row, self.rows, self.pitch).unwrap();
        Region::new(buffer, self.at, shape).unwrap()
    }

    fn starts(self) -> impl Iterator<Item = usize> {
        (0..self.rows).map(move |row| (self.at + row * self.pitch) as usize)
    }
}

/// From rows to rows: to the device, within it, and back, over memory with other bytes.
async fn there_on_and_back(page: &Page, from: Rows, to: Rows) {
    let len = from.row as usize;
    let size = (from.at + from.rows * from.pitch).max(to.at + to.rows * to.pitch) + 16;
    let (sent, blank) = (pattern(size, 5), vec![0x5A; size as usize]);
    let copied = |src: &[u8], from: Rows, to: Rows| {
        let mut wanted = blank.clone();
        for (from, to) in from.starts().zip(to.starts()) {
            wanted[to..to + len].copy_from_slice(&src[from..from + len]);
        }
        wanted
    };
    let (src, there) = (page.adopt(&sent), page.holding(&blank));
    let copy = |src: Region, dst: Region| page.manager.copy(src, dst);
    copy(from.region(&src), to.region(&there)).await.unwrap();
    let first = copied(&sent, from, to);
    assert!(page.look(&there).await == first, "there: {from:?} {to:?}");
    let on = page.holding(&blank);
    copy(to.region(&there), from.region(&on)).await.unwrap();
    let second = copied(&first, to, from);
    assert!(page.look(&on).await == second, "on: {from:?} {to:?}");
    let back = page.adopt(&blank);
    copy(from.region(&on), to.region(&back)).await.unwrap();
    let third = copied(&second, from, to);
    assert!(*back.read().unwrap() == *third, "back: {from:?} {to:?}");
}

#[wasm_bindgen_test]
async fn short_rows_at_odd_places_and_pitches() {
    let page = Page::open().await;
    for (row, rows, from, to) in [
        (1, 9, (0, 3), (2, 5)),
        (37, 50, (0, 64), (0, 37)),
        (37, 50, (3, 37), (1, 41)),
        (64, 16, (4, 64), (0, 128)),
        (255, 33, (1, 256), (2, 300)),
    ] {
        let of = |(at, pitch)| Rows {
            at,
            row,
            rows,
            pitch,
        };
        there_on_and_back(&page, of(from), of(to)).await;
    }
}

/// More bytes than one scratch buffer holds, and rows that are each large enough for a write of their own.
#[wasm_bindgen_test]
async fn long_and_many_rows() {
    let page = Page::open().await;
    for (row, rows, from, to) in [
        (20_001, 70, (1, 20_003), (2, 20_480)),
        (40_000, 60, (0, 40_960), (4, 40_000)),
        (1_999, 1_100, (0, 2_048), (3, 2_001)),
    ] {
        let of = |(at, pitch)| Rows {
            at,
            row,
            rows,
            pitch,
        };
        there_on_and_back(&page, of(from), of(to)).await;
    }
}

#[wasm_bindgen_test]
async fn planes_of_rows() {
    let page = Page::open().await;
    let (row, rows, planes) = (13u64, 5u64, 4u64);
    let (pitch, plane) = (17u64, 101u64);
    let shape = Shape::pitched_3d(row, rows, pitch, planes, plane).unwrap();
    let sent = pattern(plane * planes, 6);
    let (src, there) = (page.adopt(&sent), page.on_device(row * rows * planes));
    let from = Region::new(&src, 0, shape).unwrap();
    page.manager.copy(from, &there).await.unwrap();
    let starts = (0..planes).flat_map(|at| (0..rows).map(move |row| at * plane + row * pitch));
    let bytes = starts.flat_map(|at| sent[at as usize..(at + row) as usize].to_vec());
    assert!(page.look(&there).await == bytes.collect::<Vec<u8>>());
}
