//! The stage that checks the manifests: packages of one workspace inherit the shared settings from it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::stage::{Session, Verdict};
use crate::workspace::Package;

/// Reports each line that a manifest lacks.
///
/// # Errors
/// When a manifest cannot be read.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let main = &session.workspace;
    let root = read(&main.root.join("Cargo.toml"))?;
    for member in &main.members {
        let manifest = read(&member.manifest_path)?;
        let among_crates = main.relative(&member.manifest_path).starts_with("crates");
        let mut lines = [&SHARED[..], &OWN].concat();
        if among_crates {
            lines.extend(PUBLISHED);
        } else {
            lines.push("publish = false");
        }
        report(&mut verdict, member, &manifest, &lines);
        if among_crates {
            let page = format!("documentation = \"https://docs.rs/{}\"", member.name);
            report(&mut verdict, member, &manifest, &[&page]);
            let is_documented = |target| manifest.contains(&format!("\"{target}\""));
            if !DOCUMENTED
                .into_iter()
                .any(|targets| targets.iter().all(is_documented))
            {
                verdict.fail(&format!(
                    "docs.rs documents `{}` for too few targets",
                    member.name
                ));
            }
            for file in FILES {
                if !member.manifest_path.with_file_name(file).is_file() {
                    verdict.fail(&format!("`{}` has no file {file}", member.name));
                }
            }
        }
    }
    let others = main.others()?;
    for other in &others {
        let manifest = read(&other.root.join("Cargo.toml"))?;
        let name = main.relative(&other.root).display().to_string();
        for line in decisions(&root) {
            if !has(&manifest, line) {
                verdict.fail(&format!(
                    "`{name}` lacks `{line}`, as the main workspace has it"
                ));
            }
        }
        for member in &other.members {
            let manifest = read(&member.manifest_path)?;
            let lines = [&SHARED[..], &["publish = false"]].concat();
            report(&mut verdict, member, &manifest, &lines);
        }
    }
    let packages = others
        .iter()
        .map(|other| other.members.len())
        .sum::<usize>();
    verdict.note = format!("{} packages", packages + main.members.len());
    Ok(verdict)
}

fn report(verdict: &mut Verdict, package: &Package, manifest: &str, lines: &[&str]) {
    for line in lines.iter().filter(|line| !has(manifest, line)) {
        verdict.fail(&format!(
            "the manifest of `{}` lacks the line `{line}`",
            package.name
        ));
    }
}

fn has(manifest: &str, line: &str) -> bool {
    manifest.lines().any(|of| of == line)
}

/// The lines of the main workspace's manifest that other workspaces repeat. `unexpected_cfgs` names configurations of
/// the main workspace alone.
fn decisions(root: &str) -> impl Iterator<Item = &str> {
    let mut section = "";
    root.lines().filter(move |line| {
        if line.starts_with('[') {
            section = line;
        }
        let field = line.split(' ').next().unwrap_or_default();
        match section {
            "[workspace.package]" => ["edition", "rust-version", "license"].contains(&field),
            "[workspace.lints.rust]" | "[workspace.lints.clippy]" => {
                line.contains(" = ") && field != "unexpected_cfgs"
            }
            _ => false,
        }
    })
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Lines in the manifest of every package. The last one follows `[lints]`: no other table has it.
const SHARED: [&str; 4] = [
    "edition.workspace = true",
    "rust-version.workspace = true",
    "license.workspace = true",
    "workspace = true",
];

/// Lines in the manifests of the main workspace.
const OWN: [&str; 2] = ["version.workspace = true", "repository.workspace = true"];

/// Lines in the manifests of published packages: all packages in `crates`.
const PUBLISHED: [&str; 7] = [
    "authors.workspace = true",
    "categories.workspace = true",
    "keywords.workspace = true",
    "include.workspace = true",
    "readme = \"README.md\"",
    "[package.metadata.docs.rs]",
    "all-features = true",
];

/// The targets that docs.rs documents: all of the first list, or for a package of one system all of the second.
const DOCUMENTED: [&[&str]; 2] = [
    &[
        "x86_64-unknown-linux-gnu",
        "aarch64-apple-darwin",
        "x86_64-pc-windows-msvc",
        "wasm32-unknown-unknown",
    ],
    &[
        "aarch64-apple-darwin",
        "x86_64-apple-darwin",
        "aarch64-apple-ios",
    ],
];

/// Files next to those manifests.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_workspaces_repeat_the_edition_and_the_lints() {
        let root = "\
[workspace.package]
version = \"1\"
edition = \"2024\"
[workspace.lints.rust]
missing_docs = \"warn\"
unexpected_cfgs = { level = \"warn\", check-cfg = [
    'cfg(loom)',
] }
[profile.dev]
debug = 1
";
        let lines: Vec<&str> = decisions(root).collect();
        assert_eq!(lines, ["edition = \"2024\"", "missing_docs = \"warn\""]);
        assert!(has(root, lines[1]) && !has(root, "edition = \"2021\""));
    }
}
