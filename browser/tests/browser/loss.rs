//! A device that the page destroys, with transfers in flight and without.

use transload::hal::ErrorClass;
use transload::{AllocSpec, Buffer, Transfer};
use wasm_bindgen_test::wasm_bindgen_test;

use crate::page::{Page, pattern};

const LEN: u64 = (2 << 20) + 3;

/// A transfer to the device, one within it, and one back from it.
fn under_way(page: &Page, back: &Buffer) -> Vec<Transfer> {
    let here = page.adopt(&pattern(LEN, 1));
    let there = [(); 3].map(|()| page.holding(&pattern(LEN, 2)));
    vec![
        page.manager.copy(&here, &there[0]),
        page.manager.copy(&there[1], &there[2]),
        page.manager.copy(&there[1], back),
    ]
}

#[wasm_bindgen_test]
async fn a_device_lost_in_flight_fails_what_is_left_and_hangs_nobody() {
    let page = Page::open().await;
    // The same after the device has worked, when the backend has all of its objects.
    let back = page.adopt(&vec![0x5A; LEN as usize]);
    for transfer in under_way(&page, &back) {
        transfer.await.unwrap();
    }
    assert!(*back.read().unwrap() == *pattern(LEN, 2));
    let flying = under_way(&page, &back);
    page.device.destroy();
    for transfer in flying {
        let error = transfer.await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
        assert!(error.to_string().contains("wgpu:0"), "{error}");
    }
    // The host buffer is still usable.
    back.write().unwrap().fill(1);
}

#[wasm_bindgen_test]
async fn a_device_lost_before_anything_was_made_on_it_fails_the_first_transfers() {
    let page = Page::open().await;
    let back = page.adopt(&vec![0x5A; LEN as usize]);
    let flying = under_way(&page, &back);
    page.device.destroy();
    for transfer in flying {
        let error = transfer.await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    }
}

#[wasm_bindgen_test]
async fn lost_stays_lost() {
    let page = Page::open().await;
    let there = page.holding(&pattern(LEN, 3));
    let here = page.adopt(&pattern(LEN, 3));
    page.device.destroy();
    for (src, dst) in [(&here, &there), (&there, &here)] {
        let error = page.manager.copy(src, dst).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    }
    let spec = AllocSpec::bytes(64);
    let error = page.manager.allocate("wgpu:0".parse().unwrap(), spec);
    assert_eq!(error.unwrap_err().class(), ErrorClass::Lost);
    let (src, dst) = (page.adopt(&[1, 2, 3]), page.adopt(&[0; 3]));
    page.manager.copy(&src, &dst).await.unwrap();
    assert_eq!(*dst.read().unwrap(), [1, 2, 3]);
}

#[wasm_bindgen_test]
async fn the_loss_of_one_leaves_the_other_at_work() {
    let page = Page::with_two().await;
    let back = page.adopt(&vec![0; LEN as usize]);
    let flying = under_way(&page, &back);
    page.device.destroy();
    let sent = pattern(LEN, 9);
    let place = "wgpu:1".parse().unwrap();
    let there = page.manager.allocate(place, AllocSpec::bytes(LEN)).unwrap();
    let report = page.manager.copy(page.adopt(&sent), &there).await.unwrap();
    assert!(report.fallbacks().is_empty(), "{report}");
    for transfer in flying {
        let error = transfer.await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    }
    let home = page.adopt(&vec![0; LEN as usize]);
    page.manager.copy(&there, &home).await.unwrap();
    assert!(*home.read().unwrap() == *sent);
}
