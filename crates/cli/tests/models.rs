//! Models: loaded, saved, and refused.

mod support;

use std::fs;

use serde_json::json;
use support::{Folder, refused};

#[test]
fn a_model_that_was_loaded_is_saved_as_it_was() {
    let folder = Folder::new("load-save");
    folder.model("model", (3 << 20) + 1);
    let said = folder.json(&["load", "model", "--save", "saved"]);
    assert_eq!(said["saved"], "saved");
    let tensors = |name: &str| {
        let mut tensors = folder.json(&["inspect", name])["tensors"].take();
        for tensor in tensors.as_array_mut().unwrap() {
            tensor.as_object_mut().unwrap().remove("offset").unwrap();
        }
        tensors
    };
    assert_eq!(tensors("saved"), tensors("model"));
    let data = |name: &str| {
        let file = fs::read(folder.path(name)).unwrap();
        file[file.len() - 3072 - ((3 << 20) + 1)..].to_vec()
    };
    assert!(data("saved") == data("model"));
    let out = folder
        .run(&["load", "model", "--only", "b", "--save", "saved"])
        .stdout();
    assert!(out.contains("\nsaved as saved in "), "{out}");
    assert_eq!(tensors("saved").as_array().unwrap().len(), 1);
    assert_eq!(folder.names(), ["model", "saved"]);
}

#[test]
fn a_model_without_tensors_is_loaded_and_saved() {
    let folder = Folder::new("load-none");
    fs::write(folder.path("none"), b"\x08\0\0\0\0\0\0\0{}      ").unwrap();
    for of in ["--plan", "--verify"] {
        let said = folder.json(&["load", "none", of]);
        assert_eq!((&said["tensors"], &said["bytes"]), (&json!(0), &json!(0)));
        assert_eq!(
            (&said["method"], &said["route"]),
            (&json!(null), &json!([]))
        );
        assert_eq!(folder.run(&["load", "none", of]).stderr(), "");
    }
    let out = folder.run(&["load", "none", "--save", "saved"]).stdout();
    assert!(
        out.starts_with("the model has no tensors\nsaved as saved in "),
        "{out}"
    );
    assert_eq!(folder.json(&["inspect", "saved"])["tensors"], json!([]));
}

#[test]
fn a_model_goes_to_several_memories() {
    let folder = Folder::new("load-several");
    folder.model("model", 4096);
    let to = "cpu:0,cpu:0/shared";
    let said = folder.json(&["load", "model", "--to", to, "--verify"]);
    assert_eq!(said["devices"], json!(["cpu:0/pageable", "cpu:0/shared"]));
    assert_eq!(said["memory_bytes"], json!([3072, 4096]));
    let said = folder.json(&["load", "model", "--to", to, "--broadcast", "--verify"]);
    assert_eq!(said["memory_bytes"], json!([7168, 7168]));
    assert_eq!(
        (&said["read_bytes"], &said["bytes"]),
        (&json!(7168), &json!(7168))
    );
    let plan = folder
        .run(&["load", "model", "--to", to, "--broadcast", "--plan"])
        .stdout();
    assert!(plan.contains("bytes of cpu:0/shared"), "{plan}");
}

#[test]
fn a_model_is_split_by_rules() {
    let folder = Folder::new("load-split");
    folder.model("model", 4096);
    let load = ["load", "model", "--to", "cpu:0,cpu:0/shared", "--verify"];
    let split = |rules: &str| folder.json(&[&load[..], &["--split", rules]].concat());
    // Of `a` a row each, or the half of each row; `b` as a whole to both, or halved.
    for (rules, bytes) in [
        ("a=0", 2 * 4096),
        ("a=1", 2 * 4096),
        ("*=0", 4096),
        ("b=0,*=1", 4096),
    ] {
        let said = split(rules);
        let each = (3072 + bytes) / 2;
        assert_eq!(said["memory_bytes"], json!([each, each]), "{rules}");
    }
    for (rules, words) in [
        ("a", "a rule is PATTERN=DIMENSION"),
        ("a=x", "\"x\" is not a number from 0 on"),
        (
            "a=2",
            "tensor \"a\" of shape [2, 768]: it cannot be split along dimension 2: it has 2, counted from 0",
        ),
    ] {
        refused(
            &folder,
            &[&load[..], &["--split", rules]].concat(),
            2,
            &[words],
        );
    }
    refused(
        &folder,
        &[&load[..], &["--split", "a=0,c*=0"]].concat(),
        2,
        &["fits \"c*\""],
    );
    for option in ["--broadcast", "--save=x"] {
        let both = [&load[..], &["--split", "a=0", option]].concat();
        refused(&folder, &both, 2, &["--split"]);
    }
    let wide = ["load", "model", "--dtype", "F64", "--plan"];
    let plan = folder.run(&wide).stdout();
    let unwanted = plan
        .lines()
        .find(|line| line.starts_with("read and not wanted"));
    assert!(
        unwanted.is_some_and(|line| line.ends_with(" 0 B")),
        "{plan}"
    );
}

#[test]
fn a_model_is_converted() {
    let folder = Folder::new("load-convert");
    folder.model("model", 4096);
    let load = ["load", "model", "--dtype"];
    let said = folder.json(&[&load[..], &["f32", "--verify", "--save", "singles"]].concat());
    // Halves became singles, and bytes stayed bytes.
    assert_eq!(
        [&said["bytes"], &said["read_bytes"], &said["memory_bytes"]],
        [&json!(10240), &json!(7168), &json!([10240])]
    );
    let tensors = folder.json(&["inspect", "singles"])["tensors"].take();
    assert_eq!(tensors[0]["dtype"], "F32");
    let data = |name: &str, len: usize| {
        let file = fs::read(folder.path(name)).unwrap();
        file[file.len() - len..].to_vec()
    };
    assert!(data("singles", 4096) == data("model", 4096));
    // All halves but those that are no numbers come back.
    let back = ["load", "singles", "--dtype", "f16", "--save", "halves"];
    folder.json(&back);
    let (halves, model) = (data("halves", 7168), data("model", 7168));
    let differing = halves
        .chunks(2)
        .zip(model.chunks(2))
        .filter(|(a, b)| a != b);
    assert!(differing.into_iter().all(|(a, _)| a[1] & 0x7c == 0x7c));
    refused(
        &folder,
        &[&load[..], &["f8"]].concat(),
        2,
        &["f64, f32, f16, bf16"],
    );
}

#[test]
fn what_is_no_model_is_named() {
    let folder = Folder::new("no-model");
    folder.file("bytes", 100);
    fs::write(folder.path("pickled.pt"), b"\x80\x02}q\x00 and so").unwrap();
    for (model, words) in [
        ("bytes", ["bytes: no model file", ""]),
        (
            "pickled.pt",
            [
                "pickled.pt: it is a PyTorch checkpoint",
                "safetensors.torch.save_file",
            ],
        ),
        (".", [". has no model", "*.pt"]),
        (
            "https://example.org/m.safetensors",
            ["fetch the model first", "Model::open_remote"],
        ),
        ("nowhere", ["nowhere", "No such file"]),
    ] {
        refused(&folder, &["inspect", model], 2, &words);
    }
    refused(&folder, &["inspect"], 2, &["MODEL"]);
    refused(&folder, &["load", "bytes"], 2, &["bytes: no model file"]);
    let mut model = 55u64.to_le_bytes().to_vec();
    model.extend(br#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}  "#);
    model.extend([1, 2, 3, 4]);
    fs::write(folder.path("model"), model).unwrap();
    refused(
        &folder,
        &["load", "model", "--to", "cuda:9"],
        3,
        &["cuda:9"],
    );
    refused(&folder, &["load", "model", "--to", "CPU:0"], 2, &["CPU:0"]);
    refused(
        &folder,
        &["load", "model", "--only", "b*"],
        2,
        &["no tensor has a name that fits \"b*\""],
    );
    for (save, words) in [
        ("model", "would replace model, which is a file of the model"),
        ("-", "standard output"),
        ("no/folder", "cannot write no/folder"),
        (".", "it is a directory"),
    ] {
        refused(&folder, &["load", "model", "--save", save], 2, &[words]);
    }
    refused(
        &folder,
        &["load", "model", "--split", "a=0"],
        2,
        &["--split", "several devices", "--to"],
    );
    refused(
        &folder,
        &["load", "model", "--save", "x", "--plan"],
        2,
        &["--plan"],
    );
    assert_eq!(folder.names(), ["bytes", "model", "pickled.pt"]);
}

/// What real writers put into headers: types of forks, and names in other encodings.
#[test]
fn a_tensor_of_an_unknown_type_or_of_a_name_that_is_no_utf8_is_listed_and_named() {
    let folder = Folder::new("unknown-type");
    let mut model = b"GGUF\x03\0\0\0".to_vec();
    model.extend(2u64.to_le_bytes());
    model.extend(0u64.to_le_bytes());
    for (name, kind, size, offset) in [(&b"a"[..], 142, 256, 0), (b"t\xe4", 24, 4, 160)] {
        model.extend((name.len() as u64).to_le_bytes());
        model.extend(name);
        model.extend(1u32.to_le_bytes());
        model.extend(u64::to_le_bytes(size));
        model.extend(u32::to_le_bytes(kind));
        model.extend(u64::to_le_bytes(offset));
    }
    model.resize(model.len().next_multiple_of(32) + 164, 7);
    fs::write(folder.path("m.gguf"), model).unwrap();
    let tensors = folder.json(&["inspect", "m.gguf"])["tensors"].take();
    let told = |at: usize| {
        json!([
            tensors[at]["name"],
            tensors[at]["dtype"],
            tensors[at]["bytes"]
        ])
    };
    assert_eq!(told(0), json!(["a", "GGML_142", 160]));
    assert_eq!(told(1), json!([r"t\xE4", "I8", 4]));
    let words = [
        "tensor \"a\" is of the type GGML_142",
        "choose only the others",
    ];
    refused(&folder, &["load", "m.gguf"], 3, &words);
    let only = [
        "load",
        "m.gguf",
        "--only",
        r"t\xE4",
        "--save",
        "saved.safetensors",
    ];
    assert_eq!(folder.json(&only)["bytes"], 4);
    let saved = folder.json(&["inspect", "saved.safetensors"])["tensors"].take();
    assert_eq!(saved[0]["name"], r"t\xE4");
}

#[test]
fn a_model_of_several_files_is_not_replaced_by_what_is_loaded_of_it() {
    let folder = Folder::new("load-save-list");
    folder.model("first.safetensors", 4);
    let header = r#"{"c":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let mut second = (header.len() as u64).to_le_bytes().to_vec();
    second.extend(header.as_bytes());
    second.push(7);
    fs::write(folder.path("second.safetensors"), second).unwrap();
    let list = r#"{"weight_map":{"a":"first.safetensors","b":"first.safetensors","c":"second.safetensors"}}"#;
    fs::write(folder.path("model.safetensors.index.json"), list).unwrap();
    let before = folder.names();
    let save = ["load", ".", "--only", "a", "--save", "model.safetensors"];
    refused(&folder, &save, 2, &["the list of the model's files"]);
    assert_eq!(folder.names(), before);
}
