//! The results of proofs of links between devices, and their use by later processes.
#![cfg(not(loom))]

use crate::common;
use std::time::Duration;

use crate::kept_verdicts::{
    DRIVER, FOUND_OUT, Folder, LEFT, PROVEN_FIRST, Process, RIGHT, ROUND_IT, UNPROVEN_NO_MORE,
    cards, lies, machine, sketch,
};
use transload::hal::ErrorClass;
use transload::probe::ProbeOptions;
use transload::{Method, Proof};
use transload_testkit::sim::{Call, Rule};

use crate::common::{SECOND, mem};

#[test]
fn a_link_that_was_proven_once_sends_no_pattern_in_the_next_process() {
    let folder = Folder::new("once");
    let first = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(first.told().proof, Some(Proof::ToCome));
    assert_eq!(first.copy(), PROVEN_FIRST);
    assert_eq!(first.copy(), UNPROVEN_NO_MORE);
    assert_eq!(first.told().proof, Some(Proof::Made));
    drop(first);
    assert_eq!(folder.kept(), 1);
    let second = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(second.told().proof, Some(Proof::Kept));
    let (operations, memory) = (second.operations(), second.bench.sim.memory_use());
    assert_eq!(second.copy(), UNPROVEN_NO_MORE);
    // Nothing else moved or was allocated: no poison, no pattern, no reading back.
    assert_eq!(second.operations() - operations, 1);
    assert_eq!(second.bench.sim.memory_use(), memory);
    let told = second.told();
    assert_eq!(told.proof, Some(Proof::Kept));
    assert!(
        told.to_string().contains("proven by an earlier process"),
        "{told}"
    );
    // Routes that need no proof mention none.
    assert!(second.ways().iter().any(|way| way.proof.is_none()));
}

#[test]
fn the_file_says_in_clear_text_what_it_holds_for() {
    let folder = Folder::new("text");
    Process::keeping(&folder.file(), &machine(), Vec::new()).copy();
    for line in [
        "# What proofs found out",
        "format = 1",
        "verdict = \"proven\"",
        "src = \"sim:0/device\"",
        "dst = \"sim:1/device\"",
        "engine = \"sim:0#2\"",
        "access = \"peer\"",
        &format!("src_uuid = \"{LEFT}\""),
        &format!("dst_uuid = \"{RIGHT}\""),
        &format!("src_driver = \"{DRIVER}\""),
        &format!("library = \"{}\"", env!("CARGO_PKG_VERSION")),
    ] {
        let text = folder.text();
        assert!(
            text.lines().any(|found| found.starts_with(line)),
            "{line}: {text}"
        );
    }
}

#[test]
fn a_kept_proof_hides_no_connect() {
    let folder = Folder::new("connect");
    Process::keeping(&folder.file(), &machine(), Vec::new()).copy();
    let refused = Rule::refuse(Call::Connect, ErrorClass::Failed);
    let process = Process::keeping(&folder.file(), &machine(), vec![refused.clone()]);
    assert_eq!(process.copy(), (Method::HostStaged, 1, 0), "not connected");
    process.bench.pass(30 * SECOND);
    assert_eq!(
        process.copy(),
        UNPROVEN_NO_MORE,
        "connected, and still proven"
    );
    // One proof in each process is enough.
    let process = Process::keeping(&folder.file(), &machine(), vec![refused.nth(2)]);
    for _ in 0..3 {
        assert_eq!(process.copy(), UNPROVEN_NO_MORE);
    }
    assert_eq!(process.bench.sim.script().rules()[0].fired(), 0);
}

#[test]
fn under_another_driver_or_between_other_devices_it_is_proven_again() {
    let new = Some("simulated 1.1");
    let other = Some("0000000c-0000-0000-0000-000000000000");
    let (left, right, old) = (Some(LEFT), Some(RIGHT), Some(DRIVER));
    for (uuids, drivers, kept) in [
        // A new driver of the same devices: its verdict replaces the one under the old driver.
        ([left, right], [new, new], 1),
        ([left, right], [new, old], 1),
        ([left, right], [old, new], 1),
        // Other devices: their verdicts stand next to the old ones.
        ([other, right], [old, old], 2),
        ([left, other], [old, old], 2),
        ([right, left], [old, old], 2),
    ] {
        let folder = Folder::new("changed");
        Process::keeping(&folder.file(), &machine(), Vec::new()).copy();
        let changed = cards(&sketch("peer"), uuids, drivers);
        let context = format!("{uuids:?} {drivers:?}");
        let process = Process::keeping(&folder.file(), &changed, Vec::new());
        assert_eq!(process.copy(), PROVEN_FIRST, "{context}");
        drop(process);
        assert_eq!(folder.kept(), kept, "{context}");
        let process = Process::keeping(&folder.file(), &changed, Vec::new());
        assert_eq!(process.copy(), UNPROVEN_NO_MORE, "{context}");
    }
}

#[test]
fn a_process_that_numbers_the_devices_otherwise_goes_by_the_same_verdict() {
    let folder = Folder::new("numbers");
    let uuids = [Some(LEFT), Some(RIGHT)];
    Process::keeping(&folder.file(), &machine(), vec![lies()]).copy();
    assert_eq!(folder.kept(), 1);
    let [left, right] = uuids;
    let swapped = cards(&sketch("peer"), [right, left], [Some(DRIVER); 2]);
    let process = Process::keeping(&folder.file(), &swapped, Vec::new());
    // The link back is the one that lied.
    let (from, to) = (common::place("sim:1"), common::place("sim:0"));
    let explained = process
        .bench
        .manager
        .explain_places(from, to, 1000)
        .unwrap();
    assert_eq!(explained.chosen.method, Method::HostStaged);
    assert!(
        explained.to_string().contains("earlier process"),
        "{explained}"
    );
    assert_eq!(
        process.copy(),
        PROVEN_FIRST,
        "the verdict on the link there is unknown"
    );
}

#[test]
fn a_link_that_lied_is_not_used_in_the_next_process_which_says_why() {
    let folder = Folder::new("lied");
    let first = Process::keeping(&folder.file(), &machine(), vec![lies()]);
    assert_eq!(first.copy(), FOUND_OUT);
    drop(first);
    let second = Process::keeping(&folder.file(), &machine(), Vec::new());
    let reason = second.told().reason.unwrap().to_string();
    for part in [
        "condemned",
        "came back changed",
        "as an earlier process found out",
    ] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert_eq!(second.told().proof, None);
    assert_eq!(second.copy(), ROUND_IT);
    second.bench.pass(100_000 * SECOND);
    assert_eq!(second.copy(), ROUND_IT, "time does not make it trustworthy");
    drop(second);
    assert_eq!(folder.kept(), 1);
    assert!(
        folder.text().contains("verdict = \"condemned\""),
        "{}",
        folder.text()
    );
    let updated = cards(
        &sketch("peer"),
        [Some(LEFT), Some(RIGHT)],
        [Some("simulated 2.0"); 2],
    );
    let third = Process::keeping(&folder.file(), &updated, Vec::new());
    assert_eq!(third.copy(), PROVEN_FIRST, "a new driver is given a chance");
}

#[test]
fn only_links_between_devices_that_can_be_told_apart_are_kept() {
    let (left, right) = (Some(LEFT), Some(RIGHT));
    let (named, nameless) = ([Some(DRIVER); 2], [None, None]);
    for (what, access, uuids, drivers) in [
        ("imports", "import", [left, right], named),
        ("no UUID", "peer", [left, None], named),
        ("no driver", "peer", [left, right], nameless),
        ("twins", "peer", [left, left], named),
    ] {
        let folder = Folder::new("anonymous");
        let machine = cards(&sketch(access), uuids, drivers);
        for _ in 0..2 {
            let process = Process::keeping(&folder.file(), &machine, Vec::new());
            assert_eq!(process.copy().2, 2, "{what}: a pattern and the copy");
        }
        assert!(!folder.file().exists(), "{what}");
    }
}

#[test]
fn a_manager_keeps_nothing_unless_it_is_told_to() {
    let process = Process::new(&machine(), Vec::new(), |builder| builder);
    assert_eq!(process.copy(), PROVEN_FIRST);
    let folder = Folder::new("nothing");
    Process::keeping(&folder.file(), &machine(), vec![lies()]).copy();
    let process = Process::new(&machine(), Vec::new(), |builder| builder.default_costs());
    assert_eq!(process.copy(), PROVEN_FIRST);
    assert!(folder.text().contains("condemned"));
}

#[test]
fn a_backend_that_is_registered_later_brings_its_verdicts() {
    let folder = Folder::new("later");
    Process::keeping(&folder.file(), &machine(), Vec::new()).copy();
    let sim = transload_testkit::sim::Sim::new(&machine()).unwrap();
    let manager = transload::TransferManager::builder()
        .clock(std::sync::Arc::new(sim.clock()))
        .keep_verdicts(folder.file())
        .build()
        .unwrap();
    manager.register_backend(sim.clone()).unwrap();
    let budget = manager.staging();
    let process = Process::over(common::Bench {
        sim,
        manager,
        budget,
    });
    assert_eq!(process.copy(), UNPROVEN_NO_MORE);
}

#[test]
fn clear_cache_has_a_process_find_out_anew_and_others_hear_of_it() {
    let folder = Folder::new("clear");
    Process::keeping(&folder.file(), &machine(), Vec::new()).copy();
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    process.bench.manager.clear_cache();
    assert_eq!(process.told().proof, Some(Proof::ToCome));
    assert_eq!(process.copy(), PROVEN_FIRST);
    process.bench.manager.clear_cache();
    process.bench.sim.add_rule(lies());
    assert_eq!(process.copy(), FOUND_OUT);
    drop(process);
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(process.copy(), ROUND_IT);
    process.bench.manager.clear_cache();
    assert_eq!(process.copy(), PROVEN_FIRST);
    drop(process);
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(process.copy(), UNPROVEN_NO_MORE);
    assert_eq!(folder.kept(), 1);
}

/// The probe ends after a number of samples: a slow machine that runs tests has hours.
fn probe(process: &Process) -> usize {
    let mut options = ProbeOptions::quick();
    options.budget = Duration::from_secs(10_000);
    options.sizes = vec![1 << 10, 256 << 10];
    options.samples = 1;
    process.bench.manager.probe(&options).faulty().count()
}

#[test]
fn a_probe_proves_anew_and_replaces_what_was_known() {
    let folder = Folder::new("probe");
    Process::keeping(&folder.file(), &machine(), vec![lies()]).copy();
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(process.copy(), ROUND_IT);
    assert_eq!(probe(&process), 0);
    assert_eq!(process.copy(), UNPROVEN_NO_MORE);
    drop(process);
    assert_eq!(folder.kept(), 2, "both links between the cards");
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(process.copy(), UNPROVEN_NO_MORE);
    // The wrong byte lies where the proof, which is shorter, does not look.
    let late = Rule::corrupt(200_000).over(mem("sim:0/device"), mem("sim:1/device"));
    process.bench.sim.add_rule(late.nth(3).always());
    assert_eq!(probe(&process), 1);
    drop(process);
    let process = Process::keeping(&folder.file(), &machine(), Vec::new());
    assert_eq!(process.copy(), ROUND_IT);
    let reason = process.told().reason.unwrap().to_string();
    assert!(
        reason.contains("wrong bytes when the machine was probed"),
        "{reason}"
    );
}

#[test]
fn a_difference_that_verification_finds_has_the_link_proven_again() {
    let folder = Folder::new("doubt");
    Process::keeping(&folder.file(), &machine(), Vec::new()).copy();
    // The machine has changed, and no manager has noticed yet.
    let process = Process::keeping(&folder.file(), &machine(), vec![lies()]);
    assert_eq!(process.submit(&process.request().verify()), FOUND_OUT);
    process.bench.pass(30 * SECOND);
    assert_eq!(process.told().proof, Some(Proof::ToCome));
    drop(process);
    assert_eq!(folder.kept(), 0, "nor does another process believe it");
    let process = Process::keeping(&folder.file(), &machine(), vec![lies()]);
    assert_eq!(process.copy(), FOUND_OUT);
}

#[test]
fn a_pattern_that_others_may_have_changed_condemns_in_this_process_alone() {
    // The bytes from the second card come back over an unproven link.
    let hearsay = common::two_devices()
        .link("sim:0/device", "sim:1/device", "sim:0#2", "peer")
        .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
        .link("cpu:0/pageable", "sim:1/device", "sim:1#0", "native");
    let mut machine = cards(&hearsay, [Some(LEFT), Some(RIGHT)], [Some(DRIVER); 2]);
    for link in &mut machine.links {
        if link.src == "sim:1/device" {
            link.access = Some("import".into());
        }
    }
    let folder = Folder::new("hearsay");
    let back = (mem("sim:1/device"), mem("cpu:0/pinned"));
    let there = (mem("cpu:0/pageable"), mem("sim:0/device"));
    for rule in [
        Rule::corrupt(7).over(back.0, back.1).always(),
        Rule::corrupt(7).over(there.0, there.1).always(),
        // The copy that would have shown which link lied fails.
        Rule::fail_after(5).over(back.0, back.1).nth(2).always(),
    ] {
        let context = format!("{rule:?}");
        let mut rules = vec![rule];
        if context.contains("FailAfter") {
            rules.push(lies());
        }
        let process = Process::keeping(&folder.file(), &machine, rules);
        assert_eq!(process.copy(), FOUND_OUT, "{context}");
        assert_eq!(process.copy(), ROUND_IT, "{context}");
        drop(process);
        assert!(!folder.file().exists(), "{context}: {}", folder.text());
    }
    // The other links are cleared of suspicion.
    let process = Process::keeping(&folder.file(), &machine, vec![lies()]);
    assert_eq!(process.copy(), FOUND_OUT);
    drop(process);
    let process = Process::keeping(&folder.file(), &machine, Vec::new());
    assert_eq!(process.copy(), ROUND_IT);
}
