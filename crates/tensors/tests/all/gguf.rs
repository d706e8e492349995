//! GGUF.

use proptest::prelude::*;
use transload_tensors::{DType, Format, Header, Value};

use crate::files::{Gguf, text};

fn read(file: &[u8]) -> Header {
    Header::read(file, file.len() as u64).unwrap()
}

#[track_caller]
fn refusal(file: &[u8]) -> String {
    let error = Header::read(file, file.len() as u64).unwrap_err();
    error.to_string()
}

fn array(kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    let mut value = kind.to_le_bytes().to_vec();
    value.extend(count.to_le_bytes());
    value.extend(bytes);
    value
}

#[test]
fn metadata_and_tensors_are_what_the_file_says() {
    let file = Gguf::default()
        .with("general.architecture", 8, &text("llama"))
        .with("a.u8", 0, &[200])
        .with("a.i8", 1, &[200])
        .with("a.u16", 2, &60_000u16.to_le_bytes())
        .with("a.i16", 3, &(-5i16).to_le_bytes())
        .with("a.u32", 4, &u32::MAX.to_le_bytes())
        .with("a.i32", 5, &(-7i32).to_le_bytes())
        .with("a.f32", 6, &1.5f32.to_le_bytes())
        .with("a.bool", 7, &[1])
        .with("a.u64", 10, &u64::MAX.to_le_bytes())
        .with("a.i64", 11, &i64::MIN.to_le_bytes())
        .with("a.f64", 12, &0.1f64.to_le_bytes())
        .with("tokens", 9, &array(8, 2, &[text("a"), text("ä")].concat()))
        .with("none", 9, &array(4, 0, &[]))
        // 2 rows of 256 elements: 144 bytes each.
        .tensor("q", &[256, 2], 12, 0)
        .tensor("bias", &[3], 0, 288)
        .tensor("last", &[2, 1, 5], 30, 320)
        .file(32, 340);
    let header = read(&file);
    assert_eq!(header.format, Format::Gguf);
    let data = file.len() as u64 - 340;
    let told = { header.tensors.iter() }.map(|of| {
        let place = (of.offset - data, of.len_bytes);
        (of.name.as_str(), of.dtype, of.shape.clone(), place)
    });
    let expected = [
        ("q", DType::Q4_K, vec![2, 256], (0, 288)),
        ("bias", DType::F32, vec![3], (288, 12)),
        ("last", DType::BF16, vec![5, 1, 2], (320, 20)),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    let is = |key: &str| header.metadata[key].clone();
    assert_eq!(is("general.architecture"), Value::String("llama".into()));
    assert_eq!(is("a.u8"), Value::Unsigned(200));
    assert_eq!(is("a.i8"), Value::Signed(-56));
    assert_eq!(is("a.u16"), Value::Unsigned(60_000));
    assert_eq!(is("a.i16"), Value::Signed(-5));
    assert_eq!(is("a.u32"), Value::Unsigned(u32::MAX.into()));
    assert_eq!(is("a.i32"), Value::Signed(-7));
    assert_eq!(is("a.f32"), Value::Float(1.5));
    assert_eq!(is("a.bool"), Value::Bool(true));
    assert_eq!(is("a.u64"), Value::Unsigned(u64::MAX));
    assert_eq!(is("a.i64"), Value::Signed(i64::MIN));
    assert_eq!(is("a.f64"), Value::Float(0.1));
    let tokens = ["a", "ä"].map(|token| Value::String(token.into()));
    assert_eq!(is("tokens"), Value::Array(tokens.into()));
    assert_eq!(is("none"), Value::Array(vec![]));
}

#[test]
fn the_file_says_to_what_its_data_is_aligned() {
    let file = Gguf::default()
        .with("general.alignment", 4, &256u32.to_le_bytes())
        .tensor("a", &[1], 24, 0)
        .tensor("b", &[1], 24, 256)
        .file(256, 257);
    assert_eq!(read(&file).tensors[1].offset, file.len() as u64 - 1);
    for (kind, value) in [(4, vec![0; 4]), (4, vec![3, 0, 0, 0]), (8, text("32"))] {
        let file = Gguf::default().with("general.alignment", kind, &value);
        assert_eq!(
            refusal(&file.file(32, 0)),
            "the header is malformed: general.alignment has to be a power of two, up to 2^30"
        );
    }
}

#[test]
fn each_lie_of_a_header_is_named() {
    let one = |sizes: &[u64], kind, offset| Gguf::default().tensor("a", sizes, kind, offset);
    let with = |kind, value: &[u8]| Gguf::default().with("key", kind, value).file(32, 0);
    for (file, told) in [
        (
            one(&[32], 0, 0).file(32, 127),
            "tensor \"a\" ends at byte 192, and the file has 191; it was cut short, or is damaged",
        ),
        (
            one(&[1 << 50], 24, 0).file(32, 8),
            "tensor \"a\" ends at byte 1125899906842688, and the file has 72; it was cut short, or is damaged",
        ),
        (
            one(&[32], 0, 0).tensor("b", &[1], 24, 96).file(32, 160),
            "tensor \"b\" begins at byte 96 of the data, and the tensor before it ends at 128",
        ),
        (
            one(&[1], 24, 0).tensor("b", &[1], 24, 64).file(32, 160),
            "tensor \"b\" begins at byte 64 of the data, and the tensor before it ends at 32",
        ),
        (
            one(&[1], 24, 0).tensor("a", &[1], 24, 32).file(32, 160),
            "\"a\" is there twice",
        ),
        (
            one(&[1], 24, 7).file(32, 64),
            "the header is malformed: tensor \"a\" begins at byte 7 of the data, no multiple of 32",
        ),
        (
            one(&[16, 2], 2, 0).file(32, 64),
            "tensor \"a\" cannot have the shape [2, 16]: Q4_0 comes in blocks of 32, and at most 2^64 bytes",
        ),
        (
            one(&[1], 142, 0).tensor("b", &[1], 24, 0).file(32, 64),
            "tensor \"b\" begins at byte 0 of the data, and the tensor before it ends at 32",
        ),
        (
            one(&[1], 142, 64).file(32, 64),
            "tensor \"a\" ends at byte 129, and the file has 128; it was cut short, or is damaged",
        ),
        (
            one(&[1], 142, 0).tensor("b", &[8], 0, 64).file(32, 64),
            "tensor \"b\" ends at byte 192, and the file has 160; it was cut short, or is damaged",
        ),
        (
            one(&[1; 65], 24, 0).file(32, 64),
            "the header has 65 dimensions in one shape, and at most 64 are read",
        ),
        (
            with(9, &array(9, 1, &[0; 16])),
            "the header is malformed: the value of \"key\" is an array of arrays, which ggml does not read either",
        ),
        (
            with(9, &array(0, 1 << 40, &[])),
            "the header has 1099511627776 values in arrays, and at most 4194304 are read",
        ),
        (
            with(7, &[2]),
            "the header is malformed: the value of \"key\" is a boolean of 2",
        ),
        (
            with(13, &[0]),
            "the header is malformed: the value of \"key\" is of the unknown type 13",
        ),
        (
            with(8, &u64::MAX.to_le_bytes()),
            "the value of \"key\" ends at byte 18446744073709551662, and the file has 64; it was cut short, or is damaged",
        ),
        (
            Gguf::default()
                .tensor("n".repeat(4097), &[1], 24, 0)
                .file(32, 64),
            "the header has 4097 bytes in one name, and at most 4096 are read",
        ),
        (
            Gguf {
                count: u64::MAX,
                ..Gguf::default()
            }
            .file(1, 0),
            "the name of a tensor ends at byte 32, and the file has 24; it was cut short, or is damaged",
        ),
        (
            Gguf {
                entries: u64::MAX,
                ..Gguf::default()
            }
            .file(1, 0),
            "a key of the metadata ends at byte 32, and the file has 24; it was cut short, or is damaged",
        ),
        (
            b"GGUF\x01\0\0\0".to_vec(),
            "GGUF of version 1; versions 2 and 3 are read, little-endian",
        ),
        // Big-endian.
        (
            b"GGUF\0\0\0\x03".to_vec(),
            "GGUF of version 3, big-endian; versions 2 and 3 are read, little-endian",
        ),
        (
            b"GGUF".to_vec(),
            "the version ends at byte 8, and the file has 4; it was cut short, or is damaged",
        ),
    ] {
        assert_eq!(refusal(&file), told);
    }
    let twice = Gguf::default().with("key", 7, &[1]).with("key", 7, &[0]);
    assert_eq!(refusal(&twice.file(32, 0)), "\"key\" is there twice");
}

#[test]
fn a_tensor_of_an_unknown_type_goes_on_up_to_the_next_one() {
    let file = Gguf::default()
        .tensor("first", &[512, 3], 142, 0)
        .tensor("none", &[256, 0], 31, 224)
        .tensor("known", &[8], 0, 224)
        .tensor("last", &[u64::MAX, u64::MAX], u32::MAX, 256)
        .file(32, 300);
    let header = read(&file);
    let data = file.len() as u64 - 300;
    let told = { header.tensors.iter() }.map(|of| {
        let place = (of.offset - data, of.len_bytes);
        (of.name.as_str(), of.dtype.to_string(), place)
    });
    let expected = [
        ("first", "GGML_142".to_string(), (0, 224)),
        ("none", "GGML_31".to_string(), (224, 0)),
        ("known", "F32".to_string(), (224, 32)),
        ("last", "GGML_4294967295".to_string(), (256, 44)),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert_eq!(header.tensors[0].shape, [3, 512]);
}

/// Vocabularies have words of parts of characters, and old converters wrote names in other encodings.
#[test]
fn text_that_is_no_utf8_is_read() {
    let tokens = [text(b"\xe4\xb8"), text("ä"), text(b"\xff")].concat();
    let file = Gguf::default()
        .with("tokens", 9, &array(8, 3, &tokens))
        .with("author", 8, &text(b"J\xfcrgen"))
        .with(b"n\xe4me", 8, &text("a\0"))
        .with(r"n\xE4me", 8, &text("b"))
        .tensor(b"t\xe4", &[1], 24, 0)
        .tensor(r"t\xE4", &[1], 24, 32)
        .tensor(r"t\n", &[1], 24, 64)
        .file(32, 65);
    let header = read(&file);
    let string = |text: &str| Value::String(text.into());
    let tokens = ["\u{FFFD}", "ä", "\u{FFFD}"].map(string);
    assert_eq!(header.metadata["tokens"], Value::Array(tokens.into()));
    assert_eq!(header.metadata["author"], string("J\u{FFFD}rgen"));
    assert_eq!(header.metadata[r"n\xE4me"], string("a\0"));
    assert_eq!(header.metadata[r"n\x5CxE4me"], string("b"));
    let names: Vec<&str> = header.tensors.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, [r"t\xE4", r"t\x5CxE4", r"t\n"]);
}

/// Undoes what the reader does with names.
fn unescaped(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let figures = after.strip_prefix(b"x").and_then(|of| of.get(..2));
        let figures = figures.filter(|of| of.iter().all(|of| !of.is_ascii_lowercase()));
        let byte =
            figures.and_then(|of| u8::from_str_radix(std::str::from_utf8(of).ok()?, 16).ok());
        let byte = byte.filter(|byte| *first == b'\\' && (*byte >= 0x80 || *byte == b'\\'));
        bytes.push(byte.unwrap_or(*first));
        rest = &rest[byte.map_or(1, |_| 4)..];
    }
    bytes
}

proptest! {
    #[test]
    fn a_name_of_any_bytes_is_one_that_no_other_bytes_have(
        parts in prop::collection::vec(prop::sample::select(vec![
            &b"a"[..], b"\\", b"x", b"8", b"E4", b"5C", b"\xe4", b"\xff", "ä".as_bytes(), b"\\xE4", b"\\x5C", b"\\x5c", b"\xe4\xb8",
        ]), 0..8),
    ) {
        let bytes = parts.concat();
        let header = read(&Gguf::default().tensor(&bytes, &[1], 24, 0).file(32, 1));
        let name = &header.tensors[0].name;
        prop_assert_eq!(&unescaped(name), &bytes, "{}", name);
        let is_plain = std::str::from_utf8(&bytes).is_ok_and(|text| !text.contains(r"\x"));
        prop_assert!(!is_plain || name.as_bytes() == bytes);
    }
}
