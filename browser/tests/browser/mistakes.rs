//! A page's mistakes give errors with their reasons, and do no other harm.

use transload::hal::ErrorClass;
use transload::{AllocSpec, Region, Shape};
use transload_wgpu::Wgpu;
use wasm_bindgen_test::wasm_bindgen_test;

use crate::page::{Page, device, part, pattern};

fn buffer(device: &wgpu::Device, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage,
        mapped_at_creation: false,
    })
}

#[wasm_bindgen_test]
async fn ranges_that_are_not_there_are_refused_before_anything_moves() {
    let page = Page::open().await;
    let there = page.holding(&[7; 64]);
    assert!(there.slice(60..65).is_err());
    assert!(there.slice(u64::MAX - 3..u64::MAX).is_err());
    let rows = Shape::pitched(16, 5, 16).unwrap();
    assert!(Region::new(&there, 0, rows).is_err());
    let here = page.adopt(&[1; 65]);
    for (src, dst) in [(&here, &there), (&there, &here)] {
        let error = page.manager.copy(src, dst).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
    }
    assert_eq!(page.look(&there).await, [7; 64]);
}

#[wasm_bindgen_test]
async fn allocations_beyond_what_the_device_allows_are_refused() {
    let page = Page::open().await;
    let limit = page.device.limits().max_buffer_size;
    for spec in [AllocSpec::bytes(limit + 1), AllocSpec::bytes(u64::MAX)] {
        let error = page.manager.allocate(place(), spec).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Caller, "{error}");
        assert!(error.to_string().contains(&limit.to_string()), "{error}");
    }
    let spec = AllocSpec::bytes(64).aligned(512);
    assert!(page.manager.allocate(place(), spec).is_err());
    assert!(
        page.manager
            .allocate("wgpu:1".parse().unwrap(), AllocSpec::bytes(4))
            .is_err()
    );
    assert!(
        page.manager
            .allocate("wgpu:0/mapped".parse().unwrap(), AllocSpec::bytes(4))
            .is_err()
    );
}

#[wasm_bindgen_test]
async fn a_buffer_of_the_pages_takes_part_if_copies_can_touch_it() {
    let (own, queue) = device().await;
    let page = Page::with((own.clone(), queue));
    let copied = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let adopted = page.adopt_native(buffer(&own, copied));
    page.manager
        .copy(page.adopt(&pattern(64, 1)), &adopted)
        .await
        .unwrap();
    assert_eq!(page.look(&adopted).await, pattern(64, 1));
    let deaf = buffer(&own, wgpu::BufferUsages::COPY_SRC);
    let error = page.try_adopt_native(deaf).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller, "{error}");
    assert!(error.to_string().contains("COPY_DST"), "{error}");
    let error = page.try_adopt_native(5u32).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
}

/// The browser itself reports all of these later, as errors of commands.
#[wasm_bindgen_test]
async fn copies_of_what_is_unusable_fail_as_their_callers_mistake_and_bar_no_link() {
    let ((own, queue), (other, _)) = (device().await, device().await);
    let page = Page::with((own.clone(), queue));
    let copied = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let foreign = page.adopt_native(buffer(&other, copied));
    let destroyed = page.adopt_native(buffer(&own, copied));
    destroyed.native::<wgpu::Buffer>().unwrap().destroy();
    let usable = page.holding(&[7; 64]);
    let here = page.adopt(&[1; 64]);
    for bad in [&foreign, &destroyed] {
        for len in [64, 5] {
            let bad = part(bad, 0, len);
            let (here, usable) = (part(&here, 0, len), part(&usable, 0, len));
            for (src, dst) in [
                (&here, &bad),
                (&bad, &here),
                (&usable, &bad),
                (&bad, &usable),
            ] {
                let error = page.manager.copy(src, dst).await.unwrap_err();
                assert_eq!(error.class(), ErrorClass::Caller, "{error}");
            }
        }
    }
    assert_eq!(*here.read().unwrap(), [1; 64]);
    assert_eq!(page.look(&usable).await, [7; 64]);
    let report = page.manager.copy(&here, &usable).await.unwrap();
    assert!(report.fallbacks().is_empty(), "{report}");
    assert_eq!(page.look(&usable).await, [1; 64]);
}

#[wasm_bindgen_test]
async fn a_device_whose_handles_nobody_has_takes_in_nothing() {
    let opened = Wgpu::request().await.unwrap();
    let (foreign, _) = device().await;
    let manager = transload::TransferManager::builder().host();
    let manager = manager.build().unwrap();
    manager.register_backend(opened).unwrap();
    let copied = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let object = buffer(&foreign, copied);
    // SAFETY: the browser asks for no promise.
    let adopted = unsafe { manager.adopt_native("wgpu:0".parse().unwrap(), object) };
    let error = adopted.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Caller, "{error}");
}

/// These tests run on SwiftShader, which cannot allocate up to its own limit.
#[wasm_bindgen_test]
async fn what_the_browser_had_no_room_for_fails_what_is_done_with_it() {
    let page = Page::open().await;
    let place = "wgpu:0".parse().unwrap();
    let spec = AllocSpec::bytes(page.device.limits().max_buffer_size);
    let huge = page.manager.allocate(place, spec).unwrap();
    let sent = page.adopt(&pattern(64, 1));
    let error = page.manager.copy(&sent, part(&huge, 0, 64)).await;
    let error = error.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Exhausted, "{error}");
    let there = page.on_device(64);
    page.manager.copy(&sent, &there).await.unwrap();
    assert_eq!(page.look(&there).await, pattern(64, 1));
}
