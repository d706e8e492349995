//! The stage that checks the manifests: packages of one workspace inherit the shared settings from it, and the page of a
//! published package names its features.

use std::path::Path;

use anyhow::Result;

use crate::files;
use crate::stage::{Session, Verdict};

/// Reports each line that a manifest lacks.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let main = &session.workspace;
    let private = [&SHARED[..], &["publish = false"]].concat();
    for member in &main.members {
        if !main.relative(&member.manifest_path).starts_with("crates") {
            check(
                &mut verdict,
                &member.manifest_path,
                &[&private[..], &OWN].concat(),
            )?;
            continue;
        }
        let name = &member.name;
        let page = format!("documentation = \"https://docs.rs/{name}\"");
        let lines = [&SHARED[..], &OWN, &PUBLISHED, &[&page]].concat();
        let manifest = check(&mut verdict, &member.manifest_path, &lines)?;
        let has = |target: &&str| manifest.contains(&format!("\"{target}\""));
        if !DOCUMENTED.iter().any(|targets| targets.iter().all(has)) {
            verdict.fail(format!("docs.rs documents `{name}` for too few targets"));
        }
        for file in FILES {
            if !member.manifest_path.with_file_name(file).is_file() {
                verdict.fail(format!("`{name}` has no file {file}"));
            }
        }
        let page = files::read(&member.manifest_path.with_file_name("README.md"))?;
        for feature in unnamed(member.features.keys(), &page) {
            verdict.fail(format!(
                "the README.md of `{name}` lacks its feature `{feature}`"
            ));
        }
    }
    let root = files::read(&main.root.join("Cargo.toml"))?;
    let decisions: Vec<&str> = decisions(&root).collect();
    let mut packages = main.members.len();
    for other in main.others()?.into_iter().chain(main.apart()?) {
        check(&mut verdict, &other.root.join("Cargo.toml"), &decisions)?;
        for member in &other.members {
            check(&mut verdict, &member.manifest_path, &private)?;
        }
        packages += other.members.len();
    }
    verdict.note = format!("{packages} packages");
    Ok(verdict)
}

/// Fails for each of `lines` that the manifest lacks. Returns the manifest.
fn check(verdict: &mut Verdict, path: &Path, lines: &[&str]) -> Result<String> {
    let manifest = files::read(path)?;
    for line in lines.iter().filter(|line| !has(&manifest, line)) {
        verdict.fail(format!("{} lacks the line `{line}`", path.display()));
    }
    Ok(manifest)
}

/// The features that `page` does not name.
fn unnamed<'a>(
    features: impl Iterator<Item = &'a String>,
    page: &str,
) -> impl Iterator<Item = &'a String> {
    features.filter(move |name| *name != "default" && !page.contains(&format!("`{name}`")))
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

    #[test]
    fn a_page_names_every_feature_but_the_default() {
        let features = ["default", "std", "remote", "remote-files"].map(str::to_owned);
        let missing: Vec<&String> =
            unnamed(features.iter(), "`std`, remote, `remote-files`").collect();
        assert_eq!(missing, ["remote"]);
    }
}
