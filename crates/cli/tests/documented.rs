//! The objects of `docs/json.md` and those of the program have the same fields.

mod support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use support::{Folder, topology};

/// The example under a heading of the document.
fn example(heading: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, block) = section.split_once("```json\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    serde_json::from_str(block).unwrap()
}

/// Every field by its path; of each array the first item.
fn paths(value: &Value) -> Vec<String> {
    fn collect(value: &Value, at: &str, paths: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    let at = format!("{at}.{name}");
                    paths.push(at.clone());
                    collect(field, &at, paths);
                }
            }
            Value::Array(items) => {
                if let Some(first) = items.first() {
                    collect(first, &format!("{at}[]"), paths);
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(value, "", &mut found);
    found.sort();
    found
}

#[test]
fn the_examples_have_the_fields_of_the_program_and_no_others() {
    let folder = Folder::new("documented");
    folder.file("model.bin", 1000);
    let machine = topology("eight-gpu.toml");
    let small = topology("workstation.toml");
    let cases: [(&str, Vec<&str>); 6] = [
        ("devices", vec!["devices"]),
        (
            "copy",
            vec!["copy", "model.bin", "cpu:0/shared", "--verify"],
        ),
        (
            "explain",
            vec!["explain", "sim:0", "sim:1", "64MiB", "--topology", &machine],
        ),
        (
            "probe",
            vec![
                "probe",
                "--quick",
                "--topology",
                &small,
                "--profile",
                "profile.toml",
            ],
        ),
        ("completions", vec!["completions", "bash"]),
        ("Errors", vec!["copy", "nowhere", "cpu:0"]),
    ];
    for (heading, arguments) in cases {
        let run = folder.run(&[&arguments[..], &["--json"]].concat());
        let mut said = run.json();
        if heading == "probe" {
            // The example describes a real machine.
            said.as_object_mut().unwrap().remove("simulated");
            for (list, of) in [
                ("advice", json!({ "about": "", "found": "", "remedy": "" })),
                (
                    "fresh",
                    json!({ "memory": "", "bytes": 0, "allocation_s": 0, "first_use_s": 0 }),
                ),
            ] {
                let list = said[list].as_array_mut().unwrap();
                assert!(
                    list.is_empty(),
                    "this machine is not that of the topology: {list:?}"
                );
                list.push(of);
            }
        }
        assert_eq!(paths(&said), paths(&example(heading)), "{heading}");
    }
}

#[test]
fn the_examples_are_what_the_program_says_where_that_is_the_same_everywhere() {
    let folder = Folder::new("documented-values");
    let said = folder.run(&["copy", "nowhere", "cpu:0", "--json"]).json();
    assert_eq!(said["error"]["kind"], example("Errors")["error"]["kind"]);
    let machine = topology("eight-gpu.toml");
    let said = folder.json(&["explain", "sim:0", "sim:1", "64MiB", "--topology", &machine]);
    let documented = example("explain");
    for field in ["method", "route", "chunk_bytes", "loads", "predicted_s"] {
        assert_eq!(said["chosen"][field], documented["chosen"][field]);
    }
    assert_eq!(
        said["rejected"][0]["route"],
        documented["rejected"][0]["route"]
    );
    assert_eq!(
        said["rejected"][0]["reason"],
        documented["rejected"][0]["reason"]
    );
    assert_eq!(said["sizes"], documented["sizes"]);
}

#[test]
fn the_examples_of_models_are_what_the_program_says() {
    let folder = Folder::new("documented-models");
    let header = r#"{"__metadata__":{"format":"pt"},"weight":{"dtype":"F16","shape":[2,768],"data_offsets":[0,3072]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend([0; 3072]);
    fs::write(folder.path("model.safetensors"), file).unwrap();
    let said = folder.json(&["inspect", "model.safetensors"]);
    assert_eq!(said, example("inspect"));
    let said = folder.run(&["inspect", "model.safetensors"]).stdout();
    assert_eq!(
        said,
        "METADATA  VALUE\nformat    pt\n\nTENSOR  DTYPE  SHAPE     SIZE\nweight  F16    [2, 768]  3 KiB\n\n1 tensor of 3 KiB in 1 file of safetensors\n"
    );
    for (option, verified) in [
        (None, false),
        (Some("--verify"), true),
        (Some("--plan"), false),
    ] {
        let arguments = ["load", "model.safetensors"].into_iter().chain(option);
        let mut said = folder.json(&arguments.collect::<Vec<_>>());
        let mut documented = example("load");
        assert_eq!(said["seconds"].is_null(), option == Some("--plan"));
        assert_eq!(said["verified"], verified);
        let stages = said["stages"].as_array().unwrap();
        assert_eq!(stages.is_empty(), option == Some("--plan"));
        let fields = |stage: &Value| stage.as_object().unwrap().keys().cloned().collect();
        let [stage] = &documented["stages"].as_array().unwrap()[..] else {
            panic!("one stage is documented");
        };
        let known: Vec<String> = fields(stage);
        for said in stages {
            assert_eq!(fields(said), known);
            for field in ["src", "dst", "measured_gb_per_s"] {
                assert_eq!(said[field], stage[field]);
            }
        }
        for field in [
            "seconds",
            "start_seconds",
            "stages",
            "read_gb_per_s",
            "predicted_s",
            "verified",
        ] {
            assert!(said.as_object_mut().unwrap().remove(field).is_some());
            assert!(documented.as_object_mut().unwrap().remove(field).is_some());
        }
        assert_eq!(said, documented);
    }
}

#[test]
fn the_example_of_the_cost_model_is_what_the_program_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cost-model.md");
    let text = fs::read_to_string(path).unwrap();
    let block = |begin: &str| {
        let (_, rest) = text.split_once(begin).unwrap();
        rest.split_once("```").unwrap().0.to_owned()
    };
    let folder = Folder::new("cost-model");
    fs::write(folder.path("example.toml"), block("```toml\n")).unwrap();
    let shown = block("```console\n$ transload ");
    let (command, output) = shown.split_once('\n').unwrap();
    let arguments: Vec<&str> = command.split(' ').collect();
    assert_eq!(folder.run(&arguments).stdout(), output);
}
