//! Shared parts of the tests: the program over the double, and its output.
#![allow(dead_code, reason = "no test uses all of it")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fs};

use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_transload-gpu-bench");

/// A folder of one test, deleted at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Folder {
        let name = format!("transload-gpu-bench-{}-{test}", std::process::id());
        let path = env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path("gpu.json")).unwrap()).unwrap()
    }

    /// The program, with the double as its driver and without the Python libraries.
    pub(crate) fn command(&self, settings: &[(&str, &str)]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("--json").arg(self.path("gpu.json"));
        self.over_the_double(&mut command, settings);
        command
    }

    pub(crate) fn over_the_double(&self, command: &mut Command, settings: &[(&str, &str)]) {
        command
            .env("TRANSLOAD_CUDA_DRIVER", double())
            .env("TRANSLOAD_DOUBLE_REPORT", self.path("report"))
            .env("TRANSLOAD_BENCH_PYTHON", "/nowhere/python3")
            .envs(settings.iter().copied());
    }

    #[track_caller]
    pub(crate) fn assert_nothing_leaked(&self) {
        let report = fs::read_to_string(self.path("report")).unwrap();
        assert!(report.ends_with("leaks 0\n"), "{report}");
        assert!(!report.contains("leak: "), "{report}");
        assert!(!report.contains("note: "), "{report}");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The library that cargo built beside this test.
pub(crate) fn double() -> PathBuf {
    let library = env::current_exe().unwrap().with_file_name("libcuda.so");
    assert!(library.is_file(), "{} is built", library.display());
    library
}

pub(crate) fn run(command: &mut Command, code: i32) -> (String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(status.code(), Some(code), "{stdout}{stderr}");
    (stdout, stderr)
}

pub(crate) fn results(document: &Value) -> &Vec<Value> {
    document["results"].as_array().unwrap()
}

pub(crate) fn case<'json>(document: &'json Value, name: &str) -> &'json Value {
    let found = results(document).iter().find(|of| of["case"] == name);
    found.unwrap_or_else(|| panic!("there is {name}"))
}

pub(crate) fn contestants(case: &Value) -> Vec<&str> {
    let all = case["contestants"].as_array().unwrap().iter();
    all.map(|of| of["name"].as_str().unwrap()).collect()
}

/// Asserts that every case, and every contender in it, finished or gives a reason.
#[track_caller]
pub(crate) fn assert_whole(document: &Value) {
    assert_eq!(document["complete"], true);
    for case in results(document) {
        let name = &case["case"];
        assert!(case["failed"].is_null(), "{case:#}");
        for contestant in case["contestants"].as_array().unwrap() {
            assert_eq!(contestant["verified"], true, "{name}: {contestant:#}");
            let samples = contestant["samples_s"].as_array().unwrap();
            if case["skipped"].is_null() {
                assert!(samples.len() >= 15, "{name}: {contestant:#}");
                assert!(samples.iter().all(|of| of.as_f64() > Some(0.0)), "{name}");
                let [least, most] = [0, 1].map(|at| contestant["spread_s"][at].as_f64());
                let median = contestant["median_s"].as_f64();
                assert!(least <= median && median <= most, "{name}: {contestant:#}");
            }
        }
        if case["skipped"].is_null() {
            assert!(!contestants(case).is_empty(), "{case:#}");
        } else {
            assert_ne!(case["skipped"], "", "{case:#}");
        }
    }
}

/// Reports that a test can show nothing on this machine: see `xtask/src/skips.rs`.
pub(crate) fn skip(test: &str, reason: &str) {
    println!("skipped: {reason}");
    let Some(file) = env::var_os("TRANSLOAD_SKIPS") else {
        return;
    };
    let mut file = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .unwrap();
    writeln!(file, "transload-gpu-bench {test}: {reason}").unwrap();
}
