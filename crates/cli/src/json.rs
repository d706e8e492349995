//! The objects that other programs may rely on. `docs/json.md` describes each field; a change that
//! breaks a reader raises [`SCHEMA`].

use serde::Serialize;

/// The version of all of them.
pub(crate) const SCHEMA: u32 = 3;

/// Any of them, with the version in front, and what people are told beside it.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a, T> {
    pub(crate) schema: u32,
    pub(crate) notes: &'a [String],
    #[serde(flatten)]
    pub(crate) body: &'a T,
}

#[derive(Debug, Serialize)]
pub(crate) struct Devices {
    pub(crate) devices: Vec<Device>,
    pub(crate) absent: Vec<Absent>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Device {
    pub(crate) id: String,
    pub(crate) backend: String,
    pub(crate) name: String,
    pub(crate) driver: Option<String>,
    pub(crate) software: bool,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) memories: Vec<String>,
    pub(crate) uuid: Option<String>,
    pub(crate) pci: Option<String>,
    /// Only where a topology file takes part, or a stand-in for a driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) simulated: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Absent {
    pub(crate) backend: String,
    pub(crate) reason: String,
}

#[derive(Debug, Serialize)]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "there are no other machines")
)]
pub(crate) struct Key {
    pub(crate) public_key: String,
}

#[derive(Debug, Serialize)]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "there are no other machines")
)]
pub(crate) struct Serving {
    pub(crate) address: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Copy {
    pub(crate) bytes: u64,
    pub(crate) verified: bool,
    pub(crate) checksum: Option<String>,
    pub(crate) hops: Vec<Hop>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Hop {
    pub(crate) src: String,
    pub(crate) dst: String,
    pub(crate) method: String,
    pub(crate) route: Vec<String>,
    pub(crate) lanes: Vec<HopLane>,
    pub(crate) seconds: f64,
    pub(crate) check_seconds: Option<f64>,
    pub(crate) gb_per_s: Option<f64>,
    pub(crate) fallbacks: Vec<Fallback>,
    /// Only where a topology file takes part, or a stand-in for a driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) simulated: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct HopLane {
    pub(crate) route: Vec<String>,
    pub(crate) share: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Fallback {
    pub(crate) method: String,
    pub(crate) route: Vec<String>,
    pub(crate) reason: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Loaded {
    pub(crate) files: usize,
    pub(crate) tensors: usize,
    pub(crate) bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) over_read_bytes: u64,
    pub(crate) devices: Vec<String>,
    pub(crate) memory_bytes: Vec<u64>,
    pub(crate) reading: Vec<FileRead>,
    pub(crate) transfers: usize,
    pub(crate) method: Option<String>,
    pub(crate) route: Vec<String>,
    pub(crate) predicted_s: Option<f64>,
    pub(crate) bound: Option<String>,
    pub(crate) seconds: Option<f64>,
    pub(crate) start_seconds: Option<f64>,
    /// Empty with `--plan`.
    pub(crate) stages: Vec<Stage>,
    pub(crate) read_gb_per_s: Option<f64>,
    pub(crate) verified: bool,
    pub(crate) saved: Option<String>,
    pub(crate) save_seconds: Option<f64>,
    /// Only where a stand-in replaces a driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) simulated: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Stage {
    #[serde(skip)]
    pub(crate) reads: bool,
    pub(crate) src: String,
    pub(crate) dst: String,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) gb_per_s: f64,
    pub(crate) measured_gb_per_s: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct FileRead {
    pub(crate) path: String,
    pub(crate) way: &'static str,
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Model {
    pub(crate) files: Vec<ModelFile>,
    pub(crate) bytes: u64,
    pub(crate) metadata: serde_json::Map<String, serde_json::Value>,
    pub(crate) tensors: Vec<Tensor>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelFile {
    pub(crate) path: String,
    pub(crate) format: &'static str,
    pub(crate) bytes: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: u64,
    pub(crate) file: usize,
    pub(crate) offset: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    pub(crate) chosen: Chosen,
    pub(crate) rejected: Vec<Rejected>,
    pub(crate) sizes: Vec<SizeRange>,
    pub(crate) simulated: bool,
    /// Only with `--measure`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) measured: Option<Vec<MeasuredWay>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct MeasuredWay {
    pub(crate) method: String,
    pub(crate) route: Vec<String>,
    pub(crate) chunk_bytes: Option<u64>,
    pub(crate) lanes: usize,
    pub(crate) predicted_s: Option<f64>,
    pub(crate) seconds: Option<f64>,
    pub(crate) spread: Option<f64>,
    pub(crate) samples: u32,
    pub(crate) failure: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Chosen {
    pub(crate) method: String,
    pub(crate) route: Vec<String>,
    pub(crate) chunk_bytes: Option<u64>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) predicted_s: Option<f64>,
    pub(crate) loads: Vec<Load>,
    pub(crate) proof: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Load {
    pub(crate) kind: &'static str,
    pub(crate) name: Option<String>,
    pub(crate) seconds: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct SizeRange {
    pub(crate) from_bytes: u64,
    pub(crate) method: String,
    pub(crate) route: Vec<String>,
    pub(crate) chunk_bytes: Option<u64>,
    pub(crate) lanes: usize,
    pub(crate) predicted_s: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Lane {
    pub(crate) method: String,
    pub(crate) route: Vec<String>,
    pub(crate) chunk_bytes: u64,
    pub(crate) to_a_slot: u64,
    pub(crate) share: f64,
    pub(crate) measured: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Rejected {
    pub(crate) method: String,
    pub(crate) route: Vec<String>,
    pub(crate) predicted_s: Option<f64>,
    pub(crate) measured: bool,
    pub(crate) proof: Option<&'static str>,
    pub(crate) reason: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Probe {
    pub(crate) pairs: Vec<ProbedPair>,
    pub(crate) fresh: Vec<FreshMemory>,
    pub(crate) profile_path: Option<String>,
    pub(crate) advice: Vec<Advice>,
    /// Only where a topology file is what was probed, or a stand-in for a driver took part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) simulated: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ProbedPair {
    pub(crate) src: String,
    pub(crate) dst: String,
    pub(crate) bytes: u64,
    pub(crate) seconds: Option<f64>,
    pub(crate) gb_per_s: Option<f64>,
    pub(crate) spread: Option<f64>,
    pub(crate) method: Option<String>,
    pub(crate) verified: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct FreshMemory {
    pub(crate) memory: String,
    pub(crate) bytes: u64,
    pub(crate) allocation_s: f64,
    pub(crate) first_use_s: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Advice {
    pub(crate) about: String,
    pub(crate) found: String,
    pub(crate) remedy: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Completions {
    pub(crate) shell: String,
    pub(crate) script: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Failed {
    pub(crate) error: Error,
}

#[derive(Debug, Serialize)]
pub(crate) struct Error {
    pub(crate) kind: &'static str,
    pub(crate) exit_code: u8,
    pub(crate) message: String,
}

/// Nanoseconds as the seconds of a JSON number.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Memories by name.
pub(crate) fn names(route: impl IntoIterator<Item = transload::MemoryId>) -> Vec<String> {
    route.into_iter().map(|memory| memory.to_string()).collect()
}
