//! The CUDA backend over the driver's double, whose times are modelled: measurements that need no GPU. Figures of real
//! GPUs come from `bench/gpu`.

mod staged;
mod submit;

use crate::case::{Case, Effort};

pub(crate) fn cases(effort: Effort) -> Vec<Case> {
    let mut cases = staged::cases(effort);
    cases.push(Case::new("cuda/submit-4KiB", submit::run));
    cases
}
