//! Any bytes at all.

use proptest::prelude::*;
use transload_tensors::{DType, Header};

use crate::files::{Gguf, safetensors, text};

/// Reads the header, and checks that what it says lies within the file.
fn read(bytes: &[u8], len_bytes: u64) -> bool {
    let Ok(header) = Header::read(bytes, len_bytes) else {
        return false;
    };
    let mut at = 8;
    for tensor in header.tensors {
        match tensor.dtype {
            DType::Unknown(_) => assert_eq!(tensor.len_bytes == 0, tensor.shape.contains(&0)),
            known => assert_eq!(known.len_bytes(&tensor.shape), Some(tensor.len_bytes)),
        }
        assert!(tensor.offset >= at, "{tensor:?}");
        at = tensor.offset + tensor.len_bytes;
    }
    assert!(at <= len_bytes);
    true
}

fn sound() -> [Vec<u8>; 2] {
    let header = r#"{"__metadata__":{"a":"b"},"x":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},"y":{"dtype":"F4","shape":[4],"data_offsets":[12,14]}}"#;
    let gguf = Gguf::default()
        .with("general.name", 8, &text("x"))
        .with("general.alignment", 4, &32u32.to_le_bytes())
        .with("list", 9, &[4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9])
        .tensor("a", &[32, 2], 2, 0)
        .tensor(b"\xe4", &[5], 142, 64)
        .tensor("b", &[3], 1, 96);
    [safetensors(header, 14), gguf.file(32, 102)]
}

#[test]
fn what_is_changed_below_is_sound_at_first() {
    for file in sound() {
        assert!(read(&file, file.len() as u64));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn changed_bytes_are_refused_or_read_within_the_file(
        which in 0usize..2,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = sound()[which].clone();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(end) = cut {
            file.truncate(end.index(file.len()));
        }
        read(&file, file.len() as u64);
    }

    #[test]
    fn large_figures_are_refused_or_read_within_the_file(
        which in 0usize..2,
        at in any::<prop::sample::Index>(),
        figure in prop::sample::select(vec![0u64, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, u64::MAX - 7, u64::MAX]),
        len in prop::option::of(any::<u64>()),
    ) {
        let mut file = sound()[which].clone();
        let at = at.index(file.len() - 8);
        file[at..at + 8].copy_from_slice(&figure.to_le_bytes());
        let len = len.unwrap_or(file.len() as u64);
        read(&file, len);
    }
}
