//! A fault at every step of every sort of plan, in every completion mode, with and without another route. The result is
//! right bytes and a true report, or a typed error. The engine goes on.

mod chaos;
mod double;
mod hints;
mod in_place;
mod mixed;
mod odd;
mod pitched;
mod scenarios;
mod silent;
mod sweep;
