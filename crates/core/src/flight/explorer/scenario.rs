//! What one exploration is about: a payload and the plans that may carry it.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use crate::flight::{Flight, FlightSpec, Phase, Verify};
use crate::{Instant, Plan};

/// When the deadline of every explored flight is. Time stands at 0 until it passes.
pub(super) const DEADLINE: Instant = Instant(10);

/// A payload, its two routes, and how both ends are checked.
#[derive(Clone)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) len_bytes: u64,
    pub(super) first: Arc<Plan>,
    /// The one other plan that a question for a route may be answered with.
    pub(super) second: Arc<Plan>,
    /// Whether the second plan can run at all: an unfit one counts as none.
    pub(super) second_fits: bool,
    pub(super) verify: Option<Checks>,
    pub(super) in_place: bool,
}

/// The plans of a verification. They are three objects, so that a mix-up shows.
#[derive(Clone)]
pub(super) struct Checks {
    pub(super) src: Arc<Plan>,
    pub(super) dst: Arc<Plan>,
    /// Reads either end when the first way failed.
    pub(super) second: Arc<Plan>,
}

impl Scenario {
    pub(super) fn new(
        name: &'static str,
        len_bytes: u64,
        first: &Arc<Plan>,
        second: &Arc<Plan>,
    ) -> Scenario {
        Scenario {
            name,
            len_bytes,
            first: first.clone(),
            // Never the same object: the explorer tells plans apart by identity.
            second: Arc::new(Plan::clone(second)),
            second_fits: true,
            verify: None,
            in_place: false,
        }
    }

    pub(super) fn verified(mut self, digest: &Plan) -> Scenario {
        self.verify = Some(Checks {
            src: Arc::new(digest.clone()),
            dst: Arc::new(digest.clone()),
            second: Arc::new(digest.clone()),
        });
        self
    }

    pub(super) fn in_place(self, second_fits: bool) -> Scenario {
        Scenario {
            in_place: true,
            second_fits,
            ..self
        }
    }

    pub(super) fn flight(&self) -> Flight {
        Flight::new(self.spec()).expect("every scenario's first plan can run")
    }

    pub(super) fn spec(&self) -> FlightSpec {
        FlightSpec {
            len_bytes: self.len_bytes,
            plan: self.first.clone(),
            verify: self.verify.as_ref().map(|checks| Verify {
                src: checks.src.clone(),
                dst: checks.dst.clone(),
            }),
            in_place: self.in_place,
            deadline: Some(DEADLINE),
        }
    }

    /// Returns the plan of a leg.
    pub(super) fn plan(&self, phase: Phase, rerouted: bool) -> &Arc<Plan> {
        match (phase, &self.verify) {
            (Phase::Copy, _) if rerouted => &self.second,
            (Phase::Copy, _) | (_, None) => &self.first,
            (_, Some(checks)) if rerouted => &checks.second,
            (Phase::CheckSrc, Some(checks)) => &checks.src,
            (Phase::CheckDst, Some(checks)) => &checks.dst,
        }
    }

    /// Returns the scenario in a line.
    pub(super) fn title(&self) -> String {
        format!("{}, {} bytes", self.name, self.len_bytes)
    }
}
