//! A stop of a copy, as it is typed.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use transload::model::{Name, ParseError};
use transload::{DeviceId, DeviceKind, DeviceName, MemoryKind, Place};

use crate::shown::Shown;

/// A memory on the way: `cpu:0`, `cpu:0/shared`, `sim:1`; or a file, `cpu:0/file:PATH`; or `-`, which is standard input at the
/// begin and standard output at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    place: Place,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Memory,
    File(PathBuf),
    Standard,
}

/// What stands where a stop may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Stop(Stop),
    /// Between stops that get the bytes at the same time.
    And,
}

impl Word {
    /// # Errors
    /// If it is neither a stop nor a `+`.
    pub(crate) fn new(text: &OsStr) -> Result<Word, StopError> {
        match text.to_str() {
            Some("+") => Ok(Word::And),
            _ => Stop::new(text).map(Word::Stop),
        }
    }
}

/// Whether a path asks for standard input or standard output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
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
    let before = chain.len() - usize::from(last.is_empty() && !chain.is_empty());
    if chain[..before].iter().chain(&last).any(Stop::is_standard) {
        return Err(StopError::StandardBefore);
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
    #[error("{text:?} is no device or memory; a file is cpu:0/file:{}{}", Shown(.text), AtNode(.text))]
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
    #[error("- is standard output, which is one last stop alone; a file named - is cpu:0/file:-")]
    StandardBefore,
    #[error("{} is no device or memory, whose names are UTF-8; a file is cpu:0/file:PATH", Shown(.text.display()))]
    NotUtf8 { text: OsString },
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
            kind: match is_standard(path) {
                true => Kind::Standard,
                false => Kind::File(path.into()),
            },
        }
    }

    /// Whether it is standard input or standard output.
    pub(crate) fn is_standard(&self) -> bool {
        self.kind == Kind::Standard
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The stop as a table shows it in at most `widest` columns: the directories of a long path left out, and where
    /// that is not enough, the beginning of its name. Nothing of it acts on a terminal.
    pub(crate) fn short(&self, widest: usize) -> String {
        let whole = Shown(self).to_string();
        let Some(path) = self.path().filter(|_| whole.chars().count() > widest) else {
            return whole;
        };
        let place = format!("{}{FILE_SIGN}…", self.place);
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = Shown(name.display()).to_string();
        let room = widest.saturating_sub(place.chars().count());
        match name.chars().count().checked_sub(room) {
            None => format!("{place}/{name}"),
            Some(over) => place + &name.chars().skip(over).collect::<String>(),
        }
    }

    /// The file that it is; `None` for memory, and for standard input and output.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::File(path) => Some(path),
            Kind::Memory | Kind::Standard => None,
        }
    }

    fn new(text: &OsStr) -> Result<Stop, StopError> {
        if is_standard(Path::new(text)) {
            return Ok(Stop::file(Path::new(text)));
        }
        let Some((device, path)) = split_path(text) else {
            let text = text
                .to_str()
                .ok_or_else(|| StopError::NotUtf8 { text: text.into() })?;
            if is_bare_path(text) {
                return Err(StopError::BarePath { text: text.into() });
            }
            let place = text.parse()?;
            if text.ends_with("/file") {
                return Err(StopError::NoPath { text: text.into() });
            }
            let kind = Kind::Memory;
            return Ok(Stop { place, kind });
        };
        let text = || text.to_string_lossy().into_owned();
        if device.parse::<DeviceName>()? != DeviceName::Id(DeviceId::CPU0) {
            return Err(StopError::FileElsewhere { text: text() });
        }
        if path.as_os_str().is_empty() {
            return Err(StopError::NoPath { text: text() });
        }
        Ok(Stop {
            place: DeviceId::CPU0.memory(MemoryKind::File).into(),
            kind: Kind::File(path),
        })
    }
}

/// The device before the first `/file:`, and the path behind it, which may be any bytes.
#[cfg(unix)]
fn split_path(text: &OsStr) -> Option<(&str, PathBuf)> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = text.as_bytes();
    let at = bytes
        .windows(FILE.len())
        .position(|part| part == FILE.as_bytes())?;
    let device = str::from_utf8(&bytes[..at]).ok()?;
    Some((device, OsStr::from_bytes(&bytes[at + FILE.len()..]).into()))
}

#[cfg(not(unix))]
fn split_path(text: &OsStr) -> Option<(&str, PathBuf)> {
    let (device, path) = text.to_str()?.split_once(FILE)?;
    Some((device, path.into()))
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Memory => self.place.fmt(f),
            Kind::File(path) => write!(f, "{}{FILE_SIGN}{}", self.place, path.display()),
            Kind::Standard => f.write_str("-"),
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

    fn stop(text: &str) -> Result<Stop, StopError> {
        Stop::new(text.as_ref())
    }

    #[test]
    fn stops_round_trip() {
        for text in [
            "cpu:0",
            "cpu:0/shared",
            "sim:12",
            "cpu:0/file:back.bin",
            "cpu:0/file:/a:b/file:c d",
        ] {
            assert_eq!(stop(text).unwrap().to_string(), text);
        }
        let path = stop("cpu:0/file:/a:b/file:c d").unwrap();
        assert_eq!(path.path(), Some(Path::new("/a:b/file:c d")));
    }

    #[test]
    fn a_sign_between_the_last_stops_joins_them() {
        let parsed = |text: &str| {
            let words: Vec<Word> = text
                .split(' ')
                .map(|word| Word::new(word.as_ref()).unwrap())
                .collect();
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
        assert_eq!(parsed("cpu:0 -"), split("cpu:0 -", ""));
        for text in ["- cpu:0", "cpu:0 + -", "- + cpu:0", "- -"] {
            assert_eq!(parsed(text), Err(StopError::StandardBefore), "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_path_of_any_bytes_is_a_stop() {
        use std::os::unix::ffi::OsStrExt;
        let stop = Stop::new(OsStr::from_bytes(b"cpu:0/file:/a\xff/file:\x1b")).unwrap();
        let path = Path::new(OsStr::from_bytes(b"/a\xff/file:\x1b"));
        assert_eq!(stop.path(), Some(path));
        assert_eq!(stop.short(99), "cpu:0/file:/a\u{fffd}/file:\\u{1b}");
        let error = Stop::new(OsStr::from_bytes(b"a\xff")).unwrap_err();
        assert!(error.to_string().contains("cpu:0/file:PATH"), "{error}");
    }

    #[test]
    fn long_paths_are_shown_by_their_names() {
        let short = |text: &str| stop(text).unwrap().short(36);
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
            let error = stop(text).unwrap_err();
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
            assert_eq!(stop(text).map(|stop| stop.kind), Ok(Kind::Memory));
        }
    }
}
