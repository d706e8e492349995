//! `transload probe`, and the use of its saved profile by other commands.

mod support;

use std::fs;

use serde_json::{Value, json};
use support::{Folder, Run, TINY, fields, topology};

/// A machine of few links, and its figures.
const SMALL: &str = r#"
schema = 1
name = "small"
[[device]]
id = "cpu:0"
name = "host"
memory = [{ kind = "pageable", memory_bytes = 8_000_000_000 }]
[[device]]
id = "sim:0"
name = "GPU"
memory = [{ kind = "device", memory_bytes = 8_000_000_000 }]
[[link]]
src = "cpu:0/pageable"
dst = "cpu:0/pageable"
engine = "cpu:0#0"
class = "local"
latency_ns = 100
bytes_per_second = 10_000_000_000
[[link]]
src = "cpu:0/pageable"
dst = "sim:0/device"
engine = "sim:0#0"
class = "pcie"
both = true
latency_ns = 6_000
bytes_per_second = 25_000_000_000
"#;

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    fs::write(folder.path("small.toml"), SMALL).unwrap();
    folder
}

const PROBE: [&str; 4] = ["probe", "--quick", "--topology", "small.toml"];

/// A command with the saved profile at `path`.
fn with_saved(folder: &Folder, path: &str, arguments: &[&str]) -> Run {
    let mut command = folder.command(arguments);
    command.env("TRANSLOAD_PROFILE", folder.path(path));
    Run(command.output().unwrap())
}

/// A link that every host has, faster than any real one.
const LINK: &str = r#"
[[link]]
src = "cpu:0/pageable"
dst = "cpu:0/shared"
engine = "cpu:0#0"
access = "native"
[[link.point]]
bytes = 1_048_576
ns = 12_345
low_ns = 12_000
high_ns = 13_000
samples = 50
"#;

#[test]
fn a_quick_probe_of_this_machine_saves_a_profile_that_other_commands_plan_by() {
    let folder = Folder::new("probe-here");
    let run = with_saved(
        &folder,
        "made/profile.toml",
        &["probe", "--quick", "--json", "--html", "page.html"],
    );
    assert_eq!(run.code(), 0, "{}", run.stdout());
    let value = run.json();
    let page = fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(page.contains("cpu:0/file") && !page.contains("Simulated: "));
    let names = [
        "advice",
        "fresh",
        "notes",
        "pairs",
        "profile_path",
        "schema",
    ];
    assert_eq!(fields(&value), names);
    let fresh = value["fresh"].as_array().unwrap();
    for name in ["cpu:0/pageable", "cpu:0/shared", "cpu:0/file"] {
        let is_it = |fresh: &&Value| fresh["memory"] == name;
        // On a machine with much other load, ten seconds may end before.
        let Some(fresh) = fresh.iter().find(is_it) else {
            continue;
        };
        assert!(fresh["allocation_s"].as_f64().unwrap() > 0.0, "{fresh}");
        assert!(fresh["first_use_s"].as_f64().unwrap() >= 0.0, "{fresh}");
    }
    assert_eq!(page.contains("<h2>New memory</h2>"), !fresh.is_empty());
    let advice = value["advice"].as_array().unwrap();
    assert_eq!(page.contains("<h2>Advice</h2>"), !advice.is_empty());
    for advice in advice {
        assert_eq!(fields(advice), ["about", "found", "remedy"]);
    }
    let path = folder.path("made/profile.toml");
    assert_eq!(value["profile_path"], path.to_str().unwrap());
    assert_eq!(fs::read_dir(folder.path("made")).unwrap().count(), 1);
    let pairs = value["pairs"].as_array().unwrap();
    for pair in pairs {
        let names = [
            "bytes", "dst", "gb_per_s", "method", "seconds", "spread", "src", "verified",
        ];
        assert_eq!(fields(pair), names);
    }
    // Every ordered pair of the host's memories, in every size.
    for src in ["pageable", "shared", "file"] {
        for dst in ["pageable", "shared", "file"] {
            for bytes in [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20] {
                let is_it = |pair: &&Value| {
                    pair["src"] == format!("cpu:0/{src}")
                        && pair["dst"] == format!("cpu:0/{dst}")
                        && pair["bytes"] == bytes
                };
                let pair = pairs.iter().find(is_it).unwrap();
                // On a machine with much other load, ten seconds may end before.
                let reached = pair["verified"] == true;
                assert_eq!(pair["seconds"].as_f64().is_some_and(|s| s > 0.0), reached);
                assert_eq!(pair["gb_per_s"].as_f64().is_some_and(|r| r > 0.0), reached);
                assert_eq!(pair["method"].is_string(), reached, "{pair}");
            }
        }
    }
    assert!(pairs.iter().any(|pair| pair["verified"] == true));

    // Other commands use the measurements of a profile; this one contains one link.
    let text = fs::read_to_string(&path).unwrap();
    // With much other load no link may have been measured to the end.
    let text = text.replace("link = []\n", "");
    let machine = text.split("[[link]]").next().unwrap();
    fs::write(&path, format!("{machine}{LINK}")).unwrap();
    let explain = ["explain", "cpu:0", "cpu:0/shared", "1MiB"];
    let default = folder.json(&explain);
    assert_eq!(default["chosen"]["lanes"][0]["measured"], false);
    let told = folder.run(&explain).stdout();
    assert!(told.contains("predicted from default costs"), "{told}");
    let told = with_saved(&folder, "made/profile.toml", &explain).stdout();
    let path = path.display();
    assert!(
        told.contains("predicted from measured costs")
            && told.contains(&format!("measured costs: {path}")),
        "{told}"
    );
    let by_name = folder.json(&[&explain[..], &["--profile", "made/profile.toml"]].concat());
    assert_eq!(by_name["chosen"]["lanes"][0]["measured"], true);
    assert_eq!(by_name["chosen"]["predicted_s"], 0.000_012_345);

    // The program reports a saved profile of another machine and does not use it; all else works.
    let foreign = machine.replacen("cpus = ", "cpus = 1", 1);
    fs::write(folder.path("made/profile.toml"), foreign).unwrap();
    folder.file("model", 1000);
    for command in [
        &explain[..],
        &["devices"],
        &["copy", "model", "cpu:0/shared"],
    ] {
        let run = with_saved(&folder, "made/profile.toml", command);
        assert_eq!(run.code(), 0);
        let note = run.stderr();
        assert!(
            note.starts_with("note: the profile in ")
                && note.contains("of another machine: processors: 1"),
            "{note}"
        );
        assert!(!run.stdout().contains("predicted from measured costs"));
        let quiet = with_saved(
            &folder,
            "made/profile.toml",
            &[command, &["--json"]].concat(),
        );
        let quiet = quiet.json();
        assert_eq!(quiet["error"], Value::Null);
        // The object has the note, too.
        let told = quiet["notes"][0].as_str().unwrap();
        assert_eq!(note, format!("note: {told}\n"));
        // A profile that the user names must be usable.
        let asked = folder.run(&[command, &["--profile", "made/profile.toml"]].concat());
        assert_eq!(asked.code(), 2);
        assert!(
            asked.stderr().contains("of another machine"),
            "{}",
            asked.stderr()
        );
    }
}

#[test]
fn a_simulated_machine_is_probed_in_the_time_of_its_model_and_says_so() {
    let folder = folder("probe-simulated");
    let value = folder.json(&PROBE);
    let names = [
        "advice",
        "fresh",
        "notes",
        "pairs",
        "profile_path",
        "schema",
        "simulated",
    ];
    assert_eq!(fields(&value), names);
    assert_eq!(
        (&value["simulated"], &value["profile_path"]),
        (&json!(true), &Value::Null)
    );
    // The result is the same to the nanosecond in every run.
    assert_eq!(value, folder.json(&PROBE));
    let pairs = value["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 4 * 6);
    let up = pairs
        .iter()
        .find(|pair| pair["dst"] == "sim:0/device")
        .unwrap();
    assert_eq!(up["bytes"], 4096);
    // 6 µs and 4096 bytes at 25 GB/s.
    assert_eq!(up["seconds"], 6.164e-6);

    let run = folder.run(&PROBE);
    let (out, told) = (run.stdout(), run.stderr());
    assert_eq!((run.code(), told), (0, String::new()));
    for word in [
        "simulated: ",
        "sim:0/device",
        "DirectCopy",
        "±0%",
        "3 of 3 links",
        "Not saved: ",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    assert!(
        !out.contains("rests") && out.lines().all(|line| line.chars().count() <= 100),
        "{out}"
    );
    // A profile that the user names is saved, and used by commands for that machine.
    let saved = folder.run(&[&PROBE[..], &["--profile", "small-profile.toml"]].concat());
    assert!(
        saved.stdout().contains("Saved in small-profile.toml."),
        "{}",
        saved.stdout()
    );
    let explain = [
        "explain",
        "cpu:0",
        "sim:0",
        "1MiB",
        "--topology",
        "small.toml",
    ];
    let described = folder.json(&explain);
    let measured = folder.json(&[&explain[..], &["--profile", "small-profile.toml"]].concat());
    assert_eq!(described["chosen"]["lanes"][0]["measured"], false);
    assert_eq!(measured["chosen"]["lanes"][0]["measured"], true);
    assert_eq!(
        described["chosen"]["predicted_s"],
        measured["chosen"]["predicted_s"]
    );
    // Commands for this machine refuse it.
    let refused = folder.run(&["devices", "--profile", "small-profile.toml"]);
    assert_eq!(refused.code(), 2);
    assert!(
        refused.stderr().contains("is of another machine"),
        "{}",
        refused.stderr()
    );
}

/// Two cards with a link between them, and with UUIDs.
const CARDS: &str = r#"
[[device]]
id = "sim:1"
name = "GPU"
uuid = "00000001-0000-0000-0000-000000000000"
driver = "simulated 1.0"
memory = [{ kind = "device", memory_bytes = 8_000_000_000 }]
[[link]]
src = "cpu:0/pageable"
dst = "sim:1/device"
engine = "sim:1#0"
class = "pcie"
both = true
latency_ns = 6_000
bytes_per_second = 25_000_000_000
[[link]]
src = "sim:0/device"
dst = "sim:1/device"
engine = "sim:0#1"
class = "fabric"
access = "peer"
latency_ns = 6_000
bytes_per_second = 100_000_000_000
"#;

#[test]
fn what_a_probe_proves_is_kept_beside_the_profile_until_the_driver_changes() {
    let folder = Folder::new("probe-verdicts");
    let named = SMALL.replace(
        "name = \"GPU\"",
        "name = \"GPU\"\nuuid = \"00000000-0000-0000-0000-000000000001\"\ndriver = \"simulated 1.0\"",
    );
    let machine = named + CARDS;
    fs::write(folder.path("cards.toml"), &machine).unwrap();
    fs::write(
        folder.path("updated.toml"),
        machine.replace("simulated 1.0", "simulated 1.1"),
    )
    .unwrap();
    let probe = ["probe", "--quick", "--topology", "cards.toml"];
    let explain = |machine: &str, more: &[&str]| {
        let explain = ["explain", "sim:0", "sim:1", "1MiB", "--topology", machine];
        folder.json(&[&explain[..], more].concat())["chosen"].clone()
    };
    let profile = ["--profile", "cards-profile.toml"];
    folder.json(&[&probe[..], &["--no-save"], &profile].concat());
    assert_eq!(folder.names(), ["cards.toml", "updated.toml"]);
    folder.json(&[&probe[..], &profile].concat());
    let text = fs::read_to_string(folder.path("cards-profile.verdicts.toml")).unwrap();
    assert!(text.contains("verdict = \"proven\""), "{text}");
    let chosen = explain("cards.toml", &profile);
    assert_eq!(
        (&chosen["method"], &chosen["proof"]),
        (&json!("PeerToPeer"), &json!("kept"))
    );
    // Without a named file, nothing is known of a simulated machine.
    assert_eq!(explain("cards.toml", &[])["proof"], "to come");
    // The profile is refused under another driver, and no verdict of the old driver counts either.
    fs::copy(
        folder.path("cards-profile.verdicts.toml"),
        folder.path("updated-profile.verdicts.toml"),
    )
    .unwrap();
    let measured = fs::read_to_string(folder.path("cards-profile.toml")).unwrap();
    fs::write(
        folder.path("updated-profile.toml"),
        measured.replace("simulated 1.0", "simulated 1.1"),
    )
    .unwrap();
    let chosen = explain("updated.toml", &["--profile", "updated-profile.toml"]);
    assert_eq!(
        (&chosen["method"], &chosen["proof"]),
        (&json!("PeerToPeer"), &json!("to come"))
    );
    let explain = [
        "explain",
        "sim:0",
        "sim:1",
        "1MiB",
        "--topology",
        "cards.toml",
    ];
    let out = folder.run(&[&explain[..], &profile].concat()).stdout();
    assert!(out.contains("proven by an earlier process"), "{out}");
}

#[test]
fn nothing_is_saved_where_that_was_asked_for() {
    let folder = folder("probe-unsaved");
    let value = folder.json(&[&PROBE[..], &["--no-save", "--profile", "here.toml"]].concat());
    assert_eq!(value["profile_path"], Value::Null);
    let out = folder.run(&[&PROBE[..], &["--no-save"]].concat()).stdout();
    assert!(out.contains("Not saved: --no-save was given."), "{out}");
    assert_eq!(folder.names(), ["small.toml"]);
}

#[test]
fn a_probe_whose_place_in_the_cache_cannot_be_written_works_and_says_so_once() {
    let folder = Folder::new("probe-unwritable");
    fs::write(folder.path("taken"), "a file").unwrap();
    let run = with_saved(
        &folder,
        "taken/transload/profile.toml",
        &["probe", "--seconds", "2"],
    );
    assert_eq!(run.code(), 0, "{}", run.stderr());
    let told = "Not saved: cannot create ";
    assert!(run.stdout().contains("cpu:0/shared"), "{}", run.stdout());
    let all = run.stdout() + &run.stderr();
    assert_eq!(all.matches(told).count(), 1, "{all}");
    assert_eq!(all.matches("taken/transload").count(), 1, "{all}");
    assert_eq!(folder.names(), ["taken"]);
}

#[test]
fn a_place_for_no_file_is_refused_before_anything_is_measured() {
    let folder = folder("probe-place");
    fs::create_dir(folder.path("taken")).unwrap();
    for place in ["taken", "small.toml/profile.toml"] {
        let run = folder.run(&[&PROBE[..], &["--profile", place]].concat());
        assert_eq!(run.code(), 2, "{}", run.stdout());
        assert!(run.stderr().contains(place), "{}", run.stderr());
        assert_eq!(run.stdout(), "");
    }
}

#[test]
fn a_profile_that_cannot_be_used_is_refused_with_a_sentence() {
    let folder = Folder::new("probe-refused");
    for (text, told) in [
        (
            "",
            "is damaged, or is not a profile: it does not say which format it has",
        ),
        (
            "format = 99",
            "has format 99, and this version reads formats up to 1",
        ),
        ("format = ", "is damaged, or is not a profile: line 1"),
    ] {
        fs::write(folder.path("odd.toml"), text).unwrap();
        let explain = ["explain", "cpu:0", "cpu:0/shared", "1MiB"];
        let run = folder.run(&[&explain[..], &["--profile", "odd.toml"]].concat());
        assert_eq!((run.code(), run.stdout()), (2, String::new()));
        assert!(run.stderr().contains(told), "{}", run.stderr());
        let run = with_saved(&folder, "odd.toml", &explain);
        assert_eq!(run.code(), 0);
        assert!(run.stderr().contains(told), "{}", run.stderr());
    }
    let missing = folder.run(&["devices", "--profile", "nowhere.toml"]);
    assert_eq!(missing.code(), 2);
    assert!(
        missing
            .stderr()
            .contains("cannot read the profile in nowhere.toml"),
        "{}",
        missing.stderr()
    );
    // The program does not report that a saved profile is absent.
    assert_eq!(
        with_saved(&folder, "nowhere.toml", &["devices"]).stderr(),
        ""
    );
}

#[test]
fn a_large_machine_fits_a_hundred_columns() {
    let folder = Folder::new("probe-wide");
    let machine = topology("workstation.toml");
    let run = folder.run(&["probe", "--quick", "--topology", &machine]);
    let out = run.stdout();
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    // Every column is present, in one block or another.
    for memory in [
        "cpu:0/pageable",
        "cpu:0/file",
        "sim:0/device",
        "sim:1/device",
    ] {
        let headings = out
            .lines()
            .filter(|line| line.starts_with("    ") && line.contains(memory));
        assert_eq!(headings.count(), 2, "{memory}: {out}");
    }
}

#[test]
fn figures_that_cannot_be_trusted_do_not_replace_some_that_can() {
    let folder = Folder::new("probe-doubtful");
    // The same machine with a link, of which a model has sure figures, and with none.
    fs::write(folder.path("linked.toml"), TINY).unwrap();
    let bare = TINY.split("[[link]]").next().unwrap();
    fs::write(folder.path("bare.toml"), bare).unwrap();
    let path = folder.path("profile.toml");
    let probe = |machine: &str| {
        let to = ["--topology", machine, "--profile", "profile.toml"];
        let run = folder.run(&[&["probe", "--quick"][..], &to].concat());
        assert_eq!(run.code(), 0, "{}", run.stderr());
        run.stdout()
    };
    probe("linked.toml");
    let text = fs::read_to_string(&path).unwrap();
    let machine = text.split("[[link]]").next().unwrap();
    let sure = format!("{machine}{LINK}");
    let changed = |from: &str, to: &str| {
        assert!(sure.contains(from), "{sure}");
        sure.replace(from, to)
    };
    for (before, machine, stays) in [
        (sure.clone(), "bare.toml", true),
        (changed("samples = 50", "samples = 5"), "bare.toml", false),
        (changed("= 13_000", "= 23_000"), "bare.toml", false),
        (changed("host (simulated)", "other"), "bare.toml", false),
        (sure.clone(), "linked.toml", false),
    ] {
        fs::write(&path, &before).unwrap();
        let said = probe(machine);
        assert_eq!(fs::read_to_string(&path).unwrap() == before, stays);
        let told = "no figure of a link can be trusted, and profile.toml has some that can";
        assert_eq!(said.contains(told), stays, "{said}");
    }
}

#[test]
fn the_time_of_a_probe_is_a_number_of_seconds_up_to_a_day() {
    let folder = folder("probe-seconds");
    for seconds in ["0", "86401", "-1", "1.5", "soon"] {
        support::refused(
            &folder,
            &["probe", &format!("--seconds={seconds}")],
            2,
            &["--seconds"],
        );
    }
    let topology = [&PROBE[..], &["--seconds", "5"]].concat();
    support::refused(&folder, &topology, 2, &["--seconds", "--topology"]);
}
