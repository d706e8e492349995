//! Host memory that is used many times: sharing it with `cpu:0/pinned` registers it once, where it lies.

use transload::{IntoInnerReason, Method};

use crate::cuda::machine::{assert_clean, at, counter, manager, pattern, round};

const LEN: u64 = 3 << 20;

#[test]
fn shared_with_pinned_memory_a_buffer_is_registered_once_and_used_in_place() {
    let manager = manager("no-peer");
    // This round proves the links, over the engine's own memory.
    round(&manager, LEN, &["cpu:0/pinned", "cuda:0", "cpu:0/pinned"]);
    let before = (counter("registrations"), counter("unregistrations"));
    let sent = pattern(LEN, 1);
    let [own, near] =
        [sent.clone(), vec![0u8; LEN as usize]].map(|bytes| manager.adopt(bytes).unwrap());
    let pinned = || "cpu:0/pinned".parse().unwrap();
    let [view, near_view] = [&own, &near].map(|buffer| manager.share(buffer, pinned()).unwrap());
    let far = at(&manager, "cuda:0", LEN);
    for _ in 0..5 {
        for (from, to) in [(&view, &far), (&far, &near_view)] {
            let report = manager.copy(from, to).wait().unwrap();
            assert_eq!(report.method(), Method::ZeroCopy, "{report}");
        }
        assert!(*near.read().unwrap() == *sent);
    }
    let now = || (counter("registrations"), counter("unregistrations"));
    assert_eq!(now(), (before.0 + 2, before.1));
    assert_eq!(counter("pageable-copies-staged"), 0);
    drop((view, near_view));
    assert_eq!(now(), (before.0 + 2, before.1 + 2));
    assert!(own.into_inner::<Vec<u8>>().unwrap() == sent);
    drop((near, far, manager));
    assert_clean();
}

#[test]
fn without_that_it_is_staged_and_never_registered() {
    let manager = manager("no-peer");
    let own = manager.adopt(pattern(LEN, 2)).unwrap();
    let far = at(&manager, "cuda:0", LEN);
    let report = manager.copy(&own, &far).wait().unwrap();
    assert_eq!(report.method(), Method::HostStaged, "{report}");
    let slots = counter("registrations");
    for _ in 0..20 {
        manager.copy(&own, &far).wait().unwrap();
    }
    // Slots alone are registered, and kept. A copy that is not waited for at once may get one slot more than the first one.
    let more = counter("registrations") - slots;
    assert!(more < 20, "{more} in 20 copies");
    assert!(manager.staging().peak_bytes() > 0);
    drop((own, far, manager));
    assert_clean();
}

#[test]
fn both_views_are_one_memory_in_the_order_of_transfers() {
    let manager = manager("no-peer");
    let own = manager.adopt(vec![1u8; LEN as usize]).unwrap();
    let view = manager
        .share(&own, "cpu:0/pinned".parse().unwrap())
        .unwrap();
    let far = at(&manager, "cuda:0", LEN);
    let back = at(&manager, "cuda:0", LEN);
    for round in 0..10u8 {
        let sent = manager.adopt(vec![round; LEN as usize]).unwrap();
        // Each copy writes, through one view, the bytes that the next one reads through the other view.
        let first = manager.copy(&sent, &own);
        let second = manager.copy(&view, &far);
        let third = manager.copy(&far, &back);
        let fourth = manager.copy(&back, &view);
        for transfer in [first, second, third, fourth] {
            transfer.wait().unwrap();
        }
        assert!(own.read().unwrap().iter().all(|byte| *byte == round));
    }
    drop((far, back));
    let Err(refused) = own.into_inner::<Vec<u8>>() else {
        panic!("devices still reach it")
    };
    assert_eq!(refused.reason, IntoInnerReason::InUse);
    drop(view);
    assert!(refused.buffer.into_inner::<Vec<u8>>().is_ok());
    drop(manager);
    assert_clean();
}
