//! Faults and outcomes as they cross the wire.

use serde::{Deserialize, Serialize};
use transload_hal::ErrorClass;

/// The category of a [`Fault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Class {
    /// [`ErrorClass::Caller`].
    Caller,
    /// [`ErrorClass::Unsupported`].
    Unsupported,
    /// [`ErrorClass::Exhausted`].
    Exhausted,
    /// [`ErrorClass::Lost`].
    Lost,
    /// [`ErrorClass::Failed`], and each class that the wire does not know.
    Failed,
}

impl From<ErrorClass> for Class {
    fn from(class: ErrorClass) -> Class {
        match class {
            ErrorClass::Caller => Class::Caller,
            ErrorClass::Unsupported => Class::Unsupported,
            ErrorClass::Exhausted => Class::Exhausted,
            ErrorClass::Lost => Class::Lost,
            _ => Class::Failed,
        }
    }
}

impl From<Class> for ErrorClass {
    fn from(class: Class) -> ErrorClass {
        match class {
            Class::Caller => ErrorClass::Caller,
            Class::Unsupported => ErrorClass::Unsupported,
            Class::Exhausted => ErrorClass::Exhausted,
            Class::Lost => ErrorClass::Lost,
            Class::Failed => ErrorClass::Failed,
        }
    }
}

/// A [`transload_hal::Fault`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// The sort of failure.
    pub class: Class,
    /// The driver's or operating system's code, where there is one.
    pub code: Option<i64>,
    /// A sentence that names the thing and the limit.
    pub message: String,
}

impl From<transload_hal::Fault> for Fault {
    /// Cuts the message after 4 KiB, so that it fits into a frame.
    fn from(fault: transload_hal::Fault) -> Fault {
        let mut message = fault.message.into_owned();
        truncate(&mut message);
        Fault {
            class: fault.class.into(),
            code: fault.code,
            message,
        }
    }
}

impl From<Fault> for transload_hal::Fault {
    fn from(fault: Fault) -> transload_hal::Fault {
        let told = transload_hal::Fault::new(fault.class.into(), fault.message);
        match fault.code {
            Some(code) => told.with_code(code),
            None => told,
        }
    }
}

/// A [`transload_hal::Outcome`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// All bytes moved.
    Done,
    /// [`Message::Stop`](super::Message::Stop) came, and some of the bytes were left out.
    Stopped {
        /// Leading bytes that moved.
        leading_bytes: u64,
    },
    /// Some or all bytes did not move.
    Failed(Fault),
    /// The device is gone.
    Lost(Fault),
}

impl From<transload_hal::Outcome> for Outcome {
    fn from(outcome: transload_hal::Outcome) -> Outcome {
        match outcome {
            transload_hal::Outcome::Done => Outcome::Done,
            transload_hal::Outcome::Stopped { leading_bytes } => Outcome::Stopped { leading_bytes },
            transload_hal::Outcome::Failed(fault) => Outcome::Failed(fault.into()),
            transload_hal::Outcome::Lost(fault) => Outcome::Lost(fault.into()),
        }
    }
}

impl From<Outcome> for transload_hal::Outcome {
    fn from(outcome: Outcome) -> transload_hal::Outcome {
        match outcome {
            Outcome::Done => transload_hal::Outcome::Done,
            Outcome::Stopped { leading_bytes } => transload_hal::Outcome::Stopped { leading_bytes },
            Outcome::Failed(fault) => transload_hal::Outcome::Failed(fault.into()),
            Outcome::Lost(fault) => transload_hal::Outcome::Lost(fault.into()),
        }
    }
}

/// Cuts a text for people, so that it fits into a frame.
pub(crate) fn truncate(text: &mut String) {
    let mut len = text.len().min(LONGEST_TEXT);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    text.truncate(len);
}

/// The longest text for people in bytes.
const LONGEST_TEXT: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_keep_their_class_and_code_and_lose_what_is_too_long() {
        let classes = [
            ErrorClass::Caller,
            ErrorClass::Unsupported,
            ErrorClass::Exhausted,
            ErrorClass::Lost,
            ErrorClass::Failed,
        ];
        for class in classes {
            for fault in [
                transload_hal::Fault::new(class, "why"),
                transload_hal::Fault::new(class, "").with_code(-7),
            ] {
                let outcome = transload_hal::Outcome::Failed(fault.clone());
                let there = Outcome::from(outcome.clone());
                assert_eq!(transload_hal::Outcome::from(there), outcome);
            }
        }
        let long = transload_hal::Fault::new(ErrorClass::Failed, "ä".repeat(4 << 10) + "b");
        assert_eq!(Fault::from(long).message, "ä".repeat(2 << 10));
        let odd = transload_hal::Fault::new(ErrorClass::Failed, "b".to_owned() + &"ä".repeat(4096));
        assert_eq!(Fault::from(odd).message.len(), LONGEST_TEXT - 1);
    }
}
