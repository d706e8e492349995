//! The model of a folder.

use std::path::Path;

use super::{Model, ModelError, index, split};

/// The list of shards and the only shard, as the hub and `transformers` name them.
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Opens the model in a folder.
pub(super) fn open(folder: &Path) -> Result<Model, ModelError> {
    for name in [INDEX, SINGLE] {
        let path = folder.join(name);
        if path.exists() {
            return match name {
                INDEX => index::open(&path),
                _ => Model::of_files(&[path])?.indexed(),
            };
        }
    }
    let names = names(folder)?;
    let ending = |wanted: &str| -> Vec<&String> {
        { names.iter() }
            .filter(|name| name.ends_with(wanted))
            .collect()
    };
    let lists = ending(".safetensors.index.json");
    let mut models = lists.clone();
    if models.is_empty() {
        models = ending(".safetensors");
        let parts = ending(".gguf").into_iter();
        // The first part stands for all of them.
        models
            .extend(parts.filter(|name| split::part_of(name).is_none_or(|part| part.number == 1)));
    }
    match models[..] {
        [only] => Model::open(folder.join(only)),
        [] => Err(ModelError::NoModel {
            path: folder.to_owned(),
            is_pickled: { ["bin", "pt", "pth", "ckpt"].iter() }
                .any(|of| !ending(&format!(".{of}")).is_empty()),
        }),
        _ => Err(ModelError::Several {
            path: folder.to_owned(),
            names: models.into_iter().cloned().collect(),
        }),
    }
}

/// Returns the names in the folder, in order.
fn names(folder: &Path) -> Result<Vec<String>, ModelError> {
    let failed = |source| ModelError::Read {
        path: folder.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        // No model has another name.
        names.extend(name.into_string());
    }
    names.sort_unstable();
    Ok(names)
}
