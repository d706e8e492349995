//! `cargo xtask integrations`: adapters for frameworks, each with its framework and a real model.

use anyhow::Result;

use crate::demo;
use crate::files;
use crate::process;
use crate::workspace::Workspace;

/// Lints and tests each integration, and has it load the demo's model beside the framework's own loader.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let work = workspace.target.join("demo");
    files::make(&work)?;
    let model = demo::fetch(workspace, &work)?;
    for integration in workspace.integrations()? {
        let folder = workspace.relative(&integration.root).display();
        println!("\nBuilding {folder}, which takes minutes the first time ...");
        let task = |name: &str| -> Result<_> {
            let mut cargo = integration.task(name)?;
            cargo.args(["--release", "--locked"]);
            Ok(cargo)
        };
        let denied = ["--all-targets", "--", "--deny", "warnings"];
        process::show(task("clippy")?.args(denied))?;
        process::show(&mut task("test")?)?;
        let mut compare = task("run")?;
        compare.args(["--example", "compare", "--"]);
        process::show(compare.arg(model.with_file_name("")).arg(&work))?;
    }
    Ok(true)
}
