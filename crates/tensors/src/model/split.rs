//! Models in parts: `NAME-00001-of-00003.gguf`, as llama.cpp's `gguf-split` names them, and `.safetensors` alike.

use std::path::{Path, PathBuf};

use super::{Files, Model, ModelError, index};
use crate::{Header, Value};

/// A part of a model, by its name.
pub(crate) struct Part<'a> {
    /// The name before the numbers.
    pub(crate) stem: &'a str,
    pub(crate) count: u32,
    pub(super) ending: &'static str,
    /// How many figures its own number has, and the number of parts.
    figures: (usize, usize),
}

const SAFETENSORS: &str = ".safetensors";

/// Returns what the name says, if it is one of a part.
pub(crate) fn part_of(name: &str) -> Option<Part<'_>> {
    let mut endings = [".gguf", SAFETENSORS].into_iter();
    let (rest, ending) = endings.find_map(|of| Some((name.strip_suffix(of)?, of)))?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let figures = (number.len(), count.len());
    let (number, count) = (figure(number)?, figure(count)?);
    (1..=count).contains(&number).then_some(Part {
        stem,
        count,
        ending,
        figures,
    })
}

/// Writers use five figures, or as few as there are.
fn figure(digits: &str) -> Option<u32> {
    let is_figure = digits.len() <= 5 && digits.bytes().all(|of| of.is_ascii_digit());
    digits.parse().ok().filter(|_| is_figure)
}

/// Opens the model that the file is a part of: that of the list of shards that names it, or of all parts. `None` where its name is
/// not one of a part.
pub(super) fn open(files: &dyn Files, path: &Path) -> Result<Option<Model>, ModelError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(part) = name.and_then(part_of) else {
        return Ok(None);
    };
    if part.ending == SAFETENSORS {
        let list = path.with_file_name(format!("{}{SAFETENSORS}.index.json", part.stem));
        match index::open(files, &list) {
            Ok(model) if model.files().iter().any(|file| file.path() == path) => {
                return Ok(Some(model));
            }
            // An older list, whose model is another one.
            Ok(_) => {}
            Err(ModelError::Read { source, .. }) if files.may_be_missing(&source) => {}
            Err(error) => return Err(error),
        }
    }
    Model::of_files(files, &parts(files, path, &part)?)?
        .whole()?
        .indexed()
        .map(Some)
}

/// Returns the paths of all parts of a model.
fn parts(files: &dyn Files, path: &Path, part: &Part<'_>) -> Result<Vec<PathBuf>, ModelError> {
    let Part {
        stem,
        count,
        ending,
        figures: (figures, of_count),
    } = *part;
    let name =
        |number: u32, figures| format!("{stem}-{number:0figures$}-of-{count:0of_count$}{ending}");
    let path_of = |name: &String| path.with_file_name(name);
    let names = |figures| (1..=count).map(move |number| name(number, figures));
    // The tenth of twelve has two figures in any case.
    let is_there = |figures| files.exists(&path_of(&name(1, figures)));
    let figures = match is_there(figures) || !is_there(1) {
        true => figures,
        false => 1,
    };
    let missing = names(figures).filter(|name| !files.exists(&path_of(name)));
    let missing: Vec<String> = missing.collect();
    if !missing.is_empty() {
        return Err(ModelError::Missing {
            path: path.to_owned(),
            files: count as usize,
            names: missing,
        });
    }
    Ok(names(figures).map(|name| path_of(&name)).collect())
}

/// What the header of a file says of the parts of its model, and how many tensors it has itself.
#[derive(Clone, Copy)]
pub(super) struct Said {
    /// The number of the part, from 0 on.
    number: Option<u64>,
    /// How many parts there are, 2 at least. `gguf-split --merge` leaves a 0.
    count: Option<u64>,
    /// How many tensors all parts have.
    all_tensors: Option<u64>,
    tensors: u64,
}

impl Said {
    pub(super) fn of(header: &Header) -> Said {
        let said = |key: &str| match header.metadata.get(key) {
            Some(Value::Unsigned(number)) => Some(*number),
            Some(Value::Signed(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        Said {
            number: said("split.no"),
            count: said("split.count").filter(|count| *count > 1),
            all_tensors: said("split.tensors.count"),
            tensors: header.tensors.len() as u64,
        }
    }
}

/// Checks that files are the parts that their headers say, in this order. Where no header says anything, the names do.
pub(super) fn check(paths: &[PathBuf], said: &[Said]) -> Result<(), ModelError> {
    let Some(speaker) = said.iter().position(|of| of.count.is_some()) else {
        return Ok(());
    };
    let first = said[speaker];
    let count = paths.len() as u64;
    for ((path, own), at) in paths.iter().zip(said).zip(0..) {
        let reason = match (own.count, own.number) {
            (Some(of), number) if count == 1 => format!(
                "its header says that it is part {} of {of} of a model, and its name does not: name it as its writer did, \
                 NAME-00001-of-{of:05}.gguf, beside the other parts, or join the parts with llama-gguf-split --merge",
                number.map_or(1, |number| number.saturating_add(1)),
            ),
            (Some(of), _) if of != count => format!(
                "its header says that it is one of {of} parts of a model, and its name that it is one of {count}: it was renamed, \
                 or is of another model"
            ),
            (Some(_), Some(number)) if number != at => format!(
                "its header says that it is part {}, and its name that it is part {}: give each part the number of its header",
                number.saturating_add(1),
                at + 1,
            ),
            (None, _) | (_, None) => format!(
                "its header does not say which part of a model it is, and that of {} does: it is of another model",
                paths[speaker].display(),
            ),
            _ if own.all_tensors != first.all_tensors => format!(
                "its header says that all parts have {} tensors, and that of {} says {}: they are of different models",
                told(own.all_tensors),
                paths[speaker].display(),
                told(first.all_tensors),
            ),
            _ => continue,
        };
        let path = path.to_owned();
        return Err(ModelError::Part { path, reason });
    }
    let found: u64 = said.iter().map(|of| of.tensors).sum();
    match first.all_tensors {
        Some(all) if all != found => Err(ModelError::Part {
            path: paths[speaker].clone(),
            reason: format!(
                "its header says that all parts have {all} tensors, and they have {found}: they are not all of one model"
            ),
        }),
        _ => Ok(()),
    }
}

fn told(number: Option<u64>) -> String {
    number.map_or("nothing".into(), |number| number.to_string())
}
