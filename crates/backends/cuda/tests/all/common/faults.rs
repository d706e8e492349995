//! Every fault of the double, for scenarios whose calls are known.

use std::collections::BTreeMap;

use transload_cuda::raw::CUresult;

use super::control;

/// The number of calls of each function.
pub(crate) type Calls = BTreeMap<String, u64>;

/// The number of calls of each function by this process so far.
pub(crate) fn calls() -> Calls {
    let text = control("calls").unwrap();
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    lines
        .map(|(name, count)| (name.into(), count.parse().unwrap()))
        .collect()
}

/// The calls since `before` was taken.
pub(crate) fn calls_since(before: &Calls) -> Calls {
    let new = |(name, count): (String, u64)| {
        let count = count - before.get(&name).unwrap_or(&0);
        (count > 0).then_some((name, count))
    };
    calls().into_iter().filter_map(new).collect()
}

/// Orders faults.
pub(crate) fn order(line: &str) {
    control(&format!("fault {line}")).unwrap();
}

/// Cancels the ordered faults that have not struck.
pub(crate) fn take_back() {
    order("none");
}

/// Each of the functions fails, at each of its first `up_to` calls and at its last, with each of the results.
pub(crate) fn of_calls(calls: &Calls, results: &[CUresult], up_to: u64) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, count) in calls {
        let first = 1..=up_to.min(*count);
        let last = (*count > up_to).then_some(*count);
        for turn in first.chain(last) {
            let line = |result: &CUresult| format!("call={name}:{}@{turn}", result.0);
            lines.extend(results.iter().map(line));
        }
    }
    lines
}

/// Each of the functions fails from its first call on, or from its second.
pub(crate) fn of_calls_for_good(calls: &Calls, results: &[CUresult]) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, count) in calls {
        for turn in 1..=2.min(*count) {
            let line = |result: &CUresult| format!("call={name}:{}@{turn}+", result.0);
            lines.extend(results.iter().map(line));
        }
    }
    lines
}

/// Memory runs out at each allocation, once and for good.
pub(crate) fn of_memory(allocations: u64) -> Vec<String> {
    let both = |turn| [format!("oom@{turn}"), format!("oom@{turn}+")];
    (1..=allocations).flat_map(both).collect()
}

/// Each asynchronous operation ruins its context: by an uncorrectable error of its memory, and by other results.
pub(crate) fn of_ruin(operations: u64, results: &[CUresult]) -> Vec<String> {
    let each = |turn| {
        let others = results
            .iter()
            .map(move |result| format!("async={}@{turn}", result.0));
        others.chain([format!("ecc@{turn}")])
    };
    (1..=operations).flat_map(each).collect()
}

/// Each asynchronous operation never ends.
pub(crate) fn of_silence(operations: u64) -> Vec<String> {
    (1..=operations)
        .map(|turn| format!("stuck@{turn}"))
        .collect()
}

/// Results that leave a context intact, and a result of a newer driver that this backend does not know.
pub(crate) const PASSING: [CUresult; 5] = [
    CUresult::CUDA_ERROR_INVALID_VALUE,
    CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    CUresult::CUDA_ERROR_NOT_SUPPORTED,
    CUresult::CUDA_ERROR_UNKNOWN,
    CUresult(4711),
];

/// Results after which the context is gone.
pub(crate) const ENDS: [CUresult; 2] = [
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
];

/// Results of work that ruins its context, besides an error of its memory.
pub(crate) const RUINS: [CUresult; 2] = [CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, CUresult(4711)];
