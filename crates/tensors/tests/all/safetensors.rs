//! Safetensors, against the crate `safetensors`.

use std::collections::HashMap;

use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use transload_tensors::{DType, Format, Header, HeaderError, Value};

use crate::files::safetensors as file;

fn read(bytes: &[u8]) -> Result<Header, HeaderError> {
    Header::read(bytes, bytes.len() as u64)
}

#[track_caller]
fn refusal(header: &str, data_bytes: usize) -> String {
    read(&file(header, data_bytes)).unwrap_err().to_string()
}

/// Each type of the crate, with how many of its elements fill whole bytes.
const TYPES: [(Dtype, u64); 22] = [
    (Dtype::BOOL, 1),
    (Dtype::F4, 2),
    (Dtype::F6_E2M3, 4),
    (Dtype::F6_E3M2, 4),
    (Dtype::U8, 1),
    (Dtype::I8, 1),
    (Dtype::F8_E5M2, 1),
    (Dtype::F8_E4M3, 1),
    (Dtype::F8_E8M0, 1),
    (Dtype::F8_E4M3FNUZ, 1),
    (Dtype::F8_E5M2FNUZ, 1),
    (Dtype::I16, 1),
    (Dtype::U16, 1),
    (Dtype::F16, 1),
    (Dtype::BF16, 1),
    (Dtype::I32, 1),
    (Dtype::U32, 1),
    (Dtype::F32, 1),
    (Dtype::C64, 1),
    (Dtype::F64, 1),
    (Dtype::I64, 1),
    (Dtype::U64, 1),
];

#[test]
fn what_the_crate_writes_is_read_as_it_reads_it() {
    let bytes = [0; 4096];
    let views: Vec<(String, TensorView<'_>)> = TYPES
        .iter()
        .map(|(dtype, block)| {
            let shape = vec![3, 5, *block as usize];
            let len = 15 * *block as usize * dtype.bitsize() / 8;
            let view = TensorView::new(*dtype, shape, &bytes[..len]).unwrap();
            (format!("tensor of {dtype}"), view)
        })
        .collect();
    let told = HashMap::from([("format".to_string(), "pt".to_string())]);
    let file = serialize(views, Some(told)).unwrap();
    let header = read(&file).unwrap();
    let theirs = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(header.format, Format::Safetensors);
    assert_eq!(header.metadata["format"], Value::String("pt".into()));
    assert_eq!(header.tensors.len(), TYPES.len());
    for tensor in &header.tensors {
        let view = theirs.tensor(&tensor.name).unwrap();
        assert_eq!(tensor.dtype.name(), view.dtype().to_string());
        let shape: Vec<u64> = view.shape().iter().map(|size| *size as u64).collect();
        assert_eq!(tensor.shape, shape);
        let begin = view.data().as_ptr().addr() - file.as_ptr().addr();
        assert_eq!(tensor.offset, begin as u64, "{}", tensor.name);
        assert_eq!(tensor.len_bytes, view.data().len() as u64);
    }
}

#[test]
fn a_file_without_tensors_and_one_of_a_single_number_are_models() {
    assert_eq!(read(&file("{}", 0)).unwrap().tensors, []);
    let scalar = r#"{"x":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}      "#;
    let header = read(&file(scalar, 8)).unwrap();
    assert_eq!(header.tensors[0].shape, [0u64; 0]);
    assert_eq!(
        (header.tensors[0].dtype, header.tensors[0].len_bytes),
        (DType::F64, 8)
    );
}

#[test]
fn metadata_may_have_a_tensors_name_or_be_null_and_has_no_key_twice() {
    let named = r#"{"__metadata__":{"a":"b"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let header = read(&file(named, 4)).unwrap();
    assert_eq!(header.metadata["a"], Value::String("b".into()));
    assert_eq!(header.tensors[0].name, "a");
    assert!(
        read(&file(r#"{"__metadata__":null}"#, 0))
            .unwrap()
            .metadata
            .is_empty()
    );
    assert_eq!(
        refusal(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0),
        "\"a\" is there twice"
    );
}

#[test]
fn each_lie_of_a_header_is_named() {
    for (header, data_bytes, told) in [
        (
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#,
            6,
            "tensor \"b\" begins at byte 2 of the data, and the tensor before it ends at 4",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}}"#,
            9,
            "tensor \"b\" begins at byte 5 of the data, and the tensor before it ends at 4",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}}"#,
            5,
            "tensor \"a\" begins at byte 1 of the data, and the tensor before it ends at 0",
        ),
        (
            r#"{"a":{"dtype":"F16","shape":[2,3],"data_offsets":[0,8]}}"#,
            8,
            "tensor \"a\" of F16 [2, 3] has 12 bytes, and its place 8",
        ),
        (
            r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#,
            2,
            "tensor \"a\" cannot have the shape [3]: F4 comes in blocks of 2, and at most 2^64 bytes",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[9223372036854775807,9],"data_offsets":[0,4]}}"#,
            4,
            "tensor \"a\" cannot have the shape [9223372036854775807, 9]: F32 comes in blocks of 1, and at most 2^64 bytes",
        ),
        (
            r#"{"a":{"dtype":"no name of a type","shape":[32],"data_offsets":[0,18]}}"#,
            18,
            "tensor \"a\" has elements of the unknown type \"no name of a type\"",
        ),
        (
            "{\"a\":\0\0\0",
            0,
            "the header is malformed: its last 3 bytes are zeros, as of a download that was cut short: download the file again",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[1125899906842624],"data_offsets":[0,1125899906842624]}}"#,
            8,
            "tensor \"a\" ends at byte 1125899906842715, and the file has 99; it was cut short, or is damaged",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#,
            4,
            "the header is malformed: tensor \"a\" ends at byte 0, before it begins, at 4",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#,
            8,
            "\"a\" is there twice",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
            9,
            "the last tensor ends at byte 65, and the file has 70: it was appended to, or is damaged",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}"#,
            4,
            "the header is malformed: invalid value: integer `-4`, expected u64 at line 1 column 30",
        ),
        (
            r#"{"a":"#,
            0,
            "the header is malformed: EOF while parsing a value at line 1 column 5",
        ),
        (
            r#"["a"]"#,
            0,
            "no model file: it does not begin as GGUF, and the header of safetensors begins with {",
        ),
    ] {
        assert_eq!(refusal(header, data_bytes), told);
    }
}

#[test]
fn a_header_beyond_the_file_or_the_limit_is_not_read() {
    let cut = &file(
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
        4,
    )[..40];
    assert_eq!(
        read(cut).unwrap_err().to_string(),
        "the header ends at byte 61, and the file has 40; it was cut short, or is damaged"
    );
    // Nothing is allocated for a header that the file cannot have, and nothing read of one that is too long.
    let claims = [0xFF; 512];
    let error = Header::read(&claims[..], u64::MAX).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("and a header has at most 100000000"),
        "{error}"
    );
    for few in 1..8 {
        let error = Header::read(&claims[..few], few as u64).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("no model file: it has {few} bytes")
        );
    }
}

/// The length of a header can look like the beginning of a pickled file.
#[test]
fn headers_of_any_length_are_read() {
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    for len in (56..2000).step_by(8).chain([640 + 65536]) {
        let padded = format!("{header}{}", " ".repeat(len - header.len()));
        assert_eq!(read(&file(&padded, 4)).unwrap().tensors.len(), 1, "{len}");
    }
}

/// Types that the format got after this version.
#[test]
fn a_tensor_of_an_unknown_type_is_listed_with_its_place() {
    let header = r#"{"a":{"dtype":"I4","shape":[3],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    let header = read(&file(header, 6)).unwrap();
    let told = { header.tensors.iter() }.map(|of| (of.dtype.to_string(), of.len_bytes));
    let expected = [("I4".to_string(), 2), ("U8".to_string(), 4)];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert!(!DType::ALL.contains(&header.tensors[0].dtype));
}

#[test]
fn pickled_files_are_refused_with_advice() {
    let zip = zip("archive/data.pkl");
    for bytes in [&zip[..], &b"\x80\x02}q\x00 and so"[..]] {
        let error = read(bytes).unwrap_err();
        assert!(matches!(error, HeaderError::Pickled));
        assert!(
            error.to_string().contains("take the model's safetensors"),
            "{error}"
        );
    }
}

/// Returns the beginning of a ZIP archive whose first file has that name.
fn zip(name: &str) -> Vec<u8> {
    let mut bytes = b"PK\x03\x04".to_vec();
    bytes.resize(26, 0);
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(name.as_bytes());
    bytes.resize(1000, 7);
    bytes
}

/// What lies in the place of a model is named as what it is, with what to do.
#[test]
fn other_files_are_named() {
    let mut tar = vec![b'x'; 600];
    tar[257..262].copy_from_slice(b"ustar");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 134\n";
    let page = "\u{FEFF} <!DOCTYPE HTML>\n<html><title>Just a moment...</title>";
    let error = r#"{"error":"Access to model x is restricted."}"#;
    let xml = "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>";
    let npz = zip("weight.npy");
    let other = zip("model/model.safetensors");
    let files: [(&[u8], &str, &str); 23] = [
        (b"", "an empty file", "download"),
        (&[0; 5000], "begins with zeros", "download"),
        (
            pointer.as_bytes(),
            "a pointer of Git LFS to a file of 134 bytes",
            "git lfs pull",
        ),
        (
            b"/annex/objects/SHA256E-s1--00.safetensors\n",
            "git-annex",
            "git annex get",
        ),
        (page.as_bytes(), "a page of HTML", "/resolve/"),
        (
            error.as_bytes(),
            "a JSON document that begins with \"{\\\"error",
            "token",
        ),
        (
            xml.as_bytes(),
            "an XML document that begins with \"<?xml",
            "token",
        ),
        (
            b"Entry not found",
            "a text that begins with \"Entry not found\"",
            "download",
        ),
        (b"404", "a text that begins with \"404\"", "download"),
        (&npz, "arrays of NumPy", "numpy.load"),
        (&other, "a ZIP archive", "unpack"),
        (
            b"\x1f\x8b\x08\0\0\0\0\0\0\x03 and more",
            "a gzip file",
            "unpack",
        ),
        (b"\x28\xb5\x2f\xfd and more", "a zstd file", "unpack"),
        (b"\xfd7zXZ\0 and more", "an xz file", "unpack"),
        (b"BZh91AY&SY", "a bzip2 file", "unpack"),
        (b"\x04\x22\x4d\x18 and more", "an LZ4 file", "unpack"),
        (b"7z\xbc\xaf\x27\x1c\0\x04", "a 7-Zip archive", "unpack"),
        (b"Rar!\x1a\x07\x01\0", "a RAR archive", "unpack"),
        (&tar, "a tar archive", "unpack"),
        (b"\x89HDF\r\n\x1a\n\0\0", "an HDF5 file", "convert"),
        (b"\x93NUMPY\x01\0v\0", "an array of NumPy", "numpy.load"),
        (b"tjgg\x03\0\0\0", "GGML from before GGUF", "GGUF"),
        (
            b"\0\x05\x16\x07\0\x02\0\0Mac OS X",
            "an AppleDouble file",
            "._",
        ),
    ];
    for (bytes, kind, remedy) in files {
        let error = read(bytes).unwrap_err();
        assert!(matches!(error, HeaderError::Foreign { .. }), "{error}");
        let text = error.to_string();
        let (is, does) = text.split_once(", and no model: ").unwrap();
        assert!(is.contains(kind) && does.contains(remedy), "{text}");
    }
    // The length of a header that is cut short may be the beginning of another file.
    let cut = [&0x0008_8B1F_u64.to_le_bytes()[..4], b"\0\0\0\0{\"a\":"].concat();
    assert!(matches!(read(&cut), Err(HeaderError::Truncated { .. })));
    assert!(matches!(
        read(&[0xFF; 600]),
        Err(HeaderError::NoModel { .. })
    ));
}

/// A reader that ends early, as a file that is cut meanwhile.
#[test]
fn a_file_that_ends_while_it_is_read_is_an_error() {
    let whole = file(
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
        4,
    );
    for end in 0..61 {
        let error = Header::read(&whole[..end], whole.len() as u64).unwrap_err();
        assert!(matches!(error, HeaderError::Read(_)), "{end}: {error}");
    }
}

proptest! {
    /// The crate accepts names that are there twice; nothing else may differ.
    #[test]
    fn a_header_is_right_where_the_crate_says_so(
        entries in prop::collection::vec((0usize..22, prop::collection::vec(0u64..5, 0..4), -2i64..3, -2i64..3), 0..6),
        extra in -2i64..3,
    ) {
        let mut at = 0i64;
        let mut parts = Vec::new();
        for (number, (dtype, shape, begin_off, end_off)) in entries.iter().enumerate() {
            let dtype = TYPES[*dtype].0;
            let elements: u64 = shape.iter().product();
            let bytes = (elements * dtype.bitsize() as u64 / 8) as i64;
            // Most lies are small, and most headers have none.
            let lie = |off: i64| if off.abs() == 2 { off.signum() } else { 0 };
            let (begin, end) = ((at + lie(*begin_off)).max(0), (at + bytes + lie(*end_off)).max(0));
            parts.push(format!(r#""{number}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#));
            at = end;
        }
        let data = (at + if extra.abs() == 2 { extra.signum() } else { 0 }).max(0);
        let file = file(&format!("{{{}}}", parts.join(",")), data as usize);
        let theirs = SafeTensors::deserialize(&file);
        let ours = read(&file);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?} {:?}", ours, theirs.err());
    }
}
