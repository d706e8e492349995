//! Profiles exist whole or not at all: threads and processes read a profile while others save it, and a save ignores
//! files that other programs put next to it.
#![cfg(all(not(loom), not(transload_local)))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use transload::Profile;
use transload::model::{Access, LinkId, Topology};
use transload::profile::MeasuredLink;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("transload-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A profile of `links` links.
fn profile(links: u32) -> Profile {
    let link = |number| {
        let id = LinkId {
            src: "cpu:0/pageable".parse().unwrap(),
            dst: format!("sim:{number}/device").parse().unwrap(),
            engine: "cpu:0#0".parse().unwrap(),
            access: Access::Native,
        };
        MeasuredLink::new(id, Vec::new())
    };
    Profile::new(&Topology::new(), (0..links).map(link).collect())
}

/// The numbers of links of the saved profiles.
const LENGTHS: [u32; 2] = [1, 60];

fn save_in_turn(path: &Path, goes_on: impl Fn() -> bool) {
    let profiles = LENGTHS.map(profile);
    for profile in profiles.iter().cycle().take_while(|_| goes_on()) {
        profile.save(path).unwrap();
    }
}

/// A process that is killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const LOADS: usize = 2000;
const PLACE: &str = "TRANSLOAD_TEST_PLACE";

#[test]
fn each_load_is_whole_whoever_saves_meanwhile() {
    if let Some(path) = std::env::var_os(PLACE) {
        return save_in_turn(path.as_ref(), || true);
    }
    let folder = Folder::new("whole");
    let path = folder.0.join("profile.toml");
    profile(1).save(&path).unwrap();
    let process = |_| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "whole::each_load_is_whole_whoever_saves_meanwhile",
            "--exact",
        ]);
        Killed(command.env(PLACE, &path).spawn().unwrap())
    };
    let mut processes = [0, 1].map(process);
    let is_over = AtomicBool::new(false);
    let goes_on = || !is_over.load(Ordering::Relaxed);
    let torn: usize = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| save_in_turn(&path, goes_on));
        }
        let load = || {
            let is_torn = |_: &usize| {
                let loaded = Profile::load(&path).map(|profile| profile.links().len() as u32);
                !loaded.is_ok_and(|links| LENGTHS.contains(&links))
            };
            (0..LOADS).filter(is_torn).count()
        };
        let loaders = [0, 1].map(|_| scope.spawn(load));
        let torn = loaders.map(thread::ScopedJoinHandle::join);
        is_over.store(true, Ordering::Relaxed);
        torn.into_iter().map(Result::unwrap).sum()
    });
    for process in &mut processes {
        assert_eq!(process.0.try_wait().unwrap(), None, "it ended too early");
    }
    drop(processes);
    assert_eq!(torn, 0, "of {} loads", 2 * LOADS);
    // The next save deletes the files of processes that were killed in the middle of a save.
    profile(1).save(&path).unwrap();
    let names = fs::read_dir(&folder.0).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["profile.toml"]);
}

#[cfg(unix)]
#[test]
fn a_link_that_somebody_planted_is_not_followed() {
    let folder = Folder::new("planted");
    let (victim, path) = (folder.0.join("victim"), folder.0.join("profile.toml"));
    fs::write(&victim, b"precious").unwrap();
    // An earlier version of this library wrote to this name.
    let planted = format!(".profile.toml.{}.partial", std::process::id());
    std::os::unix::fs::symlink(&victim, folder.0.join(planted)).unwrap();
    profile(1).save(&path).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(Profile::load(&path).unwrap().links().len(), 1);
}

#[test]
fn a_profile_has_any_name_that_a_file_can_have() {
    let folder = Folder::new("names");
    for len in [245, 255] {
        let path = folder.0.join("n".repeat(len));
        profile(1).save(&path).unwrap();
        assert_eq!(Profile::load(&path).unwrap().links().len(), 1);
    }
}
