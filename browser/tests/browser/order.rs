//! Transfers of the same bytes take effect in order, whichever task awaits them and when.

use transload::model::Instant;
use transload::{Buffer, Request, TransferError};
use transload_wgpu::{WatchError, Wgpu};
use wasm_bindgen_test::wasm_bindgen_test;

use crate::page::{Page, device, part, pattern};

const MIB: u64 = 1 << 20;

/// Pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[wasm_bindgen_test]
async fn overlapping_ranges_of_one_buffer_are_copied_as_if_at_once() {
    let page = Page::open().await;
    let all = 2 * MIB + 9;
    for (from, to, len) in [
        (0, 1, 9),
        (1, 0, 9),
        (0, 4, 64),
        (5, 2, 100_001),
        (0, 4, 2 * MIB + 5),
        (9, 2, 2 * MIB),
        (1, 4, 2 * MIB + 3),
    ] {
        let mut model = pattern(all, len);
        let there = page.holding(&model);
        let (src, dst) = (part(&there, from, len), part(&there, to, len));
        page.manager.copy(&src, &dst).await.unwrap();
        model.copy_within(from as usize..(from + len) as usize, to as usize);
        assert!(
            page.look(&there).await == model,
            "{len} bytes, {from} to {to}"
        );
    }
}

/// Four buffers, in host memory and on the device. The test submits copies between random pairs of them before it
/// awaits the first one. The final bytes equal those of a model that copies one after the other.
#[wasm_bindgen_test]
async fn transfers_that_touch_the_same_bytes_take_effect_in_the_order_submitted() {
    const LEN: u64 = 4_000;
    let page = Page::open().await;
    for seed in 1..=4 {
        let mut dice = Dice(seed);
        let mut models: Vec<Vec<u8>> = (0..4).map(|at| pattern(LEN, 10 * seed + at)).collect();
        let buffers = [
            page.adopt(&models[0]),
            page.adopt(&models[1]),
            page.holding(&models[2]),
            page.holding(&models[3]),
        ];
        let mut transfers = Vec::new();
        for _ in 0..60 {
            let (src, dst) = (dice.below(4) as usize, dice.below(4) as usize);
            let len = dice.below(600);
            let (from, to) = (dice.below(LEN - len), dice.below(LEN - len));
            let ends = (part(&buffers[src], from, len), part(&buffers[dst], to, len));
            transfers.push(page.manager.copy(&ends.0, &ends.1));
            let bytes = models[src][from as usize..(from + len) as usize].to_vec();
            models[dst][to as usize..(to + len) as usize].copy_from_slice(&bytes);
        }
        // The last one first.
        for transfer in transfers.into_iter().rev() {
            transfer.await.unwrap();
        }
        for (at, (buffer, model)) in buffers.iter().zip(&models).enumerate() {
            assert!(
                page.bytes(buffer).await == *model,
                "buffer {at}, seed {seed}"
            );
        }
    }
}

#[wasm_bindgen_test]
async fn a_transfer_that_is_dropped_in_flight_still_arrives_whole() {
    let page = Page::open().await;
    let sent = pattern(5 * MIB + 3, 1);
    let there = page.holding(&vec![0x5A; sent.len()]);
    drop(page.manager.copy(page.adopt(&sent), &there));
    // This copy is submitted later, so it reads the bytes that the dropped transfer wrote.
    let back = page.adopt(&vec![0; sent.len()]);
    page.manager.copy(&there, &back).await.unwrap();
    assert!(*back.read().unwrap() == *sent);
    // The transfer and its device buffer are dropped again; the host buffer stays usable.
    let home = page.adopt(&vec![0xA5; sent.len()]);
    drop(page.manager.copy(there, &home));
    let again = page.on_device(sent.len() as u64);
    page.manager.copy(&home, &again).await.unwrap();
    assert!(page.look(&again).await == sent);
    assert!(*home.read().unwrap() == *sent);
}

/// No code holds the manager any more while its transfer is in flight.
#[wasm_bindgen_test]
async fn a_transfer_outlives_its_manager() {
    let page = Page::open().await;
    let sent = pattern(MIB + 1, 4);
    let there = page.on_device(sent.len() as u64);
    let raw = there.native::<wgpu::Buffer>().unwrap().clone();
    drop(page.manager.copy(page.adopt(&sent), there));
    let Page {
        manager,
        device,
        queue,
    } = page;
    drop(manager);
    let other = Page::with((device, queue));
    let looked = other.adopt_native(raw);
    let found = other.look(&looked).await;
    assert!(found[..sent.len()] == *sent);
}

#[wasm_bindgen_test]
async fn a_transfer_starts_after_the_events_that_it_waits_for() {
    let page = Page::open().await;
    let (first, second) = (pattern(MIB, 1), pattern(MIB, 2));
    let src = page.adopt(&first);
    let there = page.on_device(MIB);
    let (go, arrived) = (page.manager.event(), page.manager.event());
    let request = Request::new(&src, &there).after(&go).then(&arrived);
    let transfer = page.manager.submit(&request);
    assert!(!transfer.is_over() && !arrived.is_set());
    // The transfer reads the bytes that the source holds when the event is set.
    write(&src, &second);
    go.set();
    transfer.await.unwrap();
    assert!(arrived.is_set());
    assert!(page.look(&there).await == second);
}

fn write(buffer: &Buffer, bytes: &[u8]) {
    // The transfer precedes the guard in the order, so a guard would wait for it.
    let error = buffer.write().map(|_| ()).unwrap_err();
    assert!(
        matches!(error, transload::GuardError::WouldBlock { .. }),
        "{error}"
    );
    let span = buffer.raw().host(0, bytes.len() as u64).unwrap();
    // SAFETY: the buffer is host memory, and the transfer that reads it has not started.
    unsafe { span.as_mut_slice() }.copy_from_slice(bytes);
}

/// A submission of the page fills the source of a transfer to another device.
#[wasm_bindgen_test]
async fn a_transfer_starts_after_a_submission_of_the_pages() {
    let page = Page::open().await;
    let sent = pattern(MIB, 3);
    let src = page.adopt(&vec![0; MIB as usize]);
    let there = page.on_device(MIB);
    let (done, arrived) = (page.manager.event(), page.manager.event());
    let index = page.queue.submit([]);
    let backend = page.manager.backend::<Wgpu>().unwrap();
    backend
        .when_done(&page.device, index, done.setter())
        .unwrap();
    let request = Request::new(&src, &there).after(&done).then(&arrived);
    let transfer = page.manager.submit(&request);
    assert!(!done.is_set());
    write(&src, &sent);
    transfer.await.unwrap();
    assert!(done.is_set() && arrived.is_set());
    assert!(page.look(&there).await == sent);
    let (other, queue) = device().await;
    let error = backend.when_done(&other, queue.submit([]), || {});
    assert!(matches!(
        error,
        Err(WatchError::UnknownDevice { devices: 1 })
    ));
}

/// No other event happens while time passes.
#[wasm_bindgen_test]
async fn a_deadline_passes_while_nothing_else_happens() {
    let page = Page::open().await;
    let (src, there) = (page.adopt(&[1; 64]), page.holding(&[7; 64]));
    let never = page.manager.event();
    // Far enough ahead that the test awaits all transfers before the first deadline passes.
    let start = page.manager.now();
    let at = |milliseconds: u64| Instant(start.0 + milliseconds * 1_000_000);
    let request = || Request::new(&src, &there).after(&never);
    let late = page.manager.submit(&request().deadline(at(600)));
    let early = page.manager.submit(&request().deadline(at(400)));
    let detached = page.manager.event();
    drop(
        page.manager
            .submit(&request().deadline(at(500)).then(&detached)),
    );
    for transfer in [late, early] {
        let error = transfer.await.unwrap_err();
        assert!(matches!(error, TransferError::Deadline { .. }), "{error}");
    }
    assert!(detached.is_set());
    assert_eq!(page.look(&there).await, [7; 64]);
}
