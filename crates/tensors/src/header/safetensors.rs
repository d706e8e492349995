//! Safetensors: a length of 8 bytes, a JSON object of so many bytes, and the bytes of the tensors without holes.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::{
    Format, Header, HeaderError, MOST_HEADER_BYTES, TensorInfo, Value, check_dimensions,
    check_name, len_of, unique,
};
use crate::DType;
use crate::pairs::Pairs;

/// Reads a file after its first 8 bytes, which say that `header_bytes` follow.
pub(super) fn read(
    reader: &mut dyn Read,
    len_bytes: u64,
    header_bytes: u64,
) -> Result<Header, HeaderError> {
    if header_bytes > MOST_HEADER_BYTES {
        return Err(HeaderError::NoModel {
            reason: format!(
                "it does not begin as GGUF, and for safetensors its first 8 bytes would be the length of the header, \
                 {header_bytes}, and a header has at most {MOST_HEADER_BYTES}"
            ),
        });
    }
    let data_begin = 8 + header_bytes;
    if data_begin > len_bytes {
        return Err(HeaderError::Truncated {
            what: "the header".into(),
            end: data_begin.into(),
            len_bytes,
        });
    }
    let mut json = vec![0; header_bytes as usize];
    reader.read_exact(&mut json).map_err(HeaderError::Read)?;
    if json.first() != Some(&b'{') {
        return Err(HeaderError::NoModel {
            reason: "it does not begin as GGUF, and the header of safetensors begins with {".into(),
        });
    }
    // Looked at once as a whole, which is quicker than string by string.
    let malformed = |reason: String| HeaderError::Malformed { reason };
    let json = std::str::from_utf8(&json).map_err(|error| malformed(error.to_string()))?;
    let zeros = json.len() - json.trim_end_matches('\0').len();
    let entries: Entries = serde_json::from_str(json).map_err(|error| {
        malformed(match zeros {
            0 => error.to_string(),
            zeros => format!(
                "its last {zeros} bytes are zeros, as of a download that was cut short: download the file again"
            ),
        })
    })?;
    unique(entries.metadata.iter().map(|(key, _)| key))?;
    let strings = entries.metadata.into_iter();
    Ok(Header {
        format: Format::Safetensors,
        tensors: placed(entries.tensors, data_begin, len_bytes)?,
        metadata: strings
            .map(|(key, text)| (key, Value::String(text)))
            .collect(),
    })
}

/// Checks that the tensors fill the data.
fn placed(
    mut entries: Vec<(String, Entry<'_>)>,
    data_begin: u64,
    len_bytes: u64,
) -> Result<Vec<TensorInfo>, HeaderError> {
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut tensors = Vec::with_capacity(entries.len());
    let mut at = 0;
    for (name, entry) in entries {
        let (begin, end) = entry.data_offsets;
        check_name(name.as_bytes())?;
        check_dimensions(entry.shape.len() as u64)?;
        if end < begin {
            let reason =
                format!("tensor {name:?} ends at byte {end}, before it begins, at {begin}");
            return Err(HeaderError::Malformed { reason });
        }
        if end > len_bytes - data_begin {
            return Err(HeaderError::Truncated {
                what: format!("tensor {name:?}"),
                end: u128::from(data_begin) + u128::from(end),
                len_bytes,
            });
        }
        let Some(dtype) = DType::of_safetensors(&entry.dtype) else {
            return Err(HeaderError::UnknownDType {
                tensor: name,
                dtype: entry.dtype.chars().take(32).collect(),
            });
        };
        let needs = match dtype {
            // The place alone says it.
            DType::Unknown(_) => end - begin,
            _ => len_of(&name, dtype, &entry.shape)?,
        };
        if needs != end - begin {
            return Err(HeaderError::Length {
                tensor: name,
                dtype,
                shape: entry.shape,
                needs,
                found: end - begin,
            });
        }
        if begin != at {
            return Err(HeaderError::Place {
                tensor: name,
                begin,
                end: at,
            });
        }
        at = end;
        tensors.push(TensorInfo {
            name,
            dtype,
            shape: entry.shape,
            file: 0,
            offset: data_begin + begin,
            len_bytes: needs,
        });
    }
    match data_begin + at {
        end if end == len_bytes => Ok(tensors),
        end => Err(HeaderError::Trailing { end, len_bytes }),
    }
}

/// The object, in its own order and with names that are there twice.
#[derive(Default)]
struct Entries<'a> {
    tensors: Vec<(String, Entry<'a>)>,
    metadata: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries<'de>, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Entries::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        let strings: Option<Pairs> = map.next_value()?;
                        entries
                            .metadata
                            .extend(strings.into_iter().flat_map(|pairs| pairs.0));
                    } else {
                        entries.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Object)
    }
}
