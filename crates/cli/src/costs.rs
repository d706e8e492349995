//! What plans rest on: the backends' own figures, or what was measured of the machine.

use std::path::{Path, PathBuf};

use transload::profile::{saved_path, verdicts_path};
use transload::{Profile, ProfileError, TransferManager};

use crate::failure::Failure;
use crate::output::Output;

/// Which costs a command asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted<'a> {
    /// The saved profile's, where there is one and it is of this machine.
    Saved,
    /// That profile's, and no others will do.
    File(&'a Path),
    /// The backends' own.
    Default,
}

impl<'a> Wanted<'a> {
    pub(crate) fn of(profile: Option<&'a Path>) -> Wanted<'a> {
        profile.map_or(Wanted::Saved, Wanted::File)
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

/// Which costs a machine has.
#[derive(Debug)]
pub(crate) enum Costs {
    /// The backends' own: nothing was measured.
    Default,
    /// Those of the profile in that file.
    Measured(PathBuf),
    /// The backends' own, for the saved profile is not to be used.
    Refused(ProfileError),
}

impl Costs {
    /// # Errors
    /// When the profile that was asked for by name cannot be used.
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

    /// Tells people why the saved profile is not used.
    pub(crate) fn note(&self, output: &Output) {
        if let Costs::Refused(error) = self {
            output.note(&format!(
                "{error}; default figures stand until `transload probe` measures again"
            ));
        }
    }
}
