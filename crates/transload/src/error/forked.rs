//! The error of a child of `fork`.

/// The error text for a call on the manager of the parent in a child of `fork`.
pub(crate) const FORKED: &str =
    "the manager was made before this process was forked: make one in this process";

/// The engine does nothing because its manager was made before this process was forked.
#[derive(Debug)]
pub(crate) struct Forked;
