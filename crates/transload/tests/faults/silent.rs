//! Operations that never answer.
