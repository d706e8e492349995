//! The model of a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::split::part_of;
use super::{Files, Model, ModelError, index, mark_of};

/// The list of shards and the only shard, as the hub and `transformers` name them.
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const SAFETENSORS: &str = ".safetensors";

/// Opens the model in a folder. What a save takes away after the folder was read is looked for again.
pub(super) fn open(files: &dyn Files, folder: &Path) -> Result<Model, ModelError> {
    if let Some(snapshot) = snapshot(folder) {
        return open(files, &snapshot);
    }
    for _ in 1..index::MOST_TIMES {
        match find(files, folder) {
            Err(error) if error.may_be_replaced() => {}
            done => return done,
        }
    }
    find(files, folder)
}

fn find(from: &dyn Files, folder: &Path) -> Result<Model, ModelError> {
    for name in [INDEX, SINGLE] {
        let path = folder.join(name);
        // A link that leads nowhere is told of.
        if path.exists() || path.is_symlink() {
            return match name {
                INDEX => index::open(from, &path),
                _ => Model::of_files(from, &[path])?.indexed(),
            };
        }
    }
    let names = names(folder)?;
    let ending = |wanted: &str| -> Vec<&String> {
        { names.iter() }
            .filter(|name| name.ends_with(wanted))
            .collect()
    };
    let mut files = ending(".safetensors.index.json");
    if files.is_empty() {
        files = ending(".safetensors");
        files.extend(ending(".gguf"));
    }
    // Of a model in parts, one stands for all of them.
    let mut models: BTreeMap<(&str, Option<u32>, &str), &String> = BTreeMap::new();
    for name in files {
        let model = match part_of(name) {
            Some(part) => (part.stem, Some(part.count), part.ending),
            None => (name.strip_suffix(SAFETENSORS).unwrap_or(name), None, ""),
        };
        models.entry(model).or_insert(name);
    }
    let mut first: Vec<&String> = models.values().copied().collect();
    if first.len() > 1 {
        // A save of several files that ended early has left some without their list, or the older ones beside a new file.
        let mut others = Vec::new();
        for (model, name) in &models {
            let is_left = match *model {
                (stem, Some(_), SAFETENSORS) => {
                    models.contains_key(&(stem, None, ""))
                        || mark_of(&folder.join(name.as_str()))?.is_some()
                }
                _ => false,
            };
            if !is_left {
                others.push(*name);
            }
        }
        if others.len() == 1 {
            first = others;
        }
    }
    match first[..] {
        [only] => Model::open_file(from, &folder.join(only)),
        [] => Err(ModelError::NoModel {
            path: folder.to_owned(),
            is_pickled: { ["bin", "pt", "pth", "ckpt"].iter() }
                .any(|of| !ending(&format!(".{of}")).is_empty()),
        }),
        _ => Err(ModelError::Several {
            path: folder.to_owned(),
            names: first.into_iter().cloned().collect(),
        }),
    }
}

/// Returns the snapshot of a hub's folder: the one that `refs/main` names, else the only one.
fn snapshot(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.join("snapshots");
    let all = snapshots.read_dir().ok()?.filter_map(Result::ok);
    let mut all = all.filter(|entry| !is_hidden(&entry.file_name().to_string_lossy()));
    let first = all.next()?.path();
    let is_only = all.next().is_none();
    let main = fs::read_to_string(folder.join("refs/main")).ok();
    // The name of a commit.
    let main = main.filter(|name| name.trim().bytes().all(|of| of.is_ascii_alphanumeric()));
    let named = match main {
        Some(commit) => snapshots.join(commit.trim()),
        None if is_only => first,
        None => return None,
    };
    named.is_dir().then_some(named)
}

/// Whether a name is one of what another program keeps for itself: `._model.safetensors` has the attributes of a file of macOS,
/// `.model.safetensors` is a download under way.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}

/// Returns the names in the folder that are not hidden, in order.
fn names(folder: &Path) -> Result<Vec<String>, ModelError> {
    let failed = |source| ModelError::Read {
        path: folder.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        // No model has another name.
        names.extend(name.into_string().ok().filter(|name| !is_hidden(name)));
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::{Disk, Source};
    use super::*;
    use crate::Header;

    /// A folder whose list saves in one file take away, so many times, after it was found and before it is read.
    struct Taken<'a>(Cell<usize>, &'a str);

    fn file(path: &Path) {
        let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.push(0);
        fs::write(path, bytes).unwrap();
    }

    impl Files for Taken<'_> {
        fn read(&self, path: &Path, most_bytes: u64) -> Result<Vec<u8>, ModelError> {
            if let Some(left) = self.0.get().checked_sub(1) {
                self.0.set(left);
                let single = format!("{}.safetensors", self.1);
                file(&path.with_file_name(single));
                let list = fs::read(path).unwrap();
                fs::remove_file(path).unwrap();
                let error = Disk.read(path, most_bytes);
                // Another one is there already, of a save in several.
                if left > 0 {
                    fs::write(path, list).unwrap();
                }
                return error;
            }
            Disk.read(path, most_bytes)
        }

        fn exists(&self, path: &Path) -> bool {
            Disk.exists(path)
        }

        fn open(&self, path: &Path) -> Result<(Source, Header), ModelError> {
            Disk.open(path)
        }
    }

    #[test]
    fn a_list_that_is_taken_away_after_the_folder_was_read_is_the_file_that_took_its_place() {
        for stem in ["model", "other"] {
            for times in [1, 3] {
                let folder = tempfile::tempdir().unwrap();
                let shard = format!("{stem}-00001-of-00001.safetensors");
                let list = format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#);
                let at = folder.path().join(format!("{stem}.safetensors.index.json"));
                fs::write(at, list).unwrap();
                let model = open(&Taken(times.into(), stem), folder.path()).unwrap();
                let only = format!("{stem}.safetensors");
                assert!(model.files()[0].path().ends_with(only));
            }
        }
    }
}
