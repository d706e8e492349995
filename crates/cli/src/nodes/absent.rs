//! Other machines, on a system that cannot reach them: the same names, and errors.

use std::path::Path;
use std::str::FromStr;

use transload::model::Name;
use transload::{ErrorClass, TransferManager};

use crate::arguments::{Command, ServeArguments};
use crate::failure::Failure;
use crate::machine::Asked;
use crate::output::Output;

/// Why there are no other machines.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this program reaches other machines on x86-64 and AArch64 alone")]
pub(crate) struct Unreachable;

pub(crate) type KeyError = Unreachable;

impl Unreachable {
    pub(crate) fn class(&self) -> ErrorClass {
        ErrorClass::Unsupported
    }
}

/// As the library's.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct ServeError(Unreachable);

impl ServeError {
    pub(crate) fn class(&self) -> ErrorClass {
        ErrorClass::Unsupported
    }
}

#[derive(Clone, Debug)]
pub(crate) enum PublicKey {}

#[derive(Clone, Debug)]
pub(crate) enum NodeSpec {}

impl FromStr for PublicKey {
    type Err = Unreachable;

    fn from_str(_: &str) -> Result<PublicKey, Unreachable> {
        Err(Unreachable)
    }
}

impl FromStr for NodeSpec {
    type Err = Unreachable;

    fn from_str(_: &str) -> Result<NodeSpec, Unreachable> {
        Err(Unreachable)
    }
}

#[derive(Debug)]
pub(crate) struct Nodes;

/// A machine that could not be connected to: there is none.
#[derive(Debug)]
pub(crate) struct Lack {
    pub(crate) name: Name,
    pub(crate) error: transload::Error,
}

impl Nodes {
    pub(crate) fn of(command: &Command) -> Result<Nodes, Failure> {
        match command.machine().and_then(|options| options.nodes.as_ref()) {
            Some(_) => Err(Unreachable.into()),
            None => Ok(Nodes),
        }
    }

    pub(crate) fn spare(&self, _: Option<&Path>) -> Result<(), Failure> {
        Ok(())
    }

    pub(crate) fn given(&self) -> &[String] {
        &[]
    }

    pub(crate) fn connect(&self, _: &TransferManager) -> Result<Vec<Lack>, Failure> {
        Ok(Vec::new())
    }

    pub(crate) fn networks(&self, _: &TransferManager) -> Vec<String> {
        Vec::new()
    }
}

pub(crate) fn key(_: &Path, _: &mut Output) -> Result<(), Failure> {
    Err(Unreachable.into())
}

pub(crate) fn serve(_: &ServeArguments, _: Asked<'_>, _: &mut Output) -> Result<(), Failure> {
    Err(ServeError(Unreachable).into())
}
