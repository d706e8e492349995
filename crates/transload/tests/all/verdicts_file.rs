//! The file of verdicts: damaged, blocked by another file, of a later version, written by many processes at once.
#![cfg(all(not(loom), not(transload_local)))]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};

use crate::kept_verdicts::{
    DRIVER, Folder, LEFT, PROVEN_FIRST, Process, RIGHT, ROUND_IT, UNPROVEN_NO_MORE, cards, lies,
    machine, sketch,
};
use transload::profile::{ENVIRONMENT, verdicts_path};
use transload::{StagingBudget, TransferManager};
use transload_testkit::sim::{HostSide, Sim};

use crate::common::{Bench, SLOT};

/// Proves the link as if no verdict were kept, and returns the text of the file afterwards.
fn proves_in_spite_of(folder: &Folder, context: &str) {
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(process.copy(), PROVEN_FIRST, "{context}");
}

#[test]
fn a_damaged_file_says_nothing_and_is_replaced() {
    let folder = Folder::new("damaged");
    Process::keeping(&folder.file(), &machine(), vec![lies()]).copy();
    let good = folder.text();
    let damaged = [
        String::new(),
        "{\"json\": 1}".into(),
        good[..good.len() / 2].into(),
        good.replace("format = 1", "format = 0"),
        good.replace("format = 1", "format = -1"),
        good.replace("format = 1\n", ""),
        good.replace("\"condemned\"", "\"acquitted\""),
        good.replace("\"peer\"", "\"magic\""),
        good.replace("\"sim:0#2\"", "\"sim:0\""),
        good.replace(LEFT, "left"),
        good.replace("\"sim:0/device\"", "\"/device\""),
        good.replace("reason = ", "because = "),
        good.clone() + &"#".repeat(5 << 20),
    ];
    for text in damaged {
        assert_ne!(text, good);
        folder.holding(text.as_bytes());
        let context = text[..text.len().min(1000)].to_owned();
        proves_in_spite_of(&folder, &context);
        assert_eq!(folder.kept(), 1, "{context}");
        let next = Process::keeping(&folder.file(), &machine(), Vec::new());
        assert_eq!(next.copy(), UNPROVEN_NO_MORE, "{context}");
    }
    folder.holding(&[0xFF, 0xFE, 0]);
    proves_in_spite_of(&folder, "no text");
    assert_eq!(folder.kept(), 1);
    // The undamaged file counts.
    folder.holding(good.as_bytes());
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(process.copy(), ROUND_IT);
}

#[test]
fn fields_of_later_versions_are_ignored_and_files_of_theirs_left_alone() {
    let folder = Folder::new("newer");
    Process::keeping(&folder.file(), &machine(), vec![lies()]).copy();
    let good = folder.text();
    folder.holding(good.replace("verdict =", "mood = 1\nverdict =").as_bytes());
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(process.copy(), ROUND_IT);
    let newer = good.replace("format = 1", "format = 2");
    folder.holding(newer.as_bytes());
    proves_in_spite_of(&folder, "a later format");
    assert_eq!(folder.text(), newer);
}

#[test]
fn what_another_version_of_the_library_found_out_is_found_out_again() {
    let folder = Folder::new("library");
    Process::keeping(&folder.file(), &machine(), vec![lies()]).copy();
    let version = format!("library = \"{}\"", env!("CARGO_PKG_VERSION"));
    let text = folder.text();
    assert!(text.contains(&version));
    folder.holding(text.replace(&version, "library = \"0.0.1\"").as_bytes());
    proves_in_spite_of(&folder, "an older library");
    assert_eq!(folder.kept(), 1);
    assert!(folder.text().contains(&version));
}

#[test]
fn where_nothing_can_be_read_or_written_links_are_proven() {
    // A file where a folder would have to be. (A folder that may not be written would not stop root.)
    let blocked = Folder::new("blocked");
    fs::write(&blocked.0, "a file").unwrap();
    for _ in 0..2 {
        proves_in_spite_of(&blocked, "no folder");
    }
    assert_eq!(fs::read_to_string(&blocked.0).unwrap(), "a file");
    fs::remove_file(&blocked.0).unwrap();
    // A folder where the file would have to be.
    let occupied = Folder::new("occupied");
    fs::create_dir_all(occupied.file()).unwrap();
    for _ in 0..2 {
        proves_in_spite_of(&occupied, "a folder");
    }
    assert!(occupied.file().is_dir());
    for nowhere in ["", "/", ".."] {
        let process = Process::keeping(nowhere.as_ref(), &machine(), Vec::new());
        assert_eq!(process.copy(), PROVEN_FIRST, "{nowhere:?}");
    }
}

#[test]
fn no_transfer_waits_for_the_file() {
    let folder = Folder::new("slow");
    folder.holding(b"");
    // Another process stopped halfway through its own writing.
    let lock = File::create(folder.0.join(".profile.verdicts.toml.lock")).unwrap();
    lock.lock().unwrap();
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(process.copy(), PROVEN_FIRST);
    assert_eq!(process.copy(), UNPROVEN_NO_MORE);
    assert_eq!(folder.text(), "", "nothing can have been written");
    lock.unlock().unwrap();
    drop(process);
    assert_eq!(folder.kept(), 1, "the last manager waits for the write");
}

/// Runs this test again in a process of its own, which finds that text in its environment.
fn again(test: &str, role: &str, profile: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("verdicts_file::{test}"), "--nocapture"])
        .env(ROLE, role)
        .env(ENVIRONMENT, profile)
        .spawn()
        .unwrap()
}

const ROLE: &str = "TRANSLOAD_TEST_ROLE";

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Waits until the file holds that word. Returns false after a limit that no working process reaches.
fn is_written(file: &Path, word: &str) -> bool {
    (0..1_000_000).any(|_| {
        std::thread::yield_now();
        fs::read_to_string(file).is_ok_and(|text| text.contains(word))
    })
}

const PROCESSES: usize = 4;
const LINKS: usize = 12;

#[test]
fn processes_that_write_at_once_lose_nothing_of_each_other() {
    let own = |process: usize, link: usize| {
        let uuid = format!("{process:08x}-0000-0000-0000-{link:012x}");
        cards(
            &sketch("peer"),
            [Some(&uuid), Some(RIGHT)],
            [Some(DRIVER); 2],
        )
    };
    if let Some(role) = role() {
        let (process, file) = role.split_once(' ').unwrap();
        for link in 0..LINKS {
            let machine = own(process.parse().unwrap(), link);
            let proves = Process::keeping(file.as_ref(), &machine, Vec::new());
            assert_eq!(proves.copy(), PROVEN_FIRST);
            // The test passes on a machine of any speed: the thread that writes waits for all the others' threads.
            let uuid = machine
                .devices
                .iter()
                .find_map(|device| device.uuid.clone());
            assert!(is_written(file.as_ref(), &uuid.unwrap()), "{role}, {link}");
        }
        return;
    }
    let folder = Folder::new("many");
    let file = folder.file();
    let children: Vec<Child> = (0..PROCESSES)
        .map(|process| {
            let role = format!("{process} {}", file.display());
            again(
                "processes_that_write_at_once_lose_nothing_of_each_other",
                &role,
                "",
            )
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(folder.kept(), PROCESSES * LINKS);
    for process in 0..PROCESSES {
        for link in 0..LINKS {
            let process = Process::keeping(&file, &own(process, link), Vec::new());
            assert_eq!(process.copy(), UNPROVEN_NO_MORE);
        }
    }
    // The folder holds only the file and the locked file.
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2);
}

/// The cards next to this real machine, whose processor is not simulated.
fn beside_the_host(default_costs: bool) -> Process {
    let sim = Sim::builder(&machine())
        .host(HostSide::Real)
        .build()
        .unwrap();
    let budget = std::sync::Arc::new(StagingBudget::new(3 * SLOT));
    let mut builder = TransferManager::builder()
        .clock(std::sync::Arc::new(sim.clock()))
        .staging(std::sync::Arc::clone(&budget))
        .backend(std::sync::Arc::new(sim.clone()))
        .discover();
    if default_costs {
        builder = builder.default_costs();
    }
    let manager = builder.build().unwrap();
    Process::over(Bench {
        sim,
        manager,
        budget,
    })
}

#[test]
fn discover_keeps_verdicts_beside_the_saved_profile_and_default_costs_does_without() {
    let test = "discover_keeps_verdicts_beside_the_saved_profile_and_default_costs_does_without";
    match role().as_deref() {
        Some("default") => {
            assert_eq!(beside_the_host(true).copy(), PROVEN_FIRST);
            return;
        }
        Some("first") => {
            assert_eq!(beside_the_host(false).copy(), PROVEN_FIRST);
            return;
        }
        Some("next") => {
            assert_eq!(beside_the_host(false).copy(), UNPROVEN_NO_MORE);
            return;
        }
        _ => {}
    }
    let folder = Folder::new("discover");
    let profile = folder.0.join("profile.toml");
    assert_eq!(verdicts_path(&profile), folder.file());
    for (role, kept) in [("default", 0), ("first", 1), ("next", 1), ("default", 1)] {
        let mut child = again(test, role, profile.to_str().unwrap());
        assert!(child.wait().unwrap().success(), "{role}");
        assert_eq!(folder.kept(), kept, "{role}");
    }
}
