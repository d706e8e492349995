//! The file of a profile: its place, and how it is read and written.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use etcetera::base_strategy::choose_native_strategy;
use transload_hal::read_regular;
use transload_host::partial::Partial;

use super::{Profile, ProfileError};

/// The environment variable with the path of the saved profile. If it is an empty string, there is no saved profile.
pub const ENVIRONMENT: &str = "TRANSLOAD_PROFILE";

/// Returns the path of this machine's saved profile, whether or not the file exists: the value of the environment
/// variable `TRANSLOAD_PROFILE`, otherwise `transload/profile.toml` in the platform's folder for caches
/// (`$XDG_CACHE_HOME` or `~/.cache`, `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows). `None` where the
/// variable is empty, and where there is no such folder.
pub fn saved_path() -> Option<PathBuf> {
    match std::env::var_os(ENVIRONMENT) {
        Some(path) if path.is_empty() => None,
        Some(path) => Some(path.into()),
        None => {
            let folders = choose_native_strategy().ok()?;
            Some(folders.cache_dir().join("transload").join("profile.toml"))
        }
    }
}

/// Returns the path of the verdicts that belong to a profile: beside it, `profile.verdicts.toml` beside `profile.toml`.
pub fn verdicts_path(profile: &Path) -> PathBuf {
    profile.with_extension("verdicts.toml")
}

impl Profile {
    /// Reads the saved profile of this machine; `None` where there is none.
    ///
    /// # Errors
    /// As [`Profile::load`]. Call [`Profile::check`] to find out whether the profile still holds for this machine.
    pub fn saved() -> Result<Option<Profile>, ProfileError> {
        let Some(path) = saved_path() else {
            return Ok(None);
        };
        match Profile::load(&path) {
            Err(ProfileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(None)
            }
            loaded => loaded.map(Some),
        }
    }

    /// Reads a profile. Blocks on the file.
    ///
    /// # Errors
    /// When the file cannot be read or is no regular file, is no profile, or is of a later format.
    pub fn load(path: impl AsRef<Path>) -> Result<Profile, ProfileError> {
        let path = path.as_ref();
        let garbled = |reason: String| ProfileError::Garbled {
            path: Some(path.into()),
            reason,
        };
        let read = read_regular(path, MOST_BYTES);
        let bytes = read.map_err(|source| match source.kind() {
            ErrorKind::FileTooLarge => garbled(source.to_string()),
            _ => ProfileError::Read {
                path: path.into(),
                source,
            },
        })?;
        let text = String::from_utf8(bytes).map_err(|error| garbled(error.to_string()))?;
        Profile::parse(&text, Some(path))
    }

    /// Writes the profile, whole or not at all: to a file beside its place, to the disk, then renamed. Makes the
    /// missing folders of the path. Blocks on the disk. A killed process may leave a file `.transload-WRITER-RANDOM.partial`
    /// there; on Linux the next save in the folder on that machine removes it.
    ///
    /// # Errors
    /// When the path names something that is no regular file, or the system refuses. An existing profile is unchanged
    /// then.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), ProfileError> {
        let path = path.as_ref();
        let text = self.to_toml();
        let partial = text.and_then(|text| Partial::write(path, text.as_bytes()));
        let saved = partial.and_then(Partial::place_for_good);
        saved.map_err(|source| ProfileError::Write {
            path: path.into(),
            source,
        })
    }
}

/// A link and its points take a kilobyte; the largest machine that was examined has fewer than 1000 links.
const MOST_BYTES: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use std::fs;

    use transload_core::Topology;

    use super::*;

    #[test]
    fn a_crash_before_the_rename_leaves_the_old_profile() {
        let folder = std::env::temp_dir().join(format!("transload-store-{}", std::process::id()));
        let path = folder.join("made/on/the/way/profile.toml");
        let profile = Profile::new(&Topology::new(), Vec::new());
        profile.save(&path).unwrap();
        let before = fs::read(&path).unwrap();
        // As after a crash: it is neither removed nor placed.
        std::mem::forget(Partial::write(&path, b"half of a prof").unwrap());
        assert_eq!(fs::read(&path).unwrap(), before);
        assert_eq!(Profile::load(&path).unwrap().machine(), profile.machine());
        fs::remove_dir_all(folder).unwrap();
    }
}
