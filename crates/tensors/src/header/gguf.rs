//! GGUF: counts, metadata, the descriptions of the tensors, and their bytes at multiples of an alignment.
//!
//! Source: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::BTreeMap;
use std::io::Read;

use super::{
    Format, Header, HeaderError, MOST_HEADER_BYTES, TensorInfo, Value, check_dimensions,
    check_name, len_of,
};
use crate::DType;

/// More values in arrays than any vocabulary has: four arrays of a million.
const MOST_VALUES: u64 = 1 << 22;

/// Reads a file after its first 8 bytes, which have the version.
pub(super) fn read(
    reader: &mut dyn Read,
    len_bytes: u64,
    version: u32,
) -> Result<Header, HeaderError> {
    if !(2..=3).contains(&version) {
        return Err(HeaderError::Version { version });
    }
    let mut source = Source {
        reader,
        at: 8,
        len_bytes,
        values: 0,
    };
    let tensors = source.u64("the number of tensors")?;
    let entries = source.u64("the number of metadata entries")?;
    let mut metadata = BTreeMap::new();
    for _ in 0..entries {
        let key = source.name("a key of the metadata")?;
        let kind = source.u32("the type of a value")?;
        let value = source.value(&format!("the value of {key:?}"), kind)?;
        if let Some(_twice) = metadata.insert(key.clone(), value) {
            return Err(HeaderError::Duplicate { name: key });
        }
    }
    let alignment = alignment(&metadata)?;
    let mut described = Vec::new();
    for _ in 0..tensors {
        described.push(source.tensor(alignment)?);
    }
    let data_begin = source.at.next_multiple_of(alignment);
    Ok(Header {
        format: Format::Gguf,
        tensors: placed(described, data_begin, alignment, len_bytes)?,
        metadata,
    })
}

/// Returns the alignment of the data, in bytes: 32 where the file does not say.
fn alignment(metadata: &BTreeMap<String, Value>) -> Result<u64, HeaderError> {
    match metadata.get("general.alignment") {
        None => Ok(32),
        Some(Value::Unsigned(alignment))
            if alignment.is_power_of_two() && *alignment <= 1 << 30 =>
        {
            Ok(*alignment)
        }
        Some(_) => Err(HeaderError::Malformed {
            reason: "general.alignment has to be a power of two, up to 2^30".into(),
        }),
    }
}

/// Checks that the tensors follow each other, each at the next multiple of the alignment. A tensor of a type that is not
/// known goes on up to the next one.
fn placed(
    mut tensors: Vec<TensorInfo>,
    data_begin: u64,
    alignment: u64,
    len_bytes: u64,
) -> Result<Vec<TensorInfo>, HeaderError> {
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.len_bytes));
    let mut next = len_bytes.saturating_sub(data_begin);
    for tensor in tensors.iter_mut().rev() {
        if matches!(tensor.dtype, DType::Unknown(_)) && tensor.len_bytes > 0 {
            tensor.len_bytes = next.saturating_sub(tensor.offset).max(1);
        }
        next = tensor.offset;
    }
    let mut at = 0u64;
    for tensor in &mut tensors {
        let end = u128::from(data_begin) + u128::from(tensor.offset) + u128::from(tensor.len_bytes);
        if end > len_bytes.into() {
            return Err(HeaderError::Truncated {
                what: format!("tensor {:?}", tensor.name),
                end,
                len_bytes,
            });
        }
        if tensor.offset != at {
            return Err(HeaderError::Place {
                tensor: tensor.name.clone(),
                begin: tensor.offset,
                end: at,
            });
        }
        let padded = (at + tensor.len_bytes).checked_next_multiple_of(alignment);
        at = padded.unwrap_or(u64::MAX);
        tensor.offset += data_begin;
    }
    Ok(tensors)
}

/// Reads values one after the other, within the file and the limits.
struct Source<'a> {
    reader: &'a mut dyn Read,
    at: u64,
    len_bytes: u64,
    /// The values in arrays so far.
    values: u64,
}

impl Source<'_> {
    /// Goes on by so many bytes.
    fn advance(&mut self, bytes: u64, what: &str) -> Result<(), HeaderError> {
        let end = u128::from(self.at) + u128::from(bytes);
        if end > self.len_bytes.into() {
            return Err(HeaderError::Truncated {
                what: what.into(),
                end,
                len_bytes: self.len_bytes,
            });
        }
        if end > MOST_HEADER_BYTES.into() {
            return Err(HeaderError::TooLarge {
                what: "bytes",
                found: end as u64,
                limit: MOST_HEADER_BYTES,
            });
        }
        self.at += bytes;
        Ok(())
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], HeaderError> {
        self.advance(N as u64, what)?;
        let mut bytes = [0; N];
        self.reader
            .read_exact(&mut bytes)
            .map_err(HeaderError::Read)?;
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, HeaderError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, HeaderError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn bytes(&mut self, what: &str) -> Result<Vec<u8>, HeaderError> {
        let len = self.u64(what)?;
        self.advance(len, what)?;
        let mut bytes = vec![0; len as usize];
        self.reader
            .read_exact(&mut bytes)
            .map_err(HeaderError::Read)?;
        Ok(bytes)
    }

    /// Reads a value. Vocabularies have words of a part of a character.
    fn text(&mut self, what: &str) -> Result<String, HeaderError> {
        let text = String::from_utf8(self.bytes(what)?);
        Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    fn name(&mut self, what: &str) -> Result<String, HeaderError> {
        let bytes = self.bytes(what)?;
        check_name(&bytes)?;
        Ok(escaped(&bytes))
    }

    fn value(&mut self, what: &str, kind: u32) -> Result<Value, HeaderError> {
        if kind != ARRAY {
            return self.single(what, kind);
        }
        let kind = self.u32(what)?;
        let count = self.u64(what)?;
        self.values = self.values.saturating_add(count);
        if self.values > MOST_VALUES {
            return Err(HeaderError::TooLarge {
                what: "values in arrays",
                found: self.values,
                limit: MOST_VALUES,
            });
        }
        let values = (0..count).map(|_| self.single(what, kind));
        values.collect::<Result<_, _>>().map(Value::Array)
    }

    fn single(&mut self, what: &str, kind: u32) -> Result<Value, HeaderError> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array(what)?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array(what)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(what)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array(what)?).into()),
            4 => Value::Unsigned(self.u32(what)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array(what)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(what)?).into()),
            7 => match u8::from_le_bytes(self.array(what)?) {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => {
                    let reason = format!("{what} is a boolean of {other}");
                    return Err(HeaderError::Malformed { reason });
                }
            },
            8 => Value::String(self.text(what)?),
            10 => Value::Unsigned(self.u64(what)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(what)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(what)?)),
            ARRAY => {
                let reason =
                    format!("{what} is an array of arrays, which ggml does not read either");
                return Err(HeaderError::Malformed { reason });
            }
            _ => {
                let reason = format!("{what} is of the unknown type {kind}");
                return Err(HeaderError::Malformed { reason });
            }
        })
    }

    /// Reads the description of a tensor, whose offset is one in the data.
    fn tensor(&mut self, alignment: u64) -> Result<TensorInfo, HeaderError> {
        let name = self.name("the name of a tensor")?;
        let what = format!("tensor {name:?}");
        let dimensions = self.u32(&what)?;
        check_dimensions(dimensions.into())?;
        let sizes = (0..dimensions).map(|_| self.u64(&what));
        let mut shape = sizes.collect::<Result<Vec<u64>, _>>()?;
        let innermost = shape.first().copied().unwrap_or(1);
        // The file lists the innermost dimension first.
        shape.reverse();
        let dtype = DType::of_ggml(self.u32(&what)?);
        let (block, _) = dtype.block();
        if innermost % block != 0 {
            // Blocks do not go over the end of a row.
            return Err(HeaderError::Shape {
                tensor: name,
                dtype,
                shape,
                block,
            });
        }
        let len_bytes = match dtype {
            // An element takes a byte at least, with others or alone.
            DType::Unknown(_) => u64::from(!shape.contains(&0)),
            _ => len_of(&name, dtype, &shape)?,
        };
        let offset = self.u64(&what)?;
        if offset % alignment != 0 {
            return Err(HeaderError::Malformed {
                reason: format!(
                    "{what} begins at byte {offset} of the data, no multiple of {alignment}"
                ),
            });
        }
        Ok(TensorInfo {
            name,
            dtype,
            shape,
            file: 0,
            offset,
            len_bytes,
        })
    }
}

/// The type of arrays.
const ARRAY: u32 = 9;

/// Returns a name as text that no other name has, and that is the name itself where that is UTF-8: other bytes are written
/// as `\xE4`, and the backslash of a name that has such letters itself as `\x5C`.
fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let valid = chunk.valid();
        for (at, letter) in valid.char_indices() {
            match letter == '\\' && is_escape(&valid.as_bytes()[at..]) {
                true => text.push_str(r"\x5C"),
                false => text.push(letter),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!(r"\x{byte:02X}"));
        }
    }
    text
}

/// Returns whether letters that begin with a backslash read as a byte that [`escaped`] has written.
fn is_escape(letters: &[u8]) -> bool {
    matches!(
        letters,
        [_, b'x', b'5', b'C', ..]
            | [
                _,
                b'x',
                b'8' | b'9' | b'A'..=b'F',
                b'0'..=b'9' | b'A'..=b'F',
                ..
            ]
    )
}
