//! The verdict of one manager about a peer link, and its use by the next one. Each manager has contexts of its own, so
//! that peer access ends with the manager as it ends with a process.

use std::path::{Path, PathBuf};

use cuda::control;
use transload::{Method, Proof};

use crate::cuda::machine::{assert_clean, builder, counter, described, double, round};

/// A file in the folder of temporary files, deleted at the end of the test.
struct Kept(PathBuf);

impl Kept {
    fn new(name: &str) -> Kept {
        let name = format!("transload-cuda-{name}-{}", std::process::id());
        Kept(std::env::temp_dir().join(name).join("verdicts.toml"))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(folder) = self.0.parent() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// The driver calls that a copy from the first device to the second one took.
#[derive(PartialEq, Eq, Debug)]
struct Took {
    proof: Option<Proof>,
    method: Method,
    /// Copies from device to device.
    crossings: u64,
    /// The number of times that peer access was enabled.
    enabled: u64,
}

/// Makes such a copy with a manager of its own.
fn copy(verdicts: &Path) -> Took {
    let manager = builder(&[]).keep_verdicts(verdicts).build().unwrap();
    let (from, to) = ("cuda:0".parse().unwrap(), "cuda:1".parse().unwrap());
    let explained = manager.explain_places(from, to, 4096).unwrap();
    println!("{explained}");
    let before = (counter("peer-copies-direct"), enabled());
    let reports = round(&manager, 4096, &["cuda:0", "cuda:1"]);
    let after = (counter("peer-copies-direct"), enabled());
    Took {
        proof: explained.chosen.proof,
        method: reports[1].method(),
        crossings: after.0 - before.0,
        enabled: after.1 - before.1,
    }
}

fn enabled() -> u64 {
    let calls = control("calls").unwrap();
    let mut lines = calls.lines();
    let line = lines.find_map(|line| line.strip_prefix("cuCtxEnablePeerAccess "));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[test]
fn peer_access_that_was_proven_before_is_enabled_and_proven_no_more() {
    double(&[("TOPOLOGY", &described("pcie-peer"))]);
    let kept = Kept::new("proven");
    let first = copy(&kept.0);
    assert_eq!(
        (first.proof, first.method),
        (Some(Proof::ToCome), Method::PeerToPeer)
    );
    assert_eq!(first.crossings, 2, "a pattern and the copy");
    assert!(first.enabled > 0);
    let next = copy(&kept.0);
    assert_eq!(
        (next.proof, next.method),
        (Some(Proof::Kept), Method::PeerToPeer)
    );
    assert_eq!(next.crossings, 1, "the copy");
    assert_eq!(next.enabled, first.enabled);
    assert_clean();
}

#[test]
fn peer_access_that_lied_is_not_even_enabled_by_the_next() {
    double(&[("TOPOLOGY", &described("pcie-peer"))]);
    control("fault peer-corrupts=0>1").unwrap();
    let kept = Kept::new("lied");
    let first = copy(&kept.0);
    assert_eq!(
        (first.method, first.crossings),
        (Method::HostStaged, 1),
        "a pattern"
    );
    control("fault none").unwrap();
    let next = copy(&kept.0);
    let round_it = Took {
        // The proof concerns the pinned memory that the devices reach in place.
        proof: Some(Proof::ToCome),
        method: Method::HostStaged,
        crossings: 0,
        enabled: 0,
    };
    assert_eq!(next, round_it);
    let text = std::fs::read_to_string(&kept.0).unwrap();
    assert!(
        text.contains("condemned") && text.contains("simulated = true"),
        "{text}"
    );
    assert_clean();
}
