//! `transload load MODEL`

use std::time::Instant;

use transload::{ByteRate, ByteSize, Nanoseconds};
use transload_tensors::{LoadPlan, Loader, Model};

use crate::arguments::LoadOptions;
use crate::costs::Wanted;
use crate::failure::Failure;
use crate::json::{self, names};
use crate::machine::Machine;
use crate::output::{Output, Style, counted};
use crate::progress::Progress;

pub(crate) fn run(
    options: &LoadOptions,
    wanted: Wanted<'_>,
    output: &mut Output,
) -> Result<(), Failure> {
    let model = Model::open(&options.model)?;
    let machine = Machine::here(None, wanted)?;
    machine.costs.note(output);
    machine.expect(options.to)?;
    let loader = Loader::new(&machine.manager);
    let mut load = loader.load(&model).to(options.to);
    if let Some(pattern) = &options.only {
        load = load.only(pattern);
    }
    if options.verify {
        load = load.verify();
    }
    let plan = load.plan()?;
    let mut document = document(&machine, &plan)?;
    if options.plan {
        return match output.is_json() {
            true => output.json(&document),
            false => planned(&plan, &document, output),
        };
    }
    let mut progress = Progress::new(output.is_json());
    let begin = Instant::now();
    let mut loading = plan.start()?;
    let mut tensors = Vec::with_capacity(document.tensors);
    while let Some(tensor) = loading.next() {
        tensors.push(tensor?);
        progress.advance(loading.progress(), "loading");
    }
    let seconds = begin.elapsed().as_secs_f64();
    progress.clear();
    document.seconds = Some(seconds);
    document.verified = options.verify;
    let rate = document.read_bytes as f64 / seconds.max(f64::MIN_POSITIVE);
    document.read_gb_per_s = Some(rate / 1e9);
    if output.is_json() {
        modelled(&document, output)?;
        return output.json(&document);
    }
    let style = output.style();
    let verified = match options.verify {
        true => format!(", {}", style.green("verified")),
        false => String::new(),
    };
    output.line(format_args!(
        "{} of {} from {} in {} in {}, {}{verified}",
        counted(document.tensors, "tensor"),
        ByteSize(document.bytes),
        counted(document.files, "file"),
        document.devices.join(", "),
        Nanoseconds((seconds * 1e9) as u64),
        ByteRate(rate),
    ))?;
    modelled(&document, output)
}

/// Says that a stand-in took part.
fn modelled(document: &json::Loaded, output: &mut Output) -> Result<(), Failure> {
    match document.simulated {
        Some(true) => output.remark(MODELLED, Style::yellow),
        _ => Ok(()),
    }
}

const MODELLED: &str =
    "simulated: real bytes moved through a stand-in for the device's driver; its time is modelled";

/// What is known before a byte is read.
fn document(machine: &Machine, plan: &LoadPlan<'_>) -> Result<json::Loaded, Failure> {
    let explained = plan.explain()?;
    let mut files: Vec<usize> = plan.tensors().map(|tensor| tensor.file).collect();
    files.dedup();
    let devices = machine.manager.devices().into_iter();
    let mut devices = devices.filter(|device| device.id == plan.memory().device);
    let simulated = devices.any(|device| device.simulated);
    let bound = explained.chosen.loads.first();
    Ok(json::Loaded {
        files: files.len(),
        tensors: plan.tensors().len(),
        bytes: plan.len_bytes(),
        read_bytes: plan.read_bytes(),
        devices: vec![plan.memory().to_string()],
        memory_bytes: plan.memory_bytes(),
        transfers: plan.transfers(),
        method: explained.chosen.method.to_string(),
        route: names(explained.chosen.route.iter().copied()),
        predicted_s: explained.chosen.predicted_ns.map(json::seconds),
        bound: bound.map(|load| load.of.to_string()),
        seconds: None,
        read_gb_per_s: None,
        verified: false,
        simulated: machine.is_mixed().then_some(simulated),
    })
}

/// The plan, for people.
fn planned(
    plan: &LoadPlan<'_>,
    document: &json::Loaded,
    output: &mut Output,
) -> Result<(), Failure> {
    let between = document.read_bytes - document.bytes;
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    let mut rows = vec![
        row("tensors", document.tensors.to_string()),
        row("bytes", ByteSize(document.bytes).to_string()),
        row("files", document.files.to_string()),
        row("read between tensors", ByteSize(between).to_string()),
        row("memory", plan.memory().to_string()),
        row("its bytes", ByteSize(document.memory_bytes).to_string()),
        row("transfers", document.transfers.to_string()),
        row(
            "way",
            format!("{}, {}", document.method, document.route.join(" → ")),
        ),
    ];
    if let Some(seconds) = document.predicted_s {
        let ns = (seconds * 1e9) as u64;
        rows.push(row(
            "predicted, files in the cache",
            Nanoseconds(ns).to_string(),
        ));
    }
    rows.extend(document.bound.clone().map(|bound| row("bound by", bound)));
    output.table(&["PLAN", ""], rows)
}
