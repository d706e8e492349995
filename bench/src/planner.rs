//! The planner: how long it takes, and how good its choices are.

mod cold;
#[cfg(not(any(target_family = "wasm", transload_local)))]
mod machine;
#[cfg(not(any(target_family = "wasm", transload_local)))]
pub(crate) mod regret;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![Case::new("planner/cold", cold::run)];
    #[cfg(not(any(target_family = "wasm", transload_local)))]
    cases.push(Case::new("planner/regret", regret::run));
    cases
}
