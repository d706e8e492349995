//! Models in parts: `NAME-00001-of-00003.gguf`, as llama.cpp's `gguf-split` names them, and `.safetensors` alike.

use std::path::{Path, PathBuf};

use super::{Files, ModelError};

/// A part of a model, by its name.
pub(super) struct Part<'a> {
    /// The name before the numbers.
    pub(super) stem: &'a str,
    count: u32,
    ending: &'static str,
}

/// Returns what the name says, if it is one of a part.
pub(super) fn part_of(name: &str) -> Option<Part<'_>> {
    let mut endings = [".gguf", ".safetensors"].into_iter();
    let (rest, ending) = endings.find_map(|of| Some((name.strip_suffix(of)?, of)))?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let figure = |digits: &str| {
        let is_figure = digits.len() == 5 && digits.bytes().all(|of| of.is_ascii_digit());
        digits.parse().ok().filter(|_| is_figure)
    };
    let (number, count) = (figure(number)?, figure(count)?);
    (1..=count).contains(&number).then_some(Part {
        stem,
        count,
        ending,
    })
}

/// Returns all parts of the model that the file is one of; `None` where it is no part.
pub(super) fn parts(files: &dyn Files, path: &Path) -> Result<Option<Vec<PathBuf>>, ModelError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(part) = name.and_then(part_of) else {
        return Ok(None);
    };
    let Part {
        stem,
        count,
        ending,
    } = part;
    let name = |number| format!("{stem}-{number:05}-of-{count:05}{ending}");
    let path_of = |number| path.with_file_name(name(number));
    let is_missing = |number: &u32| !files.exists(&path_of(*number));
    let missing: Vec<u32> = (1..=count).filter(is_missing).collect();
    if !missing.is_empty() {
        return Err(ModelError::Missing {
            path: path.to_owned(),
            files: count as usize,
            names: missing.into_iter().map(name).collect(),
        });
    }
    Ok(Some((1..=count).map(path_of).collect()))
}
