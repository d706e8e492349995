//! The error of a child of `fork`.

use super::{Error, GuardError, PlaceError, RegisterError, ShareError, TransferError};

/// The error text for a call on the manager of the parent in a child of `fork`.
pub(crate) const FORKED: &str =
    "the manager was made before this process was forked: make one in this process";

/// The engine does nothing because its manager was made before this process was forked.
#[derive(Debug)]
pub(crate) struct Forked;

impl From<Forked> for TransferError {
    fn from(_: Forked) -> TransferError {
        TransferError::Forked
    }
}

impl From<Forked> for PlaceError {
    fn from(_: Forked) -> PlaceError {
        PlaceError::Forked
    }
}

impl From<Forked> for RegisterError {
    fn from(_: Forked) -> RegisterError {
        RegisterError::Forked
    }
}

impl From<Forked> for GuardError {
    fn from(_: Forked) -> GuardError {
        GuardError::Forked
    }
}

impl From<Forked> for ShareError {
    fn from(forked: Forked) -> ShareError {
        ShareError::Place(forked.into())
    }
}

impl From<Forked> for Error {
    fn from(forked: Forked) -> Error {
        Error::Transfer(forked.into())
    }
}

impl From<PlaceError> for TransferError {
    fn from(error: PlaceError) -> TransferError {
        match error {
            PlaceError::Forked => TransferError::Forked,
            error => TransferError::Place(error),
        }
    }
}

impl From<PlaceError> for Error {
    fn from(error: PlaceError) -> Error {
        match error {
            PlaceError::Forked => TransferError::Forked.into(),
            error => Error::Place(error),
        }
    }
}
