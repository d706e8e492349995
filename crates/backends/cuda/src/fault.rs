//! Converts results of the driver into faults of the hal.

use transload_hal::{ErrorClass, Fault};

use crate::raw::{CUresult, CallError};

/// Converts a failed call into a fault.
pub(crate) fn fault_of(error: CallError) -> Fault {
    let class = match error {
        CallError::Missing { .. } => ErrorClass::Unsupported,
        CallError::Failed { result, .. } => class_of(result),
    };
    // The error's text includes the number.
    Fault::new(class, error.to_string())
}

/// The category of a failed call that left its context intact.
fn class_of(result: CUresult) -> ErrorClass {
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => ErrorClass::Exhausted,
        CUresult::CUDA_ERROR_NOT_SUPPORTED
        | CUresult::CUDA_ERROR_NOT_PERMITTED
        | CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
        | CUresult::CUDA_ERROR_OPERATING_SYSTEM => ErrorClass::Unsupported,
        _ if is_end(result) => ErrorClass::Lost,
        _ => ErrorClass::Failed,
    }
}

/// Whether the result says that a context, or all of CUDA, is lost for this process.
pub(crate) fn is_end(result: CUresult) -> bool {
    matches!(
        result,
        CUresult::CUDA_ERROR_NOT_INITIALIZED
            | CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_INVALID_CONTEXT
    )
}

/// Whether the driver refused because of a capture. Such a refusal says nothing about work under way.
pub(crate) fn is_of_capture(error: &CallError) -> bool {
    use CUresult as Of;
    let all =
        Of::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED..=Of::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    error.result().is_some_and(|result| all.contains(&result))
}

/// Whether a context is ruined, judged by the answer of `cuStreamQuery` on one of its streams: an intact context
/// says idle or busy, or refuses because of a capture.
pub(crate) fn is_ruined(asked: Result<(), CallError>) -> bool {
    asked.is_err_and(|answer| !answer.is(CUresult::CUDA_ERROR_NOT_READY) && !is_of_capture(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_say_whose_turn_it_is_and_keep_their_names() {
        let of = |result| {
            let function = "cuMemAlloc_v2";
            fault_of(CallError::Failed { function, result })
        };
        let full = of(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(full.class, ErrorClass::Exhausted);
        assert!(
            full.to_string()
                .starts_with("cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)")
        );
        assert_eq!(
            of(CUresult::CUDA_ERROR_DEINITIALIZED).class,
            ErrorClass::Lost
        );
        assert_eq!(
            of(CUresult::CUDA_ERROR_INVALID_VALUE).class,
            ErrorClass::Failed
        );
        assert_eq!(of(CUresult(4711)).class, ErrorClass::Failed);
    }

    #[test]
    fn what_a_capture_forbids_says_nothing_of_the_context() {
        let answer = |number| {
            let (function, result) = ("cuStreamQuery", CUresult(number));
            Err(CallError::Failed { function, result })
        };
        assert!(!is_ruined(Ok(())) && !is_ruined(answer(600)));
        assert!((900..=908).all(|number| !is_ruined(answer(number))));
        assert!([700, 899, 909, 4711].map(answer).into_iter().all(is_ruined));
    }
}
