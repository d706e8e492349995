//! Other machines, which are other processes here.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

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
        Served::start_as(folder, name, |command| command)
    }

    fn start_as(folder: &Folder, name: &str, change: impl FnOnce(Command) -> Command) -> Served {
        let allowed = folder.run(&["key", "key"]).stdout();
        let file = format!("{name}.key");
        let key = folder.run(&["key", &file]).stdout();
        let mut command = folder.command(&["serve", "--listen", "127.0.0.1:0", "--key", &file]);
        command.args(["--allow", allowed.trim(), "--limit", "64MiB"]);
        let mut process = change(command).stdout(Stdio::piped()).spawn().unwrap();
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
fn a_profile_that_was_measured_without_another_machine_is_used_beside_it() {
    let folder = Folder::new("nodes-profile");
    let served = Served::start(&folder, "box2");
    let probe = ["probe", "--seconds", "1", "--profile", "profile.toml"];
    assert_eq!(folder.run(&probe).code(), 0);
    let explain = [
        "explain",
        "cpu:0",
        "box2/cpu:0",
        "1MiB",
        "--profile",
        "profile.toml",
    ];
    let reach = ["--key", "key", "--node", &served.node];
    let run = folder.run(&[&explain[..], &reach].concat());
    assert_eq!((run.code(), run.stderr()), (0, String::new()));
    // And one that was measured beside another machine is used without it.
    let text = fs::read_to_string(folder.path("profile.toml")).unwrap();
    let other = "[[machine.device]]\nid = \"box3/cpu:0\"\nbackend = \"box3\"\nname = \"CPU\"\n\n[[machine.device]]";
    let text = text.replacen("[[machine.device]]", other, 1);
    fs::write(folder.path("profile.toml"), text).unwrap();
    let run = folder.run(&[&explain[..], &reach].concat());
    assert_eq!((run.code(), run.stderr()), (0, String::new()));
}

/// A network of its own, with the loopback device alone; removed when dropped.
struct Network(String);

impl Network {
    fn make() -> Result<Network, String> {
        let name = format!("tlcli{}", std::process::id());
        let network = Network(name.clone());
        system(&format!("ip netns add {name}"))?;
        system(&format!("ip -n {name} link set lo up"))?;
        network.run("nft list tables")?;
        Ok(network)
    }

    fn run(&self, line: &str) -> Result<(), String> {
        system(&format!("ip netns exec {} {line}", self.0))
    }

    /// Has the program run in it, on a network that is trusted.
    fn trusting(&self, inner: Command) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]);
        command.arg(inner.get_program()).args(inner.get_args());
        command.arg("--trusted-network").env("UCX_TLS", "tcp");
        if let Some(folder) = inner.get_current_dir() {
            command.current_dir(folder);
        }
        command.envs(
            inner
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        command
    }

    /// Drops all that goes to other ports than the one.
    fn drop_all_but(&self, port: &str) {
        self.run("nft add table inet hole").unwrap();
        self.run(
            "nft add chain inet hole in { type filter hook input priority 0 ; policy drop ; }",
        )
        .unwrap();
        for end in ["dport", "sport"] {
            self.run(&format!(
                "nft add rule inet hole in tcp {end} {port} accept"
            ))
            .unwrap();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = system(&format!("ip netns del {}", self.0));
    }
}

fn system(line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => Err(format!("{line}: {error}")),
    }
}

#[test]
fn what_ucx_loses_goes_on_over_tls() {
    let network = match Network::make() {
        Ok(network) => network,
        Err(reason) => return support::skip(&format!("no network of its own: {reason}")),
    };
    let folder = Folder::new("nodes-ucx");
    let bytes = folder.file("file", 20_000_003);
    let served = Served::start_as(&folder, "box2", |command| network.trusting(command));
    let run = |words: &[&str]| {
        let reach = ["--key", "key", "--node", &served.node, "--json"];
        let command = folder.command(&[words, &reach].concat());
        let run = support::Run(network.trusting(command).output().unwrap());
        assert_eq!(run.code(), 0, "{}", run.stdout());
        run.json()
    };
    let explained = run(&["explain", "cpu:0", "box2/cpu:0", "16MiB"]).to_string();
    if explained.contains("no UCX") {
        return support::skip("UCX is not installed");
    }
    assert!(explained.contains("box2: UCX carries large copies, unencrypted"));
    let copy = || {
        let told = run(&[
            "copy",
            "file",
            "box2/cpu:0",
            "cpu:0",
            "--verify",
            "--out",
            "back",
        ]);
        assert!(fs::read(folder.path("back")).unwrap() == bytes);
        fs::remove_file(folder.path("back")).unwrap();
        told["hops"].to_string()
    };
    let told = copy();
    assert!(
        told.contains("PeerToPeer") && !told.contains("UCX"),
        "{told}"
    );
    let (address, _) = served.node.split_once(',').unwrap();
    network.drop_all_but(address.rsplit_once(':').unwrap().1);
    let told = copy();
    assert!(told.contains("UCX"), "{told}");
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
fn a_key_may_begin_with_a_hyphen() {
    let folder = Folder::new("hyphen");
    folder.run(&["key", "key"]);
    let mut allowed = [
        "serve",
        "--key",
        "absent",
        "--allow",
        "-0zlWUcZV9ULs9Pk0iStmO6hgk0GUpbEsUTHDp8rwPE",
    ];
    support::refused(&folder, &allowed, 2, &["absent"]);
    allowed[4] = "-0";
    support::refused(&folder, &allowed, 2, &["-0"]);
}

#[test]
fn machines_that_cannot_be_meant_are_refused() {
    let folder = Folder::new("no-nodes");
    let key = folder.run(&["key", "key"]).stdout();
    let [one, port, twin] = ["box2=127.0.0.1:1", "box2=127.0.0.1", "box2=127.0.0.1:2"]
        .map(|node| format!("{node},{}", key.trim()));
    let far = format!("box2=127.0.0.1:99999,{}", key.trim());
    folder.file("model", 10);
    let kind = format!("cpu=127.0.0.1:1,{}", key.trim());
    let machine = support::topology("workstation.toml");
    let mut described = vec!["explain", "sim:0", "cpu:0", "1MiB", "--topology", &machine];
    described.extend(["--node", &one, "--key", "key"]);
    let garbled = "[node.box2]\naddress = 7\n";
    std::fs::write(folder.path("garbled.toml"), garbled).unwrap();
    let all: [(&[&str], &[&str]); 12] = [
        (
            &["devices", "--node", &kind, "--key", "key"],
            &["kind of device"],
        ),
        (&described, &["--topology", "--node"]),
        (&["devices", "--node", &port, "--key", "key"], &["no port"]),
        (&["devices", "--node", &far, "--key", "key"], &["\"99999\""]),
        (
            &["copy", "model", "a-name-of-20-letters/cpu:0"],
            &["a-name-of-20-letters", "15 characters"],
        ),
        (
            &[
                "serve",
                "--key",
                "key",
                "--allow",
                key.trim(),
                "--limit",
                "0",
            ],
            &["--limit 0"],
        ),
        (&["devices", "--node", &one], &["--key"]),
        (
            &["devices", "--node", &one, "--node", &twin, "--key", "key"],
            &["two machines", "box2"],
        ),
        (&["devices", "--nodes", "absent.toml"], &["absent.toml"]),
        (
            &["devices", "--nodes", "garbled.toml"],
            &[
                "garbled.toml",
                "line 2: invalid type",
                "`node.box2.address`",
            ],
        ),
        (&["serve", "--key", "key"], &["--allow"]),
        (&["serve", "--allow", key.trim()], &["--key"]),
    ];
    for (arguments, words) in all {
        support::refused(&folder, arguments, 2, words);
    }
    let elsewhere = [
        "copy",
        "model",
        "box3/cpu:0",
        "--node",
        &one,
        "--key",
        "key",
    ];
    let words = ["no machine box3", "there are: box2", "--node box3="];
    support::refused(&folder, &elsewhere, 3, &words);
}
