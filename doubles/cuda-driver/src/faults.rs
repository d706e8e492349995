//! Faults that tests order, with the time at which they strike.
//!
//! A fault is a line such as `oom@3`; semicolons separate several. They come from the environment, or at any time
//! through the control function. Counting starts when a fault is ordered.
//!
//! An asynchronous operation is work of a device in a stream, also for a synchronous call; events and users' functions
//! do not count. After the fault that ruins a context, the operations of its devices have no effect.
//!
//! | fault | what happens |
//! |---|---|
//! | `oom` | the next allocation finds no memory |
//! | `oom@3` | the third one from now |
//! | `oom@3+` | the third one and all after it |
//! | `ecc@5` | the fifth asynchronous operation ruins its context: ECC error, in this and every later call |
//! | `async=719@5` | the same with another result |
//! | `stuck@5` | the fifth asynchronous operation never ends, and with it its stream |
//! | `call=cuMemFree_v2:4711` | the next call of a function does nothing and answers a number |
//! | `call=cuEventQuery:999@2+` | the second call and all after it |
//! | `peer-corrupts=0>1` | peer access from device 0 to 1 is granted, and bytes arrive changed |
//! | `none` | earlier orders are cancelled; damage that is done stays |

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use transload_cuda::raw::CUresult;

use crate::answer::Answer;
use crate::names::name_of;

/// The ordered faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Whether any fault is ordered: calls are many and faults few.
    any: AtomicBool,
    ordered: Mutex<Ordered>,
}

#[derive(Debug, Default)]
struct Ordered {
    allocations: Vec<Turn>,
    operations: Vec<(Turn, Fate)>,
    calls: Vec<(&'static str, Turn, CUresult)>,
    corrupting: BTreeSet<(i32, i32)>,
}

/// The end of an asynchronous operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It succeeds.
    Done,
    /// It does nothing, and its context is ruined with this result.
    Ruins(CUresult),
    /// It never ends.
    Stuck,
}

/// The position of a fault among the next calls or operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Turn {
    left: u64,
    and_after: bool,
}

impl Turn {
    /// Counts, and returns whether the fault strikes now.
    fn comes(&mut self) -> bool {
        match self.left {
            0 => false,
            1 => {
                self.left = u64::from(self.and_after);
                true
            }
            _ => {
                self.left -= 1;
                false
            }
        }
    }
}

/// A line that orders no fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FaultError {
    #[error("`{0}` is no fault: there are oom, ecc, async, stuck, call, peer-corrupts and none")]
    Unknown(String),
    #[error("`{0}`: `@` wants a number from 1, or one with a plus after it")]
    Turn(String),
    #[error("`{0}`: wants the number of a result other than 0")]
    Result(String),
    #[error("`{0}`: wants the name of a function and a result, as call=cuMemFree_v2:999")]
    Function(String),
    #[error("`{0}`: wants two devices and no turn, as peer-corrupts=0>1")]
    Devices(String),
}

impl Faults {
    /// # Errors
    /// At the first line that orders none; the ones before it are ordered then.
    pub(crate) fn order(&self, lines: &str) -> Result<(), FaultError> {
        for line in lines.split(';').map(str::trim) {
            if !line.is_empty() {
                self.order_one(line)?;
                self.any.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    fn order_one(&self, line: &str) -> Result<(), FaultError> {
        let (what, turn) = match line.split_once('@') {
            Some((what, turn)) => (what, parse_turn(turn).ok_or(FaultError::Turn(line.into()))?),
            None => (line, NEXT),
        };
        let (what, value) = what.split_once('=').unwrap_or((what, ""));
        let result = |text: &str| {
            let number = text.parse().ok().filter(|number| *number != 0);
            number.map(CUresult)
        };
        let mut ordered = self.ordered();
        match (what, value) {
            ("none", "") if !line.contains('@') => *ordered = Ordered::default(),
            ("oom", "") => ordered.allocations.push(turn),
            ("ecc", "") => {
                let fate = Fate::Ruins(CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
                ordered.operations.push((turn, fate));
            }
            ("async", code) => {
                let code = result(code).ok_or(FaultError::Result(line.into()))?;
                ordered.operations.push((turn, Fate::Ruins(code)));
            }
            ("stuck", "") => ordered.operations.push((turn, Fate::Stuck)),
            ("call", value) => {
                let parsed = value
                    .split_once(':')
                    .and_then(|(name, code)| Some((name_of(name)?, result(code)?)));
                let (name, code) = parsed.ok_or(FaultError::Function(line.into()))?;
                ordered.calls.push((name, turn, code));
            }
            // It has no position: it holds from now on.
            ("peer-corrupts", _) if line.contains('@') => {
                return Err(FaultError::Devices(line.into()));
            }
            ("peer-corrupts", value) => {
                let pair = value
                    .split_once('>')
                    .and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
                ordered
                    .corrupting
                    .insert(pair.ok_or(FaultError::Devices(line.into()))?);
            }
            _ => return Err(FaultError::Unknown(line.into())),
        }
        Ok(())
    }

    /// # Errors
    /// The answer of the call, which then does nothing.
    pub(crate) fn on_call(&self, function: &'static str) -> Answer {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut ordered = self.ordered();
        let of_this = ordered
            .calls
            .iter_mut()
            .filter(|(name, ..)| *name == function);
        first(of_this.map(|(_, turn, result)| (turn, *result))).map_or(Ok(()), Err)
    }

    /// Called once for every allocation of memory of any kind.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the fault strikes.
    pub(crate) fn on_allocation(&self) -> Answer {
        let mut ordered = self.ordered();
        let turns = ordered.allocations.iter_mut();
        let out_of_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        first(turns.map(|turn| (turn, out_of_memory))).map_or(Ok(()), Err)
    }

    /// Called once for every operation that is put into a stream.
    pub(crate) fn on_operation(&self) -> Fate {
        let mut ordered = self.ordered();
        let turns = ordered.operations.iter_mut();
        first(turns.map(|(turn, fate)| (turn, *fate))).unwrap_or(Fate::Done)
    }

    /// Whether bytes arrive changed on the direct way between two devices.
    pub(crate) fn corrupts(&self, from: i32, to: i32) -> bool {
        self.ordered().corrupting.contains(&(from, to))
    }

    fn ordered(&self) -> MutexGuard<'_, Ordered> {
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fault of the first entry that strikes now. All entries count on.
fn first<'a, T>(turns: impl Iterator<Item = (&'a mut Turn, T)>) -> Option<T> {
    let mut said = None;
    for (turn, what) in turns {
        if turn.comes() && said.is_none() {
            said = Some(what);
        }
    }
    said
}

const NEXT: Turn = Turn {
    left: 1,
    and_after: false,
};

fn parse_turn(text: &str) -> Option<Turn> {
    let (number, and_after) = match text.strip_suffix('+') {
        Some(number) => (number, true),
        None => (text, false),
    };
    let left = number.parse().ok().filter(|left| *left > 0)?;
    Some(Turn { left, and_after })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(lines: &str) -> Faults {
        let faults = Faults::default();
        faults.order(lines).unwrap();
        faults
    }

    #[test]
    fn a_fault_comes_in_its_turn_and_once() {
        let faults = faults("oom@2");
        let out = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let answers: Vec<_> = (0..4).map(|_| faults.on_allocation()).collect();
        assert_eq!(answers, [Ok(()), out, Ok(()), Ok(())]);
    }

    #[test]
    fn a_fault_with_a_plus_stays() {
        let faults = faults("oom@2+");
        let out = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let answers: Vec<_> = (0..4).map(|_| faults.on_allocation()).collect();
        assert_eq!(answers, [Ok(()), out, out, out]);
    }

    #[test]
    fn several_faults_count_side_by_side() {
        let faults = faults("ecc@1; stuck@3 ;async=719@2");
        let fates: Vec<_> = (0..4).map(|_| faults.on_operation()).collect();
        assert_eq!(
            fates,
            [
                Fate::Ruins(CUresult::CUDA_ERROR_ECC_UNCORRECTABLE),
                Fate::Ruins(CUresult::CUDA_ERROR_LAUNCH_FAILED),
                Fate::Stuck,
                Fate::Done,
            ]
        );
    }

    #[test]
    fn a_call_fails_by_name_with_any_number() {
        let faults = faults("call=cuMemFree_v2:4711;call=cuEventQuery:999@2+");
        assert_eq!(faults.on_call("cuMemAlloc_v2"), Ok(()));
        assert_eq!(faults.on_call("cuMemFree_v2"), Err(CUresult(4711)));
        assert_eq!(faults.on_call("cuMemFree_v2"), Ok(()));
        assert_eq!(faults.on_call("cuEventQuery"), Ok(()));
        for _ in 0..3 {
            assert_eq!(faults.on_call("cuEventQuery"), Err(CUresult(999)));
        }
    }

    #[test]
    fn what_was_ordered_is_taken_back_and_more_can_be_ordered() {
        let faults = faults("oom@1+;stuck;call=cuMemFree_v2:4711;peer-corrupts=0>1;none;oom@2");
        assert_eq!(faults.on_operation(), Fate::Done);
        assert_eq!(faults.on_call("cuMemFree_v2"), Ok(()));
        assert!(!faults.corrupts(0, 1));
        let out = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!([(); 2].map(|()| faults.on_allocation()), [Ok(()), out]);
    }

    #[test]
    fn one_direction_of_a_pair_corrupts() {
        let faults = faults("peer-corrupts=0>1");
        assert!(faults.corrupts(0, 1) && !faults.corrupts(1, 0));
    }

    #[test]
    fn what_is_no_fault_is_told() {
        let told = |line: &str| Faults::default().order(line).unwrap_err().to_string();
        assert!(told("fire").starts_with("`fire` is no fault: there are oom, "));
        assert!(told("oom@0").starts_with("`oom@0`: `@` wants a number from 1"));
        assert!(told("oom@x").contains("wants a number from 1"));
        assert!(told("async=0@1").contains("a result other than 0"));
        assert!(told("call=cuNothing:1").contains("the name of a function"));
        assert!(told("peer-corrupts=0").contains("wants two devices"));
        assert!(told("peer-corrupts=0>1@2").contains("wants two devices"));
        assert!(told("oom=3").contains("is no fault"));
        assert!(told("none@2").contains("is no fault"));
    }
}
