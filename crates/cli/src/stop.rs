//! A stop of a copy, as it is typed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use transload::model::{Name, ParseError};
use transload::{DeviceId, DeviceKind, DeviceName, MemoryKind, Place};

/// A memory on the way: `cpu:0`, `cpu:0/shared`, `sim:1`; or a file, `cpu:0/file:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    place: Place,
    path: Option<PathBuf>,
}

/// What stands where a stop may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Stop(Stop),
    /// Between stops that get the bytes at the same time.
    And,
}

impl FromStr for Word {
    type Err = StopError;

    fn from_str(text: &str) -> Result<Word, StopError> {
        match text {
            "+" => Ok(Word::And),
            stop => stop.parse().map(Word::Stop),
        }
    }
}

/// Takes what was typed apart into the stops that bytes visit one after the other, and those that get them at once at the
/// end. The latter are none, or more than one.
pub(crate) fn stops(words: &[Word]) -> Result<(Vec<Stop>, Vec<Stop>), StopError> {
    let (mut chain, mut last) = (Vec::new(), Vec::new());
    let mut joins = false;
    for word in words {
        match word {
            Word::And if joins || chain.is_empty() && last.is_empty() => {
                return Err(StopError::LooseAnd);
            }
            Word::And => {
                joins = true;
                if last.is_empty() {
                    last.extend(chain.pop());
                }
            }
            Word::Stop(stop) if joins => {
                joins = false;
                last.push(stop.clone());
            }
            Word::Stop(_) if !last.is_empty() => return Err(StopError::AfterAnd),
            Word::Stop(stop) => chain.push(stop.clone()),
        }
    }
    match joins {
        true => Err(StopError::LooseAnd),
        false => Ok((chain, last)),
    }
}

/// Text that is no stop.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StopError {
    #[error(transparent)]
    Place(#[from] ParseError),
    #[error("{text:?} is no device or memory; a file is cpu:0/file:{text}{}", AtNode(.text))]
    BarePath { text: String },
    #[error(
        "{text:?} is not a stop: only cpu:0 of this machine has files, so write cpu:0/file:PATH"
    )]
    FileElsewhere { text: String },
    #[error("{text:?} names no file: write cpu:0/file:PATH")]
    NoPath { text: String },
    #[error("a + stands between two stops")]
    LooseAnd,
    #[error("stops joined by + are the last ones: bytes go on from one stop alone")]
    AfterAnd,
}

/// How memory of a machine is named, where the text may have been meant as one.
struct AtNode<'a>(&'a str);

impl fmt::Display for AtNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Name::new(self.0) {
            Some(name) => write!(f, ", and memory of another machine {name}/cpu:0"),
            None => Ok(()),
        }
    }
}

impl Stop {
    /// The file of that path.
    pub(crate) fn file(path: &Path) -> Stop {
        Stop {
            place: DeviceId::CPU0.memory(MemoryKind::File).into(),
            path: Some(path.into()),
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The stop as a table shows it in at most `widest` columns: the directories of a long path left out, and where
    /// that is not enough, the beginning of its name.
    pub(crate) fn short(&self, widest: usize) -> String {
        let whole = self.to_string();
        let Some(path) = self
            .path
            .as_deref()
            .filter(|_| whole.chars().count() > widest)
        else {
            return whole;
        };
        let place = format!("{}{FILE_SIGN}…", self.place);
        let name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy();
        let room = widest.saturating_sub(place.chars().count());
        match name.chars().count().checked_sub(room) {
            None => format!("{place}/{name}"),
            Some(over) => place + &name.chars().skip(over).collect::<String>(),
        }
    }

    /// The file that it is; `None` for memory.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl FromStr for Stop {
    type Err = StopError;

    fn from_str(text: &str) -> Result<Stop, StopError> {
        let Some((device, path)) = text.split_once(FILE) else {
            if is_bare_path(text) {
                return Err(StopError::BarePath { text: text.into() });
            }
            let place = text.parse()?;
            if text.ends_with("/file") {
                return Err(StopError::NoPath { text: text.into() });
            }
            return Ok(Stop { place, path: None });
        };
        if device.parse::<DeviceName>()? != DeviceName::Id(DeviceId::CPU0) {
            return Err(StopError::FileElsewhere { text: text.into() });
        }
        if path.is_empty() {
            return Err(StopError::NoPath { text: text.into() });
        }
        Ok(Stop::file(Path::new(path)))
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)?;
        match &self.path {
            Some(path) => write!(f, "{FILE_SIGN}{}", path.display()),
            None => Ok(()),
        }
    }
}

/// Whether it is a path as other programs that copy take it: nothing in it is a device of any kind.
fn is_bare_path(text: &str) -> bool {
    let known = [
        DeviceKind::CPU,
        DeviceKind::WGPU,
        DeviceKind::CUDA,
        DeviceKind::METAL,
        DeviceKind::SIM,
    ];
    // A device of another machine stands behind the machine's name.
    let place = text.parse::<Place>().map(|place| place.device);
    let device = text.split_once('/').map_or(text, |(device, _)| device);
    let named = match place.or_else(|_| device.parse()) {
        Ok(DeviceName::Id(id)) => known.contains(&id.kind),
        Ok(DeviceName::Uuid(_)) => true,
        Err(_) => false,
    };
    !named && !text.is_empty() && !text.contains(':')
}

/// The text between a device and the path of a file.
const FILE: &str = "/file:";

/// The character between the memory and the path.
const FILE_SIGN: char = ':';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_round_trip() {
        for text in [
            "cpu:0",
            "cpu:0/shared",
            "sim:12",
            "cpu:0/file:back.bin",
            "cpu:0/file:/a:b/file:c d",
        ] {
            assert_eq!(text.parse::<Stop>().unwrap().to_string(), text);
        }
        let path = "cpu:0/file:/a:b/file:c d".parse::<Stop>().unwrap();
        assert_eq!(path.path(), Some(Path::new("/a:b/file:c d")));
    }

    #[test]
    fn a_sign_between_the_last_stops_joins_them() {
        let parsed = |text: &str| {
            let words: Vec<Word> = text.split(' ').map(|word| word.parse().unwrap()).collect();
            let names = |stops: Vec<Stop>| stops.iter().map(Stop::to_string).collect::<Vec<_>>();
            stops(&words).map(|(chain, last)| (names(chain).join(" "), names(last).join(" ")))
        };
        let split = |chain: &str, last: &str| Ok((chain.into(), last.into()));
        assert_eq!(parsed("cpu:0 sim:1"), split("cpu:0 sim:1", ""));
        assert_eq!(
            parsed("a/cpu:0 + b/cpu:0 + sim:1"),
            split("", "a/cpu:0 b/cpu:0 sim:1")
        );
        assert_eq!(parsed("cpu:0 sim:1 + sim:2"), split("cpu:0", "sim:1 sim:2"));
        for text in ["+", "cpu:0 +", "+ cpu:0", "cpu:0 + + sim:1"] {
            assert_eq!(parsed(text), Err(StopError::LooseAnd), "{text}");
        }
        assert_eq!(parsed("sim:0 + sim:1 cpu:0"), Err(StopError::AfterAnd));
    }

    #[test]
    fn long_paths_are_shown_by_their_names() {
        let short = |text: &str| text.parse::<Stop>().unwrap().short(36);
        assert_eq!(
            short("cpu:0/file:folder/back.bin"),
            "cpu:0/file:folder/back.bin"
        );
        assert_eq!(
            short("cpu:0/file:/home/somebody/models/new/model.safetensors"),
            "cpu:0/file:…/model.safetensors"
        );
    }

    #[test]
    fn what_is_no_stop_is_refused_by_name() {
        for (text, named) in [
            ("", "\"\""),
            ("cpu:x", "cpu:x"),
            ("cpu:0/floppy", "floppy"),
            ("cpu:0/file", "cpu:0/file"),
            ("cpu:0/file:", "cpu:0/file:"),
            ("sim:0/file:x", "sim:0/file:x"),
            ("a/b/cpu:0", "cpu:0"),
            ("back", "cpu:0/file:back"),
            ("back.bin", "cpu:0/file:back.bin"),
            ("./back.bin", "cpu:0/file:./back.bin"),
            ("/tmp/back", "cpu:0/file:/tmp/back"),
            ("folder/back", "cpu:0/file:folder/back"),
        ] {
            let error = text.parse::<Stop>().unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn devices_need_no_number_and_are_taken_for_no_file() {
        let uuid = "01020304-0506-0708-090a-0b0c0d0e0f10";
        for text in [
            "cpu",
            "cpu/shared",
            "b/cpu",
            "b/wgpu:1",
            "wgpu",
            "cuda",
            "metal",
            "sim",
            uuid,
        ] {
            assert_eq!(text.parse::<Stop>().map(|stop| stop.path), Ok(None));
        }
    }
}
