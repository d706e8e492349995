//! The loss of a device while transfers use it, and its effect on other devices.

use transload::hal::ErrorClass;
use transload::{AllocSpec, Buffer, Transfer};

use crate::adapters::machine::{Adapter, Adapters, MIB, pattern};

const LEN: u64 = 8 * MIB + 3;

/// Transfers to `on`, some of which the driver has certainly begun.
fn under_way(adapters: &Adapters, on: &Adapter) -> Vec<(Buffer, Transfer)> {
    let src = adapters.manager.adopt(pattern(LEN, 5)).unwrap();
    (0..4)
        .map(|_| {
            let dst = adapters.buffer(on, LEN);
            let transfer = adapters.manager.copy(&src, &dst);
            (dst, transfer)
        })
        .collect()
}

#[test]
fn a_device_lost_in_flight_fails_what_is_left_and_hangs_nobody() {
    let Some(mut adapters) = Adapters::open(1) else {
        return;
    };
    // The adapters are lost one after the other; each is lost while the ones before it are gone.
    while let Some(lost) = adapters.all.pop() {
        let flying = under_way(&adapters, &lost);
        lost.device.destroy();
        for (dst, transfer) in flying {
            // A transfer that ended before the loss may report success.
            if let Err(error) = transfer.wait() {
                assert_eq!(error.class(), ErrorClass::Lost, "{error}");
                let said = error.to_string();
                assert!(said.contains(&lost.id.to_string()), "{said}");
            }
            drop(dst);
        }
        // A lost device stays lost.
        let spec = AllocSpec::bytes(64);
        let error = adapters.manager.allocate(lost.place(), spec).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
    }
}

#[test]
fn transfers_to_and_from_a_lost_device_say_so() {
    let Some(adapters) = Adapters::open(1) else {
        return;
    };
    for lost in &adapters.all {
        let sent = pattern(LEN, 3);
        let there = adapters.filled(lost, &sent);
        let here = adapters.manager.adopt(sent).unwrap();
        lost.device.destroy();
        for (src, dst) in [(&here, &there), (&there, &here)] {
            let error = adapters.manager.copy(src, dst).wait().unwrap_err();
            assert_eq!(error.class(), ErrorClass::Lost, "{error}");
        }
    }
}

/// The first transfer on the other adapter after the loss arrives, in its first attempt.
#[test]
fn the_loss_of_one_leaves_the_other_at_work() {
    for which in [0, 1] {
        let Some(adapters) = Adapters::open(2) else {
            return;
        };
        let (lost, left) = (&adapters.all[which], &adapters.all[1 - which]);
        let flying = [under_way(&adapters, lost), under_way(&adapters, left)];
        lost.device.destroy();

        let sent = pattern(LEN, 9);
        let src = adapters.manager.adopt(sent.clone()).unwrap();
        let dst = adapters.buffer(left, LEN);
        let report = adapters.manager.copy(&src, &dst).wait().unwrap();
        assert!(report.fallbacks().is_empty(), "{report}");
        assert!(left.bytes_of(&dst) == sent, "{left:?} after {lost:?}");

        let [of_lost, of_left] = flying;
        for (dst, transfer) in of_left {
            let report = transfer.wait().unwrap();
            assert!(report.fallbacks().is_empty(), "{report}");
            assert!(left.bytes_of(&dst) == pattern(LEN, 5), "{left:?}");
        }
        for (_, transfer) in of_lost {
            if let Err(error) = transfer.wait() {
                assert_eq!(error.class(), ErrorClass::Lost, "{error}");
            }
        }
    }
}
