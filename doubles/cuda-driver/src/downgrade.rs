//! Drivers of other versions: copies of the library that lack the later functions.
//!
//! Clients that look symbols up with `dlsym` must find only the functions that a driver of that version exports. So the
//! copy's table of dynamic symbols has broken names for later functions, and the copy contains the version that it
//! reports. `cuGetProcAddress` uses that version too.

use std::io;

use transload_cuda::raw::{Table, Version};

/// The version of an unchanged library. Looked for in the file, and read from memory.
static VERSION: [u8; MARK.len() + DIGITS] = *b"version of the CUDA driver double: 13050";

const MARK: &[u8] = b"version of the CUDA driver double: ";
const DIGITS: usize = 5;

/// The version of this copy of the library.
pub(crate) fn version() -> Version {
    // Not a constant: the file may have been changed.
    let version = std::hint::black_box(&VERSION);
    let digits = version[MARK.len()..].iter();
    Version(digits.fold(0, |value, digit| value * 10 + u32::from(digit - b'0')))
}

/// Changes the bytes of a library into those of a driver of that version: breaks the names of later functions and of
/// those in `hidden`, and writes the version. Returns the broken names.
///
/// # Errors
/// When these are not the bytes of this library, or those of a changed copy that already lacks names; and when a name
/// in `hidden` is not a function's.
pub fn downgrade(
    library: &mut [u8],
    version: Version,
    hidden: &[&str],
) -> io::Result<Vec<&'static str>> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let no_double = || invalid("this is no driver double".into());
    for name in hidden {
        if !Table::FUNCTIONS.iter().any(|of| of.name == *name) {
            return Err(invalid(format!("`{name}` is the name of no function")));
        }
    }
    let mark = find(library, MARK).ok_or_else(no_double)?;
    let digits = format!("{:0DIGITS$}", version.0);
    library[mark + MARK.len()..][..DIGITS].copy_from_slice(digits.as_bytes());
    let names = dynamic_names(library).ok_or_else(no_double)?;
    let names = &mut library[names];
    if let Some(of) = Table::FUNCTIONS
        .iter()
        .find(|of| entry(names, of.name).is_none())
    {
        let why = "make a copy of the library as it was built";
        return Err(invalid(format!("it lacks {} already; {why}", of.name)));
    }
    let mut spoilt = Vec::new();
    for function in Table::FUNCTIONS {
        if function.since > version || hidden.contains(&function.name) {
            let at = entry(names, function.name).ok_or_else(no_double)?;
            // Lookups hash the requested name, find this entry by the hash, and then see another name.
            names[at] = b'x';
            spoilt.push(function.name);
        }
    }
    Ok(spoilt)
}

/// Where a whole name begins in a table of names.
fn entry(names: &[u8], name: &str) -> Option<usize> {
    let whole = [b"\0", name.as_bytes(), b"\0"].concat();
    find(names, &whole).map(|before| before + 1)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// Where the names of the dynamic symbols are: the string table of the section of type `SHT_DYNSYM` of a 64-bit ELF
/// file of this machine's byte order (System V ABI, Object Files).
fn dynamic_names(file: &[u8]) -> Option<std::ops::Range<usize>> {
    const SHT_DYNSYM: u64 = 11;
    let number = |at: usize, len: usize| -> Option<u64> {
        let bytes = file.get(at..at.checked_add(len)?)?;
        let mut value = [0; 8];
        value[..len].copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    };
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (sections, size, count) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?);
    let section = |index: u64| usize::try_from(sections + index * size).ok();
    let symbols = (0..count).find_map(|index| {
        let at = section(index)?;
        (number(at + 4, 4)? == SHT_DYNSYM).then_some(at)
    })?;
    let names = section(number(symbols + 0x28, 4)?)?;
    let (start, len) = (number(names + 0x18, 8)?, number(names + 0x20, 8)?);
    let range = usize::try_from(start).ok()?..usize::try_from(start + len).ok()?;
    (range.end <= file.len()).then_some(range)
}
