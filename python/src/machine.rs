//! What the machine has, and how it would move bytes.

use std::ops::ControlFlow;
use std::time::Duration;

use pyo3::prelude::*;
use transload_tensors::transload::hal::DeviceInfo;
use transload_tensors::transload::probe::{Found, ProbeOptions, ProbeReport};
use transload_tensors::transload::{self, ByteRate, MemoryId, Place, profile};

use crate::exchange::{self, Use};
use crate::{copies, errors, manager, wait};

/// A device of this machine, as `devices` lists them. `str(device)` is its name in places. Equal where all of these are.
#[pyclass(frozen, eq, hash, get_all, module = "transload")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Device {
    /// Its name in places.
    id: String,
    /// The backend that moves its bytes.
    backend: String,
    /// The name that its driver gives.
    name: String,
    /// Whether its commands run on the processors.
    software: bool,
    /// Whether it is a stand-in, whose times are modelled.
    simulated: bool,
    /// The driver and its version, if known.
    driver: Option<String>,
    /// The size of its memory, if known.
    memory_bytes: Option<u64>,
    /// Its memories, the default one first.
    memories: Vec<String>,
    /// Its UUID, if it has one.
    uuid: Option<String>,
    /// Its address on the PCI bus, if known.
    pci: Option<String>,
}

#[pymethods]
impl Device {
    fn __str__(&self) -> &str {
        &self.id
    }

    fn __repr__(&self) -> String {
        format!("Device({:?}, {:?})", self.id, self.name)
    }
}

/// Lists the devices of this machine, the host first. The first call finds all drivers and opens all devices, and blocks for up to
/// some seconds. Other functions open the kind of device that they name, at its first use: those that name none open none.
///
/// Returns
/// -------
/// A list of Device.
///
/// Raises
/// ------
/// Error
///     When the host's own memory cannot be used.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<Device>> {
    let manager = manager(py)?;
    let machine = py.detach(|| manager.topology());
    let device = |device: &DeviceInfo| Device {
        memories: machine
            .memories()
            .iter()
            .filter(|memory| memory.id.device == device.id)
            .map(|memory| memory.id.to_string())
            .collect(),
        id: device.id.to_string(),
        backend: device.backend.to_string(),
        name: device.name.clone(),
        software: device.software,
        simulated: device.simulated,
        driver: device.driver.clone(),
        memory_bytes: device.memory_bytes,
        uuid: device.uuid.map(|uuid| uuid.to_string()),
        pci: device.pci.map(|pci| pci.to_string()),
    };
    Ok(machine.devices().iter().map(device).collect())
}

/// Which way bytes would take, and why no other. `str(explanation)` is a text for people; notebooks show it.
#[pyclass(frozen, get_all, module = "transload")]
pub(crate) struct Explanation {
    /// The bytes of the payload.
    nbytes: u64,
    /// The word for the way: DirectCopy, ZeroCopy, HostStaged, PeerToPeer or UnifiedMemory.
    method: String,
    /// The memories that the bytes visit.
    route: Vec<String>,
    /// The predicted time on an idle machine, in seconds, if there is a prediction.
    predicted_s: Option<f64>,
    /// Whether the links on the way were measured.
    measured: bool,
    /// The text for people.
    text: String,
}

#[pymethods]
impl Explanation {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> &str {
        &self.text
    }

    fn _repr_html_(&self) -> String {
        format!("<pre>{}</pre>", escaped(&self.text))
    }
}

/// Explains the way of bytes from one place or array to another. Copies nothing, and blocks only while it plans.
///
/// Parameters
/// ----------
/// src : str, Device, Tensor or array
///     Where the bytes are: a place, or the memory of an array.
/// dst : str, Device, Tensor or array
///     Where they go.
/// nbytes : int, optional
///     How many there are. Unless given, those of the array, or 64 MiB.
///
/// Returns
/// -------
/// An Explanation.
///
/// Raises
/// ------
/// ParseError, PlaceError
///     When a text names no place, or none on this machine.
/// TypeError, ValueError
///     When an argument is no array; the text names it.
/// TransferError
///     When there is no way.
///
/// Examples
/// --------
/// >>> transload.explain("cpu:0", "cpu:0", 1 << 20).route
/// ['cpu:0/pageable', 'cpu:0/pageable']
#[pyfunction]
#[pyo3(signature = (src, dst, nbytes = None))]
pub(crate) fn explain(
    src: &Bound<'_, PyAny>,
    dst: &Bound<'_, PyAny>,
    nbytes: Option<u64>,
) -> PyResult<Explanation> {
    let py = src.py();
    let manager = manager(py)?;
    let mut own = None;
    let mut end = |argument: &Bound<'_, PyAny>, name: &str| -> PyResult<Place> {
        if copies::is_place(argument) {
            return copies::place(argument, name);
        }
        let taken = exchange::take(manager, argument, name, Use::Read, Default::default())?;
        own = Some(taken.tensor.len_bytes());
        let place = taken.tensor.buffer().memory().into();
        taken.release(py);
        Ok(place)
    };
    let (from, to) = (end(src, "src")?, end(dst, "dst")?);
    let nbytes = nbytes.or(own).unwrap_or(64 << 20);
    let explained = py.detach(|| manager.explain_places(from, to, nbytes));
    let explained = explained.map_err(|error| errors::raise(py, &error))?;
    Ok(Explanation {
        nbytes,
        method: explained.chosen.method.to_string(),
        route: explained
            .chosen
            .route
            .iter()
            .map(MemoryId::to_string)
            .collect(),
        predicted_s: explained.chosen.predicted_ns.map(|ns| ns as f64 / 1e9),
        measured: explained.chosen.measured,
        text: explained.to_string(),
    })
}

/// What a probe has measured. `str(probe)` is a table of rates; notebooks show it as one.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Probe {
    report: ProbeReport,
}

#[pymethods]
impl Probe {
    /// For each pair of memories: both names, and the bytes per second at the largest size that was copied, if it was.
    #[getter]
    fn pairs(&self) -> Vec<(String, String, Option<f64>)> {
        self.largest()
            .map(|pair| (pair.src.to_string(), pair.dst.to_string(), rate(pair)))
            .collect()
    }

    /// Whether a stand-in for a device's driver took part.
    #[getter]
    fn simulated(&self) -> bool {
        self.report.simulated
    }

    /// Saves the figures as the profile of this machine, which all programs then plan with. Returns its path. Raises OSError when the
    /// file is not written, or the variable TRANSLOAD_PROFILE is empty.
    fn save(&self, py: Python<'_>) -> PyResult<std::path::PathBuf> {
        let refused = |text: String| pyo3::exceptions::PyOSError::new_err(text);
        let path = profile::saved_path();
        let path =
            path.ok_or_else(|| refused("TRANSLOAD_PROFILE is empty: there is no profile".into()))?;
        let saved = py.detach(|| self.report.profile.save(&path));
        saved.map_err(|error| refused(error.to_string()))?;
        Ok(path)
    }

    fn __str__(&self) -> String {
        let rows = self.largest().map(|pair| {
            let rate = rate(pair).map_or("-".into(), |rate| ByteRate(rate).to_string());
            format!(
                "{:<18} {:<18} {rate}\n",
                pair.src.to_string(),
                pair.dst.to_string()
            )
        });
        rows.collect()
    }

    fn _repr_html_(&self) -> String {
        let mut memories: Vec<MemoryId> = self.report.pairs.iter().map(|pair| pair.src).collect();
        memories.sort();
        memories.dedup();
        let cell = |src: MemoryId, dst: MemoryId| {
            let mut pairs = self.largest();
            let found = pairs
                .find(|pair| (pair.src, pair.dst) == (src, dst))
                .and_then(rate);
            let text = found.map_or(String::new(), |rate| format!("{:.1}", rate / 1e9));
            format!("<td style=\"text-align:right\">{text}</td>")
        };
        let head: String = memories
            .iter()
            .map(|memory| format!("<th>{memory}</th>"))
            .collect();
        let row = |src: &MemoryId| {
            let cells: String = memories.iter().map(|dst| cell(*src, *dst)).collect();
            format!("<tr><th style=\"text-align:left\">{src}</th>{cells}</tr>")
        };
        let rows: String = memories.iter().map(row).collect();
        let note = match self.report.simulated {
            true => ", with a stand-in for a device",
            false => "",
        };
        format!(
            "<table><caption>GB/s from (row) to (column){note}</caption><tr><th></th>{head}</tr>{rows}</table>"
        )
    }
}

impl Probe {
    /// Each pair of memories once: at the largest size that was measured, else at the first.
    fn largest(&self) -> impl Iterator<Item = &transload::probe::PairReport> {
        let pairs = &self.report.pairs;
        pairs.iter().enumerate().filter_map(move |(at, first)| {
            let is_same = |other: &&transload::probe::PairReport| {
                (other.src, other.dst) == (first.src, first.dst)
            };
            if pairs[..at].iter().any(|other| is_same(&other)) {
                return None;
            }
            let measured = pairs
                .iter()
                .filter(is_same)
                .filter(|pair| rate(pair).is_some());
            Some(measured.max_by_key(|pair| pair.bytes).unwrap_or(first))
        })
    }
}

fn rate(pair: &transload::probe::PairReport) -> Option<f64> {
    match &pair.found {
        Found::Time(interval) => Some(pair.bytes as f64 * 1e9 / (interval.median_ns.max(1) as f64)),
        _ => None,
    }
}

/// Measures this machine's links, and plans with the figures from then on. Blocks until it has measured, without the interpreter's
/// lock.
///
/// Parameters
/// ----------
/// seconds : float
///     The most time to take, by the wall clock. Unless given, 10.
///
/// Returns
/// -------
/// A Probe.
///
/// Raises
/// ------
/// ValueError
///     When `seconds` is negative or no number.
/// KeyboardInterrupt
///     On Ctrl-C, and what else signal handlers raise. What was measured by then is kept for plans.
#[pyfunction]
#[pyo3(signature = (seconds = 10.0))]
pub(crate) fn probe(py: Python<'_>, seconds: f64) -> PyResult<Probe> {
    let manager = manager(py)?;
    let budget = Duration::try_from_secs_f64(seconds);
    let budget = budget
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(format!("seconds: {error}")))?;
    let mut options = ProbeOptions::quick();
    options.budget = budget;
    let (mut raised, mut next) = (None, Duration::ZERO);
    let report = py.detach(|| {
        manager.probe_watched(&options, &mut |progress| {
            if progress.elapsed < next {
                return ControlFlow::Continue(());
            }
            next = progress.elapsed + wait::LOOK;
            raised = Python::attach(|py| py.check_signals()).err();
            match raised {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        })
    });
    match raised {
        Some(raised) => Err(raised),
        None => Ok(Probe { report }),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
