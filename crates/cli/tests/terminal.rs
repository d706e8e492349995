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
    Both,
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
        Watched::Both => command
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal),
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

/// No line is longer than the terminal, and no word is lost.
#[test]
fn help_fits_a_terminal_of_40_columns() {
    let folder = Folder::new("help");
    let commands = [
        "devices",
        "copy",
        "explain",
        "probe",
        "load",
        "inspect",
        "key",
        "serve",
        "completions",
        "help",
    ];
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for arguments in
        std::iter::once(vec!["--help"]).chain(commands.map(|command| vec!["help", command]))
    {
        let plain = [("NO_COLOR", "1")];
        let narrow = show(&folder, Watched::Stdout, 40, &plain, &arguments);
        for line in narrow.lines() {
            assert!(line.chars().count() <= 40, "{line:?} of {arguments:?}");
        }
        assert_eq!(words(&narrow), words(&folder.run(&arguments).stdout()));
        let dressed = show(&folder, Watched::Stdout, 40, &[], &arguments);
        assert!(dressed.contains('\u{1b}'), "{dressed:?}");
    }
    // Without a command it is an error, on whichever of the two is a terminal.
    let wide = folder.run(&[]).stderr();
    assert!(wide.lines().any(|line| line.chars().count() > 40), "{wide}");
    for watched in [Watched::Both, Watched::Stderr] {
        let narrow = show(&folder, watched, 40, &[], &[]);
        for line in narrow.lines() {
            assert!(line.chars().count() <= 40, "{line:?}");
        }
        assert_eq!(words(&narrow), words(&wide));
    }
}

/// Names that give orders to a terminal: they clear it, set its title, go on in a line of their own, and turn the line.
const HOSTILE: &str = "a\u{1b}[2J\u{1b}]0;b\u{7}\u{9b}31mc\nerror: d\r\u{202e}e";

#[test]
fn no_name_gives_orders_to_a_terminal() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new("hostile");
    folder.file(HOSTILE, 3000);
    let stop = format!("cpu:0/file:{HOSTILE}2");
    let elsewhere = format!("no{HOSTILE}/folder");
    let model = format!("{HOSTILE}.safetensors");
    let name = serde_json::to_string(HOSTILE).unwrap();
    let header = format!(
        r#"{{"__metadata__":{{{name}:{name}}},{name}:{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}}"#
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend([1, 2, 3, 4]);
    std::fs::write(folder.path(&model), file).unwrap();
    let topology = format!("{HOSTILE}.toml");
    std::fs::write(folder.path(&topology), "schema = 1").unwrap();
    let profile = format!("{HOSTILE}.profile");
    std::fs::write(folder.path(&profile), "format = 99").unwrap();
    let page = format!("{HOSTILE}.html");
    std::fs::write(folder.path("tiny.toml"), support::TINY).unwrap();
    for arguments in [
        &["copy", HOSTILE, &stop, "--verify"][..],
        &["copy", HOSTILE, "cpu:0", "--out", &elsewhere],
        &["copy", HOSTILE, "cpu:0", "+", HOSTILE],
        &["copy", &elsewhere, "cpu:0"],
        &["copy", HOSTILE, "cpu:0", "--topology", &topology],
        &["copy", HOSTILE, "cpu:0", "--profile", &profile],
        &["inspect", &model],
        &["inspect", HOSTILE],
        &["load", &model, "--save", &stop[11..]],
        &["load", &model, "--only", HOSTILE, "--plan"],
        &["load", &model, "--only", &elsewhere],
        &["load", &model, "--to", HOSTILE],
        &["explain", "cpu:0", "cpu:0/shared", HOSTILE],
        &[
            "probe",
            "--quick",
            "--topology",
            "tiny.toml",
            "--profile",
            &stop[11..],
            "--html",
            &page,
        ],
        &["devices", HOSTILE],
        &[HOSTILE],
        &["copy", HOSTILE, "cpu:0", HOSTILE],
        &["copy", HOSTILE, "cpu:0", "--node", HOSTILE],
        &["key", &elsewhere],
        &[
            "serve", "--listen", HOSTILE, "--allow", "0", "--key", HOSTILE,
        ],
    ] {
        // The bar of a probe moves the cursor.
        let watched = match arguments[0] {
            "probe" => Watched::Stdout,
            _ => Watched::Both,
        };
        let shown = show(&folder, watched, 100, &[], arguments);
        let mut rest = &*shown.replace("\r\n", "\n");
        // The program's own orders are colours alone.
        while let Some((before, after)) = rest.split_once('\u{1b}') {
            assert!(is_harmless(before), "{arguments:?}: {shown:?}");
            let own = ["[0m", "[1m", "[2m", "[32m", "[33m", "[1;31m"];
            let own = own.iter().find_map(|own| after.strip_prefix(own));
            rest = own.unwrap_or_else(|| panic!("{arguments:?}: {shown:?}"));
        }
        assert!(is_harmless(rest), "{arguments:?}: {shown:?}");
    }
    // A name of the system that is no text is a name all the same.
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff\x1b");
    std::fs::write(folder.0.join(odd), [1, 2, 3]).unwrap();
    let mut command = folder.command(&["inspect"]);
    let run = support::Run(command.arg(odd).output().unwrap());
    assert!(
        run.stderr().contains("odd\u{fffd}\\u{1b}"),
        "{}",
        run.stderr()
    );
    let page = std::fs::read_to_string(folder.path(&page)).unwrap();
    assert!(
        page.chars()
            .all(|c| c == '\n' || !c.is_control() && c != '\u{202e}')
    );
}

/// Whether a text without escapes gives no order, and none of its lines is a part of a name.
fn is_harmless(text: &str) -> bool {
    let acts = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    !text.contains(acts) && !text.lines().any(|line| line.starts_with("error: d"))
}

#[test]
fn bytes_of_a_file_do_not_go_to_a_terminal() {
    let folder = Folder::new("raw");
    folder.file("model", 100);
    for copy in [
        &["copy", "model", "-"][..],
        &["copy", "model", "cpu:0", "--out", "-"],
    ] {
        assert_eq!(show(&folder, Watched::Stdout, 100, &[], copy), "");
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
