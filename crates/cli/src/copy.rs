//! `transload copy FILE STOP...`

use std::collections::VecDeque;
use std::fmt::Write;

use transload::host::HostFile;
use transload::model::Route;
use transload::{AllocSpec, Buffer, ByteRate, ByteSize, Error, Nanoseconds, Report, Request};

use crate::arguments::CopyOptions;
use crate::failure::Failure;
use crate::json::{self, names, seconds};
use crate::machine::{Asked, Machine, Times};
use crate::output::{Output, Style, grouped};
use crate::output_file::{OutputFile, spares};
use crate::progress::Progress;
use crate::shown::Shown;
use crate::standard::{self, StandardOutput};
use crate::stop::{Stop, StopError, stops};

pub(crate) fn run(
    options: &CopyOptions,
    asked: Asked<'_>,
    output: &mut Output,
) -> Result<(), Failure> {
    let read = [
        ("the topology", options.topology.as_deref()),
        ("the profile", asked.costs.path()),
    ];
    let source = Stop::file(&options.file);
    let out = options.out.as_deref().map(Stop::file);
    spares("--out", out.as_ref().and_then(Stop::path), read)?;
    let usage = |error: StopError| Failure::Arguments(error.to_string());
    let (chain, last) = stops(&options.stops).map_err(usage)?;
    if out.is_some() && chain.last().is_some_and(Stop::is_standard) {
        return Err(usage(StopError::StandardBefore));
    }
    if !last.is_empty() && out.is_some() {
        let message = "--out writes what arrived at one last stop, and several are joined by +";
        return Err(Failure::Arguments(message.into()));
    }
    let all = || chain.iter().chain(&last);
    for stop in all() {
        spares("a stop", stop.path(), read)?;
    }
    let trace = options.trace.as_deref();
    let stops = all().map(|stop| ("a stop", stop.path()));
    let own = [
        ("the file to copy", source.path()),
        ("the one of --out", out.as_ref().and_then(Stop::path)),
    ];
    spares("--trace", trace, stops.chain(own).chain(read))?;
    let trace_file = trace.map(|path| OutputFile::text("--trace", path));
    let trace_file = trace_file.transpose()?;
    let machine = match trace_file {
        Some(_) => Machine::traced(options.topology.as_deref(), asked)?,
        None => Machine::here(options.topology.as_deref(), asked)?,
    };
    machine.note(output);
    let mut stops = vec![source];
    stops.extend(chain);
    stops.extend(out);
    for stop in stops.iter().chain(&last) {
        machine.expect(stop.place())?;
    }
    let at = match stops[0].path() {
        Some(path) => Some(machine.manager.open_file(path)?),
        None => None,
    };
    // All files are created before the first hop, and before standard input is read, so that a misspelt folder fails before
    // any work is done.
    let output_files = stops[1..].iter().chain(&last).map(Making::of);
    let mut output_files: VecDeque<Option<Making>> = output_files.collect::<Result<_, _>>()?;
    let at = match at {
        Some(at) => at,
        None => machine.manager.adopt_file(standard::read()?)?,
    };
    for making in output_files.iter_mut().flatten() {
        making.resize(at.len())?;
    }
    let mut chain = Chain {
        at,
        machine,
        stops,
        last,
        output_files,
        verify: options.verify,
        checksum: None,
        progress: Progress::new(output.is_json()),
    };
    let bytes = chain.at.len();
    let columns = Columns::new(&chain, output);
    let mut is_first = true;
    let hops = chain.run(|hop, done| {
        if output.is_json() {
            return Ok(());
        }
        if std::mem::take(&mut is_first) {
            output.line(columns.header())?;
        }
        output.line(columns.row(hop, done))
    });
    // The trace of a hop that failed is of most use.
    if let Some(trace_file) = trace_file {
        let trace = chain.machine.manager.take_trace();
        if trace.left_out() > 0 {
            let left_out = grouped(trace.left_out());
            output.note(&format!(
                "the trace was full: {left_out} events were left out"
            ));
        }
        let written = trace_file.fill(&trace.to_string());
        // What became of the copy is more important.
        if hops.is_ok() {
            written?;
        }
    }
    let hops = hops?;
    let simulated = hops.iter().any(Hop::is_simulated);
    let modelled = |output: &mut Output| match simulated {
        true => output.remark(MODELLED, Style::yellow),
        false => Ok(()),
    };
    let checksum = chain.checksum.map(|sum| format!("xxh3-64:{sum:016x}"));
    if output.is_json() {
        modelled(output)?;
        return output.json(&json::Copy {
            bytes,
            verified: checksum.is_some(),
            checksum,
            hops: hops.into_iter().map(Hop::document).collect(),
        });
    }
    let style = output.style();
    let size = format!("{} ({} bytes)", ByteSize(bytes), grouped(bytes));
    match checksum {
        Some(checksum) => output.line(format_args!(
            "\n{size}, verified at every stop: {}",
            style.green(&checksum)
        ))?,
        None => output.line(format_args!("\n{size}"))?,
    }
    modelled(output)
}

const MODELLED: &str =
    "simulated: such a hop moved real bytes through a stand-in; its time is modelled";

/// A file on its way.
struct Chain {
    machine: Machine,
    /// The file, then the stops.
    stops: Vec<Stop>,
    /// Stops that get the bytes at once, from the last one of those before: none, or more than one.
    last: Vec<Stop>,
    /// Of each stop after the file: where it is a file too, that file in the making.
    output_files: VecDeque<Option<Making>>,
    /// The buffer that holds the bytes now.
    at: Buffer,
    verify: bool,
    /// The checksum of the bytes at the last stop.
    checksum: Option<u64>,
    progress: Progress,
}

/// A stop that is a file, in the making.
enum Making {
    File(Box<OutputFile>),
    Standard(StandardOutput),
}

impl Making {
    /// `None` for memory.
    ///
    /// # Errors
    /// If no file can be made there.
    fn of(stop: &Stop) -> Result<Option<Making>, Failure> {
        Ok(match (stop.path(), stop.is_standard()) {
            (Some(path), _) => Some(Making::File(OutputFile::new(path)?.into())),
            (None, true) => Some(Making::Standard(StandardOutput::new()?)),
            (None, false) => None,
        })
    }

    fn resize(&mut self, len_bytes: u64) -> Result<(), Failure> {
        match self {
            Making::File(file) => file.resize(len_bytes),
            Making::Standard(output) => output.resize(len_bytes),
        }
    }

    fn host_file(&self) -> Result<HostFile, Failure> {
        match self {
            Making::File(file) => file.host_file(),
            Making::Standard(output) => output.host_file(),
        }
    }

    fn place(self) -> Result<(), Failure> {
        match self {
            Making::File(file) => file.place(),
            Making::Standard(output) => output.place(),
        }
    }
}

/// The result of a hop.
struct Hop {
    src: Stop,
    dst: Stop,
    report: Report,
    times: Times,
    /// Whether a topology takes part in the command, so that the hop says whether it is simulated.
    mixed: bool,
}

impl Chain {
    /// Moves the bytes to each stop, and tells of each hop when it is over.
    fn run(
        &mut self,
        mut tell: impl FnMut(usize, &Hop) -> Result<(), Failure>,
    ) -> Result<Vec<Hop>, Failure> {
        let hops = (1..self.stops.len()).map(|hop| {
            let done = self.hop(hop)?;
            tell(hop, &done)?;
            Ok(done)
        });
        let mut hops: Vec<Hop> = hops.collect::<Result<_, Failure>>()?;
        if !self.last.is_empty() {
            let number = self.stops.len();
            let mut failed = None;
            for done in self.spread(number)? {
                match done {
                    Ok(hop) => {
                        tell(number, &hop)?;
                        hops.push(hop);
                    }
                    Err(failure) => drop(failed.get_or_insert(failure)),
                }
            }
            if let Some(failure) = failed {
                return Err(failure);
            }
        }
        Ok(hops)
    }

    /// Moves the bytes to all of the last stops. Returns what became of each.
    fn spread(&mut self, number: usize) -> Result<Vec<Result<Hop, Failure>>, Failure> {
        let manager = &self.machine.manager;
        let mut buffers = Vec::new();
        for stop in &self.last {
            let output_file = self.output_files.pop_front().flatten();
            let buffer = match &output_file {
                Some(output_file) => manager.adopt_file(output_file.host_file()?)?,
                None => manager.allocate(stop.place(), AllocSpec::bytes(self.at.len()))?,
            };
            buffers.push((buffer, output_file));
        }
        let request = |(buffer, _): &(Buffer, Option<Making>)| {
            let request = Request::new(&self.at, buffer);
            if self.verify {
                request.verify()
            } else {
                request
            }
        };
        let requests: Vec<Request> = buffers.iter().map(request).collect();
        let since_ns = self.machine.modelled_ns();
        let transfers = manager
            .broadcast(&requests)
            .map_err(Error::from)?
            .into_transfers();
        let mut all = Vec::new();
        for ((transfer, (_, output_file)), dst) in
            transfers.into_iter().zip(buffers).zip(&self.last)
        {
            let src = &self.stops[number - 1];
            let moved = self.progress.wait(transfer, &format!("to {dst}"));
            let report = match moved {
                Ok(report) => report,
                Err(source) => {
                    all.push(Err(Failure::Hop {
                        hop: number,
                        between: format!("{src} → {dst}"),
                        source: Box::new(source),
                    }));
                    continue;
                }
            };
            // Where the bytes came from: the stop before, or another one of the last.
            let first = report
                .route()
                .next()
                .filter(|first| *first != self.at.memory());
            let from = first.and_then(|first| {
                let is_it = |stop: &&Stop| manager.resolve(stop.place()).ok() == Some(first);
                self.last.iter().find(is_it)
            });
            self.checksum = report.checksum();
            if let Some(output_file) = output_file {
                output_file.place()?;
            }
            all.push(Ok(Hop {
                src: from.unwrap_or(src).clone(),
                dst: dst.clone(),
                times: self.machine.times(&report, since_ns),
                report,
                mixed: self.machine.is_mixed(),
            }));
        }
        Ok(all)
    }

    /// Moves the bytes to stop `number`.
    fn hop(&mut self, number: usize) -> Result<Hop, Failure> {
        let (src, dst) = (&self.stops[number - 1], &self.stops[number]);
        let len_bytes = self.at.len();
        let output_file = self.output_files.pop_front().flatten();
        let manager = &self.machine.manager;
        let buffer = match &output_file {
            Some(output_file) => manager.adopt_file(output_file.host_file()?)?,
            None => manager.allocate(dst.place(), AllocSpec::bytes(len_bytes))?,
        };
        let mut request = Request::new(&self.at, &buffer);
        if self.verify {
            request = request.verify();
        }
        let label = format!("hop {number} of {}", self.stops.len() - 1);
        let since_ns = self.machine.modelled_ns();
        let moved = self.progress.wait(manager.submit(&request), &label);
        let report = moved.map_err(|source| Failure::Hop {
            hop: number,
            between: format!("{src} → {dst}"),
            source: Box::new(source),
        })?;
        let times = self.machine.times(&report, since_ns);
        if let (Some(arrived), Some(left)) = (self.checksum, report.checksum())
            && arrived != left
        {
            return Err(Failure::Changed {
                stop: src.to_string(),
                arrived,
                left,
            });
        }
        self.checksum = report.checksum();
        if let Some(output_file) = output_file {
            output_file.place()?;
        }
        let hop = Hop {
            src: src.clone(),
            dst: dst.clone(),
            report,
            times,
            mixed: self.machine.is_mixed(),
        };
        self.at = buffer;
        Ok(hop)
    }
}

impl Hop {
    fn is_simulated(&self) -> bool {
        self.report.is_simulated()
    }

    fn bytes_per_second(&self) -> Option<f64> {
        let seconds = seconds(self.times.copy_ns);
        (seconds > 0.0).then(|| self.report.bytes() as f64 / seconds)
    }

    /// The routes that carried the payload at the same time.
    fn lanes(&self) -> impl Iterator<Item = json::HopLane> {
        let lanes = self.report.plan().map_or(&[][..], |plan| &plan.lanes);
        let total: f64 = lanes.iter().map(|lane| f64::from(lane.share)).sum();
        lanes.iter().map(move |lane| json::HopLane {
            route: names(lane.route.iter().flat_map(Route::memories)),
            share: f64::from(lane.share) / total,
        })
    }

    fn document(self) -> json::Hop {
        json::Hop {
            src: self.src.to_string(),
            dst: self.dst.to_string(),
            method: self.report.method().to_string(),
            route: names(self.report.route()),
            lanes: self.lanes().collect(),
            seconds: seconds(self.times.copy_ns),
            check_seconds: self.times.check_ns.map(seconds),
            gb_per_s: self.bytes_per_second().map(|rate| rate / 1e9),
            fallbacks: self.report.fallbacks().iter().map(fallback).collect(),
            simulated: self.mixed.then_some(self.report.is_simulated()),
        }
    }
}

fn fallback(fallback: &transload::Fallback) -> json::Fallback {
    let lane = fallback.plan.lanes.first();
    let route = lane.and_then(|lane| lane.route.as_ref());
    json::Fallback {
        method: fallback.plan.method.to_string(),
        route: route.map_or_else(Vec::new, |route| names(route.memories())),
        reason: fallback.fault.to_string(),
    }
}

/// The table of hops. Its widths are known before the first hop, so that each row is printed when
/// its hop is over.
struct Columns {
    style: Style,
    verify: bool,
    /// The most columns of a stop.
    widest: usize,
    src: usize,
    dst: usize,
}

impl Columns {
    fn new(chain: &Chain, output: &Output) -> Columns {
        let others = if chain.verify { OTHERS + CHECK } else { OTHERS };
        let widest = (output.columns().saturating_sub(others) / 2).max(NARROWEST);
        let width = |stops: &[Stop]| {
            let widths = stops.iter().map(|stop| stop.short(widest).chars().count());
            widths.max().unwrap_or(0).max("FROM".len())
        };
        let (ahead, behind) = match chain.last.is_empty() {
            true => (&chain.stops[..chain.stops.len() - 1], &[][..]),
            false => (&chain.stops[..], &chain.last[..]),
        };
        Columns {
            style: output.style(),
            verify: chain.verify,
            widest,
            src: width(ahead).max(width(behind)),
            dst: width(&chain.stops[1..]).max(width(behind)),
        }
    }

    fn header(&self) -> String {
        let check = if self.verify { "CHECK" } else { "" };
        let header = self.line("HOP", ["FROM", "TO"], "METHOD", ["TIME", "RATE", check]);
        self.style.bold(&header)
    }

    fn row(&self, number: usize, hop: &Hop) -> String {
        let time = |ns| Nanoseconds(ns).to_string();
        let rate = hop
            .bytes_per_second()
            .map(|rate| ByteRate(rate).to_string());
        let rate = rate.unwrap_or_else(|| "–".into());
        let check = match (self.verify, hop.times.check_ns) {
            (false, _) => String::new(),
            (true, Some(ns)) => time(ns),
            (true, None) => "in TIME".into(),
        };
        let mut row = self.line(
            &number.to_string(),
            [&hop.src, &hop.dst]
                .map(|stop| stop.short(self.widest))
                .each_ref()
                .map(String::as_str),
            &hop.report.method().to_string(),
            [&time(hop.times.copy_ns), &rate, &check],
        );
        let mut notes = Vec::new();
        if hop.is_simulated() {
            notes.push(self.style.yellow("simulated"));
        }
        let lanes: Vec<json::HopLane> = hop.lanes().collect();
        for lane in &lanes {
            let via = match &lane.route[..] {
                [_, via @ .., _] if !via.is_empty() => format!("via {}", via.join(", ")),
                _ if lanes.len() > 1 => "direct".into(),
                _ => continue,
            };
            let share = match lanes.len() {
                1 => String::new(),
                _ => format!("{:.1} % ", lane.share * 100.0),
            };
            notes.push(self.style.dim(&(share + &via)));
        }
        // Writing to a string cannot fail.
        if !notes.is_empty() {
            let _ = write!(row, "\n     {}", notes.join("; "));
        }
        for tried in hop.report.fallbacks() {
            let (plan, fault) = (&tried.plan, &tried.fault);
            let fault = Shown(fault);
            let _ = write!(row, "\n     after {plan} failed:\n       {fault}");
        }
        row
    }

    fn line(&self, hop: &str, [src, dst]: [&str; 2], method: &str, figures: [&str; 3]) -> String {
        let [time, rate, check] = figures;
        let (from, to) = (self.src, self.dst);
        let line =
            format!("{hop:3}  {src:from$}  {dst:to$}  {method:13}  {time:7}  {rate:9}  {check}");
        line.trim_end().to_owned()
    }
}

/// What the columns beside the stops take, `HOP` to `RATE`, and the gaps.
const OTHERS: usize = 3 + 2 + 2 + 2 + 13 + 2 + 7 + 2 + 9;

/// What `CHECK` takes, and its gap.
const CHECK: usize = 2 + 7;

/// A stop is shown in no fewer columns, on however narrow a terminal.
const NARROWEST: usize = 24;

impl From<transload::hal::AllocError> for Failure {
    fn from(error: transload::hal::AllocError) -> Failure {
        Failure::Library(Error::from(error))
    }
}
