//! The public surface: `docs/public-api` lists the public items of the libraries, so a change of them shows.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use public_api::Builder;

use crate::checks::host;
use crate::files;
use crate::install::Absent;
use crate::process::first_line;
use crate::stage::{Outcome, Session, Verdict};
use crate::workspace::Workspace;

/// What to do with the public surface.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Writes the surface as it is into the files, which the stage `surface` goes by
    #[arg(long)]
    accept: bool,
}

/// Compares the public items with the files.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    check(&session.workspace, false)
}

/// `cargo xtask public-api`: the same as the stage, or accepts what has changed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let verdict = check(workspace, options.accept)?;
    println!("{}{}", verdict.transcript, verdict.note);
    Ok(verdict.outcome != Outcome::Failed)
}

fn check(workspace: &Workspace, accept: bool) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let setting = setting()?;
    // rustdoc describes the same surface in other words on another compiler or system.
    let kept = files::read(&file(workspace, "transload"))?;
    let first = kept.lines().next().unwrap_or_default();
    if first != setting && !accept {
        let reason = format!("the files are `{first}`, this is `{setting}`");
        bail!(Absent(reason));
    }
    let rustdoc = env::var_os("RUSTDOC").unwrap_or_else(|| "rustdoc".into());
    // All packages at once: with fewer, cargo would build some dependencies again, with fewer features.
    let mut cargo = workspace.cargo();
    cargo
        .args(["doc", "--workspace", "--lib", "--no-deps", "--all-features"])
        .env("RUSTDOC", env::current_exe()?)
        .env(STANDING_IN, rustdoc)
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json")
        .env_remove("CARGO_BUILD_TARGET");
    if !verdict.run(&mut cargo)?.success() {
        return Ok(verdict);
    }
    verdict.transcript.clear();
    let mut count = 0;
    for package in KEPT {
        let json = format!("doc/{}.json", package.replace('-', "_"));
        let text = format!("{setting}\n{}", listed(&workspace.target.join(json))?);
        count += text.lines().count() - 1;
        let path = file(workspace, package);
        if accept {
            files::write(&path, text)?;
            continue;
        }
        let kept = files::read(&path).context("to write it: cargo xtask public-api --accept")?;
        if kept != text {
            verdict.fail(format!(
                "the public surface of {} has changed (- is gone, + is new):\n{}\nto accept it: cargo xtask \
                 public-api --accept",
                package,
                changes(&kept, &text)
            ));
        }
    }
    verdict.note = format!("{count} items");
    Ok(verdict)
}

/// The items of a library, one a line, without the compiler's own traits except `Send` and `Sync`.
fn listed(json: &Path) -> Result<String> {
    let surface = Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .build()
        .with_context(|| format!("cannot read {}", json.display()))?;
    let names = UNTOLD.map(|name| format!("{name} for "));
    let told = |item: &String| !names.iter().any(|name| item.contains(name));
    let items = surface.items().map(|item| format!("{item}\n"));
    Ok(items.filter(told).collect())
}

fn changes(old: &str, new: &str) -> String {
    let [before, after] = [old, new].map(|text| text.lines().collect::<BTreeSet<_>>());
    let gone = before.difference(&after).map(|line| format!("-{line}"));
    let new = after.difference(&before).map(|line| format!("+{line}"));
    gone.chain(new).collect::<Vec<_>>().join("\n")
}

/// The compiler, a stable one without its patch version, and the system.
fn setting() -> Result<String> {
    let said = first_line(Command::new("rustc").arg("--version")).context("rustc does not run")?;
    let version = match said.split_once(" (") {
        Some((release, _)) if !release.contains('-') => release.rsplit_once('.'),
        _ => None,
    };
    let version = version.map_or(said.as_str(), |(minor, _)| minor);
    Ok(format!("# {version} for {}", host()?))
}

fn file(workspace: &Workspace, package: &str) -> PathBuf {
    let folder = workspace.root.join("docs/public-api");
    folder.join(format!("{package}.txt"))
}

/// Runs rustdoc with its unstable options, if cargo started this program in rustdoc's place: `None` if it did not. With
/// the variable set for all of cargo, half of the dependencies would be built again: their build scripts read it.
pub(crate) fn stand_in_for_rustdoc() -> Option<Result<bool>> {
    let mut rustdoc = Command::new(env::var_os(STANDING_IN)?);
    rustdoc.args(env::args_os().skip(1));
    let status = rustdoc.env("RUSTC_BOOTSTRAP", "1").status();
    Some(Ok(status.is_ok_and(|status| status.success())))
}

/// Names rustdoc to the program that stands in for it.
const STANDING_IN: &str = "TRANSLOAD_XTASK_RUSTDOC";

/// The libraries that programs and authors of backends write against. The others are parts of these.
const KEPT: [&str; 4] = [
    "transload",
    "transload-hal",
    "transload-tensors",
    "transload-testkit",
];

/// Traits that the compiler implements for nearly every type.
const UNTOLD: [&str; 6] = [
    "core::marker::Freeze",
    "core::marker::StructuralPartialEq",
    "core::marker::Unpin",
    "core::marker::UnsafeUnpin",
    "core::panic::unwind_safe::RefUnwindSafe",
    "core::panic::unwind_safe::UnwindSafe",
];
