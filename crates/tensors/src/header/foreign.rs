//! Files that lie in the place of a model: what they are, and what to do.

use super::HeaderError;

/// The bytes that tell: those of a tar archive stand last, at 257.
pub(super) const BEGIN_BYTES: u64 = 512;

const AGAIN: &str = "download the model again";
const UNPACK: &str = "unpack it, and take the model that is in it";
const PAGE: &str = "a server sent it in place of the model: download the model again, of a hub from an address with /resolve/ in \
                    place of /blob/, and with a token where the model is not open to all";
const CONVERT: &str =
    "take the model's safetensors, or convert it with the framework that wrote it";

/// Returns what a file is that is no model, by its first bytes; `None` where they do not tell.
pub(crate) fn of(begin: &[u8]) -> Option<HeaderError> {
    let (kind, remedy) = match begin {
        [] => ("an empty file", AGAIN),
        [b'P', b'K', 3, 4, ..] => return Some(zip(begin)),
        // The protocols 2 to 5 of pickle, as `torch.save` wrote before.
        [0x80, 2..=5, ..] => return Some(HeaderError::Pickled),
        [0x1F, 0x8B, ..] => ("a gzip file", UNPACK),
        [0x28, 0xB5, 0x2F, 0xFD, ..] => ("a zstd file", UNPACK),
        [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => ("an xz file", UNPACK),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => ("a bzip2 file", UNPACK),
        [4, 0x22, 0x4D, 0x18, ..] => ("an LZ4 file", UNPACK),
        [b'7', b'z', 0xBC, 0xAF, 0x27, 0x1C, ..] => ("a 7-Zip archive", UNPACK),
        [b'R', b'a', b'r', b'!', 0x1A, 7, ..] => ("a RAR archive", UNPACK),
        [0x89, b'H', b'D', b'F', ..] => ("an HDF5 file, as Keras writes", CONVERT),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => (
            "an array of NumPy",
            "convert it with safetensors.numpy.save_file({NAME: numpy.load(FILE)}, \"model.safetensors\")",
        ),
        _ if matches!(begin.get(..4), Some(b"lmgg" | b"fmgg" | b"tjgg" | b"algg")) => (
            "a file of GGML from before GGUF",
            "take the model's GGUF, or convert it with llama.cpp's convert_llama_ggml_to_gguf.py",
        ),
        [0, 5, 0x16, 0 | 7, ..] => (
            "an AppleDouble file, in which macOS keeps the attributes of another file",
            "take the file of the same name without ._",
        ),
        _ if begin.get(257..262) == Some(b"ustar") => ("a tar archive", UNPACK),
        _ if begin.len() >= 8 && begin.iter().all(|byte| *byte == 0) => (
            "a file that begins with zeros, as of a download that was cut short",
            AGAIN,
        ),
        _ => return text(begin),
    };
    Some(HeaderError::Foreign {
        kind: kind.into(),
        remedy,
    })
}

/// Tells archives apart by the name of their first file, which begins at byte 30.
fn zip(begin: &[u8]) -> HeaderError {
    let name_bytes = begin
        .get(26..28)
        .map_or(0, |len| usize::from(u16::from_le_bytes([len[0], len[1]])));
    let name = begin.get(30..).unwrap_or_default();
    let name = &name[..name_bytes.min(name.len())];
    let (kind, remedy) = match name {
        _ if name.ends_with(b"data.pkl") => return HeaderError::Pickled,
        _ if name.ends_with(b".npy") => (
            "arrays of NumPy",
            "convert them with safetensors.numpy.save_file(dict(numpy.load(FILE)), \"model.safetensors\")",
        ),
        _ => ("a ZIP archive", UNPACK),
    };
    HeaderError::Foreign {
        kind: kind.into(),
        remedy,
    }
}

/// Tells texts apart.
fn text(begin: &[u8]) -> Option<HeaderError> {
    let text = match std::str::from_utf8(begin) {
        Ok(text) => text,
        // The last character goes on.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&begin[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if text.contains(|of: char| of.is_control() && !of.is_ascii_whitespace()) {
        return None;
    }
    let text = text.trim_start_matches('\u{FEFF}').trim();
    let starts = |with: &str| {
        let start = text.get(..with.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    let (kind, remedy) = match text {
        _ if starts("version https://git-lfs") || starts("version https://hawser") => {
            let size = text.lines().find_map(|line| line.strip_prefix("size "));
            let size = size.filter(|size| size.bytes().all(|of| of.is_ascii_digit()));
            let size = size.map(|size| format!(" to a file of {size} bytes"));
            (
                format!("a pointer of Git LFS{}", size.unwrap_or_default()),
                "run git lfs pull in its repository, or download the model itself",
            )
        }
        _ if starts("/annex/objects/") => (
            "a pointer of git-annex".into(),
            "run git annex get in its repository",
        ),
        _ if starts("<!doctype html") || starts("<html") => ("a page of HTML".into(), PAGE),
        _ if text.is_empty() => return None,
        _ => {
            let kind = match text.as_bytes()[0] {
                b'<' => "an XML document",
                b'{' | b'[' => "a JSON document",
                _ => "a text",
            };
            const MOST_CHARS: usize = 80;
            let line: String = text.chars().take(MOST_CHARS).collect();
            (
                format!("{kind} that begins with {line:?}"),
                "where that is the answer of a server, download the model again, with a token where it is not open to all",
            )
        }
    };
    Some(HeaderError::Foreign { kind, remedy })
}
