//! Lists of shards: `model.safetensors.index.json`, which says of each tensor in which file it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use transload::ErrorClass;
use transload::hal::read_regular;

use super::{Files, Model, ModelError};
use crate::header::{foreign, unique};
use crate::mark::{SAVE, is_save};
use crate::pairs::Pairs;

/// A list of a million tensors has half of that.
const MOST_BYTES: u64 = 200_000_000;

/// Opens the model that the list describes. Tensors that it does not name are no part of the model.
///
/// A save may replace the list after it was read, and remove the files that it names. Then the new list is opened.
pub(super) fn open(files: &dyn Files, path: &Path) -> Result<Model, ModelError> {
    let mut bytes = files.read(path, MOST_BYTES)?;
    for _ in 1..MOST_TIMES {
        let error = match of_list(files, path, &bytes) {
            Err(error) if error.may_be_replaced() => error,
            done => return done,
        };
        match files.read(path, MOST_BYTES) {
            Ok(now) if now != bytes => bytes = now,
            _ => return Err(error),
        }
    }
    of_list(files, path, &bytes)
}

/// How often a list is read that saves replace.
pub(super) const MOST_TIMES: usize = 4;

fn of_list(files: &dyn Files, path: &Path, bytes: &[u8]) -> Result<Model, ModelError> {
    let wrong = |reason: String| ModelError::Index {
        path: path.to_owned(),
        reason,
    };
    let index = serde_json::from_slice(bytes);
    let index: Index = index.map_err(|error| match bytes.first() {
        Some(b'{' | b'[') => wrong(error.to_string()),
        _ => match foreign::of(bytes) {
            Some(source) => ModelError::Header {
                path: path.to_owned(),
                source,
            },
            None => wrong(error.to_string()),
        },
    })?;
    let mut shard_of = BTreeMap::new();
    for (tensor, shard) in index.weight_map.0 {
        if shard_of.contains_key(&tensor) {
            return Err(wrong(format!("tensor {tensor:?} is there twice")));
        }
        shard_of.insert(tensor, shard);
    }
    let names: BTreeSet<&String> = shard_of.values().collect();
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut shards: Vec<PathBuf> = Vec::with_capacity(names.len());
    let mut missing = Vec::new();
    for name in &names {
        if !is_plain(name) {
            return Err(wrong(format!(
                "shard {name:?} is no plain name of a file in the list's folder"
            )));
        }
        let shard = folder.join(name);
        match files.exists(&shard) {
            false => missing.push(name.to_string()),
            true => shards.push(shard),
        }
    }
    if names.is_empty() {
        return Err(wrong("it names no tensor".into()));
    }
    if !missing.is_empty() {
        return Err(ModelError::Missing {
            path: path.to_owned(),
            files: names.len(),
            names: missing,
        });
    }
    let mut model = Model::of_files(files, &shards)?;
    model.is_of_list(path, index.metadata.save)?;
    for shard in model.tensors.chunk_by(|one, next| one.file == next.file) {
        unique(shard.iter().map(|of| &of.name)).map_err(|source| ModelError::Header {
            path: shards[shard[0].file].clone(),
            source,
        })?;
    }
    let is_listed = |file: usize, tensor: &str| {
        let listed = shard_of.get(tensor).map(|shard| folder.join(shard));
        listed.is_some_and(|listed| listed == shards[file])
    };
    std::sync::Arc::make_mut(&mut model.tensors).retain(|of| is_listed(of.file, &of.name));
    let model = model.indexed()?;
    match shard_of
        .iter()
        .find(|(tensor, _)| model.tensor(tensor).is_none())
    {
        None => Ok(model),
        Some((tensor, shard)) => Err(ModelError::NotThere {
            name: tensor.clone(),
            path: folder.join(shard),
        }),
    }
}

/// What a list on the disk says; nothing where it is missing or no list.
#[derive(Default)]
pub(crate) struct List {
    /// The save whose files it names.
    pub(crate) save: Option<String>,
    /// The names of the files.
    pub(crate) names: BTreeSet<String>,
}

impl List {
    /// # Errors
    /// When the system does not read what is there, so that it may name any file.
    pub(crate) fn read(path: &Path) -> io::Result<List> {
        let bytes = match read_regular(path, MOST_BYTES) {
            Err(error) if is_no_list(&error) => return Ok(List::default()),
            read => read?,
        };
        let Ok(index) = serde_json::from_slice::<Index>(&bytes) else {
            return Ok(List::default());
        };
        let names = index.weight_map.0.into_iter().map(|(_, shard)| shard);
        Ok(List {
            save: index.metadata.save,
            names: names.filter(|shard| is_plain(shard)).collect(),
        })
    }
}

/// Whether nothing that names files is there: it is missing, or something other than a list or a folder of lists.
pub(crate) fn is_no_list(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::PermissionDenied
        && ErrorClass::of_io(error) == ErrorClass::Caller
}

/// Whether the name leads to no other folder, on any system.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_single = matches!(parts.next(), Some(Component::Normal(part)) if part == name);
    is_single
        && parts.next().is_none()
        && !name.contains(['/', '\\', ':'])
        && !name.contains(char::is_control)
}

#[derive(Deserialize)]
struct Index {
    weight_map: Pairs,
    #[serde(default)]
    metadata: Said,
}

/// What a list says of its save. Other programs may have anything there, which is passed over.
#[derive(Default)]
struct Said {
    /// The value itself, where it is a text.
    text: Option<String>,
    /// The text of that key, where it is an object.
    save: Option<String>,
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Said, D::Error> {
        deserializer.deserialize_any(Anything)
    }
}

struct Anything;

impl<'de> Visitor<'de> for Anything {
    type Value = Said;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<Said, E> {
        Ok(Said::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Said, E> {
        Ok(Said::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Said, E> {
        Ok(Said::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Said, E> {
        Ok(Said::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Said, E> {
        Ok(Said::default())
    }

    fn visit_str<E>(self, text: &str) -> Result<Said, E> {
        Ok(Said {
            text: Some(text.to_owned()),
            save: None,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Said, A::Error> {
        while all.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Said::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Said, A::Error> {
        let mut said = Said::default();
        while let Some(key) = all.next_key::<String>()? {
            match key == SAVE {
                true => said.save = all.next_value::<Said>()?.text.filter(|save| is_save(save)),
                false => _ = all.next_value::<IgnoredAny>()?,
            }
        }
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::super::{Disk, Source};
    use super::*;
    use crate::Header;

    /// A folder in which a save ends so many times, each after the list was read.
    struct Saved(Cell<usize>);

    fn put(path: &Path, number: usize) {
        let folder = path.parent().unwrap();
        for old in fs::read_dir(folder).unwrap() {
            fs::remove_file(old.unwrap().path()).unwrap();
        }
        let name = format!("save-{number}.safetensors");
        let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.push(0);
        fs::write(folder.join(&name), bytes).unwrap();
        fs::write(path, format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#)).unwrap();
    }

    impl Files for Saved {
        fn read(&self, path: &Path, most_bytes: u64) -> Result<Vec<u8>, ModelError> {
            let bytes = Disk.read(path, most_bytes)?;
            if let Some(left) = self.0.get().checked_sub(1) {
                self.0.set(left);
                put(path, left);
            }
            Ok(bytes)
        }

        fn exists(&self, path: &Path) -> bool {
            Disk.exists(path)
        }

        fn open(&self, path: &Path) -> Result<(Source, Header), ModelError> {
            Disk.open(path)
        }
    }

    #[test]
    fn a_list_that_is_replaced_while_it_is_read_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors.index.json");
        for times in 0..4 {
            put(&path, times);
            let model = open(&Saved(times.into()), &path).unwrap();
            assert_eq!(model.tensors().len(), 1);
        }
        put(&path, 100);
        let error = open(&Saved(100.into()), &path).unwrap_err();
        assert!(matches!(error, ModelError::Missing { .. }), "{error}");
    }

    #[test]
    fn a_list_may_have_anything_as_its_metadata() {
        for (metadata, save) in [
            ("null", None),
            ("[1,{\"transload.save\":\"a\"}]", None),
            ("\"transload.save\"", None),
            ("-1.5e3", None),
            ("true", None),
            (r#"{"transload.save":{"a":[]}}"#, None),
            (r#"{"a":{"b":1},"transload.save":"c"}"#, Some("c")),
            (
                &format!(r#"{{"transload.save":"{}"}}"#, "c".repeat(65)),
                None,
            ),
        ] {
            let list = format!(r#"{{"metadata":{metadata},"weight_map":{{}}}}"#);
            let index: Index = serde_json::from_str(&list).unwrap();
            assert_eq!(index.metadata.save.as_deref(), save, "{metadata}");
        }
    }
}
