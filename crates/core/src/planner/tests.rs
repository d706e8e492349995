//! The planner on machines made by hand, and against an exhaustive search on random ones.

mod digests;
mod lanes;
mod machine;
mod measured;
mod oracle;
mod random;
mod ranges;
mod reasons;
mod visible;
