//! The names of element types: NumPy's and those of `ml_dtypes`, or as model files spell them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use transload_tensors::DType;

use crate::errors;

/// Whether C's `long` has 64 bits: NumPy's `int64` is that type then.
const IS_LONG: bool = size_of::<std::ffi::c_long>() == 8;

/// Types with a name in NumPy or `ml_dtypes`; and the code and size of those that `struct` knows.
const NAMES: [(DType, &str, Option<&str>); 22] = [
    (DType::BOOL, "bool", Some("?")),
    (DType::U8, "uint8", Some("B")),
    (DType::I8, "int8", Some("b")),
    (DType::U16, "uint16", Some("H")),
    (DType::I16, "int16", Some("h")),
    (DType::U32, "uint32", Some("I")),
    (DType::I32, "int32", Some("i")),
    (DType::U64, "uint64", Some(if IS_LONG { "L" } else { "Q" })),
    (DType::I64, "int64", Some(if IS_LONG { "l" } else { "q" })),
    (DType::F16, "float16", Some("e")),
    (DType::F32, "float32", Some("f")),
    (DType::F64, "float64", Some("d")),
    (DType::C64, "complex64", Some("Zf")),
    (DType::BF16, "bfloat16", None),
    (DType::F8_E4M3, "float8_e4m3fn", None),
    (DType::F8_E5M2, "float8_e5m2", None),
    (DType::F8_E4M3FNUZ, "float8_e4m3fnuz", None),
    (DType::F8_E5M2FNUZ, "float8_e5m2fnuz", None),
    (DType::F8_E8M0, "float8_e8m0fnu", None),
    (DType::F6_E2M3, "float6_e2m3fn", None),
    (DType::F6_E3M2, "float6_e3m2fn", None),
    (DType::F4, "float4_e2m1fn", None),
];

/// Returns the name that Python programs know. No tensor in memory has a type that is not known.
pub(crate) fn name(dtype: DType) -> &'static str {
    let known = NAMES.iter().find(|known| known.0 == dtype);
    let spelled = || DType::ALL.iter().find(|of| **of == dtype);
    let spelled = || spelled().map_or("unknown", DType::name);
    known.map_or_else(spelled, |known| known.1)
}

/// Returns the code of the elements in the `struct` module's language, if it has one.
pub(crate) fn code(dtype: DType) -> Option<&'static str> {
    NAMES.iter().find(|known| known.0 == dtype)?.2
}

/// Returns the type of that name, in any of the spellings.
pub(crate) fn named(text: &str) -> Option<DType> {
    let text = match text.strip_prefix("torch.").unwrap_or(text) {
        "bf16" => "bfloat16",
        // NumPy's codes that programs write most: NumPy tells the others.
        "f2" => "float16",
        "f4" => "float32",
        "f8" => "float64",
        text => text,
    };
    let known = NAMES.iter().find(|known| known.1 == text);
    let spelled = || {
        let mut all = DType::ALL.iter().copied();
        // In small letters they would be NumPy's codes, which count bytes: `f4` has 32 bits there, and `F4` has 4.
        all.find(|dtype| dtype.name() == text)
    };
    known.map(|known| known.0).or_else(spelled)
}

/// Returns the type that an argument names: a string, or a type of NumPy, `ml_dtypes`, torch or JAX.
pub(crate) fn of(argument: &Bound<'_, PyAny>) -> PyResult<DType> {
    let text = |of: &Bound<'_, PyAny>| -> Option<DType> { named(of.str().ok()?.to_str().ok()?) };
    let attribute = |name: &str| text(&argument.getattr(name).ok()?);
    let found = match argument.cast::<PyString>() {
        Ok(_) => text(argument),
        Err(_) => attribute("name")
            .or_else(|| text(argument))
            .or_else(|| attribute("__name__")),
    };
    // NumPy knows how its users spell types: `f4`, `<f4`, `half`, `float`.
    let spelled = || {
        let numpy = argument.py().import("numpy").ok()?;
        numpy.getattr("dtype").ok()?.call1((argument,)).ok()
    };
    let spelled = found.is_none().then(spelled).flatten();
    let found = found.or_else(|| text(&spelled.as_ref()?.getattr("name").ok()?));
    let refused = || {
        let names: Vec<&str> = NAMES.iter().map(|known| known.1).collect();
        let (names, shown) = (names.join(", "), errors::shown(argument));
        PyValueError::new_err(format!(
            "dtype: {shown} is no element type; there are: {names}, and the names in model files, such as BF16, and what numpy.dtype takes"
        ))
    };
    // The name of a NumPy type does not tell the order of the bytes.
    let is_swapped = { spelled.as_ref() }.unwrap_or(argument);
    let is_swapped = is_swapped
        .getattr("isnative")
        .is_ok_and(|native| native.extract().is_ok_and(|native: bool| !native));
    found.filter(|_| !is_swapped).ok_or_else(refused)
}

/// Returns the type of elements by their code in the `struct` module's language and their size; `None`: bytes in another
/// order, or no such type.
pub(crate) fn of_format(format: &str, item_bytes: usize) -> Option<DType> {
    let (order, code) = match format.split_at_checked(1) {
        Some((order @ ("@" | "=" | "<" | ">" | "!"), code)) => (order, code),
        _ => ("@", format),
    };
    let is_own = match order {
        "<" => cfg!(target_endian = "little"),
        ">" | "!" => cfg!(target_endian = "big"),
        _ => true,
    };
    if !is_own && item_bytes > 1 {
        return None;
    }
    Some(match (code, item_bytes) {
        ("?", 1) => DType::BOOL,
        ("B" | "c", 1) => DType::U8,
        ("b", 1) => DType::I8,
        ("H", 2) => DType::U16,
        ("h", 2) => DType::I16,
        ("I" | "L", 4) => DType::U32,
        ("i" | "l", 4) => DType::I32,
        ("L" | "Q" | "N", 8) => DType::U64,
        ("l" | "q" | "n", 8) => DType::I64,
        ("e", 2) => DType::F16,
        ("f", 4) => DType::F32,
        ("d", 8) => DType::F64,
        ("Zf", 8) => DType::C64,
        _ => return None,
    })
}
