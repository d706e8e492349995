//! `transload load MODEL`

use std::path::{Path, PathBuf};
use std::time::Instant;

use transload::host::partial::folder;
use transload::{ByteRate, ByteSize, Choice, Hop, Method, Nanoseconds, TransferManager};
use transload_tensors::{LoadPlan, Loaded, Loader, Model, ModelFile, Reading, Save, Value};

use crate::arguments::LoadOptions;
use crate::failure::Failure;
use crate::interrupt::unfinished;
use crate::json::{self, names};
use crate::machine::{Asked, Machine};
use crate::output::{Output, Style, counted};
use crate::output_file::{names_a_file, spares};
use crate::progress::Progress;
use crate::shown::Shown;

pub(crate) fn run(
    options: &LoadOptions,
    asked: Asked<'_>,
    output: &mut Output,
) -> Result<(), Failure> {
    let model = Model::open(&options.model)?;
    if let Some(path) = &options.save {
        names_a_file("--save", path)?;
        let files = model.files().iter();
        let files = files.map(|of| ("a file of the model", Some(of.path())));
        spares(
            "--save",
            Some(path),
            files.chain([("the profile", asked.costs.path())]),
        )?;
        spares_the_list(&model, path)?;
    }
    let machine = Machine::traced(None, asked)?;
    machine.note(output);
    for place in &options.to {
        machine.expect(*place)?;
    }
    let loader = Loader::new(&machine.manager);
    let mut load = loader.load(&model);
    if !options.only.is_empty() {
        load = load.only(options.only.iter().map(String::as_str));
    }
    let rules = options.split.iter();
    let rules: Vec<(&str, usize)> = rules.map(|rule| (rule.0.as_str(), rule.1)).collect();
    if !rules.is_empty() && options.to.len() < 2 {
        let text =
            "--split cuts tensors into a part for each of several devices; name them with --to";
        return Err(Failure::Arguments(text.into()));
    }
    load = match (options.broadcast, &rules[..]) {
        (true, _) => load.to_all(&options.to),
        (false, []) => load.to_shares(&options.to),
        (false, rules) => load.to_split(&options.to, rules),
    };
    if let Some(dtype) = options.dtype {
        load = load.dtype(dtype);
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
    document.start_seconds = Some(begin.elapsed().as_secs_f64());
    let mut tensors = Vec::with_capacity(document.tensors);
    while let Some(tensor) = loading.next() {
        tensors.push(tensor?);
        progress.advance(|| loading.progress(), "loading");
    }
    let seconds = begin.elapsed().as_secs_f64();
    progress.clear();
    let trace = machine.manager.take_trace();
    // Those that a full trace has left out would be missing in the sums.
    if trace.left_out() == 0 {
        document.stages = { trace.hops().into_iter() }
            .map(|hop| stage(&machine, &hop))
            .collect();
    }
    document.seconds = Some(seconds);
    document.verified = options.verify;
    let rate = document.read_bytes as f64 / seconds.max(f64::MIN_POSITIVE);
    document.read_gb_per_s = Some(rate / 1e9);
    if let Some(path) = &options.save {
        let begin = Instant::now();
        save(&model, &machine.manager, &tensors, path)?;
        document.saved = Some(path.display().to_string());
        document.save_seconds = Some(begin.elapsed().as_secs_f64());
    }
    if output.is_json() {
        modelled(&document, output)?;
        return output.json(&document);
    }
    if !document.stages.is_empty() {
        let converts = options.dtype.is_some();
        let time = document.start_seconds.unwrap_or_default();
        let start = ["allocate, submit", "", "", "", &duration(time), "", ""];
        let start = start.map(str::to_owned).to_vec();
        let rows = document.stages.iter().map(|stage| row(stage, converts));
        output.table(&STAGES, [start].into_iter().chain(rows).collect())?;
    }
    let style = output.style();
    let verified = match options.verify {
        true => format!(", {}", style.green("verified")),
        false => String::new(),
    };
    match document.tensors {
        0 => output.line(format_args!("the model has no tensors"))?,
        tensors => output.line(format_args!(
            "{} of {} from {} in {} in {}, read at {}{verified}",
            counted(tensors, "tensor"),
            ByteSize(document.bytes),
            counted(document.files, "file"),
            document.devices.join(", "),
            duration(seconds),
            ByteRate(rate),
        ))?,
    }
    if let (Some(path), Some(seconds)) = (&document.saved, document.save_seconds) {
        let time = duration(seconds);
        let path = Shown(path);
        output.line(format_args!("saved as {path} in {time}, on the disk"))?;
    }
    modelled(&document, output)
}

const STAGES: [&str; 7] = ["STAGE", "FROM", "TO", "BYTES", "TIME", "RATE", "MEASURED"];

/// What went over a link while the tensors were loaded.
fn stage(machine: &Machine, hop: &Hop) -> json::Stage {
    let (src, dst) = (hop.src.into(), hop.dst.into());
    let alone = machine.manager.explain_places(src, dst, hop.bytes);
    let alone = { alone.ok() }.map(|alone| alone.chosen);
    let is_one_link = |alone: &Choice| alone.lanes.len() == 1 && alone.method != Method::HostStaged;
    let measured = alone.filter(|alone| alone.measured && is_one_link(alone));
    let rate = |seconds: f64| hop.bytes as f64 / 1e9 / seconds.max(f64::MIN_POSITIVE);
    let seconds = hop.busy.as_secs_f64();
    json::Stage {
        reads: hop.src.kind.is_file(),
        src: hop.src.to_string(),
        dst: hop.dst.to_string(),
        bytes: hop.bytes,
        seconds,
        gb_per_s: rate(seconds),
        measured_gb_per_s: { measured }
            .and_then(|alone| alone.predicted_ns)
            .map(|ns| rate(json::seconds(ns))),
    }
}

fn duration(seconds: f64) -> String {
    Nanoseconds((seconds * 1e9) as u64).to_string()
}

fn row(stage: &json::Stage, converts: bool) -> Vec<String> {
    let name = match (stage.reads, converts) {
        (true, true) => "read, convert",
        (true, false) => "read",
        (false, _) => "copy",
    };
    let rate = |gb_per_s: f64| ByteRate(gb_per_s * 1e9).to_string();
    vec![
        name.into(),
        stage.src.clone(),
        stage.dst.clone(),
        ByteSize(stage.bytes).to_string(),
        duration(stage.seconds),
        rate(stage.gb_per_s),
        stage.measured_gb_per_s.map_or("-".into(), rate),
    ]
}

/// Writes the tensors to a file, which a signal removes while it is being written.
fn save(
    model: &Model,
    manager: &TransferManager,
    tensors: &[Loaded],
    path: &Path,
) -> Result<(), Failure> {
    let mut save = Save::new(manager).tensors(tensors);
    for (key, value) in model.metadata() {
        if let Value::String(text) = value {
            save = save.metadata(key, text);
        }
    }
    let mut held = unfinished();
    let mut saving = save.start(path)?;
    let partial: Vec<PathBuf> = saving.partial_paths().map(Path::to_path_buf).collect();
    partial.iter().for_each(|partial| held.add(path, partial));
    drop(held);
    let written = saving.written();
    // No signal ends the program while files go to their places, or away.
    let mut held = unfinished();
    let placed = written.and_then(move |()| saving.place());
    partial.iter().for_each(|partial| held.forget(partial));
    drop(held);
    placed?;
    Ok(())
}

/// Checks that the file is in the place of no list that names files of the model: a save replaces the list and its files.
fn spares_the_list(model: &Model, path: &Path) -> Result<(), Failure> {
    let list = path.with_extension("safetensors.index.json");
    let within = |path: &Path| folder(path).canonicalize().ok();
    let place = within(path);
    let is_beside = |of: &ModelFile| place.is_some() && within(of.path()) == place;
    if list.is_file() && model.files().len() > 1 && model.files().iter().any(is_beside) {
        return Err(Failure::Replaces {
            option: "--save",
            path: list,
            what: "the list of the model's files",
        });
    }
    Ok(())
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
    let opened = machine.manager.opened();
    let mut devices = opened.devices().iter().filter(|device| device.simulated);
    let simulated = devices.any(|device| {
        let mut memories = plan.memories();
        memories.any(|(memory, _)| memory.device == device.id)
    });
    // A model without tensors has no way.
    let first = explained.first().map(|first| &first.chosen);
    let loads = first.and_then(|first| first.loads.first());
    let ns = explained.iter().map(|of| of.chosen.predicted_ns);
    let ns = ns.reduce(|one, other| Some(one?.saturating_add(other?)));
    Ok(json::Loaded {
        files: files.len(),
        tensors: plan.tensors().len(),
        bytes: plan.len_bytes(),
        read_bytes: plan.read_bytes(),
        over_read_bytes: plan.over_read_bytes(),
        devices: names(plan.memories().map(|(memory, _)| memory)),
        memory_bytes: plan.memories().map(|(_, bytes)| bytes).collect(),
        reading: plan.files().map(file_read).collect(),
        transfers: plan.transfers(),
        method: first.map(|first| first.method.to_string()),
        route: names(
            first
                .into_iter()
                .flat_map(|first| first.route.iter().copied()),
        ),
        predicted_s: ns.flatten().map(json::seconds),
        bound: loads.map(|load| load.of.to_string()),
        seconds: None,
        start_seconds: None,
        stages: Vec::new(),
        read_gb_per_s: None,
        verified: false,
        saved: None,
        save_seconds: None,
        simulated: machine.is_mixed().then_some(simulated),
    })
}

fn file_read((path, reading): (&Path, &Reading)) -> json::FileRead {
    let (way, reason) = match reading {
        Reading::Cached => ("cached", None),
        Reading::Direct => ("direct", None),
        Reading::ThroughCache { reason } => ("through_cache", Some(reason.clone())),
        _ => ("unknown", None),
    };
    json::FileRead {
        path: path.display().to_string(),
        way,
        reason,
    }
}

/// The plan, for people.
fn planned(
    plan: &LoadPlan<'_>,
    document: &json::Loaded,
    output: &mut Output,
) -> Result<(), Failure> {
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    let mut rows = vec![
        row("tensors", document.tensors.to_string()),
        row("bytes", ByteSize(document.bytes).to_string()),
        row("files", document.files.to_string()),
        row(
            "read and not wanted",
            ByteSize(document.over_read_bytes).to_string(),
        ),
    ];
    let memories = plan.memories();
    rows.extend(
        memories
            .map(|(memory, bytes)| row(&format!("bytes of {memory}"), ByteSize(bytes).to_string())),
    );
    for (way, text) in [
        ("cached", "from the system's cache"),
        ("direct", "from the disk, past the cache"),
        ("through_cache", "from the disk, through the cache"),
    ] {
        let of_it = document.reading.iter().filter(|file| file.way == way);
        let reason = { of_it.clone() }.find_map(|file| file.reason.as_ref());
        let reason = reason.map(|reason| format!(": {reason}"));
        let files = counted(of_it.clone().count(), "file");
        if of_it.count() > 0 {
            let said = format!("{files} {text}{}", reason.unwrap_or_default());
            rows.push(row("reading", said));
        }
    }
    rows.push(row("transfers", document.transfers.to_string()));
    let way = document.method.iter();
    rows.extend(way.map(|method| row("way", format!("{method}, {}", document.route.join(" → ")))));
    if let Some(seconds) = document.predicted_s {
        let through_cache = document
            .reading
            .iter()
            .any(|file| file.way == "through_cache");
        let what = match through_cache {
            true => "predicted, as if the cache had it",
            false => "predicted",
        };
        rows.push(row(what, duration(seconds)));
    }
    rows.extend(document.bound.clone().map(|bound| row("bound by", bound)));
    output.table(&["PLAN", ""], rows)
}
