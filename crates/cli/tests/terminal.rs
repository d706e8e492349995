//! The program's output on a terminal.
#![cfg(target_os = "linux")]

mod support;

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use support::{Folder, topology};

/// Which of the program's outputs are a terminal.
#[derive(Clone, Copy)]
enum Watched {
    Stdout,
    Stderr,
}

/// Runs on a terminal of that width, and returns the output.
fn show(
    folder: &Folder,
    watched: Watched,
    columns: u16,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap();
    let terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path.to_str().unwrap())
        .unwrap();
    let size = Winsize {
        ws_row: 40,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&terminal, size).unwrap();
    let mut command = folder.command(arguments);
    command.envs(variables.iter().copied());
    match watched {
        Watched::Stdout => command.stdout(terminal).stderr(Stdio::null()),
        Watched::Stderr => command.stderr(terminal).stdout(Stdio::null()),
    };
    let mut child = command.spawn().unwrap();
    // From here on only the child has its end of the terminal, so reading ends with the child.
    drop(command);
    let mut shown = Vec::new();
    let mut master = File::from(master);
    let mut block = [0; 4096];
    // The last reader of a terminal gets an error at its end.
    while let Ok(count @ 1..) = master.read(&mut block) {
        shown.extend_from_slice(&block[..count]);
    }
    child.wait().unwrap();
    String::from_utf8(shown).unwrap()
}

const BOLD: &str = "\u{1b}[1m";

#[test]
fn tables_are_dressed_on_a_terminal_and_plain_where_no_color_is_set() {
    let folder = Folder::new("colors");
    folder.file("model", 1000);
    let copy = ["copy", "model", "cpu:0", "--verify"];
    let explain = ["explain", "cpu:0", "cpu:0/shared", "1MiB"];
    for arguments in [&["devices"][..], &copy, &explain] {
        let with =
            |variables: &[(&str, &str)]| show(&folder, Watched::Stdout, 100, variables, arguments);
        assert!(with(&[]).contains(BOLD), "{arguments:?}");
        // An empty variable counts as unset: https://no-color.org.
        assert!(with(&[("NO_COLOR", "")]).contains(BOLD), "{arguments:?}");
        for variables in [[("NO_COLOR", "1")], [("TERM", "dumb")]] {
            let plain = with(&variables);
            assert!(!plain.contains('\u{1b}') && !plain.is_empty(), "{plain:?}");
        }
    }
}

#[test]
fn errors_are_dressed_on_a_terminal_and_plain_where_no_color_is_set() {
    let folder = Folder::new("errors");
    for arguments in [&["copy", "nowhere", "cpu:0"][..], &["fly"]] {
        let with =
            |variables: &[(&str, &str)]| show(&folder, Watched::Stderr, 100, variables, arguments);
        assert!(with(&[]).contains('\u{1b}'), "{arguments:?}");
        let plain = with(&[("NO_COLOR", "1")]);
        assert!(
            plain.starts_with("error: ") && !plain.contains('\u{1b}'),
            "{plain:?}"
        );
    }
}

#[test]
fn tables_keep_within_the_terminal() {
    let folder = Folder::new("narrow");
    let machine = topology("eight-gpu.toml");
    let explain = ["explain", "sim:0", "sim:1", "64MiB", "--topology", &machine];
    let devices = ["devices", "--topology", &machine];
    for columns in [80, 120] {
        for arguments in [&explain[..], &devices] {
            let plain = [("NO_COLOR", "1")];
            let shown = show(&folder, Watched::Stdout, columns, &plain, arguments);
            for line in shown.lines() {
                assert!(line.chars().count() <= usize::from(columns), "{line:?}");
            }
        }
    }
}

#[test]
fn what_is_over_at_once_shows_no_progress() {
    let folder = Folder::new("quick");
    folder.file("model", 100_000);
    let copy = ["copy", "model", "cpu:0", "cpu:0/shared"];
    assert_eq!(show(&folder, Watched::Stderr, 100, &[], &copy), "");
}

#[test]
fn json_is_never_dressed() {
    let folder = Folder::new("json");
    for arguments in [
        &["devices", "--json"][..],
        &["copy", "nowhere", "cpu:0", "--json"],
    ] {
        let shown = show(&folder, Watched::Stdout, 100, &[], arguments);
        assert!(
            shown.starts_with('{') && !shown.contains('\u{1b}'),
            "{shown:?}"
        );
    }
}
