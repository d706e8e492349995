//! The results as one JSON file, which is valid after every case.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use crate::contest::reason;
use crate::engine::Measured;
use crate::machine::Machine;
use crate::raw::facts::{DeviceFacts, DriverFacts};
use crate::rivals::Roll;
use crate::series::Series;

/// The document.
#[derive(Serialize)]
pub(crate) struct Document {
    pub(crate) schema: u32,
    /// Whether the run finished. False in a file that a killed run left.
    pub(crate) complete: bool,
    /// Whether sizes are small and rounds few, so that the figures mean nothing.
    pub(crate) quick: bool,
    /// Whether the driver is the project's double, so that nothing ran on a GPU and every time is modelled.
    pub(crate) double: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<&'static str>,
    pub(crate) commit: &'static str,
    pub(crate) limit_s: f64,
    pub(crate) took_s: f64,
    pub(crate) machine: Machine,
    pub(crate) driver: DriverFacts,
    /// The device that was measured.
    pub(crate) device: i32,
    pub(crate) devices: Vec<DeviceFacts>,
    pub(crate) rivals: Roll,
    /// The costs of the machine's links that Transload measured, for the contestant that uses them.
    pub(crate) probe: Vec<Measured>,
    /// The result of the conformance suite; `null` where it was left out.
    pub(crate) conformance: Value,
    pub(crate) results: Vec<Outcome>,
}

/// The result of one case.
#[derive(Default, Serialize)]
pub(crate) struct Outcome {
    pub(crate) case: String,
    pub(crate) group: &'static str,
    /// The bytes that one operation moves.
    pub(crate) bytes: u64,
    /// The reason why the case did not run or did not finish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
    /// The error of the case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
    pub(crate) contestants: Vec<Contestant>,
    /// Absent contestants, with the reasons.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) absent: BTreeMap<String, String>,
    /// Further facts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) facts: BTreeMap<String, String>,
}

/// One contestant of a case.
#[derive(Serialize)]
pub(crate) struct Contestant {
    pub(crate) name: String,
    /// Whether all bytes that it moved were right.
    pub(crate) verified: bool,
    /// The contestant's error; then there are no samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
    /// Operations in each sample.
    pub(crate) turns: u32,
    /// Seconds for each operation, a figure for each round.
    pub(crate) samples_s: Series,
    pub(crate) median_s: Option<f64>,
    /// The least and the greatest sample.
    pub(crate) spread_s: Option<[f64; 2]>,
    pub(crate) bytes_per_s: Option<f64>,
}

impl Contestant {
    pub(crate) fn new(name: &str, verified: Result<bool>) -> Contestant {
        let failed = verified.as_ref().err().map(reason);
        Contestant {
            name: name.to_owned(),
            verified: verified.unwrap_or(false),
            failed,
            turns: 0,
            samples_s: Series::default(),
            median_s: None,
            spread_s: None,
            bytes_per_s: None,
        }
    }

    pub(crate) fn scored(&mut self, series: Series, turns: u32, bytes: u64) {
        self.turns = turns;
        self.median_s = series.median();
        self.spread_s = series.spread();
        self.bytes_per_s = self.median_s.map(|seconds| bytes as f64 / seconds);
        self.samples_s = series;
    }

    /// Whether the contestant moved a wrong byte.
    pub(crate) fn is_wrong(&self) -> bool {
        !self.verified && self.failed.is_none()
    }
}

impl Document {
    /// Replaces the file, which is valid at any moment.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let fresh = path.with_extension("fresh");
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&fresh, text).with_context(|| format!("cannot write {}", fresh.display()))?;
        fs::rename(&fresh, path).with_context(|| format!("cannot write {}", path.display()))
    }
}
