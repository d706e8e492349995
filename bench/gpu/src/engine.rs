//! Transload's own contender in each case.

use anyhow::{Result, bail};

use crate::contest::Contender;

/// What the results call it.
pub(crate) const TRANSLOAD: &str = "transload";

/// The contender, once there is one.
///
/// # Errors
/// Why it does not take part.
pub(crate) fn contender() -> Result<Box<dyn Contender>> {
    bail!("Transload has no CUDA backend in this build")
}
