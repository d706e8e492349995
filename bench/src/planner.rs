//! The planner: how long it takes, and how good its choices are.

mod cluster;
mod cold;
mod lookup;
#[cfg(not(any(target_family = "wasm", transload_local)))]
mod machine;
#[cfg(not(any(target_family = "wasm", transload_local)))]
pub(crate) mod regret;

use serde::Serialize;

use crate::case::{Case, Outcome};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("planner/lookup", lookup::run),
        Case::new("planner/cold", cold::with_curves),
        Case::new("planner/cold-defaults", cold::with_default_costs),
        Case::new("planner/cluster", cluster::run),
    ];
    #[cfg(not(any(target_family = "wasm", transload_local)))]
    cases.push(Case::new("planner/regret", regret::run));
    cases
}

/// The figures of all cases of the planner, in the document of `--json`. Those of cases that did not run are absent.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    lookup_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cold_plan_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cold_plan_defaults_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pair_plan_ms_10000: Option<f64>,
    #[cfg(not(any(target_family = "wasm", transload_local)))]
    #[serde(flatten)]
    regret: Option<regret::Summary>,
}

impl Figures {
    /// The figures in these results; `None` where no case of the planner ran.
    pub(crate) fn of(results: &[Outcome]) -> Option<Figures> {
        let planner = { results.iter() }.filter(|of| of.case.starts_with("planner/"));
        planner.clone().next()?;
        let median = |case: &str, units_in_s: f64| {
            let outcome = planner.clone().find(|of| of.case == case)?;
            Some(outcome.transload_s * units_in_s)
        };
        Some(Figures {
            lookup_ns: median("planner/lookup", 1e9),
            cold_plan_us: median("planner/cold", 1e6),
            cold_plan_defaults_us: median("planner/cold-defaults", 1e6),
            pair_plan_ms_10000: median("planner/cluster", 1e3),
            #[cfg(not(any(target_family = "wasm", transload_local)))]
            regret: planner.clone().find_map(|outcome| outcome.regret.clone()),
        })
    }
}
