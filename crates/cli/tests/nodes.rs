//! Other machines, which are other processes here.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::Folder;

/// A process that serves its memory to the key in `key`.
struct Served {
    process: Child,
    said: BufReader<ChildStdout>,
    /// For `--node`.
    node: String,
}

impl Served {
    fn start(folder: &Folder, name: &str) -> Served {
        let allowed = folder.run(&["key", "key"]).stdout();
        let file = format!("{name}.key");
        let key = folder.run(&["key", &file]).stdout();
        let mut command = folder.command(&["serve", "--listen", "127.0.0.1:0", "--key", &file]);
        command.args(["--allow", allowed.trim(), "--limit", "64MiB"]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.strip_prefix("serving on ").unwrap();
        let (address, _) = address.split_once(';').unwrap();
        Served {
            node: format!("{name}={address},{}", key.trim()),
            process,
            said,
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_file_goes_to_other_machines_and_back() {
    let folder = Folder::new("nodes");
    let bytes = folder.file("file", 5_000_003);
    let [one, mut two] = ["box2", "box3"].map(|name| Served::start(&folder, name));
    let nodes = [one.node.clone(), two.node.clone()];
    let reach = ["--key", "key", "--node", &nodes[0], "--node", &nodes[1]];
    let copy = |stops: &[&str]| folder.run(&[&["copy", "file"], stops, &reach].concat());
    let run = copy(&["box2/cpu:0", "box3/cpu:0", "--verify", "--out", "back"]);
    assert_eq!(run.code(), 0, "{}", run.stderr());
    assert!(fs::read(folder.path("back")).unwrap() == bytes);
    let run = copy(&["box2/cpu:0", "+", "box3/cpu:0", "--verify"]);
    assert_eq!(run.code(), 0, "{}", run.stderr());

    let devices = [&["devices"][..], &reach].concat();
    assert!(folder.run(&devices).stdout().contains("box3/cpu:0"));
    two.process.kill().unwrap();
    two.process.wait().unwrap();
    // Only what needs the machine that is gone fails.
    let run = copy(&["box2/cpu:0", "--verify"]);
    assert_eq!(run.code(), 0, "{}", run.stderr());
    let run = copy(&["box3/cpu:0"]);
    assert_eq!(run.code(), 3);
    assert!(run.stderr().contains("box3"), "{}", run.stderr());
    let listed = folder.run(&devices);
    assert_eq!(listed.code(), 0);
    let gone = |line: &&str| line.starts_with("box3") && line.contains("refused");
    assert!(
        listed.stdout().lines().any(|line| gone(&line)),
        "{}",
        listed.stdout()
    );
}

#[test]
fn a_key_is_made_once_and_its_public_part_told_again() {
    let folder = Folder::new("key");
    let made = folder.run(&["key", "key"]).stdout();
    let private = fs::read(folder.path("key")).unwrap();
    let told = folder.json(&["key", "key"]);
    assert_eq!(told["public_key"], made.trim());
    assert_eq!(fs::read(folder.path("key")).unwrap(), private);
    folder.file("other", 100);
    support::refused(&folder, &["key", "other"], 2, &["other"]);
}

#[test]
fn a_server_ends_at_the_first_signal() {
    let folder = Folder::new("serve-signal");
    let mut served = Served::start(&folder, "box2");
    kill_process(Pid::from_child(&served.process), Signal::TERM).unwrap();
    assert_eq!(served.process.wait().unwrap().code(), Some(143));
    let mut rest = String::new();
    served.said.read_line(&mut rest).unwrap();
    assert_eq!(rest, "");

    let key = folder.run(&["key", "key"]).stdout();
    let mut command = folder.command(&["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.args(["--key", "box2.key", "--allow", key.trim()]);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    while line != "}\n" {
        line.clear();
        said.read_line(&mut line).unwrap();
    }
    kill_process(Pid::from_child(&process), Signal::INT).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(130));
    let told: serde_json::Value = serde_json::from_reader(said).unwrap();
    assert_eq!(told["error"]["exit_code"], 130);
}

#[test]
fn machines_that_cannot_be_meant_are_refused() {
    let folder = Folder::new("no-nodes");
    let key = folder.run(&["key", "key"]).stdout();
    let [one, port, twin] = ["box2=127.0.0.1:1", "box2=127.0.0.1", "box2=127.0.0.1:2"]
        .map(|node| format!("{node},{}", key.trim()));
    let all: [(&[&str], &[&str]); 6] = [
        (&["devices", "--node", &port, "--key", "key"], &["no port"]),
        (&["devices", "--node", &one], &["--key"]),
        (
            &["devices", "--node", &one, "--node", &twin, "--key", "key"],
            &["two machines", "box2"],
        ),
        (&["devices", "--nodes", "absent.toml"], &["absent.toml"]),
        (&["serve", "--key", "key"], &["--allow"]),
        (&["serve", "--allow", key.trim()], &["--key"]),
    ];
    for (arguments, words) in all {
        support::refused(&folder, arguments, 2, words);
    }
}
