//! Runs the program as a user does, in a folder of its own.

#![allow(
    dead_code,
    reason = "each test file is a program of its own and uses some of this"
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder that the test deletes at its end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("transload-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file of bytes that repeat nowhere near.
    pub(crate) fn file(&self, name: &str, len: usize) -> Vec<u8> {
        let bytes = bytes(len);
        fs::write(self.path(name), &bytes).unwrap();
        bytes
    }

    /// A model of two tensors, `a` of 3 KiB and `b` of as many bytes as there are.
    pub(crate) fn model(&self, name: &str, b_bytes: usize) {
        let end = 3072 + b_bytes;
        let header = format!(
            r#"{{"a":{{"dtype":"F16","shape":[2,768],"data_offsets":[0,3072]}},"b":{{"dtype":"U8","shape":[{b_bytes}],"data_offsets":[3072,{end}]}}}}"#
        );
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(bytes(end));
        fs::write(self.path(name), file).unwrap();
    }

    /// Everything in it, hidden files too.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> = entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// A command that runs the program in the folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        #[cfg(unix)]
        heed_signals();
        let mut command = Command::new(env!("CARGO_BIN_EXE_transload"));
        command.current_dir(&self.0).args(arguments);
        command.env_remove("NO_COLOR").env("TERM", "xterm-256color");
        // The program must not use measurements of this machine.
        command.env("TRANSLOAD_PROFILE", "");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        Run(self.command(arguments).output().unwrap())
    }

    /// Whether the machine has that many adapters. Where it has fewer, the test is reported as skipped, and not as
    /// passed; where the environment promises that many, the test fails.
    pub(crate) fn has_adapters(&self, needed: usize) -> bool {
        let devices = self.json(&["devices"]);
        let devices = devices["devices"].as_array().unwrap().iter();
        let found = devices.filter(|device| device["backend"] == "wgpu").count();
        if found >= needed {
            return true;
        }
        let provided = std::env::var("TRANSLOAD_ADAPTER");
        let provided = provided.map_or(0, |count| count.parse::<usize>().unwrap());
        assert!(
            provided < needed,
            "{provided} drivers were provided, and {found} adapters found"
        );
        skip(&format!("needs {needed} adapters, and {found} are here"));
        false
    }

    /// Runs with `--json`, expects success, and returns the object.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let run = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(run.code(), 0, "{}", run.stdout());
        run.json()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes programs that this one starts heed the signals that ask for an end. Shells start what is to run in the background with
/// SIGINT ignored, which programs pass on, unlike a handler. These handlers do what the signal did here without them.
#[cfg(unix)]
fn heed_signals() {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Once};

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use transload::host::signals::is_ignored;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let ends = Arc::new(AtomicBool::new(!is_ignored(signal)));
            signal_hook::flag::register_conditional_default(signal, ends).unwrap();
        }
    });
}

/// The output of a run.
pub(crate) struct Run(pub(crate) Output);

impl Run {
    pub(crate) fn code(&self) -> i32 {
        self.0.status.code().expect("no signal ended the program")
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    /// The one object on standard output; standard error must be empty then.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stderr(), "");
        let value: Value = serde_json::from_str(&self.stdout()).unwrap();
        assert_eq!(value["schema"], 3);
        value
    }
}

/// Reports the test as skipped, and not as passed.
pub(crate) fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("cli").to_owned();
    println!("skipped {test}: {reason}");
    if let Some(file) = std::env::var_os("TRANSLOAD_SKIPS") {
        let file = fs::OpenOptions::new().append(true).create(true).open(file);
        writeln!(file.unwrap(), "{test}: {reason}").unwrap();
    }
}

pub(crate) fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}

/// A described machine that is probed at once: the host with one link.
pub(crate) const TINY: &str = r#"
schema = 1
name = "tiny"
[[device]]
id = "cpu:0"
name = "host"
memory = [{ kind = "pageable", memory_bytes = 8_000_000_000 }]
[[link]]
src = "cpu:0/pageable"
dst = "cpu:0/pageable"
engine = "cpu:0#0"
class = "local"
latency_ns = 100
bytes_per_second = 10_000_000_000
"#;

/// The path of a machine description in the repository.
pub(crate) fn topology(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies");
    folder.join(name).to_str().unwrap().to_owned()
}

/// The fields of an object, sorted.
pub(crate) fn fields(value: &Value) -> Vec<&str> {
    let mut fields: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    fields.sort_unstable();
    fields
}

/// Runs the command with and without `--json`, and expects the same refusal from both.
pub(crate) fn refused(folder: &Folder, arguments: &[&str], code: i32, words: &[&str]) {
    let run = folder.run(arguments);
    let said = run.stderr();
    assert_eq!(run.code(), code, "{arguments:?}: {said}");
    assert!(said.starts_with("error: "), "{said}");
    let value = folder.run(&[&["--json"], arguments].concat());
    assert_eq!(value.code(), code, "{arguments:?}");
    let value = value.json();
    let error = &value["error"];
    assert_eq!(fields(&value), ["error", "notes", "schema"]);
    assert_eq!(fields(error), ["exit_code", "kind", "message"]);
    assert_eq!(error["exit_code"], code);
    let kinds = ["usage", "missing", "differs", "device"];
    assert_eq!(error["kind"], kinds[code as usize - 2]);
    let message = error["message"].as_str().unwrap();
    assert!(!message.contains('\n'), "{message:?}");
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
        assert!(message.contains(word), "{word}: {message}");
    }
}
