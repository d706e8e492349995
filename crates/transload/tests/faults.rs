//! A fault at every step of every sort of plan, in every completion mode, with and without another
//! route: right bytes and a truthful report, or a typed error; and an engine that goes on.

#[macro_use]
mod over_sim;

#[path = "faults/chaos.rs"]
mod chaos;
mod common;
#[path = "faults/double.rs"]
mod double;
#[path = "faults/hints.rs"]
mod hints;
#[path = "faults/in_place.rs"]
mod in_place;
#[path = "faults/mixed.rs"]
mod mixed;
#[path = "faults/odd.rs"]
mod odd;
#[path = "faults/pitched.rs"]
mod pitched;
#[path = "faults/scenarios.rs"]
mod scenarios;
#[path = "faults/silent.rs"]
mod silent;
#[path = "faults/sweep.rs"]
mod sweep;
