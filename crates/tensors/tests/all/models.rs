//! Files, lists of shards, parts and folders.

use std::path::Path;

use transload_tensors::{Format, Model, ModelError};

use crate::files::{Folder, Gguf, safetensors, text};

fn shard(names: &[&str]) -> Vec<u8> {
    let entry = |(at, name): (usize, &&str)| {
        format!(
            r#""{name}":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}}"#,
            2 * at,
            2 * at + 2
        )
    };
    let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    safetensors(&format!("{{{}}}", entries.join(",")), 2 * names.len())
}

fn part(tensor: &str) -> Vec<u8> {
    let file = Gguf::default().with("of", 8, &text(tensor));
    file.tensor(tensor, &[2], 24, 0).file(32, 2)
}

const INDEX: &str = "model.safetensors.index.json";

fn index(map: &str) -> String {
    format!(r#"{{"metadata":{{"total_size":6}},"weight_map":{{{map}}}}}"#)
}

#[track_caller]
fn refusal(path: &Path) -> String {
    let error = Model::open(path).unwrap_err().to_string();
    let folder = if path.is_dir() {
        path
    } else {
        path.parent().unwrap()
    };
    error.replace(folder.to_string_lossy().trim_end_matches('/'), "DIR")
}

fn names(model: &Model) -> Vec<&str> {
    model.tensors().iter().map(|of| of.name.as_str()).collect()
}

#[test]
fn a_list_of_shards_and_its_folder_are_one_model() {
    let folder = Folder::of(&[
        ("1.safetensors", &shard(&["b", "a"])),
        ("2.safetensors", &shard(&["c", "unlisted"])),
        ("other.safetensors", b"not looked at"),
        (
            INDEX,
            index(r#""a":"1.safetensors","b":"1.safetensors","c":"2.safetensors""#).as_bytes(),
        ),
    ]);
    for path in [folder.path(INDEX), folder.path("")] {
        let model = Model::open(path).unwrap();
        assert_eq!(names(&model), ["b", "a", "c"]);
        assert_eq!((model.files().len(), model.len_bytes()), (2, 6));
        let c = model.tensor("c").unwrap();
        assert_eq!(model.files()[c.file].path(), folder.path("2.safetensors"));
        assert_eq!(model.tensor("unlisted"), None);
    }
    // A shard whose name has no number is a model, too.
    let model = Model::open(folder.path("2.safetensors")).unwrap();
    assert_eq!(names(&model), ["c", "unlisted"]);
}

#[test]
fn a_list_that_lies_is_refused() {
    for (map, told) in [
        (
            r#""a":"../1.safetensors""#,
            "shard \"../1.safetensors\" is no plain name of a file in the list's folder",
        ),
        (
            r#""a":"/etc/passwd""#,
            "shard \"/etc/passwd\" is no plain name of a file in the list's folder",
        ),
        (
            r#""a":"x\\1.safetensors""#,
            "shard \"x\\\\1.safetensors\" is no plain name of a file in the list's folder",
        ),
        (
            r#""a":"C:1.safetensors""#,
            "shard \"C:1.safetensors\" is no plain name of a file in the list's folder",
        ),
        (
            r#""a":"..""#,
            "shard \"..\" is no plain name of a file in the list's folder",
        ),
        (
            r#""a":"""#,
            "shard \"\" is no plain name of a file in the list's folder",
        ),
        (
            r#""a":"1.safetensors","a":"2.safetensors""#,
            "tensor \"a\" is there twice",
        ),
        ("", "it names no tensor"),
        (
            r#""a":7"#,
            "invalid type: integer `7`, expected a string at line 1 column 48",
        ),
    ] {
        let folder = Folder::of(&[
            ("1.safetensors", &shard(&["a"])),
            (INDEX, index(map).as_bytes()),
        ]);
        assert_eq!(
            refusal(&folder.path(INDEX)),
            format!("DIR/{INDEX}: no list of shards: {told}")
        );
    }
    let folder = Folder::of(&[
        ("1.safetensors", &shard(&["a"])),
        (
            INDEX,
            index(r#""a":"1.safetensors","b":"1.safetensors""#).as_bytes(),
        ),
    ]);
    assert_eq!(
        refusal(&folder.path(INDEX)),
        "tensor \"b\" is not in DIR/1.safetensors, where the list of shards says it is"
    );
    let folder = Folder::of(&[
        ("1.safetensors", &shard(&["a"])),
        (
            INDEX,
            index(r#""a":"1.safetensors","b":"2.safetensors","c":"3.safetensors""#).as_bytes(),
        ),
    ]);
    assert_eq!(
        refusal(&folder.path(INDEX)),
        format!(
            "DIR/{INDEX} lacks 2 of its 3 files: \"2.safetensors\", \"3.safetensors\"; put them beside it"
        )
    );
}

#[test]
fn any_part_of_a_gguf_model_stands_for_all_of_them() {
    let names_of = |number: u32| format!("m-{number:05}-of-00003.gguf");
    let parts = [part("x"), part("y"), part("z")];
    let files: Vec<(String, &[u8])> = { parts.iter().enumerate() }
        .map(|(at, bytes)| (names_of(at as u32 + 1), bytes.as_slice()))
        .collect();
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), *bytes))
        .collect();
    let folder = Folder::of(&files);
    for path in [
        folder.path(""),
        folder.path(&names_of(1)),
        folder.path(&names_of(3)),
    ] {
        let model = Model::open(path).unwrap();
        assert_eq!(names(&model), ["x", "y", "z"]);
        assert!(model.files().iter().all(|file| file.format == Format::Gguf));
        assert_eq!(
            model.metadata()["of"],
            transload_tensors::Value::String("x".into())
        );
    }
    std::fs::remove_file(folder.path(&names_of(2))).unwrap();
    assert_eq!(
        refusal(&folder.path(&names_of(3))),
        "DIR/m-00003-of-00003.gguf lacks 1 of its 3 files: \"m-00002-of-00003.gguf\"; put them beside it"
    );
}

#[test]
fn any_numbered_shard_stands_for_its_model() {
    let (one, two) = (
        "m-00001-of-00002.safetensors",
        "m-00002-of-00002.safetensors",
    );
    let folder = Folder::of(&[(one, &shard(&["a", "unlisted"])), (two, &shard(&["b"]))]);
    for path in [folder.path(""), folder.path(one), folder.path(two)] {
        assert_eq!(names(&Model::open(path).unwrap()), ["a", "unlisted", "b"]);
    }
    // The list says what belongs to the model, if it is of this one.
    let list = folder.path("m.safetensors.index.json");
    std::fs::write(&list, index(&format!(r#""a":"{one}","b":"{two}""#))).unwrap();
    for path in [folder.path(""), folder.path(one), folder.path(two)] {
        assert_eq!(names(&Model::open(path).unwrap()), ["a", "b"]);
    }
    std::fs::write(folder.path("x"), shard(&["x"])).unwrap();
    std::fs::write(&list, index(r#""x":"x""#)).unwrap();
    assert_eq!(
        names(&Model::open(folder.path(two)).unwrap()),
        ["a", "unlisted", "b"]
    );
    std::fs::write(&list, index(&format!(r#""a":"{one}","b":"{two}""#))).unwrap();
    std::fs::remove_file(folder.path(one)).unwrap();
    let lacks = format!("lacks 1 of its 2 files: {one:?}; put them beside it");
    assert_eq!(
        refusal(&folder.path(two)),
        format!("DIR/m.safetensors.index.json {lacks}")
    );
    std::fs::remove_file(list).unwrap();
    for path in [folder.path(two), folder.path("")] {
        std::fs::remove_file(folder.path("x")).ok();
        assert_eq!(refusal(&path), format!("DIR/{two} {lacks}"));
    }
    let many = Folder::of(&[("m-00001-of-99999.gguf", &part("x"))]);
    assert!(refusal(&many.path("")).ends_with(
        "\"m-00005-of-99999.gguf\", \"m-00006-of-99999.gguf\" and 99993 more; put them beside it"
    ));
}

#[test]
fn numbers_of_any_width_are_read() {
    let of_twelve: Vec<(String, Vec<u8>)> = (1..=12)
        .map(|number| (format!("m-{number}-of-12.gguf"), part(&number.to_string())))
        .collect();
    let files: Vec<(&str, &[u8])> = { of_twelve.iter() }
        .map(|(name, bytes)| (name.as_str(), &bytes[..]))
        .collect();
    let folder = Folder::of(&files);
    for path in ["", "m-2-of-12.gguf", "m-12-of-12.gguf"] {
        assert_eq!(Model::open(folder.path(path)).unwrap().files().len(), 12);
    }
    let two = Folder::of(&[
        ("m-01-of-02.gguf", &part("x")),
        ("m-02-of-02.gguf", &part("y")),
    ]);
    for path in ["", "m-02-of-02.gguf"] {
        assert_eq!(names(&Model::open(two.path(path)).unwrap()), ["x", "y"]);
    }
    // Two models of one name.
    std::fs::write(two.path("m-00001-of-00003.gguf"), part("z")).unwrap();
    assert_eq!(
        refusal(&two.path("")),
        "DIR/ has several models: \"m-01-of-02.gguf\", \"m-00001-of-00003.gguf\"; name one of them"
    );
    assert_eq!(
        names(&Model::open(two.path("m-01-of-02.gguf")).unwrap()),
        ["x", "y"]
    );
}

/// A part whose header says which one it is.
fn split(number: u16, count: u16, all: i32, tensor: &str) -> Vec<u8> {
    let file = Gguf::default()
        .with("split.no", 2, &number.to_le_bytes())
        .with("split.count", 2, &count.to_le_bytes())
        .with("split.tensors.count", 5, &all.to_le_bytes());
    file.tensor(tensor, &[2], 24, 0).file(32, 2)
}

#[test]
fn a_part_that_is_another_one_than_its_name_or_its_header_says_is_named() {
    const NAMES: [&str; 2] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    let whole = [split(0, 2, 2, "a"), split(1, 2, 2, "b")];
    let of = |files: &[Vec<u8>; 2]| Folder::of(&[(NAMES[0], &files[0]), (NAMES[1], &files[1])]);
    let folder = of(&whole);
    assert_eq!(names(&Model::open(folder.path("")).unwrap()), ["a", "b"]);
    // What `gguf-split --merge` leaves, and a model in one part.
    for (name, count) in [
        ("merged.gguf", 0),
        ("m.gguf", 1),
        ("m-00001-of-00001.gguf", 1),
    ] {
        let folder = Folder::of(&[(name, &split(0, count, 7, "a"))]);
        assert_eq!(names(&Model::open(folder.path(name)).unwrap()), ["a"]);
    }
    let [a, b] = whole;
    for (files, told) in [
        (
            [b.clone(), a.clone()],
            "DIR/m-00001-of-00002.gguf: its header says that it is part 2, and its name that it is part 1: give each part the \
             number of its header",
        ),
        (
            [a.clone(), a.clone()],
            "DIR/m-00002-of-00002.gguf: its header says that it is part 1, and its name that it is part 2: give each part the \
             number of its header",
        ),
        (
            [a.clone(), split(1, 3, 2, "b")],
            "DIR/m-00002-of-00002.gguf: its header says that it is one of 3 parts of a model, and its name that it is one of 2: \
             it was renamed, or is of another model",
        ),
        (
            [a.clone(), split(1, 2, 3, "b")],
            "DIR/m-00002-of-00002.gguf: its header says that all parts have 3 tensors, and that of DIR/m-00001-of-00002.gguf \
             says 2: they are of different models",
        ),
        (
            [split(0, 2, 3, "a"), split(1, 2, 3, "b")],
            "DIR/m-00001-of-00002.gguf: its header says that all parts have 3 tensors, and they have 2: they are not all of one \
             model",
        ),
        (
            [part("a"), b.clone()],
            "DIR/m-00001-of-00002.gguf: its header does not say which part of a model it is, and that of \
             DIR/m-00002-of-00002.gguf does: it is of another model",
        ),
    ] {
        let folder = of(&files);
        assert_eq!(refusal(&folder.path(NAMES[1])), told);
        assert_eq!(refusal(&folder.path("")).replace("DIR//", "DIR/"), told);
    }
    // Under another name, as of a download.
    let folder = Folder::of(&[("blob", &b)]);
    assert_eq!(
        refusal(&folder.path("blob")),
        "DIR/blob: its header says that it is part 2 of 2 of a model, and its name does not: name it as its writer did, \
         NAME-00001-of-00002.gguf, beside the other parts, or join the parts with llama-gguf-split --merge"
    );
}

/// What macOS keeps beside a file, and downloads under way.
#[test]
fn hidden_files_are_no_models() {
    let list = index(r#""a":"x-00001-of-00001.safetensors""#);
    for (name, bytes) in [
        ("lora.safetensors", shard(&["a"])),
        ("m-00001-of-00001.safetensors", shard(&["a"])),
        ("m-00001-of-00001.gguf", part("a")),
        ("m.gguf", part("a")),
        ("x.safetensors.index.json", list.into_bytes()),
    ] {
        let side = b"\0\x05\x16\x07\0\x02\0\0Mac OS X";
        let hidden = [format!("._{name}"), format!(".{name}")];
        let folder = Folder::of(&[(name, &bytes), (&hidden[0], side), (&hidden[1], side)]);
        if name.ends_with(".json") {
            std::fs::write(folder.path("x-00001-of-00001.safetensors"), shard(&["a"])).unwrap();
        }
        assert_eq!(
            names(&Model::open(folder.path("")).unwrap()),
            ["a"],
            "{name}"
        );
        assert!(refusal(&folder.path(&hidden[0])).starts_with("DIR/._"));
    }
    let only = Folder::of(&[("._m.gguf", b""), (".pytorch_model.bin", b"")]);
    assert_eq!(
        refusal(&only.path("")),
        "DIR/ has no model: no *.safetensors and no *.gguf"
    );
}

#[test]
fn two_files_with_one_name_are_refused() {
    let folder = Folder::of(&[
        ("m-00001-of-00002.gguf", &part("x")),
        ("m-00002-of-00002.gguf", &part("x")),
    ]);
    assert_eq!(
        refusal(&folder.path("m-00001-of-00002.gguf")),
        "tensor \"x\" is in DIR/m-00001-of-00002.gguf and in DIR/m-00002-of-00002.gguf"
    );
}

#[test]
fn a_folder_has_one_model_or_says_why_it_has_none() {
    let single = Folder::of(&[
        ("model.safetensors", &shard(&["a"])),
        ("consolidated.safetensors", b""),
    ]);
    assert_eq!(names(&Model::open(single.path("")).unwrap()), ["a"]);
    let other = Folder::of(&[
        ("adapter.safetensors", &shard(&["a"])),
        ("config.json", b"{}"),
    ]);
    assert_eq!(names(&Model::open(other.path("")).unwrap()), ["a"]);
    let several = Folder::of(&[("a.gguf", b""), ("b.safetensors", b"")]);
    assert_eq!(
        refusal(&several.path("")),
        "DIR/ has several models: \"a.gguf\", \"b.safetensors\"; name one of them"
    );
    let none = Folder::of(&[("readme.md", b"")]);
    assert_eq!(
        refusal(&none.path("")),
        "DIR/ has no model: no *.safetensors and no *.gguf"
    );
    let pickled = Folder::of(&[("pytorch_model.bin", b"")]);
    assert!(refusal(&pickled.path("")).contains("take the model's safetensors"));
}

#[cfg(unix)]
#[test]
fn a_snapshot_of_a_hub_is_followed_to_its_files_and_a_pipe_is_refused_at_once() {
    let folder = Folder::of(&[("blob", &shard(&["a"]))]);
    std::fs::create_dir(folder.path("snapshot")).unwrap();
    std::os::unix::fs::symlink("../blob", folder.path("snapshot/model.safetensors")).unwrap();
    assert_eq!(names(&Model::open(folder.path("snapshot")).unwrap()), ["a"]);
    // A hub's folder: by the name of the commit, or because there is no other.
    std::fs::create_dir_all(folder.path("hub/snapshots")).unwrap();
    std::fs::rename(folder.path("snapshot"), folder.path("hub/snapshots/abc")).unwrap();
    std::fs::rename(folder.path("blob"), folder.path("hub/snapshots/blob")).unwrap();
    std::fs::create_dir(folder.path("hub/refs")).unwrap();
    std::fs::write(folder.path("hub/refs/main"), "abc").unwrap();
    assert_eq!(names(&Model::open(folder.path("hub")).unwrap()), ["a"]);
    let made = std::process::Command::new("mkfifo")
        .arg(folder.path("pipe.safetensors"))
        .status();
    assert!(made.unwrap().success());
    assert_eq!(
        refusal(&folder.path("pipe.safetensors")),
        "DIR/pipe.safetensors: it is a pipe, not a regular file"
    );
}

/// As a hub's cache has them when a download was cut short.
#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_named() {
    use std::os::unix::fs::symlink;
    let one = "m-00001-of-00001.safetensors";
    let told = |link: &str| {
        format!(
            "DIR/{link} is a link to ../../blobs/0, which is not there: where it is of a hub's cache, its download was cut short \
             or cleaned up; download the model again"
        )
    };
    for name in ["model.safetensors", INDEX, "m.gguf", one] {
        let folder = Folder::of(&[]);
        symlink("../../blobs/0", folder.path(name)).unwrap();
        assert_eq!(refusal(&folder.path(name)), told(name));
        assert_eq!(
            refusal(&folder.path("")).replace("DIR//", "DIR/"),
            told(name)
        );
        let error = Model::open(folder.path(name)).unwrap_err();
        assert_eq!(
            error.class(),
            transload_tensors::transload::ErrorClass::Caller
        );
    }
    // A shard of a list, and a folder.
    let list = index(&format!(r#""a":"{one}""#));
    let folder = Folder::of(&[(INDEX, list.as_bytes())]);
    symlink("../../blobs/0", folder.path(one)).unwrap();
    assert_eq!(refusal(&folder.path(INDEX)), told(one));
    symlink("../../blobs/0", folder.path("snapshot")).unwrap();
    let path = folder.path("snapshot/model.safetensors");
    assert!(
        Model::open(path)
            .unwrap_err()
            .to_string()
            .contains("/snapshot is a link to ../")
    );
}

#[test]
fn what_is_no_model_is_the_callers_mistake_and_named() {
    let folder = Folder::of(&[
        ("empty", b""),
        ("text", b"Once upon a time"),
        ("bytes", &[0xFF; 20]),
        ("x.json", b"[]"),
        (
            "lfs.json",
            b"version https://git-lfs.github.com/spec/v1\nsize x\n",
        ),
    ]);
    assert_eq!(
        refusal(&folder.path("empty")),
        "DIR/empty: it is an empty file, and no model: download the model again"
    );
    assert_eq!(
        refusal(&folder.path("lfs.json")),
        "DIR/lfs.json: it is a pointer of Git LFS, and no model: run git lfs pull in its repository, or download the model itself"
    );
    assert!(
        refusal(&folder.path("bytes"))
            .starts_with("DIR/bytes: no model file: it does not begin as GGUF")
    );
    assert!(refusal(&folder.path("x.json")).starts_with("DIR/x.json: no list of shards: "));
    for name in [
        "empty",
        "text",
        "bytes",
        "x.json",
        "missing",
        "missing.json",
    ] {
        let error = Model::open(folder.path(name)).unwrap_err();
        assert_eq!(
            error.class(),
            transload_tensors::transload::ErrorClass::Caller,
            "{error}"
        );
    }
    assert!(matches!(
        Model::open(folder.path("missing")),
        Err(ModelError::Open(_))
    ));
}
