//! Input that the program refuses, the names in its messages, and its exit codes.

mod support;

use std::fs;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::{
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use support::{Folder, refused, topology};

#[test]
fn malformed_devices_and_sizes_are_usage_errors() {
    let folder = Folder::new("malformed");
    folder.file("model", 100);
    for stop in [
        "cpu:x",
        "CPU:0",
        "cpu:0/floppy",
        "cpu:0/file",
        "sim:0/file:x",
    ] {
        refused(&folder, &["copy", "model", stop], 2, &[stop]);
        refused(
            &folder,
            &["explain", "cpu:0", &stop.replace("file", "-"), "1"],
            2,
            &[],
        );
    }
    for size in ["", "KiB", "1e3", "3 parsecs", "16777216TiB"] {
        refused(
            &folder,
            &["explain", "cpu:0", "cpu:0", size],
            2,
            &[size, "size"],
        );
    }
    refused(
        &folder,
        &["explain", "cpu:0", "cpu:0", "--", "-1"],
        2,
        &["-1"],
    );
}

#[test]
fn explain_says_that_it_takes_no_path() {
    let folder = Folder::new("no-path");
    let explain = ["explain", "cpu:0/file:a.bin", "cpu:0", "1MiB"];
    refused(&folder, &explain, 2, &["takes no path", "cpu:0/file"]);
}

#[test]
fn commands_and_arguments_that_are_missing_or_unknown_are_usage_errors() {
    let folder = Folder::new("usage");
    for arguments in [
        &["fly"][..],
        &["copy"],
        &["copy", "model"],
        &["explain", "cpu:0", "cpu:0"],
        &["devices", "--fast"],
        &["completions", "sh2"],
    ] {
        refused(&folder, arguments, 2, &[]);
    }
    assert_eq!(folder.run(&[]).code(), 2);
    assert_eq!(folder.run(&["--help"]).code(), 0);
    assert_eq!(folder.run(&["copy", "--help"]).code(), 0);
    assert_eq!(folder.run(&["--version"]).code(), 0);
}

#[test]
fn devices_and_memories_that_are_not_here_are_missing() {
    let folder = Folder::new("absent");
    folder.file("model", 100);
    for (place, word) in [
        ("cuda:3", "cuda:3"),
        ("wgpu:99", "wgpu:99"),
        ("metal:9", "metal:9"),
        ("cpu:7", "cpu:7"),
        ("cpu:0/pinned", "cpu:0/pinned"),
        ("01020304-0506-0708-090a-0b0c0d0e0f10", "01020304"),
        ("sim:0", "--topology"),
    ] {
        refused(
            &folder,
            &["copy", "model", "cpu:0", place],
            3,
            &[word, "cpu:0"],
        );
        refused(&folder, &["explain", "cpu:0", place, "1MiB"], 3, &[word]);
    }
    let machine = topology("workstation.toml");
    let copy = ["copy", "model", "sim:9", "--topology", &machine];
    refused(&folder, &copy, 3, &["sim:9", "sim:0, sim:1"]);
    // A simulated machine has only the devices of its description, whatever this machine has.
    let copy = [
        "explain",
        "sim:0",
        "metal:0",
        "1MiB",
        "--topology",
        &machine,
    ];
    refused(&folder, &copy, 3, &["metal:0", "sim:0, sim:1"]);
    #[cfg(not(target_vendor = "apple"))]
    refused(
        &folder,
        &["copy", "model", "metal:0"],
        3,
        &["only Apple's systems have Metal"],
    );
    // The program finds that the last stop is absent before it moves anything.
    let copy = ["copy", "model", "cpu:0/file:back", "cuda:0"];
    refused(&folder, &copy, 3, &["cuda:0"]);
    assert_eq!(folder.names(), ["model"]);
}

#[test]
fn a_way_that_is_not_there_is_missing() {
    let folder = Folder::new("no-way");
    let text = r#"
        schema = 1
        name = "islands"
        [[device]]
        id = "sim:0"
        name = "one"
        memory = [{ kind = "device", memory_bytes = 1_000_000 }]
        [[device]]
        id = "sim:1"
        name = "other"
        memory = [{ kind = "device", memory_bytes = 1_000_000 }]
    "#;
    fs::write(folder.path("islands.toml"), text).unwrap();
    let explain = [
        "explain",
        "sim:0",
        "sim:1",
        "1",
        "--topology",
        "islands.toml",
    ];
    refused(&folder, &explain, 3, &["sim:0/device", "sim:1/device"]);
    folder.file("model", 100);
    let copy = ["copy", "model", "sim:0", "--topology", "islands.toml"];
    refused(&folder, &copy, 3, &["cpu:0/file", "sim:0/device"]);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = Folder::new("unreadable");
    refused(&folder, &["copy", "nowhere", "cpu:0"], 2, &["nowhere"]);
    fs::create_dir(folder.path("folder")).unwrap();
    refused(&folder, &["copy", "folder", "cpu:0"], 2, &["folder"]);
    folder.file("model", 1);
    refused(
        &folder,
        &["copy", "model/part", "cpu:0"],
        2,
        &["model/part"],
    );
}

#[cfg(unix)]
#[test]
fn files_that_the_system_does_not_open_are_named() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = Folder::new("refused");
    symlink("loop", folder.path("loop")).unwrap();
    refused(&folder, &["copy", "loop", "cpu:0"], 2, &["loop"]);
    folder.file("secret", 100);
    fs::set_permissions(folder.path("secret"), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(folder.path("secret")).is_ok() {
        // The administrator may read any file; the link above has shown the same.
        return;
    }
    refused(&folder, &["copy", "secret", "cpu:0"], 2, &["secret"]);
}

/// Each text whole, but for what the system says.
#[cfg(target_os = "linux")]
#[test]
fn the_user_is_told_what_to_do_in_place_of_what_was_refused() {
    let folder = Folder::new("advice");
    folder.file("model", 100);
    fs::create_dir(folder.path("folder")).unwrap();
    let missing = "No such file or directory (os error 2)";
    for (arguments, code, text) in [
        (
            &["copy", "folder", "cpu:0"][..],
            2,
            "folder: it is a directory, not a regular file; name a file in it",
        ),
        (
            &["copy", "/dev/null", "cpu:0"],
            2,
            "/dev/null: it is a device, not a regular file; write bytes of it to a regular file first, as in \
             head -c BYTES /dev/null > FILE, and take that",
        ),
        (
            &["copy", "/proc/cpuinfo", "cpu:0"],
            2,
            "/proc/cpuinfo: the system generates its bytes, and reports a length of 0; write them to a regular file \
             first, as in cat /proc/cpuinfo > FILE, and take that",
        ),
        (
            &["inspect", "-"],
            2,
            &format!(
                "-: {missing}; only copy reads standard input: write it to a regular file first, as in cat > FILE, and \
                 take that"
            ),
        ),
        (
            &["copy", "model", "cpu:0", "--out", "/dev/null"],
            2,
            "cannot replace /dev/null: it is a device, not a regular file; name another file",
        ),
        (
            &["probe", "--quick", "--profile", "folder"],
            2,
            "cannot replace folder: it is a directory, not a regular file; name a file in it, as in folder/FILE",
        ),
        (
            &["copy", "model", "cpu:0", "--profile", "nowhere.toml"],
            2,
            &format!("cannot read the profile in nowhere.toml: {missing}"),
        ),
        (
            &["devices", "--topology", "nowhere.toml"],
            2,
            &format!("cannot read the topology in nowhere.toml: {missing}"),
        ),
        (
            &["copy", "model", "cpu:7"],
            3,
            "there is no device cpu:7 here; there are: cpu:0",
        ),
        (
            &["copy", "model", "cpu:0/managed"],
            3,
            "there is no memory cpu:0/managed here; cpu:0 has: pageable, shared, file",
        ),
    ] {
        refused(&folder, arguments, code, &[text]);
    }
    let driver = folder.path("driver");
    for (place, begin) in [
        (
            "cuda:0",
            "error: there is no device cuda:0 here; there are: cpu:0",
        ),
        (
            "cpu:0/pinned",
            "error: there is no memory cpu:0/pinned here; cpu:0 has: pageable, shared, file, disk; CUDA devices bring pinned \
             memory: no CUDA driver: ",
        ),
    ] {
        let mut command = folder.command(&["copy", "model", place]);
        let run = support::Run(
            command
                .env("TRANSLOAD_CUDA_DRIVER", &driver)
                .output()
                .unwrap(),
        );
        let said = run.stderr();
        assert_eq!(run.code(), 3, "{said}");
        assert!(said.starts_with(begin), "{said}");
        let named = format!("no CUDA driver: {}", driver.display());
        assert!(said.contains(&named), "{said}");
    }
}

#[test]
fn files_that_cannot_be_written_are_named_and_nothing_is_left() {
    let folder = Folder::new("unwritable");
    folder.file("model", 5000);
    fs::create_dir(folder.path("folder")).unwrap();
    for path in ["folder", "no/such/folder/back"] {
        refused(
            &folder,
            &["copy", "model", "cpu:0", "--out", path],
            2,
            &[path],
        );
        let stop = format!("cpu:0/file:{path}");
        refused(&folder, &["copy", "model", &stop], 2, &[path]);
    }
    if Path::new("/dev/null").exists() {
        refused(
            &folder,
            &["copy", "model", "cpu:0", "--out", "/dev/null"],
            2,
            &["/dev/null"],
        );
    }
    assert_eq!(folder.names(), ["folder", "model"]);
}

#[test]
fn destinations_are_looked_at_before_the_first_hop() {
    let folder = Folder::new("destinations");
    folder.file("model", 5000);
    fs::create_dir(folder.path("folder")).unwrap();
    for (path, text) in [
        (
            "nodir/b",
            "cannot create nodir/b: the directory nodir does not exist; create it first",
        ),
        (
            "folder",
            "cannot replace folder: it is a directory, not a regular file; name a file in it, as in folder/FILE",
        ),
        (
            "back/",
            "cannot create back/: it names a directory, which does not exist; create the directory, and name a file in \
             it, as in back/FILE",
        ),
        ("model/part", "cannot create model/part: "),
    ] {
        // If the program found out later, the first hop would have left its file.
        let copy = ["copy", "model", "cpu:0/file:first", "cpu:0", "--out", path];
        refused(&folder, &copy, 2, &[text]);
        let stop = format!("cpu:0/file:{path}");
        let copy = ["copy", "model", "cpu:0/file:first", &stop, "cpu:0"];
        refused(&folder, &copy, 2, &[text]);
        assert_eq!(folder.names(), ["folder", "model"], "{path}");
    }
}

#[cfg(unix)]
#[test]
fn a_folder_in_which_nothing_can_be_created_is_named() {
    let folder = Folder::new("locked");
    folder.file("model", 100);
    // Not even the administrator can create files there.
    let path = "/proc/self/back";
    if Path::new("/proc/self").exists() {
        let copy = ["copy", "model", "cpu:0", "--out", path];
        let run = folder.run(&copy);
        let said = run.stderr();
        // The name of the file in the making says nothing to a user.
        assert!(!said.contains(".partial"), "{said}");
        let begin = "cannot create /proc/self/back: the system creates no file in /proc/self: ";
        refused(
            &folder,
            &copy,
            2,
            &[begin, "; name a file in another directory"],
        );
    }
}

#[test]
fn a_trace_does_not_go_to_standard_output_and_a_file_may_be_named_so() {
    let folder = Folder::new("dash");
    folder.file("model", 100);
    let copy = ["copy", "model", "cpu:0", "--trace", "-"];
    let told =
        "--trace - does not write to standard output; name a file; a file named - is --trace ./-";
    refused(&folder, &copy, 2, &[told]);
    folder.json(&["copy", "model", "cpu:0", "--out", "./-"]);
    assert_eq!(folder.names(), ["-", "model"]);
    folder.json(&["copy", "./-", "cpu:0/file:-"]);
}

#[test]
fn standard_output_is_the_last_stop_alone() {
    let folder = Folder::new("dashes");
    folder.file("model", 100);
    for copy in [
        &["copy", "model", "-", "cpu:0"][..],
        &["copy", "model", "cpu:0", "+", "-"],
        &["copy", "model", "-", "--out", "back"],
        &["copy", "model", "-", "--out", "-"],
    ] {
        // All that is said goes to standard error, and the object too.
        for arguments in [copy, &[copy, &["--json"]].concat()] {
            let run = folder.run(arguments);
            assert_eq!((run.code(), run.stdout()), (2, String::new()));
            let told = "- is standard output, which is one last stop alone";
            assert!(run.stderr().contains(told), "{}", run.stderr());
        }
    }
    assert_eq!(folder.names(), ["model"]);
}

#[test]
fn a_command_refuses_the_options_that_it_does_not_use() {
    let folder = Folder::new("options");
    folder.model("model", 10);
    for command in [
        &["inspect", "model"][..],
        &["key", "key"],
        &["completions", "bash"],
    ] {
        for option in [
            &["--profile", "profile"][..],
            &["--key", "key"],
            &["--nodes", "nodes"],
            &["--trusted-network"],
            &["--checksums"],
        ] {
            refused(&folder, &[command, option].concat(), 2, &[option[0]]);
        }
        let help = folder.run(&["help", command[0]]).stdout();
        assert!(
            !help.contains("--profile") && !help.contains("--node"),
            "{help}"
        );
        assert_eq!(help, folder.run(&[command[0], "--help"]).stdout());
    }
    let help = folder.run(&["help", "copy"]).stdout();
    assert!(
        help.contains("--profile") && help.contains("--node "),
        "{help}"
    );
    assert_eq!(folder.names(), ["model"]);
}

#[test]
fn topologies_that_describe_no_machine_are_named_with_what_is_wrong() {
    let folder = Folder::new("topologies");
    folder.file("model", 100);
    let good = r#"
        schema = 1
        name = "one"
        [[device]]
        id = "sim:0"
        name = "device"
        memory = [{ kind = "device", memory_bytes = 1_000_000 }]
    "#;
    let link = |figures: &str| {
        format!(
            "{good}\n[[link]]\nsrc = \"sim:0/device\"\ndst = \"sim:0/device\"\n\
             engine = \"sim:0#0\"\nclass = \"local\"\n{figures}"
        )
    };
    let cases = [
        (
            "field",
            good.replace("name = \"one\"", "name = \"one\"\nwings = 2"),
            "wings",
        ),
        ("version", good.replace("schema = 1", "schema = 7"), "7"),
        ("device", good.replace("sim:0", "sim:x"), "sim:x"),
        ("size", good.replace("1_000_000", "-1"), "memory_bytes"),
        (
            "kind",
            good.replace("\"device\"\n", "7\n"),
            "line 6: invalid type: integer `7`, expected a string in `device.name`",
        ),
        ("rate", link("bytes_per_second = 0"), "bytes_per_second"),
        ("time", link("latency_ns = -5"), "latency_ns"),
        (
            "end",
            link("").replace("dst = \"sim:0/device\"", "dst = \"sim:4/device\""),
            "sim:4",
        ),
        ("real", good.replace("sim:0", "cuda:0"), "cuda:0"),
        ("text", "no toml at all".to_owned(), "line"),
    ];
    for (name, text, word) in cases {
        let file = format!("{name}.toml");
        fs::write(folder.path(&file), text).unwrap();
        let words = [file.as_str(), word];
        refused(&folder, &["devices", "--topology", &file], 2, &words);
        refused(
            &folder,
            &["copy", "model", "cpu:0", "--topology", &file],
            2,
            &words,
        );
        let explain = ["explain", "sim:0", "sim:0", "1", "--topology", &file];
        refused(&folder, &explain, 2, &words);
    }
    let explain = [
        "explain",
        "sim:0",
        "sim:0",
        "1",
        "--topology",
        "nowhere.toml",
    ];
    refused(&folder, &explain, 2, &["nowhere.toml"]);
}

#[test]
fn a_memory_without_room_is_a_device_failure_that_names_size_and_memory() {
    let folder = Folder::new("full");
    folder.file("model", 2_000_000);
    let text = r#"
        schema = 1
        name = "small"
        [[device]]
        id = "cpu:0"
        name = "host"
        memory = [{ kind = "pageable", memory_bytes = 1_000_000_000 }]
        [[device]]
        id = "sim:0"
        name = "device"
        memory = [{ kind = "device", memory_bytes = 1_000_000 }]
        [[link]]
        src = "cpu:0/pageable"
        dst = "sim:0/device"
        engine = "sim:0#0"
        class = "pcie"
    "#;
    fs::write(folder.path("small.toml"), text).unwrap();
    let copy = [
        "copy",
        "model",
        "cpu:0",
        "sim:0",
        "--topology",
        "small.toml",
    ];
    refused(&folder, &copy, 5, &["sim:0/device", "2000000", "1000000"]);
}

/// Opening a pipe that no process writes blocks, and a blocked program does not react to signals.
#[cfg(target_os = "linux")]
#[test]
fn a_pipe_is_refused_wherever_a_file_is_named() {
    let folder = Folder::new("pipes");
    folder.file("model", 100);
    let made = Command::new("mkfifo").arg(folder.path("pipe")).status();
    assert!(made.unwrap().success());
    let ended = |command: &mut Command| {
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.unwrap();
        let process = rustix::process::Pid::from_child(&child);
        let (give, take) = mpsc::channel();
        let waiter = thread::spawn(move || give.send(child.wait_with_output().unwrap()));
        let run = take.recv_timeout(Duration::from_secs(600));
        if run.is_err() {
            rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
            let _ = waiter.join();
        }
        support::Run(run.expect("it waits for the pipe"))
    };
    let not_regular = "it is a pipe, not a regular file";
    for arguments in [
        &["copy", "pipe", "cpu:0"][..],
        &["copy", "model", "cpu:0/file:pipe"],
        &["copy", "model", "cpu:0", "--out", "pipe"],
        &["copy", "model", "cpu:0", "--topology", "pipe"],
        &["devices", "--topology", "pipe"],
        &["explain", "cpu:0", "cpu:0", "1", "--profile", "pipe"],
        &["probe", "--quick", "--profile", "pipe"],
        &["inspect", "pipe"],
        &["load", "pipe"],
    ] {
        let run = ended(&mut folder.command(arguments));
        let said = run.stderr();
        assert_eq!(run.code(), 2, "{arguments:?}: {said}");
        assert!(
            said.contains("pipe") && said.contains(not_regular),
            "{said}"
        );
    }
    let run = ended(
        folder
            .command(&["devices"])
            .env("TRANSLOAD_PROFILE", "pipe"),
    );
    assert_eq!(run.code(), 0, "{}", run.stderr());
    let driver = folder.path("pipe");
    let run = ended(
        folder
            .command(&["devices", "--json"])
            .env("TRANSLOAD_CUDA_DRIVER", driver),
    );
    assert!(
        run.stdout().contains("is not a regular file"),
        "{}",
        run.stdout()
    );
    assert_eq!(folder.names(), ["model", "pipe"]);
}
