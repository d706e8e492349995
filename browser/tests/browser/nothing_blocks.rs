//! A call that would block returns an error that says so, changes nothing, and leaves the page working.

use std::time::Duration;

use transload::hal::ErrorClass;
use transload::model::DeviceId;
use transload::probe::{Found, ProbeOptions};
use transload::{Cancelled, GuardError, Request, TransferError};
use wasm_bindgen_test::wasm_bindgen_test;

use crate::page::{Page, pattern};

const LEN: u64 = (1 << 20) + 1;

#[wasm_bindgen_test]
async fn waiting_for_the_browser_is_an_error_and_the_transfer_goes_on() {
    let page = Page::open().await;
    let sent = pattern(LEN, 1);
    let (src, there) = (page.adopt(&sent), page.on_device(LEN));
    let error = page.manager.copy(&src, &there).wait().unwrap_err();
    assert_eq!(error, TransferError::WouldBlock);
    assert_eq!(error.class(), ErrorClass::Unsupported);
    let back = page.adopt(&vec![0; LEN as usize]);
    let mut transfer = page.manager.copy(&there, &back);
    assert!(transfer.wait_timeout(Duration::from_secs(3600)).is_none());
    transfer.await.unwrap();
    assert!(*back.read().unwrap() == *sent);
}

#[wasm_bindgen_test]
async fn bytes_of_the_host_are_copied_there_and_then() {
    let page = Page::open().await;
    let sent = pattern(LEN, 2);
    let (src, dst) = (page.adopt(&sent), page.adopt(&vec![0; LEN as usize]));
    page.manager.copy(&src, &dst).wait().unwrap();
    assert!(*dst.read().unwrap() == *sent);
    let mut found = vec![0; LEN as usize];
    page.manager.copy_into_slice(&dst, &mut found).unwrap();
    assert!(found == sent);
    page.manager
        .copy_from_slice(&pattern(LEN, 3), &dst)
        .unwrap();
    assert!(*dst.read().unwrap() == *pattern(LEN, 3));
}

#[wasm_bindgen_test]
async fn borrowed_bytes_go_to_no_device() {
    let page = Page::open().await;
    let sent = pattern(LEN, 4);
    let there = page.holding(&sent);
    let error = page
        .manager
        .copy_from_slice(&[0; 9], there.slice(3..12).unwrap());
    assert_eq!(error.unwrap_err(), TransferError::WouldBlock);
    let mut out = [0x5A; 9];
    let part = there.slice(0..9).unwrap();
    let error = page.manager.copy_into_slice(&part, &mut out);
    assert_eq!(error.unwrap_err(), TransferError::WouldBlock);
    assert_eq!(out, [0x5A; 9]);
    assert!(page.look(&there).await == sent);
}

#[wasm_bindgen_test]
async fn a_guard_of_bytes_under_way_is_refused_and_granted_later() {
    let page = Page::open().await;
    let sent = pattern(LEN, 5);
    let there = page.holding(&sent);
    let back = page.adopt(&vec![0; LEN as usize]);
    let transfer = page.manager.copy(&there, &back);
    let error = back.read().map(|_| ()).unwrap_err();
    assert!(matches!(error, GuardError::WouldBlock { .. }), "{error}");
    let error = back.write().map(|_| ()).unwrap_err();
    assert!(matches!(error, GuardError::WouldBlock { .. }), "{error}");
    // A call that borrows the buffer meanwhile does not begin either.
    let mut out = vec![0; LEN as usize];
    let error = page.manager.copy_into_slice(&back, &mut out).unwrap_err();
    assert_eq!(error, TransferError::WouldBlock);
    transfer.await.unwrap();
    assert!(*back.read().unwrap() == *sent);
    back.write().unwrap().fill(1);
}

#[wasm_bindgen_test]
async fn no_call_that_waits_for_the_rest_waits() {
    let page = Page::open().await;
    let (src, there) = (page.adopt(&pattern(LEN, 6)), page.on_device(LEN));
    let transfer = page.manager.copy(&src, &there);
    page.manager.wait_idle();
    assert!(!page.manager.wait_idle_timeout(Duration::from_secs(3600)));
    assert!(!transfer.is_over());
    transfer.await.unwrap();
    assert!(page.manager.wait_idle_timeout(Duration::ZERO));
    let placed = page.manager.place(&src, "wgpu:0".parse().unwrap());
    assert_eq!(
        placed.err().map(|error| error.class()),
        Some(ErrorClass::Unsupported)
    );
}

#[wasm_bindgen_test]
async fn cancelling_says_what_it_knows_and_stops_what_has_not_begun() {
    let page = Page::open().await;
    let sent = pattern(LEN, 7);
    let (src, there) = (page.adopt(&sent), page.holding(&vec![0x5A; LEN as usize]));
    let never = page.manager.event();
    let waiting = page
        .manager
        .submit(&Request::new(&src, &there).after(&never));
    assert_eq!(waiting.cancel(), Cancelled::NotStarted);
    assert!(page.look(&there).await == vec![0x5A; LEN as usize]);
    let transfer = page.manager.copy(&src, &there);
    let would_block = Cancelled::Finished(Err(TransferError::WouldBlock));
    assert_eq!(transfer.cancel(), would_block);
    page.manager.copy(&src, &there).await.unwrap();
    assert!(page.look(&there).await == sent);
}

/// Where the host has threads, they make copies of this size.
#[wasm_bindgen_test]
async fn long_copies_of_the_hosts_are_done_by_the_page_itself() {
    let page = Page::open().await;
    for len in [(64 << 20) + 3, 5 << 20] {
        let sent = pattern(len, 8);
        let (src, dst) = (page.adopt(&sent), page.adopt(&vec![0; len as usize]));
        page.manager
            .submit(&Request::new(&src, &dst).verify())
            .wait()
            .unwrap();
        assert!(*dst.read().unwrap() == *sent);
    }
}

#[wasm_bindgen_test]
async fn a_probe_measures_the_host_alone_and_bars_no_link() {
    let page = Page::open().await;
    let mut options = ProbeOptions::quick();
    options.sizes = vec![4096];
    options.samples = 2;
    let found = page.manager.probe(&options);
    for link in &found.links {
        assert!(!link.faulty, "{link:?}");
        let is_host = link.id.engine.device == DeviceId::CPU0;
        for (_, size) in &link.sizes {
            match size {
                Found::Time(_) => assert!(is_host, "{link:?}"),
                Found::Failed(_) => assert!(!is_host, "{link:?}"),
                other => panic!("{other:?} of {link:?}"),
            }
        }
    }
    let sent = pattern(LEN, 9);
    let (src, there) = (page.adopt(&sent), page.on_device(LEN));
    let report = page.manager.copy(&src, &there).await.unwrap();
    assert!(report.fallbacks().is_empty(), "{report}");
    assert!(page.look(&there).await == sent);
}
