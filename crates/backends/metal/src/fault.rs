//! Converts errors of failed commands into faults of the hal.

use transload_hal::{ErrorClass, Fault};

use crate::raw::Failure;

/// Converts the error of failed commands into a fault.
pub(crate) fn fault_of(failure: &Failure) -> Fault {
    let (class, name) = meaning(failure.code);
    let message = format!("commands failed: {name}: {}", failure.text);
    Fault::new(class, message).with_code(failure.code)
}

/// `MTLCommandBufferError` (Metal, `MTLCommandBuffer.h`).
fn meaning(code: i64) -> (ErrorClass, &'static str) {
    match code {
        1 => (ErrorClass::Failed, "internal"),
        2 => (ErrorClass::Failed, "timeout"),
        3 => (ErrorClass::Failed, "page fault"),
        // The process has failed too often, and gets no more of the device.
        4 => (ErrorClass::Lost, "access revoked"),
        // A program in the background, on iOS.
        7 => (ErrorClass::Unsupported, "not permitted"),
        8 => (ErrorClass::Exhausted, "out of memory"),
        9 => (ErrorClass::Failed, "invalid resource"),
        10 => (ErrorClass::Failed, "memoryless"),
        11 => (ErrorClass::Lost, "device removed"),
        12 => (ErrorClass::Failed, "stack overflow"),
        _ => (ErrorClass::Failed, "unknown"),
    }
}

/// The fault of a call that returned nil, for which Metal gives no reason.
pub(crate) fn nothing_of(what: &'static str) -> Fault {
    Fault::new(ErrorClass::Exhausted, format!("{what} gave nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_whose_turn_it_is_and_keep_their_names() {
        let of = |code| {
            let text = "so it is".to_owned();
            fault_of(&Failure { code, text })
        };
        assert_eq!(of(11).class, ErrorClass::Lost);
        assert_eq!(of(11).code, Some(11));
        assert!(of(11).message.contains("device removed: so it is"));
        assert_eq!(of(4).class, ErrorClass::Lost);
        assert_eq!(of(8).class, ErrorClass::Exhausted);
        assert_eq!(of(7).class, ErrorClass::Unsupported);
        for code in [1, 2, 3, 9, 10, 12, 4711] {
            assert_eq!(of(code).class, ErrorClass::Failed);
        }
    }
}
