//! What is in which file, and the headers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{Item, SaveError};
use crate::DType;
use crate::mark::Mark;

/// A file to write.
pub(super) struct Content {
    /// The length of the header, and the header, padded so that the data begins at a multiple of 64.
    pub(super) header: Vec<u8>,
    /// The tensors, in the order of their bytes.
    pub(super) tensors: Vec<Item>,
}

/// The data begins at a multiple of this. The format asks for 8.
const ALIGNMENT: usize = 64;

/// Readers refuse longer headers.
const MOST_HEADER_BYTES: usize = 100_000_000;

/// Lays the tensors out in files. Several files have the mark of their save.
pub(super) fn files(
    mut tensors: Vec<Item>,
    mut metadata: BTreeMap<String, String>,
    most_bytes: u64,
) -> Result<(Vec<Content>, Option<Mark>), SaveError> {
    let mut named = HashSet::new();
    for item in &tensors {
        check(item)?;
        if !named.insert(item.name.as_str()) {
            return Err(SaveError::Duplicate {
                tensor: item.name.clone(),
            });
        }
    }
    // Large elements first, as the crate safetensors does: each tensor begins at a multiple of its elements' size.
    tensors.sort_by(|a, b| {
        let key = |item: &Item| Reverse(item.tensor.dtype().block().1);
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    let mut shards: Vec<Vec<Item>> = vec![Vec::new()];
    let mut filled = 0u64;
    for item in tensors {
        let len = item.tensor.len_bytes();
        if filled > 0 && filled.saturating_add(len) > most_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled = filled.saturating_add(len);
        if let Some(shard) = shards.last_mut() {
            shard.push(item);
        }
    }
    let lens = shards.iter().flatten().map(|item| item.tensor.len_bytes());
    let all_bytes = lens.fold(0, u64::saturating_add);
    let mark = (shards.len() > 1).then(|| Mark::new(shards.len(), all_bytes));
    Mark::write(mark.as_ref(), &mut metadata);
    let contents = shards.into_iter().map(|tensors| {
        Ok(Content {
            header: header(&tensors, &metadata)?,
            tensors,
        })
    });
    let contents = contents.collect::<Result<_, SaveError>>()?;
    Ok((contents, mark))
}

fn check(item: &Item) -> Result<(), SaveError> {
    let tensor = || item.name.clone();
    if item.name == METADATA {
        return Err(SaveError::Reserved);
    }
    if item.tensor.dtype() > DType::U64 {
        return Err(SaveError::DType {
            tensor: tensor(),
            dtype: item.tensor.dtype(),
        });
    }
    Ok(())
}

const METADATA: &str = "__metadata__";

/// Returns the bytes before the data.
fn header(tensors: &[Item], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>, SaveError> {
    let mut bytes = vec![0; 8];
    serde_json::to_writer(&mut bytes, &Entries { tensors, metadata }).map_err(|error| {
        SaveError::Header {
            reason: error.to_string(),
        }
    })?;
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), b' ');
    let len = bytes.len() - 8;
    if len > MOST_HEADER_BYTES {
        let reason =
            format!("it would have {len} bytes, and readers take at most {MOST_HEADER_BYTES}");
        return Err(SaveError::Header { reason });
    }
    bytes[..8].copy_from_slice(&(len as u64).to_le_bytes());
    Ok(bytes)
}

struct Entries<'a> {
    tensors: &'a [Item],
    metadata: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Entry<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    data_offsets: (u64, u64),
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        let mut at = 0u64;
        for item in self.tensors {
            let end = at.checked_add(item.tensor.len_bytes());
            let end =
                end.ok_or_else(|| serde::ser::Error::custom("it would have more than 2^64 bytes"))?;
            let dtype = item.tensor.dtype();
            let entry = Entry {
                dtype: dtype.name(),
                shape: item.tensor.shape(),
                data_offsets: (at, end),
            };
            map.serialize_entry(&item.name, &entry)?;
            at = end;
        }
        map.end()
    }
}
