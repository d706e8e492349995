//! Profiles: written, read, refused, applied.
#![cfg(not(loom))]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::fixture::{Fixture, Outcome, place, without_peers};
use transload::model::{Access, LinkId};
use transload::profile::{ENVIRONMENT, FORMAT, MeasuredLink, Point, saved_path};
use transload::{Builder, Method, Profile, ProfileError, TransferManager};
use transload_testkit::sim::{Completion, Sim};
use transload_testkit::topology;

/// A file in a folder that is deleted at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let folder = format!("transload-profile-{name}-{}", std::process::id());
        Place(std::env::temp_dir().join(folder))
    }

    fn file(&self) -> PathBuf {
        self.0.join("profile.toml")
    }

    fn holding(&self, text: &str) -> PathBuf {
        fs::create_dir_all(&self.0).unwrap();
        fs::write(self.file(), text).unwrap();
        self.file()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const KIB: u64 = 1 << 10;

fn fixture() -> Fixture {
    Fixture::new(&without_peers(2), Completion::Timed, 64 << 20)
}

/// The direct link from the heap to the first device.
fn direct() -> LinkId {
    LinkId {
        src: "cpu:0/pageable".parse().unwrap(),
        dst: "sim:0/device".parse().unwrap(),
        engine: "sim:0#0".parse().unwrap(),
        access: Access::Native,
    }
}

fn point(bytes: u64, ns: u64) -> Point {
    Point::new(bytes, ns, ns - 1..=ns + 2, 40)
}

/// A direct link faster than any real one, and another link that moves wrong bytes.
fn measured() -> Vec<MeasuredLink> {
    let lies = LinkId {
        dst: "sim:1/device".parse().unwrap(),
        engine: "sim:1#0".parse().unwrap(),
        ..direct()
    };
    vec![
        MeasuredLink::new(direct(), vec![point(4 * KIB, 10), point(16 << 20, 1000)]),
        MeasuredLink::faulty(lies),
    ]
}

fn method(manager: &TransferManager, dst: &str) -> Method {
    let explained = manager.explain_places(place("cpu:0"), place(dst), 16 << 20);
    explained.unwrap().chosen.method
}

#[test]
fn a_profile_comes_back_as_it_was_written_and_is_text_that_people_read() -> Outcome {
    let folder = Place::new("round");
    let profile = Profile::new(&fixture().manager.topology(), measured());
    profile.save(folder.file())?;
    let back = Profile::load(folder.file())?;
    assert_eq!(
        (back.machine(), back.links()),
        (profile.machine(), profile.links())
    );
    assert_eq!(back.origin(), Some(&*folder.file()));
    back.check(&fixture().manager.topology())?;
    let text = fs::read_to_string(folder.file())?;
    for line in [
        "# What `transload probe` measured",
        "format = 1",
        "cpu = \"host (simulated)\"",
        "id = \"sim:1\"",
        "src = \"cpu:0/pageable\"",
        "engine = \"sim:0#0\"",
        "bytes = 16777216",
        "faulty = true",
    ] {
        assert!(
            text.lines().any(|found| found.starts_with(line)),
            "{line}: {text}"
        );
    }
    Ok(())
}

#[test]
fn fields_of_later_versions_are_ignored() -> Outcome {
    let folder = Place::new("later");
    let profile = Profile::new(&fixture().manager.topology(), measured());
    profile.save(folder.file())?;
    let text = fs::read_to_string(folder.file())?;
    let text = text
        .replacen("format = 1", "format = 1\nmood = \"new\"", 1)
        .replacen("[[link]]", "[[link]]\nloaded_ns = 7", 1)
        + "\n[transforms]\nxxh3 = 1\n";
    let back = Profile::parse(&text, None)?;
    assert_eq!(
        (back.machine(), back.links()),
        (profile.machine(), profile.links())
    );
    Ok(())
}

#[test]
fn what_is_garbled_newer_or_not_there_is_refused_with_a_sentence_that_names_it() -> Outcome {
    let folder = Place::new("garbled");
    let path = folder.file();
    let missing = Profile::load(&path).unwrap_err();
    assert!(matches!(missing, ProfileError::Read { .. }), "{missing}");
    Profile::new(&fixture().manager.topology(), measured()).save(&path)?;
    let good = fs::read_to_string(&path)?;
    let newer = format!("format = {}", FORMAT + 1);
    for (text, told) in [
        (String::new(), "does not say which format"),
        ("{\"json\": 1}".into(), "line 1"),
        (good[..good.len() / 2].into(), "line"),
        (good.replacen("format = 1", "format = -1", 1), "line"),
        (good.replacen("format = 1", "format = 0", 1), "no format 0"),
        (
            good.replacen("format = 1", &newer, 1),
            "format 2, and this version reads formats up to 1",
        ),
        (
            good.replacen("\"sim:0#0\"", "\"sim:0\"", 1),
            "is not an engine",
        ),
        (good.replacen("\"native\"", "\"magic\"", 1), "is no access"),
        (
            good.replacen("bytes = 16777216", "bytes = 4096", 1),
            "do not rise",
        ),
        (good.replacen("bytes = 4096", "bytes = 0", 1), "do not rise"),
        (good.replacen("ns = 10", "ns = -10", 1), "line"),
        (good.replace("sim:1", "sim:0"), "twice"),
    ] {
        let error = Profile::load(folder.holding(&text))
            .unwrap_err()
            .to_string();
        assert!(error.contains(told), "{told}: {error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    fs::write(&path, [0xFF, 0xFE, 0])?;
    let error = Profile::load(&path).unwrap_err();
    assert!(matches!(error, ProfileError::Garbled { .. }), "{error}");
    Ok(())
}

#[test]
fn absurd_figures_are_planned_by_and_every_byte_arrives() -> Outcome {
    let folder = Place::new("absurd");
    let path = folder.file();
    Profile::new(&fixture().manager.topology(), measured()).save(&path)?;
    let good = fs::read_to_string(&path)?;
    let figure = |name: &str, value: &str| {
        let line = good
            .lines()
            .find(|line| line.starts_with(&format!("{name} = ")));
        good.replace(line.unwrap(), &format!("{name} = {value}"))
    };
    let most = i64::MAX.to_string();
    let route = |predicted_ns: &str, ns: &str| {
        let link = &good[good.find("[[link]]").unwrap()..];
        let link: Vec<&str> = link.lines().skip(1).take(4).collect();
        let link = link.join("\n");
        format!(
            "{good}\n[[route]]\n[[route.link]]\n{link}\n[[route.point]]\nbytes = 1\n\
             predicted_ns = {predicted_ns}\nns = {ns}\n"
        )
    };
    assert_eq!(
        Profile::load(folder.holding(&route("10", "20")))?
            .routes()
            .len(),
        1
    );
    for text in [
        figure("ns", &most),
        figure("ns", "0"),
        figure("low_ns", &most),
        figure("high_ns", "0"),
        figure("samples", "0"),
        good.replacen("bytes = 16777216", &format!("bytes = {most}"), 1),
        good.replace("sim:0#0", "sim:0#77"),
        route("1", &most),
        route(&most, "1"),
        route("0", "0"),
    ] {
        let fixture = fixture();
        let loaded = Profile::load(folder.holding(&text));
        let Ok(profile) = loaded else {
            let error = loaded.unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
            continue;
        };
        fixture.manager.apply_profile(&profile)?;
        for len in [1, 4096, (3 << 20) + 1] {
            let sent = crate::fixture::bytes(len, 7);
            let src = fixture.filled("sim:0", &sent);
            let dst = fixture.empty("sim:1", len);
            fixture.manager.copy(&src, &dst).wait()?;
            assert!(fixture.bytes_of(&dst) == sent, "{text}");
        }
    }
    Ok(())
}

#[test]
fn of_two_that_save_at_once_one_wins_and_a_reader_finds_a_whole_profile() {
    let folder = Place::new("at-once");
    let path = folder.file();
    let profile = Profile::new(&fixture().manager.topology(), measured());
    profile.save(&path).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..100).for_each(|_| profile.save(&path).unwrap()));
        }
        for _ in 0..200 {
            assert_eq!(Profile::load(&path).unwrap().links(), profile.links());
        }
    });
    let left = fs::read_dir(path.parent().unwrap()).unwrap();
    assert_eq!(left.count(), 1);
}

#[test]
fn a_profile_of_as_many_links_as_a_file_holds_is_read_and_its_last_link_is_compared_with_all() {
    const LINKS: usize = 120_000;
    let link = |number: usize| {
        let (device, engine) = (number >> 8, number & 255);
        format!(
            "[[link]]\nsrc = \"cpu:0/pageable\"\ndst = \"sim:{device}/device\"\n\
             engine = \"sim:{device}#{engine}\"\naccess = \"native\"\n"
        )
    };
    let mut text = String::from(
        "format = 1\n[machine]\nlibrary = \"1\"\nos = \"o\"\narch = \"a\"\ncpu = \"c\"\ncpus = 1\n",
    );
    text.extend((0..LINKS).map(link));
    assert!(text.len() > 11_000_000, "{}", text.len());
    let profile = Profile::parse(&text, None).unwrap();
    assert_eq!(profile.links().len(), LINKS);
    let twice = text + &link(LINKS / 2);
    let error = Profile::parse(&twice, None).unwrap_err().to_string();
    assert!(
        error.contains("cpu:0/pageable → sim:234/device over sim:234#96 twice"),
        "{error}"
    );
}

#[test]
fn another_machine_and_a_changed_one_are_told_apart_and_every_difference_is_named() -> Outcome {
    let fixture = fixture();
    let folder = Place::new("foreign");
    Profile::new(&fixture.manager.topology(), measured()).save(folder.file())?;
    let good = fs::read_to_string(folder.file())?;
    let version = env!("CARGO_PKG_VERSION");
    let (os, cpu) = (std::env::consts::OS, "cpu = \"host (simulated)\"");
    let extra = "[[machine.device]]\nid = \"sim:9\"\nbackend = \"sim\"\nname = \"GPU\"\n\n[[link]]";
    let cases = [
        (
            cpu,
            "cpu = \"other\"",
            true,
            "the processor: other there, host (simulated) here",
        ),
        ("cpus = 0", "cpus = 8", true, "processors: 8 there, 0 here"),
        (
            &format!("os = \"{os}\""),
            "os = \"plan9\"",
            true,
            &format!("the system: plan9 there, {os} here"),
        ),
        (
            "name = \"GPU (simulated)\"",
            "name = \"Card\"",
            true,
            "sim:0: Card there, GPU (simulated) here",
        ),
        (
            &format!("library = \"{version}\""),
            "library = \"0.0.1\"",
            false,
            &format!("the library's version: 0.0.1 there, {version} here"),
        ),
        (
            "name = \"GPU (simulated)\"",
            "name = \"GPU (simulated)\"\ndriver = \"5.0\"",
            false,
            "the driver of sim:0: 5.0 there, unknown here",
        ),
        (
            "id = \"sim:1\"",
            "id = \"sim:7\"",
            false,
            "sim:1 (GPU (simulated)) was not measured; sim:7 (GPU (simulated)) is not here any more",
        ),
        ("[[link]]", extra, false, "sim:9 (GPU) is not here any more"),
    ];
    for (from, to, foreign, told) in cases {
        assert!(good.contains(from), "{from}");
        let text = good.replacen(from, to, 1);
        let profile = Profile::load(folder.holding(&text))?;
        let error = fixture.manager.apply_profile(&profile).unwrap_err();
        match &error {
            ProfileError::Foreign { .. } => assert!(foreign, "{error}"),
            ProfileError::Stale { .. } => assert!(!foreign, "{error}"),
            other => panic!("{other}"),
        }
        assert!(error.to_string().ends_with(told), "{error}");
        // The manager applied nothing of the profile.
        assert!(!fixture.manager.topology().is_measured(direct()));
    }
    let every = good
        .replacen(cpu, "cpu = \"other\"", 1)
        .replacen("cpus = 0", "cpus = 8", 1);
    let error = Profile::parse(&every, None)?
        .check(&fixture.manager.topology())
        .unwrap_err();
    assert_eq!(error.to_string().matches(" there, ").count(), 2, "{error}");
    // A machine of eight cards says no more than one of two.
    let every = every
        .replacen(&format!("os = \"{os}\""), "os = \"plan9\"", 1)
        .replacen(
            &format!("library = \"{version}\""),
            "library = \"0.0.1\"",
            1,
        );
    let error = Profile::parse(&every, None)?
        .check(&fixture.manager.topology())
        .unwrap_err();
    assert!(error.to_string().ends_with("0 here; and 2 more"), "{error}");
    let (ProfileError::Foreign { differences, .. } | ProfileError::Stale { differences, .. }) =
        error
    else {
        panic!("{error}");
    };
    assert_eq!(differences.len(), 4);
    Ok(())
}

#[test]
fn backends_that_a_program_lacks_do_not_matter() -> Outcome {
    let folder = Place::new("lacks");
    let manager = TransferManager::builder().host().build()?;
    Profile::new(&manager.topology(), Vec::new()).save(folder.file())?;
    let text = fs::read_to_string(folder.file())?
        + "\n[[machine.device]]\nid = \"cuda:0\"\nbackend = \"cuda\"\nname = \"GPU\"\n";
    Profile::parse(&text, None)?.check(&manager.topology())?;
    Ok(())
}

#[test]
fn the_planner_goes_by_a_profile_and_never_over_a_link_that_lied() -> Outcome {
    let fixture = fixture();
    assert_eq!(method(&fixture.manager, "sim:0"), Method::HostStaged);
    let profile = Profile::new(&fixture.manager.topology(), measured());
    let by_default = fixture
        .manager
        .explain_places(place("cpu:0"), place("sim:0"), 4 * KIB)?;
    assert!(!by_default.chosen.measured && by_default.to_string().contains("default costs"));
    fixture.manager.apply_profile(&profile)?;
    assert_eq!(method(&fixture.manager, "sim:0"), Method::DirectCopy);
    let explained = fixture
        .manager
        .explain_places(place("cpu:0"), place("sim:0"), 4 * KIB)?;
    assert!(explained.chosen.measured && explained.chosen.lanes[0].measured);
    // The other routes use links without measurements.
    assert!(explained.rejected.iter().all(|way| !way.measured));
    let known = fixture.manager.topology();
    assert!(known.is_measured(direct()));
    let cost = known
        .links()
        .iter()
        .find(|link| link.id == direct())
        .unwrap();
    assert_eq!((cost.cost.at(4 * KIB), cost.cost.at(16 << 20)), (10, 1000));
    // 64 KiB go over the direct link by the model.
    let explained = fixture
        .manager
        .explain_places(place("cpu:0"), place("sim:1"), 4 * KIB)?;
    assert_eq!(explained.chosen.method, Method::HostStaged);
    let mut reasons = explained.rejected.iter().flat_map(|way| &way.reason);
    assert!(
        reasons.any(|why| why
            .to_string()
            .contains("wrong bytes when the machine was probed")),
        "{explained}"
    );
    Ok(())
}

#[test]
fn a_builder_takes_a_profile_and_refuses_one_of_another_machine() -> Outcome {
    let sim = |text: &str| Arc::new(Sim::new(&topology::from_str(text).unwrap()).unwrap());
    let build = |gpus, profile| -> Result<TransferManager, transload::Error> {
        Builder::default()
            .backend(sim(&without_peers(gpus)))
            .profile(profile)
            .build()
    };
    let profile = Profile::new(&fixture().manager.topology(), measured());
    let manager = build(2, profile.clone())?;
    assert_eq!(method(&manager, "sim:0"), Method::DirectCopy);
    let error = build(1, profile).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("sim:1 (GPU (simulated)) is not here any more"),
        "{error}"
    );
    Ok(())
}

#[test]
fn no_test_reads_what_was_measured_of_the_machine_at_hand() {
    // Set in .cargo/config.toml.
    assert_eq!(std::env::var(ENVIRONMENT).as_deref(), Ok(""));
    assert_eq!(saved_path(), None);
    assert_eq!(Profile::saved(), Ok(None));
}
