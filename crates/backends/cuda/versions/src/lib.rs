//! Compares `transload_cuda::raw` with cudarc's binding of the same driver, which was generated from NVIDIA's
//! headers, for the version of CUDA that the feature `cuda-VERSION` chooses.
//!
//! Everything is a test: functions in `functions`, numbers with names in `words`, structures in `layouts`.
//! What one binding has and the other lacks is told as well, so that nothing is compared by silence.
#![cfg(test)]

mod functions;
mod layouts;
mod signature;
mod words;

/// The version of CUDA that is compared with, as `cuDriverGetVersion` would tell it.
const CUDA: u32 = {
    let mut newest = 0;
    let mut index = 0;
    while index < VERSIONS.len() {
        let (version, holds) = VERSIONS[index];
        if holds {
            newest = version;
        }
        index += 1;
    }
    newest
};

/// Whether CUDA is at least this version.
const VERSIONS: [(u32, bool); 19] = [
    (11040, cfg!(feature = "from-11040")),
    (11050, cfg!(feature = "from-11050")),
    (11060, cfg!(feature = "from-11060")),
    (11070, cfg!(feature = "from-11070")),
    (11080, cfg!(feature = "from-11080")),
    (12000, cfg!(feature = "from-12000")),
    (12010, cfg!(feature = "from-12010")),
    (12020, cfg!(feature = "from-12020")),
    (12030, cfg!(feature = "from-12030")),
    (12040, cfg!(feature = "from-12040")),
    (12050, cfg!(feature = "from-12050")),
    (12060, cfg!(feature = "from-12060")),
    (12080, cfg!(feature = "from-12080")),
    (12090, cfg!(feature = "from-12090")),
    (13000, cfg!(feature = "from-13000")),
    (13010, cfg!(feature = "from-13010")),
    (13020, cfg!(feature = "from-13020")),
    (13030, cfg!(feature = "from-13030")),
    (13040, cfg!(feature = "from-13040")),
];

/// What stands in for a name that cudarc does not have in this version: a glob import of cudarc's names in
/// an inner scope goes before it.
#[derive(Clone, Copy)]
struct Absent;

/// Fails with every complaint at once.
#[track_caller]
fn none(complaints: &[String]) {
    assert!(
        complaints.is_empty(),
        "compared with CUDA {}:\n{}",
        transload_cuda::raw::Version(CUDA),
        complaints.join("\n")
    );
}
