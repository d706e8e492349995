//! The double's settings from the environment.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use transload_cuda::raw::Version;

use crate::downgrade;
use crate::engine::Clock;
use crate::names::name_of;

/// The machine's description, a file.
pub(crate) const TOPOLOGY: &str = "TRANSLOAD_DOUBLE_TOPOLOGY";
/// The number of devices, if no file says so.
pub(crate) const DEVICES: &str = "TRANSLOAD_DOUBLE_DEVICES";
/// `real` or `virtual`.
pub(crate) const CLOCK: &str = "TRANSLOAD_DOUBLE_CLOCK";
/// The CUDA version of the driver: `12.2`. `cuGetProcAddress` then hides later functions; for `dlsym` there is a copy
/// of another version: see `downgrade`.
pub(crate) const VERSION: &str = "TRANSLOAD_DOUBLE_VERSION";
/// Functions that `cuGetProcAddress` does not find, by the names that the library exports, with commas.
pub(crate) const HIDE: &str = "TRANSLOAD_DOUBLE_HIDE";
/// Faults: see `faults`.
pub(crate) const FAULTS: &str = "TRANSLOAD_DOUBLE_FAULTS";
/// The destination of the report at the end of the process: a file, or `-` for standard error.
pub(crate) const REPORT: &str = "TRANSLOAD_DOUBLE_REPORT";
/// An existing folder, for the names of the functions that the process called.
pub(crate) const CALLS: &str = "TRANSLOAD_DOUBLE_CALLS";

/// The common prefix of all names.
const PREFIX: &str = "TRANSLOAD_DOUBLE_";

const VARIABLES: [&str; 8] = [
    TOPOLOGY, DEVICES, CLOCK, VERSION, HIDE, FAULTS, REPORT, CALLS,
];

/// The settings, read once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    pub(crate) topology: Option<PathBuf>,
    pub(crate) devices: usize,
    pub(crate) clock: Clock,
    pub(crate) version: Version,
    pub(crate) hidden: Vec<String>,
    pub(crate) faults: String,
    pub(crate) report: Option<PathBuf>,
    pub(crate) calls: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            topology: None,
            devices: 1,
            clock: Clock::Real,
            version: downgrade::version(),
            hidden: Vec::new(),
            faults: String::new(),
            report: None,
            calls: None,
        }
    }
}

/// An invalid setting. `cuInit` fails on it, and reports it on standard error.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{name}={value}: {wants}")]
    Value {
        name: &'static str,
        value: String,
        wants: &'static str,
    },
    #[error("`{0}` is no setting; there are {list}", list = VARIABLES.join(", "))]
    Unknown(String),
    #[error("the driver is in use: settings come before the first call")]
    TooLate,
}

/// Settings of this copy of the library alone, which override the environment's.
static SET: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());

/// Sets a variable for this copy of the library.
///
/// # Errors
/// When there is no such variable.
pub(crate) fn set(name: &str, value: &str) -> Result<(), ConfigError> {
    let known = known(name)?;
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    set.insert(known, value.into());
    Ok(())
}

fn known(name: &str) -> Result<&'static str, ConfigError> {
    let known = VARIABLES.into_iter().find(|known| *known == name);
    known.ok_or_else(|| ConfigError::Unknown(name.into()))
}

impl Config {
    /// # Errors
    /// At the first variable with an invalid value, or with the double's prefix and an unknown name: a fault under a
    /// mistyped name would go unnoticed, and its test would pass.
    pub(crate) fn from_environment() -> Result<Config, ConfigError> {
        for (name, _) in env::vars_os() {
            if let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) {
                known(name)?;
            }
        }
        let set = SET.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Config::from(|name| {
            let value = set.get(name).cloned().or_else(|| env::var(name).ok());
            value.filter(|value| !value.is_empty())
        })
    }

    fn from(variable: impl Fn(&'static str) -> Option<String>) -> Result<Config, ConfigError> {
        let mut config = Config {
            topology: variable(TOPOLOGY).map(PathBuf::from),
            faults: variable(FAULTS).unwrap_or_default(),
            report: variable(REPORT).map(PathBuf::from),
            calls: variable(CALLS).map(PathBuf::from),
            ..Config::default()
        };
        if let Some(value) = variable(DEVICES) {
            config.devices = match value.parse() {
                Ok(count) if count <= 64 => count,
                _ => return Err(wrong(DEVICES, value, "a number from 0 to 64")),
            };
        }
        config.clock = match variable(CLOCK).as_deref() {
            None | Some("real") => Clock::Real,
            Some("virtual") => Clock::Virtual,
            Some(other) => return Err(wrong(CLOCK, other.into(), "`real` or `virtual`")),
        };
        if let Some(value) = variable(VERSION) {
            config.version = version(&value)
                .ok_or_else(|| wrong(VERSION, value, "a version of CUDA, as 12.2"))?;
        }
        if let Some(value) = variable(HIDE) {
            let names: Vec<String> = value.split(',').map(|name| name.trim().into()).collect();
            if names.iter().any(|name| name_of(name).is_none()) {
                return Err(wrong(HIDE, value, "names of functions, as cuMemAdvise_v2"));
            }
            config.hidden = names;
        }
        Ok(config)
    }
}

fn wrong(name: &'static str, value: String, wants: &'static str) -> ConfigError {
    ConfigError::Value { name, value, wants }
}

fn version(text: &str) -> Option<Version> {
    let (major, minor) = text.split_once('.')?;
    let [major, minor] = [major, minor].map(|part| part.parse::<u32>().ok());
    Some(Version::new(
        major.filter(|major| *major < 100)?,
        minor.filter(|minor| *minor < 100)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[(&'static str, &str)]) -> Result<Config, ConfigError> {
        Config::from(|name| {
            let found = settings.iter().find(|(of, _)| *of == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_set_is_one_new_device_in_real_time() {
        assert_eq!(config(&[]), Ok(Config::default()));
    }

    #[test]
    fn settings_are_taken() {
        let config = config(&[
            (DEVICES, "8"),
            (CLOCK, "virtual"),
            (VERSION, "12.2"),
            (HIDE, "cuMemAdvise, cuMemcpyBatchAsync"),
        ])
        .unwrap();
        assert_eq!(config.devices, 8);
        assert_eq!(config.clock, Clock::Virtual);
        assert_eq!(config.version, Version(12020));
        assert_eq!(config.hidden, ["cuMemAdvise", "cuMemcpyBatchAsync"]);
    }

    #[test]
    fn what_means_nothing_is_told_by_name_and_by_what_it_wants() {
        let told = |name, value| config(&[(name, value)]).unwrap_err().to_string();
        assert_eq!(
            told(DEVICES, "65"),
            "TRANSLOAD_DOUBLE_DEVICES=65: a number from 0 to 64"
        );
        assert_eq!(
            told(CLOCK, "fast"),
            "TRANSLOAD_DOUBLE_CLOCK=fast: `real` or `virtual`"
        );
        for value in ["12", "12.x", "-1.2", "100.0", ""] {
            assert_eq!(
                told(VERSION, value),
                format!("TRANSLOAD_DOUBLE_VERSION={value}: a version of CUDA, as 12.2")
            );
        }
        // Hiding no function would look like hiding it.
        assert_eq!(
            told(HIDE, "cuMemAdvise,cuMemAlloc"),
            "TRANSLOAD_DOUBLE_HIDE=cuMemAdvise,cuMemAlloc: names of functions, as cuMemAdvise_v2"
        );
        let unknown = set("TRANSLOAD_DOUBLE_SPEED", "9").unwrap_err().to_string();
        assert!(
            unknown.starts_with(
                "`TRANSLOAD_DOUBLE_SPEED` is no setting; there are TRANSLOAD_DOUBLE_TOPOLOGY, "
            ),
            "{unknown}"
        );
    }
}
