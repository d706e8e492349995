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
    // A shard is a model, too.
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
        format!("DIR/{INDEX} lacks 2 of its 3 files: \"2.safetensors\", \"3.safetensors\"")
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
        "DIR/m-00003-of-00003.gguf lacks 1 of its 3 files: \"m-00002-of-00003.gguf\""
    );
}

#[test]
fn numbered_shards_without_a_list_are_one_model_in_their_folder() {
    let folder = Folder::of(&[
        ("m-00001-of-00002.safetensors", &shard(&["a"])),
        ("m-00002-of-00002.safetensors", &shard(&["b"])),
    ]);
    assert_eq!(names(&Model::open(folder.path("")).unwrap()), ["a", "b"]);
    // By itself it is a model by itself.
    let path = folder.path("m-00002-of-00002.safetensors");
    assert_eq!(names(&Model::open(&path).unwrap()), ["b"]);
    std::fs::remove_file(folder.path("m-00001-of-00002.safetensors")).unwrap();
    assert_eq!(
        refusal(&folder.path("")),
        "DIR/m-00002-of-00002.safetensors lacks 1 of its 2 files: \"m-00001-of-00002.safetensors\""
    );
    let many = Folder::of(&[("m-00001-of-99999.gguf", &part("x"))]);
    assert!(
        refusal(&many.path(""))
            .ends_with("\"m-00005-of-99999.gguf\", \"m-00006-of-99999.gguf\" and 99993 more")
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
