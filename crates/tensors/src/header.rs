//! What a model file says of its tensors.

pub(crate) mod foreign;
mod gguf;
mod safetensors;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};

use hashbrown::HashSet;

use crate::DType;

/// A format of model files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Format {
    /// <https://huggingface.co/docs/safetensors>
    Safetensors,
    /// <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.
    Gguf,
}

/// What the header of a model file says.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Header {
    /// The file's format.
    pub format: Format,
    /// The tensors, in the order of their bytes in the file.
    pub tensors: Vec<TensorInfo>,
    /// What else the header says, such as the model's architecture.
    pub metadata: BTreeMap<String, Value>,
}

/// A tensor of a model file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name, unique in the model. Of a name in GGUF that is no UTF-8, each byte that is not is written as `\xE4`; where a name
    /// has such letters itself, their backslash is written as `\x5C`. So no two names become one.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The sizes of its dimensions, the outermost first; empty for a single element. The elements lie densely, those of
    /// the last dimension next to each other.
    pub shape: Vec<u64>,
    /// The number of the file that holds it, in [`Model::files`](crate::Model::files).
    pub file: usize,
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// How many bytes it has. In GGUF those of a type that is not known go on up to the next tensor, or to the end of the file.
    pub len_bytes: u64,
}

/// A value of a file's metadata. Safetensors files have only strings.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Value {
    /// Text. What is no UTF-8 in it became U+FFFD.
    String(String),
    /// A number without a sign.
    Unsigned(u64),
    /// A number with a sign.
    Signed(i64),
    /// A number with a fraction.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// Values of one kind.
    Array(Vec<Value>),
}

/// Why a file is no model, or one that lies about itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file did not give its bytes.
    #[error("cannot read the header: {0}")]
    Read(io::Error),
    /// A file of no kind that is known.
    #[error("no model file: {reason}")]
    NoModel {
        /// What shows it.
        reason: String,
    },
    /// A file of a known kind that is none of a model, in the place of one: a pointer of Git LFS, a page of a server, an archive.
    #[error("it is {kind}, and no model: {remedy}")]
    Foreign {
        /// What it is.
        kind: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A file of Python's pickle, which executes code when it is read.
    #[error(
        "it is a PyTorch checkpoint, a pickled file as torch.save writes: it may run any code when it is read, so it is not read; take \
         the model's safetensors, or convert it with safetensors.torch.save_file(torch.load(FILE, weights_only=True), \"model.safetensors\")"
    )]
    Pickled,
    /// A GGUF file of a version that is not read.
    #[error("GGUF of version {}; versions 2 and 3 are read, little-endian", Version(*version))]
    Version {
        /// The version.
        version: u32,
    },
    /// The header says more than the file holds.
    #[error(
        "{what} ends at byte {end}, and the file has {len_bytes}; it was cut short, or is damaged"
    )]
    Truncated {
        /// The part of the header.
        what: String,
        /// Where it would end.
        end: u128,
        /// The length of the file.
        len_bytes: u64,
    },
    /// The header has more bytes or values than any model needs.
    #[error("the header has {found} {what}, and at most {limit} are read")]
    TooLarge {
        /// What it has too much of.
        what: &'static str,
        /// How much, at least.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The header is not written as its format demands.
    #[error("the header is malformed: {reason}")]
    Malformed {
        /// Where, and how.
        reason: String,
    },
    /// Two tensors or two entries of the metadata have one name.
    #[error("{name:?} is there twice")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A type of elements that is not known and whose name is not kept: it is longer than 15 bytes, empty, or not printable ASCII
    /// without blanks.
    #[error("tensor {tensor:?} has elements of the unknown type {dtype:?}")]
    UnknownDType {
        /// The tensor.
        tensor: String,
        /// Its type, as the file spells it.
        dtype: String,
    },
    /// A shape that does not fit the type, or has more than 2⁶⁴ bytes.
    #[error(
        "tensor {tensor:?} cannot have the shape {shape:?}: {dtype} comes in blocks of {block}, and at most 2^64 bytes"
    )]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Its shape.
        shape: Vec<u64>,
        /// The elements of a block.
        block: u64,
    },
    /// A tensor whose shape and place do not agree.
    #[error("tensor {tensor:?} of {dtype} {shape:?} has {needs} bytes, and its place {found}")]
    Length {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Its shape.
        shape: Vec<u64>,
        /// The bytes of that shape.
        needs: u64,
        /// The bytes of its place.
        found: u64,
    },
    /// Bytes that belong to two tensors, or to none.
    #[error(
        "tensor {tensor:?} begins at byte {begin} of the data, and the tensor before it ends at {end}"
    )]
    Place {
        /// The tensor.
        tensor: String,
        /// Where it begins.
        begin: u64,
        /// Where it has to begin.
        end: u64,
    },
    /// Bytes after the last tensor.
    #[error(
        "the last tensor ends at byte {end}, and the file has {len_bytes}: it was appended to, or is damaged"
    )]
    Trailing {
        /// Where the last tensor ends.
        end: u64,
        /// The length of the file.
        len_bytes: u64,
    },
}

struct Version(u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.swap_bytes() {
            version if version < self.0 => write!(f, "{version}, big-endian"),
            _ => self.0.fmt(f),
        }
    }
}

/// The most bytes of a header that are read: the limit of the safetensors format.
const MOST_HEADER_BYTES: u64 = 100_000_000;

impl Header {
    /// Reads the header of a safetensors or GGUF file, from its first byte on, and checks it against the length of the
    /// file, `len_bytes`: each tensor lies within the file, and its type and shape have as many bytes as its place.
    /// Reads no byte of a tensor. Of a hostile file it reads at most 100 MB, and takes at most a few times as much memory.
    ///
    /// # Errors
    /// When the file is no model, or its header is not right.
    pub fn read(reader: impl Read, len_bytes: u64) -> Result<Header, HeaderError> {
        let header = Header::read_names_later(reader, len_bytes)?;
        unique(header.tensors.iter().map(|of| &of.name))?;
        Ok(header)
    }

    /// As [`Header::read`], but does not look for names that are there twice.
    pub(crate) fn read_names_later(
        mut reader: impl Read,
        len_bytes: u64,
    ) -> Result<Header, HeaderError> {
        let mut begin = vec![0; len_bytes.min(foreign::BEGIN_BYTES) as usize];
        reader.read_exact(&mut begin).map_err(HeaderError::Read)?;
        let foreign = || foreign::of(&begin);
        let Some((first, rest)) = begin.split_first_chunk::<8>() else {
            if begin.starts_with(b"GGUF") {
                let what = "the version".into();
                return Err(HeaderError::Truncated {
                    what,
                    end: 8,
                    len_bytes,
                });
            }
            return Err(foreign().unwrap_or_else(|| HeaderError::NoModel {
                reason: format!("it has {len_bytes} bytes"),
            }));
        };
        let mut reader = rest.chain(reader);
        if let [b'G', b'G', b'U', b'F', version @ ..] = *first {
            return gguf::read(&mut reader, len_bytes, u32::from_le_bytes(version));
        }
        let header = safetensors::read(&mut reader, len_bytes, u64::from_le_bytes(*first));
        header.map_err(|error| match error {
            HeaderError::NoModel { .. } => foreign().unwrap_or(error),
            // The length of a header can look like the beginning of another file; the header itself does not.
            HeaderError::Truncated { .. } if rest.first() != Some(&b'{') => {
                foreign().unwrap_or(error)
            }
            error => error,
        })
    }
}

/// Checks that no name is there twice.
pub(crate) fn unique<'a>(mut names: impl Iterator<Item = &'a String>) -> Result<(), HeaderError> {
    let mut named = HashSet::with_capacity(names.size_hint().0);
    match names.find(|name| !named.insert(name.as_str())) {
        None => Ok(()),
        Some(name) => {
            check_name(name.as_bytes())?;
            Err(HeaderError::Duplicate { name: name.clone() })
        }
    }
}

/// Checks the length of a name, which errors repeat.
fn check_name(name: &[u8]) -> Result<(), HeaderError> {
    match name.len() as u64 {
        len if len > MOST_NAME_BYTES => Err(HeaderError::TooLarge {
            what: "bytes in one name",
            found: len,
            limit: MOST_NAME_BYTES,
        }),
        _ => Ok(()),
    }
}

/// Names of tensors have some hundred bytes at most.
const MOST_NAME_BYTES: u64 = 4096;

/// PyTorch's limit; that of ggml is 4.
const MOST_DIMENSIONS: u64 = 64;

/// Checks the number of dimensions.
fn check_dimensions(count: u64) -> Result<(), HeaderError> {
    match count {
        count if count > MOST_DIMENSIONS => Err(HeaderError::TooLarge {
            what: "dimensions in one shape",
            found: count,
            limit: MOST_DIMENSIONS,
        }),
        _ => Ok(()),
    }
}

/// Returns how many bytes the tensor has.
fn len_of(tensor: &str, dtype: DType, shape: &[u64]) -> Result<u64, HeaderError> {
    let len_bytes = dtype.len_bytes(shape);
    len_bytes.ok_or_else(|| HeaderError::Shape {
        tensor: tensor.into(),
        dtype,
        shape: shape.into(),
        block: dtype.block().0,
    })
}
