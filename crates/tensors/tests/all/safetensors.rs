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
    let claims = u64::MAX.to_le_bytes();
    let error = Header::read(&claims[..], u64::MAX).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("and a header has at most 100000000"),
        "{error}"
    );
    for few in 0..8 {
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
    for bytes in [&b"PK\x03\x04 and more"[..], b"\x80\x02}q\x00 and so"] {
        let error = read(bytes).unwrap_err();
        assert!(matches!(error, HeaderError::Pickled));
        assert!(
            error.to_string().contains("take the model's safetensors"),
            "{error}"
        );
    }
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
