//! `transload probe`

mod advice;
mod fresh;
mod matrix;
mod page;
mod ring;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use transload::Profile;
use transload::model::LinkId;
use transload::probe::{Found, Interval, PairReport, ProbeOptions, ProbePhase, ProbeReport};
use transload::profile::{ENVIRONMENT, Point, saved_path, verdicts_path};

use crate::arguments::ProbeArguments;
use crate::costs::Wanted;
use crate::failure::Failure;
use crate::interrupt;
use crate::json::{self, seconds};
use crate::machine::{Asked, Machine};
use crate::output::{Output, Style};
use crate::output_file::{OutputFile, replaceable, spares};
use crate::shown::Shown;
use advice::{Facts, advise};
use matrix::{Figure, Matrix, SURE, WIDE, is_doubtful};

pub(crate) fn run(
    arguments: &ProbeArguments,
    asked: Asked<'_>,
    output: &mut Output,
) -> Result<(), Failure> {
    asked.nodes.spare(arguments.topology.as_deref())?;
    let html = arguments.html.as_deref();
    let read = [("the topology", arguments.topology.as_deref())];
    spares("--html", html, read)?;
    spares("--profile", asked.costs.path(), read)?;
    let html_file = html
        .map(|path| OutputFile::text("--html", path))
        .transpose()?;
    let mut place = place(arguments, asked.costs);
    let verdicts = place.as_deref().ok().map(verdicts_path);
    // Earlier measurements are not used.
    let machine = match &arguments.topology {
        Some(path) => Machine::described_keeping(path, Wanted::Default, verdicts)?,
        None => Machine::keeping(
            None,
            Asked {
                costs: Wanted::Default,
                ..asked
            },
            verdicts,
            false,
        )?,
    };
    machine.note(output);
    // A stand-in for a driver is detected only now. Its modelled times are no measurement of this
    // machine.
    if place.is_ok() && matches!(asked.costs, Wanted::Saved) && machine.has_stand_in() {
        place = Err(SIMULATED.into());
    }
    // Without a name the place is the system's, and what was measured is of use even if nothing can be written there.
    let is_named = matches!(asked.costs, Wanted::File(_));
    if let Ok(path) = &place
        && let Err(failure) = prepare(path)
    {
        if is_named {
            // Before the probe spends a minute on a profile that cannot be saved.
            return Err(failure);
        }
        place = Err(failure.to_string());
    }
    spares("--html", html, [("the profile", place.as_deref().ok())])?;
    let mut options = match arguments.quick {
        true => ProbeOptions::quick(),
        false => ProbeOptions::full(),
    };
    if let Some(seconds) = arguments.seconds {
        options.budget = Duration::from_secs(seconds.into());
    }
    if arguments.topology.is_some() {
        // A model repeats itself to the nanosecond, whatever the machine below it has to do, and so is
        // probed to the end.
        options.samples = LEAST_SAMPLES;
        options.budget = UNHURRIED;
    }
    let mut known = match arguments.topology {
        // Nothing of this machine takes part.
        Some(_) => Facts::default(),
        None => known(&machine, &options),
    };
    let mut look = Duration::ZERO;
    let bar = bar(output, &options);
    let found = machine.manager.probe_watched(&options, &mut |progress| {
        let shown = match progress.phase {
            ProbePhase::CheckingLinks => "checking links",
            ProbePhase::TimingLinks => "timing links",
            ProbePhase::TimingFreshMemory => "timing memory",
            ProbePhase::CheckingPairs => "checking pairs",
            ProbePhase::TimingPairs => "timing pairs",
        };
        if bar.message() != shown {
            bar.set_message(shown);
        }
        bar.set_position(progress.elapsed.as_millis() as u64);
        if progress.elapsed >= look {
            known.look();
            look = progress.elapsed + Duration::from_millis(100);
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    if let Ok(path) = &place
        && let Some(reason) = is_worse(&found.profile, path, &machine)
    {
        place = Err(reason);
    }
    let saved = place.as_ref().map_or(Ok(()), |path| {
        // While this is held, no signal ends the program.
        let _whole = interrupt::unfinished();
        found.profile.save(path)
    });
    if let Err(error) = &saved {
        place = Err(error.to_string());
    }
    let wrong = wrong_bytes(&found);
    show(&found, &options, output)?;
    match &place {
        Ok(path) if !output.is_json() => {
            output.line(format_args!("Saved in {}.", Shown(path.display())))?
        }
        Ok(_) => {}
        Err(reason) => output.remark(&format!("Not saved: {reason}."), plain)?,
    }
    let document = document(&found, place.ok().as_deref(), arguments, advise(&known));
    if let Some((file, path)) = html_file.zip(html) {
        let json = output.document(&document)?;
        let facts = facts(&options, arguments);
        let advice = &document.advice;
        file.fill(&page::draw(
            &found,
            &machine,
            &facts,
            output.notes(),
            advice,
            &json,
        ))?;
        if !output.is_json() {
            output.line(format_args!("Page in {}.", Shown(path.display())))?;
        }
    }
    if !output.is_json() {
        let word = output.style().yellow("advice:");
        for advice in &document.advice {
            let json::Advice {
                about,
                found,
                remedy,
            } = advice;
            let advice = format!("{about}: {found}. Remedy: {remedy}.");
            output.line(format_args!("{word} {}", Shown(advice)))?;
        }
    }
    if !wrong.is_empty() {
        return Err(Failure::WrongBytes(wrong));
    }
    if is_named {
        saved?;
    }
    match output.is_json() {
        true => output.json(&document),
        false => Ok(()),
    }
}

/// What advice is derived from.
fn known(machine: &Machine, options: &ProbeOptions) -> Facts {
    let manager = &machine.manager;
    let lacks = |kind| manager.lacks(kind);
    // Both ends of a copy, and its slots.
    let ends = options.sizes.iter().max().map_or(0, |bytes| 2 * bytes);
    let wanted_bytes = manager.staging().limit_bytes() + ends;
    Facts::read(Path::new("/"), &manager.devices(), lacks, wanted_bytes)
}

/// What a page says of the probe.
fn facts(options: &ProbeOptions, arguments: &ProbeArguments) -> Vec<(&'static str, String)> {
    let quick = if arguments.quick { ", --quick" } else { "" };
    let budget = match options.budget == UNHURRIED {
        true => format!("to the end{quick}"),
        false => format!("{} s{quick}", options.budget.as_secs()),
    };
    let topology = arguments.topology.as_ref();
    let topology = topology.map(|path| ("Topology", path.display().to_string()));
    [("Budget", budget)].into_iter().chain(topology).collect()
}

/// Longer than any description takes.
const UNHURRIED: Duration = Duration::from_secs(24 * 3600);

const SIMULATED: &str = "what was measured of a simulated machine goes to --profile FILE only";

/// The path for the profile, or why it is not saved.
fn place(arguments: &ProbeArguments, wanted: Wanted<'_>) -> Result<PathBuf, String> {
    if arguments.no_save {
        return Err("--no-save was given".into());
    }
    if let Wanted::File(path) = wanted {
        return Ok(path.into());
    }
    if arguments.topology.is_some() {
        return Err(SIMULATED.into());
    }
    saved_path().ok_or_else(|| match std::env::var_os(ENVIRONMENT) {
        Some(_) => format!("{ENVIRONMENT} is set to nothing"),
        None => "this system names no directory for caches; name a file with --profile FILE".into(),
    })
}

/// Checks that a profile can be written there.
fn prepare(path: &Path) -> Result<(), Failure> {
    if let Ok(before) = std::fs::metadata(path) {
        replaceable(path, &before)?;
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let made = folder.map_or(Ok(()), std::fs::create_dir_all);
    made.map_err(|source| Failure::Create {
        path: path.into(),
        source,
    })
}

/// Why the figures of a profile must not replace those at the path: none can be trusted, and some of those can.
fn is_worse(profile: &Profile, path: &Path, machine: &Machine) -> Option<String> {
    let topology = machine.manager.topology();
    let before = Profile::load(path).ok()?;
    let is_better = !has_sure(profile) && before.check(&topology).is_ok() && has_sure(&before);
    is_better.then(|| {
        format!(
            "no figure of a link can be trusted, and {} has some that can; it is unchanged",
            path.display()
        )
    })
}

/// Whether the time of a link can be trusted.
fn has_sure(profile: &Profile) -> bool {
    let points = profile.links().iter().flat_map(|link| &link.points);
    let spread = |point: &Point| {
        let half =
            { point.high_ns.saturating_sub(point.ns) }.max(point.ns.saturating_sub(point.low_ns));
        half as f64 / point.ns.max(1) as f64
    };
    let mut points = points.filter(|point| point.samples >= LEAST_SAMPLES);
    points.any(|point| spread(point) <= WIDE)
}

/// The fewest copies of which the median has an interval of 95 %.
const LEAST_SAMPLES: u32 = 6;

/// Shows how much of the budget is used.
fn bar(output: &Output, options: &ProbeOptions) -> ProgressBar {
    let target = match output.is_json() {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let millis = options.budget.as_millis() as u64;
    let bar = ProgressBar::with_draw_target(Some(millis), target);
    let of = options.budget.as_secs();
    let template = match options.budget == UNHURRIED {
        true => "{msg:14}  {elapsed}".into(),
        false => format!("{{msg:14}}  {{bar:30}}  {{elapsed}} of {of}s"),
    };
    match ProgressStyle::with_template(&template) {
        Ok(style) => bar.with_style(style.progress_chars("━╸─")),
        Err(_) => bar,
    }
}

/// A clause for each link and pair over which wrong bytes arrived.
fn wrong_bytes(found: &ProbeReport) -> Vec<String> {
    let links = found.faulty().map(|link| {
        let LinkId {
            src, dst, engine, ..
        } = link;
        format!("the link {src} → {dst} over {engine} moves wrong bytes and is not used any more")
    });
    let pairs = found.wrong_pairs().map(|pair| {
        let PairReport {
            src, dst, bytes, ..
        } = pair;
        format!("of {bytes} bytes {src} → {dst} others arrived than were sent")
    });
    links.chain(pairs).collect()
}

fn plain(_: Style, text: &str) -> String {
    text.into()
}

fn show(found: &ProbeReport, options: &ProbeOptions, output: &mut Output) -> Result<(), Failure> {
    let sizes = |pair: &PairReport| pair.bytes;
    let (first, last) = (
        found.pairs.iter().map(sizes).min(),
        found.pairs.iter().map(sizes).max(),
    );
    let shown = [(last, Figure::Rates), (first, Figure::Times)];
    if !output.is_json() {
        for (bytes, shown) in shown {
            if let Some(bytes) = bytes {
                Matrix::new(&found.pairs, bytes, shown).print(output)?;
            }
        }
        fresh::print(found, output)?;
    }
    let shown = |pair: &&PairReport| [first, last].contains(&Some(pair.bytes));
    let intervals = found
        .pairs
        .iter()
        .filter(shown)
        .filter_map(|pair| match &pair.found {
            Found::Time(interval) => Some(interval),
            _ => None,
        });
    if let Some(doubt) = doubt(intervals, options.budget) {
        output.remark(&doubt, Style::yellow)?;
    }
    let mut reasons = Vec::new();
    for link in &found.links {
        let failed = link.sizes.iter().find_map(|(bytes, found)| match found {
            Found::Failed(reason) => Some((bytes, reason)),
            _ => None,
        });
        if let Some((bytes, reason)) = failed {
            let LinkId {
                src, dst, engine, ..
            } = link.id;
            reasons.push(format!(
                "not measured: {src} → {dst} over {engine}, {bytes} bytes: {reason}"
            ));
        }
    }
    let missed = found.links.iter().flat_map(|link| &link.sizes);
    let missed = missed.filter(|(_, found)| *found == Found::NotReached);
    match missed.count() {
        0 => {}
        count => reasons.push(format!(
            "not reached in the time: {count} figures of links, which keep their default costs"
        )),
    }
    for reason in reasons {
        output.remark(&reason, Style::yellow)?;
    }
    let timed = found.links.iter().flat_map(|link| &link.sizes);
    let samples = timed.filter_map(|(_, found)| match found {
        Found::Time(time) => Some(time.samples),
        _ => None,
    });
    let links = found.profile.links().iter().filter(|link| !link.faulty);
    let told = match (samples.clone().min(), samples.max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most} copies"),
        (Some(1), _) => "1 copy".into(),
        (Some(count), _) => format!("{count} copies"),
        _ => "no copies".into(),
    };
    let summary = format!(
        "{} of {} links measured, with {told} of each size; files in the page cache.",
        links.count(),
        found.links.len()
    );
    output.remark(&summary, plain)?;
    match found.simulated {
        true => output.remark(SIMULATED_TIMES, Style::yellow),
        false => Ok(()),
    }
}

const SIMULATED_TIMES: &str =
    "simulated: real bytes moved through a stand-in; the times are the model's";

/// Says how many figures are not to be trusted, why, and what to do.
fn doubt<'a>(intervals: impl Iterator<Item = &'a Interval>, budget: Duration) -> Option<String> {
    let (doubtful, sure): (Vec<&Interval>, Vec<&Interval>) =
        intervals.partition(|interval| is_doubtful(interval));
    let count = doubtful.len();
    let few = { doubtful.iter() }
        .filter(|interval| interval.samples < LEAST_SAMPLES)
        .count();
    let (s, wide) = (if count == 1 { "" } else { "s" }, WIDE * 100.0);
    let told = match sure.is_empty() && count > 1 {
        true => format!("do not trust any of the {count} figures (marked !)"),
        false => format!("do not trust {count} figure{s} marked !"),
    };
    // Copies whose times differ say that something else uses the machine; too few of them, that the time was short.
    let mut reasons = Vec::new();
    if few > 0 {
        let longer = budget.as_secs().saturating_mul(4).clamp(1, 24 * 3600);
        reasons.push(format!(
            "{few} of fewer than {LEAST_SAMPLES} copies: probe longer, as with --seconds {longer}"
        ));
    }
    if few < count {
        reasons.push(format!(
            "{} over ±{wide:.0}%: close other programs, and probe again",
            count - few
        ));
    }
    (count > 0).then(|| format!("{told}: {}", reasons.join("; ")))
}

fn document(
    found: &ProbeReport,
    place: Option<&Path>,
    arguments: &ProbeArguments,
    advice: Vec<json::Advice>,
) -> json::Probe {
    let pair = |pair: &PairReport| {
        let time = match &pair.found {
            Found::Time(time) => Some(time),
            _ => None,
        };
        let (median, sure) = (
            time.map(|time| time.median_ns),
            time.filter(|time| time.confidence >= SURE),
        );
        json::ProbedPair {
            src: pair.src.to_string(),
            dst: pair.dst.to_string(),
            bytes: pair.bytes,
            seconds: median.map(seconds),
            gb_per_s: median
                .filter(|ns| *ns > 0)
                .map(|ns| pair.bytes as f64 / ns as f64),
            spread: sure.map(Interval::spread),
            method: pair.method.map(|method| method.to_string()),
            verified: time.is_some(),
        }
    };
    let mut pairs: Vec<&PairReport> = found.pairs.iter().collect();
    pairs.sort_by_key(|pair| (pair.src, pair.dst, pair.bytes));
    json::Probe {
        fresh: found.fresh.iter().map(fresh::document).collect(),
        pairs: pairs.into_iter().map(pair).collect(),
        profile_path: place.map(|path| path.display().to_string()),
        advice,
        simulated: (arguments.topology.is_some() || found.simulated).then_some(found.simulated),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use transload::TransferManager;
    use transload_testkit::sim::{Rule, Script, Sim};
    use transload_testkit::topology;

    use super::*;

    #[test]
    fn figures_that_cannot_be_trusted_are_counted_with_what_to_do() {
        let of = |times: &[u64]| Interval::of(times).unwrap();
        let [narrow, wide, unknown] = [&[100; 10][..], &[50, 100].repeat(5), &[100]].map(of);
        let told = |intervals: &[&Interval]| {
            doubt(intervals.iter().copied(), Duration::from_secs(10)).unwrap_or_default()
        };
        assert_eq!(told(&[&narrow]), "");
        assert_eq!(
            told(&[&wide, &narrow, &unknown]),
            "do not trust 2 figures marked !: 1 of fewer than 6 copies: probe longer, as with --seconds 40; 1 over ±20%: \
             close other programs, and probe again"
        );
        assert_eq!(
            told(&[&wide, &wide]),
            "do not trust any of the 2 figures (marked !): 2 over ±20%: close other programs, and probe again"
        );
    }

    #[test]
    fn wrong_bytes_are_told_by_their_link_and_have_their_exit_code() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../topologies/workstation.toml"
        );
        let machine = topology::from_file(file).unwrap();
        let lies = Rule::corrupt(3).over(
            "cpu:0/pinned".parse().unwrap(),
            "sim:1/device".parse().unwrap(),
        );
        let sim = Sim::builder(&machine).script(Script::new().with(lies.always()));
        let sim = sim.build().unwrap();
        let manager = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .backend(Arc::new(sim))
            .build()
            .unwrap();
        let mut options = ProbeOptions::quick();
        options.budget = Duration::from_secs(10_000);
        options.sizes = vec![4096];
        options.samples = 1;
        let found = manager.probe(&options);
        let failure = Failure::WrongBytes(wrong_bytes(&found));
        assert_eq!(
            failure.to_string(),
            "bytes differ: the link cpu:0/pinned → sim:1/device over sim:1#0 moves wrong bytes and is \
             not used any more"
        );
        assert_eq!(failure.kind().exit_code(), 4);
        // A page shows them, and what else was not measured.
        let mut found = found;
        let page = |found: &ProbeReport| {
            let machine = Machine::described(Path::new(file), Wanted::Default).unwrap();
            let advice = json::Advice {
                about: "cuda:0".into(),
                found: "x8 <x16>".into(),
                remedy: "reseat the card".into(),
            };
            page::draw(found, &machine, &[], &[], &[advice], "{}")
        };
        let before = page(&found);
        assert!(
            before.contains("x8 &lt;x16&gt;</td>\n<td>reseat the card</td>"),
            "{before}"
        );
        assert!(before.contains("link pcie bad") && before.contains("wrong bytes: not used"));
        assert!(!before.contains("class=\"wrong\"") && !before.contains("class=\"none\""));
        found.pairs[1].found = Found::WrongBytes;
        found.pairs[2].found = Found::NotReached;
        let page = page(&found);
        for told in ["class=\"wrong\"", "class=\"none\"", "<td>not reached</td>"] {
            assert!(page.contains(told), "{told}: {page}");
        }
    }
}
