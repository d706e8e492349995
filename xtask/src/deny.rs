//! The stage that checks the dependencies: licences, versions, sources.

use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result};

use crate::checks::output_of;
use crate::stage::{Session, Verdict};
use crate::tool::{Call, Recipe, Tool};
use crate::workspace::Workspace;

/// Has cargo-deny compare the dependencies of every workspace of the tree with `deny.toml`.
///
/// # Errors
/// When cargo cannot be started, or cargo-deny cannot be had.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let tool = Tool::provide(&DENY, &mut session.installer, &session.workspace)?;
    session.found(tool.version());
    let mut verdict = Verdict::passed();
    let main = &session.workspace;
    let rules = fs::read_to_string(main.root.join(RULES))?;
    let skips = |line: &&str| line.contains("{ crate = \"") && line.contains('@');
    for line in rules.lines().filter(skips) {
        if !line.contains("reason = \"") {
            verdict.fail(&format!("{RULES} gives no reason for {}", line.trim()));
        }
    }
    check(&tool, main, main, &mut verdict)?;
    let others = main.others()?;
    for other in &others {
        check(&tool, main, other, &mut verdict)?;
    }
    verdict.note = format!("{} workspaces", others.len() + 1);
    Ok(verdict)
}

fn check(tool: &Tool, main: &Workspace, which: &Workspace, verdict: &mut Verdict) -> Result<()> {
    let folder = which.target.join("deny");
    fs::create_dir_all(&folder)?;
    let graph = folder.join("metadata.json");
    // This call runs cargo in the same way as all others in that workspace.
    let mut cargo = which.task("metadata")?;
    cargo.args(["--format-version", "1"]);
    cargo.args(["--all-features", "--locked"]);
    cargo.stderr(Stdio::inherit());
    let told = output_of(&mut cargo).with_context(|| {
        let name = which.root.display();
        format!("cargo metadata --locked fails in {name}")
    })?;
    fs::write(&graph, told)?;
    let mut deny = tool.call(which);
    deny.args(["--log-level", "warn", "--color", "never"]);
    deny.arg("--metadata-path").arg(&graph);
    deny.arg("--config").arg(main.root.join(RULES));
    // All that it reads is here. It also makes cargo check the lockfile, and cargo would change the lockfile where
    // sources are patched; that may fail.
    deny.arg("--frozen");
    deny.arg("check").args(lints(which.root == main.root));
    verdict.run(deny.args(["bans", "licenses", "sources"]))?;
    Ok(())
}

/// An exception that no package needs is a mistake in the main workspace, which needs all of them; other workspaces
/// need fewer.
fn lints(is_main: bool) -> impl Iterator<Item = &'static str> {
    let flag = if is_main { "--deny" } else { "--allow" };
    UNUSED.into_iter().flat_map(move |lint| [flag, lint])
}

const RULES: &str = "deny.toml";

/// cargo-deny's names for exceptions that are not needed.
const UNUSED: [&str; 3] = [
    "unmatched-skip",
    "unnecessary-skip",
    "license-not-encountered",
];

/// The release settings of cargo-deny, whole-program optimisation by one thread, suit a program that runs for longer
/// than a second. With these settings it takes three minutes of processor time to build.
const DENY: Recipe = Recipe {
    package: "cargo-deny",
    program: "cargo-deny",
    call: Call::Cargo("deny"),
    version: "0.20.2",
    locked: true,
    arguments: &[],
    settings: &[
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ],
};
