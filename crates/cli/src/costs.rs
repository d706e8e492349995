//! The costs that plans use: the backends' defaults, or figures measured on the machine.

use std::path::{Path, PathBuf};

use transload::profile::{saved_path, verdicts_path};
use transload::{Profile, ProfileError, TransferManager};

use crate::failure::Failure;
use crate::output::Output;

/// The costs that a command asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted<'a> {
    /// The saved profile's, if there is one and it belongs to this machine.
    Saved,
    /// Only that profile's.
    File(&'a Path),
    /// The backends' defaults.
    Default,
}

impl<'a> Wanted<'a> {
    pub(crate) fn of(profile: Option<&'a Path>) -> Wanted<'a> {
        profile.map_or(Wanted::Saved, Wanted::File)
    }

    /// The profile that the user names.
    pub(crate) fn path(self) -> Option<&'a Path> {
        match self {
            Wanted::File(path) => Some(path),
            Wanted::Saved | Wanted::Default => None,
        }
    }

    /// The file for the verdicts of proofs that belong to these costs. For a simulated machine there is
    /// none unless the user names one.
    pub(crate) fn verdicts(self, simulated: bool) -> Option<PathBuf> {
        match self {
            Wanted::File(path) => Some(verdicts_path(path)),
            Wanted::Saved if !simulated => Some(verdicts_path(&saved_path()?)),
            Wanted::Saved | Wanted::Default => None,
        }
    }
}

/// The costs that a machine uses.
#[derive(Debug)]
pub(crate) enum Costs {
    /// The backends' defaults: nothing was measured.
    Default,
    /// Those of the profile in that file.
    Measured(PathBuf),
    /// The backends' defaults, because the saved profile cannot be used.
    Refused(ProfileError),
}

impl Costs {
    /// # Errors
    /// If the profile that was named cannot be used.
    pub(crate) fn apply(wanted: Wanted<'_>, manager: &TransferManager) -> Result<Costs, Failure> {
        let (profile, asked_for) = match wanted {
            Wanted::Default => return Ok(Costs::Default),
            Wanted::File(path) => (Profile::load(path).map(Some), true),
            Wanted::Saved => (Profile::saved(), false),
        };
        let applied = profile.and_then(|profile| {
            let Some(profile) = profile else {
                return Ok(Costs::Default);
            };
            manager.apply_profile(&profile)?;
            Ok(Costs::Measured(
                profile.origin().unwrap_or(Path::new("")).into(),
            ))
        });
        match applied {
            Err(error) if asked_for => Err(error.into()),
            Err(error) => Ok(Costs::Refused(error)),
            Ok(costs) => Ok(costs),
        }
    }

    /// The file that they were read from.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Costs::Measured(path) => Some(path),
            Costs::Default | Costs::Refused(_) => None,
        }
    }

    /// Prints why the saved profile is not used.
    pub(crate) fn note(&self, output: &mut Output) {
        if let Costs::Refused(error) = self {
            output.note(&format!(
                "{error}; plans use default costs until `transload probe` measures this machine again"
            ));
        }
    }
}
