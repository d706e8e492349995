//! The stage that checks the dependencies: licences, versions, sources.

use std::process::Command;

use anyhow::{Context, Result};

use crate::files;
use crate::process::{first_line, output_of};
use crate::stage::{Session, Verdict};
use crate::tool::Tool;
use crate::workspace::Workspace;

/// Has cargo-deny compare the dependencies of every workspace of the tree with `deny.toml`. An installed one of any
/// version will do.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    let main = session.workspace.clone();
    let is_installed = first_line(main.cargo().args(["deny", "--version"])).is_some();
    let built = match is_installed {
        true => None,
        false => Some(DENY.provide(session)?),
    };
    let deny = |workspace: &Workspace| {
        let program = built.as_ref();
        let mut call = program.map_or_else(|| workspace.cargo(), |it| workspace.call(it));
        call.arg("deny");
        call
    };
    let version = first_line(deny(&main).arg("--version"));
    session.note_found(version.context("cargo-deny tells no version")?);
    let mut verdict = Verdict::passed();
    let rules = files::read(&main.root.join(RULES))?;
    let skips = |line: &&str| line.contains("{ crate = \"") && line.contains('@');
    for line in rules.lines().filter(skips) {
        if !line.contains("reason = \"") {
            verdict.fail(format!("{RULES} gives no reason for {}", line.trim()));
        }
    }
    let mut others = main.others()?;
    others.push(main.python()?);
    for workspace in others.iter().chain([&main]) {
        check(deny(workspace), &main, workspace, &mut verdict)?;
    }
    verdict.note = format!("{} workspaces", others.len() + 1);
    Ok(verdict)
}

fn check(
    mut deny: Command,
    main: &Workspace,
    which: &Workspace,
    verdict: &mut Verdict,
) -> Result<()> {
    let graph = which.target.join("deny/metadata.json");
    // This call runs cargo in the same way as all others in that workspace.
    let mut cargo = which.task("metadata")?;
    cargo.args(["--format-version", "1", "--all-features", "--locked"]);
    let told = output_of(&mut cargo).with_context(|| format!("in {}", which.root.display()))?;
    files::write(&graph, told)?;
    deny.args(["--log-level", "warn", "--color", "never"]);
    deny.arg("--metadata-path").arg(&graph);
    deny.arg("--config").arg(main.root.join(RULES));
    // All that it reads is here. It also makes cargo check the lockfile, and cargo would change the lockfile where
    // sources are patched; that may fail.
    deny.args(["--frozen", "check"]);
    // An exception that no package needs is a mistake in the main workspace, which needs all of them; other workspaces
    // need fewer.
    let flag = ["--allow", "--deny"][usize::from(which.root == main.root)];
    deny.args(UNUSED.into_iter().flat_map(|lint| [flag, lint]));
    verdict.run(deny.args(["bans", "licenses", "sources"]))?;
    Ok(())
}

const RULES: &str = "deny.toml";

/// cargo-deny's names for exceptions that are not needed.
const UNUSED: [&str; 3] = [
    "unmatched-skip",
    "unnecessary-skip",
    "license-not-encountered",
];

/// Its own release settings, whole-program optimisation by one thread, suit a program that runs for longer than a
/// second.
const DENY: Tool = Tool {
    package: "cargo-deny",
    program: "cargo-deny",
    version: "0.20.2",
    locked: true,
    optimisation: "0",
};
