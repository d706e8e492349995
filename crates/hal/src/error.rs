//! Errors of backends. Every error has an [`ErrorClass`].

use alloc::borrow::Cow;
use alloc::boxed::Box;
use core::fmt;

use transload_core::{DeviceId, DeviceKind, MemoryId};

use crate::ExternalKind;

/// The category of an error. Use it to decide whether to retry, to try another way, or to give up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The caller's mistake; the same call can never work. This includes a request for more than a memory, or a file
    /// system, could ever hold, where that limit is known.
    Caller,
    /// Something this machine, driver or build lacks; another way may exist.
    Unsupported,
    /// Memory, handles or slots ran out; the same call may work later.
    Exhausted,
    /// The device is gone; nothing on it can work until it is opened anew.
    Lost,
    /// An operation failed for a reason of its own.
    Failed,
}

/// Why the backend refused an operation, or why an accepted operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Fault {
    /// The sort of failure.
    pub class: ErrorClass,
    /// The driver's or operating system's code, where there is one.
    pub code: Option<i64>,
    /// A sentence that names the thing and the limit.
    pub message: Cow<'static, str>,
}

impl Fault {
    /// Makes a fault without a code.
    pub fn new(class: ErrorClass, message: impl Into<Cow<'static, str>>) -> Fault {
        Fault {
            class,
            code: None,
            message: message.into(),
        }
    }

    /// The same fault with a driver's or operating system's code.
    pub fn with_code(mut self, code: i64) -> Fault {
        self.code = Some(code);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.code {
            Some(code) => write!(f, " (code {code})"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for Fault {}

/// Why memory was not allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The backend has no such memory.
    #[error("there is no memory {memory} here")]
    UnknownMemory {
        /// The requested memory.
        memory: MemoryId,
    },
    /// Larger than any allocation can be.
    #[error("{len_bytes} bytes exceed the largest allocation in {memory}, {limit_bytes} bytes")]
    TooLarge {
        /// The memory.
        memory: MemoryId,
        /// The requested length in bytes.
        len_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// An alignment that is not a power of two, or is larger than the memory's limit.
    #[error("{}", Misaligned(*memory, *alignment, *limit))]
    Alignment {
        /// The memory.
        memory: MemoryId,
        /// The requested alignment.
        alignment: u64,
        /// The limit.
        limit: u64,
    },
    /// The memory is full.
    #[error("{memory} has no room for {len_bytes} bytes: {fault}")]
    OutOfMemory {
        /// The memory.
        memory: MemoryId,
        /// The requested length in bytes.
        len_bytes: u64,
        /// The allocator's fault.
        fault: Fault,
    },
    /// This memory does not support the request.
    #[error("cannot allocate this in {memory}: {what}")]
    Unsupported {
        /// The memory.
        memory: MemoryId,
        /// Why not.
        what: Cow<'static, str>,
    },
    /// The device is gone.
    #[error("device {device} is lost: {fault}")]
    Lost {
        /// The device.
        device: DeviceId,
        /// The fault.
        fault: Fault,
    },
    /// The driver or the operating system refused.
    #[error("allocation in {memory} failed: {fault}")]
    Failed {
        /// The memory.
        memory: MemoryId,
        /// Why.
        fault: Fault,
    },
}

/// Displays which of the two conditions an alignment does not meet, and the memory's limit.
struct Misaligned(MemoryId, u64, u64);

impl fmt::Display for Misaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Misaligned(memory, alignment, limit) = self;
        if alignment.is_power_of_two() {
            write!(
                f,
                "alignment {alignment} exceeds the largest in {memory}, {limit}"
            )
        } else {
            write!(
                f,
                "alignment {alignment} is not a power of two; {memory} takes powers of two up to {limit}"
            )
        }
    }
}

impl AllocError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            AllocError::UnknownMemory { .. }
            | AllocError::TooLarge { .. }
            | AllocError::Alignment { .. } => ErrorClass::Caller,
            AllocError::OutOfMemory { .. } => ErrorClass::Exhausted,
            AllocError::Unsupported { .. } => ErrorClass::Unsupported,
            AllocError::Lost { .. } => ErrorClass::Lost,
            AllocError::Failed { fault, .. } => fault.class,
        }
    }
}

/// Why something was not imported or exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The backend has no such memory.
    #[error("there is no memory {memory} here")]
    UnknownMemory {
        /// The requested memory.
        memory: MemoryId,
    },
    /// This memory cannot import or export things of that kind.
    #[error("{memory} cannot import or export {kind}: {reason}")]
    Unsupported {
        /// The memory.
        memory: MemoryId,
        /// The kind of thing.
        kind: ExternalKind,
        /// Why not.
        reason: Cow<'static, str>,
    },
    /// The thing itself is wrong: misaligned, too short, of another device.
    #[error("{kind} cannot be imported into {memory}: {reason}")]
    Invalid {
        /// The memory.
        memory: MemoryId,
        /// The kind of thing.
        kind: ExternalKind,
        /// What is wrong with it.
        reason: Cow<'static, str>,
    },
    /// Another manager has some of the bytes, and one of the two may write them: their transfers would not be in order.
    #[error(
        "cannot take {} into {memory}: another manager of this process has some of its bytes, and one of the two may \
         write them; use one manager for both, or drop the other one's buffers first",
        Claimable(*memory, *kind)
    )]
    Claimed {
        /// The memory.
        memory: MemoryId,
        /// The kind of thing.
        kind: ExternalKind,
    },
    /// The driver or the operating system refused.
    #[error("cannot import or export {kind} of {memory}: {fault}")]
    Failed {
        /// The memory.
        memory: MemoryId,
        /// The kind of thing.
        kind: ExternalKind,
        /// Why.
        fault: Fault,
    },
}

/// Displays what two managers claim. The objects of the host are files.
struct Claimable(MemoryId, ExternalKind);

impl fmt::Display for Claimable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.device.kind, self.1) {
            (DeviceKind::CPU, ExternalKind::Object) => f.write_str("a file"),
            (_, kind) => kind.fmt(f),
        }
    }
}

impl ImportError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            ImportError::UnknownMemory { .. }
            | ImportError::Invalid { .. }
            | ImportError::Claimed { .. } => ErrorClass::Caller,
            ImportError::Unsupported { .. } => ErrorClass::Unsupported,
            ImportError::Failed { fault, .. } => fault.class,
        }
    }
}

/// Why two memories were not connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No engine of this backend reaches both.
    #[error("no engine reaches both {src} and {dst}: {reason}")]
    NoAccess {
        /// One memory.
        src: MemoryId,
        /// The other.
        dst: MemoryId,
        /// Why not.
        reason: Cow<'static, str>,
    },
    /// The driver refused.
    #[error("cannot connect {src} and {dst}: {fault}")]
    Failed {
        /// One memory.
        src: MemoryId,
        /// The other.
        dst: MemoryId,
        /// Why.
        fault: Box<Fault>,
    },
}

impl ConnectError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            ConnectError::NoAccess { .. } => ErrorClass::Unsupported,
            ConnectError::Failed { fault, .. } => fault.class,
        }
    }
}

/// Why operations were refused. Nothing was done, and no region will be touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// An operation, or an operand of it, that this backend cannot execute.
    #[error("operation {index} cannot be executed here: {reason}")]
    Unsupported {
        /// Which of the operations.
        index: usize,
        /// Why not.
        reason: Cow<'static, str>,
    },
    /// The backend has reached its limit of submissions under way. The caller submits the operations again when another of its
    /// submissions to the backend has ended, so the backend frees a place before it tells the outcome.
    ///
    /// The limit may belong to the whole backend, to a device, or to an [`EngineId`](transload_core::EngineId). Operations that
    /// wait for one engine do not hold up operations for another one.
    ///
    /// The limit counts the caller's own submissions. If the caller has nothing under way in the backend, it does not poll
    /// for room: it treats this answer as a refusal of the class [`ErrorClass::Exhausted`], and the transfer takes another
    /// route or fails. If other programs have taken all places of a driver, the backend answers [`SubmitError::Refused`] with
    /// that class.
    #[error("{limit} submissions are under way, the most that there can be")]
    Full {
        /// How many.
        limit: usize,
    },
    /// The driver or the operating system refused.
    #[error("refused: {0}")]
    Refused(Fault),
}

impl SubmitError {
    /// Converts the refusal into a fault.
    pub fn into_fault(self) -> Fault {
        match self {
            SubmitError::Unsupported { reason, .. } => Fault::new(ErrorClass::Unsupported, reason),
            full @ SubmitError::Full { .. } => {
                Fault::new(ErrorClass::Exhausted, alloc::format!("{full}"))
            }
            SubmitError::Refused(fault) => fault,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use transload_core::MemoryKind;

    use super::*;

    #[test]
    fn an_alignment_says_which_condition_it_does_not_meet() {
        let told = |alignment| {
            let memory = DeviceId::CPU0.memory(MemoryKind::Pinned);
            let error = AllocError::Alignment {
                memory,
                alignment,
                limit: 256,
            };
            error.to_string()
        };
        assert_eq!(
            told(1 << 30),
            "alignment 1073741824 exceeds the largest in cpu:0/pinned, 256"
        );
        for alignment in [0, 48, 1000] {
            let wanted = "is not a power of two; cpu:0/pinned takes powers of two up to 256";
            assert_eq!(
                told(alignment),
                alloc::format!("alignment {alignment} {wanted}")
            );
        }
    }
}
