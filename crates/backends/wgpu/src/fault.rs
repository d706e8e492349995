//! Converts errors of wgpu into faults of the hal.

use std::error::Error as _;

use transload_hal::{ErrorClass, Fault};
use wgpu::wgc::command::{ClearError, CommandEncoderError, TransferError};
use wgpu::wgc::device::{DeviceError, queue::QueueSubmitError};
use wgpu::wgc::error::ContextError;

use crate::storage::one_line;

/// A validation error about an object that its owner has destroyed, mapped, or made on another device
/// is the caller's mistake, because this backend's own objects are in none of these states. Any other
/// error is a failure.
pub(crate) fn fault_of(error: &wgpu::Error) -> Fault {
    match error {
        wgpu::Error::OutOfMemory { source } => {
            Fault::new(ErrorClass::Exhausted, source.to_string())
        }
        wgpu::Error::Validation { description, .. } => match mistake(error) {
            Some(message) => Fault::new(ErrorClass::Caller, message),
            None => Fault::new(ErrorClass::Failed, one_line(description)),
        },
        wgpu::Error::Internal { description, .. } => {
            Fault::new(ErrorClass::Failed, one_line(description))
        }
    }
}

/// The defect of the caller's object, if the error names one.
fn mistake(error: &wgpu::Error) -> Option<String> {
    let cause = &error.source()?.downcast_ref::<ContextError>()?.source;
    let is_theirs = match (cause.downcast_ref(), cause.downcast_ref()) {
        (Some(of_submit), _) => is_of_submit(of_submit),
        (None, Some(of_commands)) => is_of_commands(of_commands),
        (None, None) => false,
    };
    is_theirs.then(|| cause.to_string())
}

fn is_of_submit(error: &QueueSubmitError) -> bool {
    match error {
        QueueSubmitError::DestroyedResource(_)
        | QueueSubmitError::BufferStillMapped(_)
        | QueueSubmitError::InvalidResource(_)
        | QueueSubmitError::Queue(DeviceError::DeviceMismatch(_)) => true,
        QueueSubmitError::CommandEncoder(error) => is_of_commands(error),
        _ => false,
    }
}

fn is_of_commands(error: &CommandEncoderError) -> bool {
    matches!(
        error,
        CommandEncoderError::DestroyedResource(_)
            | CommandEncoderError::InvalidResource(_)
            | CommandEncoderError::Device(DeviceError::DeviceMismatch(_))
            | CommandEncoderError::Clear(
                ClearError::DestroyedResource(_)
                    | ClearError::Device(DeviceError::DeviceMismatch(_))
            )
            | CommandEncoderError::Transfer(TransferError::MemoryInitFailure(
                ClearError::DestroyedResource(_)
            ))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_causes_of_an_error_are_told_on_one_line() {
        let error = wgpu::Error::Validation {
            source: "the cause".into(),
            description: "Validation Error\n\nCaused by:\n  In a call\n    the cause\n".into(),
        };
        let told = "Validation Error Caused by: In a call the cause";
        assert_eq!(fault_of(&error), Fault::new(ErrorClass::Failed, told));
    }
}
