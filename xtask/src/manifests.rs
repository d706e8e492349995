//! The stage that reads every member's manifest: what the workspace decides
//! must be taken from there.

use std::fs;

use anyhow::{Context, Result};

use crate::stage::{Session, Verdict};

/// Fails with one sentence for each member that does not take a field, or the
/// lints, from the workspace.
///
/// # Errors
/// When a manifest cannot be read.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    for member in &session.workspace.members {
        let text = fs::read_to_string(&member.manifest_path)
            .with_context(|| format!("cannot read {}", member.manifest_path.display()))?;
        for complaint in complaints(&member.name, &text)? {
            verdict.fail(&complaint);
        }
    }
    let root = fs::read_to_string(session.workspace.root.join("Cargo.toml"))?;
    for complaint in root_complaints(&root)? {
        verdict.fail(&complaint);
    }
    let mut packages = session.workspace.members.len();
    for other in session.workspace.others()? {
        let name = session.workspace.relative(&other.root).display();
        let manifest = fs::read_to_string(other.root.join("Cargo.toml"))?;
        for complaint in other_complaints(&name.to_string(), &manifest, &root)? {
            verdict.fail(&complaint);
        }
        for member in &other.members {
            let text = fs::read_to_string(&member.manifest_path)
                .with_context(|| format!("cannot read {}", member.manifest_path.display()))?;
            for complaint in unpublished_complaints(&member.name, &text)? {
                verdict.fail(&complaint);
            }
        }
        packages += other.members.len();
    }
    verdict.note = format!("{packages} packages");
    Ok(verdict)
}

fn complaints(package: &str, manifest: &str) -> Result<Vec<String>> {
    let fields = ["version"].iter().chain(&SHARED).chain(&["repository"]);
    let manifest: toml::Table = toml::from_str(manifest).with_context(|| package.to_owned())?;
    Ok(inheritance(package, &manifest, fields))
}

/// A member of another workspace: nobody gets it from a registry.
fn unpublished_complaints(package: &str, manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = toml::from_str(manifest).with_context(|| package.to_owned())?;
    let mut complaints = inheritance(package, &manifest, SHARED.iter());
    if value(&manifest, &["package", "publish"]).and_then(toml::Value::as_bool) != Some(false) {
        complaints.push(format!("`{package}` does not say `publish = false`"));
    }
    Ok(complaints)
}

/// Another workspace decides as the main one does, whose manifest is `main`.
fn other_complaints(workspace: &str, manifest: &str, main: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = toml::from_str(manifest).with_context(|| workspace.to_owned())?;
    let main: toml::Table = toml::from_str(main)?;
    let mut complaints = Vec::new();
    let mut compare = |path: &[&str]| {
        let decided = value(&main, path);
        if decided.is_some() && value(&manifest, path) != decided {
            complaints.push(format!(
                "`{workspace}` does not say `{}` as the main workspace does",
                path.join(".")
            ));
        }
    };
    for field in SHARED {
        compare(&["workspace", "package", field]);
    }
    for tool in ["rust", "clippy"] {
        let lints = value(&main, &["workspace", "lints", tool]).and_then(toml::Value::as_table);
        for lint in lints.into_iter().flat_map(toml::Table::keys) {
            // Names configurations of the main workspace's own.
            if lint != "unexpected_cfgs" {
                compare(&["workspace", "lints", tool, lint]);
            }
        }
    }
    Ok(complaints)
}

/// Which of `fields`, and the lints, the package does not take from its workspace.
fn inheritance<'a>(
    package: &str,
    manifest: &toml::Table,
    fields: impl Iterator<Item = &'a &'a str>,
) -> Vec<String> {
    let inherits =
        |path: &[&str]| value(manifest, path).and_then(toml::Value::as_bool) == Some(true);
    let mut complaints = Vec::new();
    for field in fields {
        if !inherits(&["package", field, "workspace"]) {
            complaints.push(format!(
                "`{package}` does not take `{field}` from the workspace"
            ));
        }
    }
    if !inherits(&["lints", "workspace"]) {
        complaints.push(format!("`{package}` does not take the workspace's lints"));
    }
    complaints
}

fn root_complaints(manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = toml::from_str(manifest)?;
    let mut complaints = Vec::new();
    let package =
        |field| value(&manifest, &["workspace", "package", field]).and_then(toml::Value::as_str);
    if package("license") != Some("MIT OR Apache-2.0") {
        complaints.push("the workspace's licence is not `MIT OR Apache-2.0`".to_owned());
    }
    if package("rust-version").is_none() {
        complaints.push("the workspace names no `rust-version`".to_owned());
    }
    for tool in ["rust", "clippy"] {
        if value(&manifest, &["workspace", "lints", tool]).is_none() {
            complaints.push(format!("the workspace sets no lints for {tool}"));
        }
    }
    Ok(complaints)
}

fn value<'a>(table: &'a toml::Table, path: &[&str]) -> Option<&'a toml::Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(table.get(*first)?, |value, name| value.get(name))
}

/// What every workspace of the tree decides in the same way.
const SHARED: [&str; 3] = ["edition", "rust-version", "license"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_decides_for_itself_is_told() {
        let manifest = "\
[package]
name = \"a\"
version.workspace = true
edition.workspace = true
rust-version.workspace = true
license = \"MIT\"
repository.workspace = true
";
        assert_eq!(
            complaints("a", manifest).unwrap(),
            [
                "`a` does not take `license` from the workspace",
                "`a` does not take the workspace's lints",
            ]
        );
    }

    #[test]
    fn a_workspace_without_its_decisions_is_told() {
        assert_eq!(
            root_complaints("[workspace]\nmembers = []\n")
                .unwrap()
                .len(),
            4
        );
    }

    #[test]
    fn another_workspace_decides_as_the_main_one_does() {
        let main = "\
[workspace.package]
edition = \"2024\"
license = \"MIT\"
[workspace.lints.rust]
missing_docs = \"warn\"
unexpected_cfgs = \"warn\"
[workspace.lints.clippy]
todo = \"deny\"
";
        let told = |other: &str| other_complaints("doubles/x", other, main).unwrap();
        assert!(told(main).is_empty());
        assert_eq!(
            told(&main.replace("2024", "2021").replace("todo", "dbg_macro")),
            [
                "`doubles/x` does not say `workspace.package.edition` as the main workspace does",
                "`doubles/x` does not say `workspace.lints.clippy.todo` as the main workspace does",
            ]
        );
        assert!(told(&main.replace("unexpected_cfgs = \"warn\"\n", "")).is_empty());
    }

    #[test]
    fn what_stays_in_the_tree_says_that_it_is_not_published() {
        let manifest = "\
[package]
name = \"a\"
version = \"0.0.0\"
edition.workspace = true
rust-version.workspace = true
license.workspace = true
[lints]
workspace = true
";
        let told = |text: &str| unpublished_complaints("a", text).unwrap();
        assert_eq!(told(manifest), ["`a` does not say `publish = false`"]);
        let closed = manifest.replace("version = \"0.0.0\"", "publish = false");
        assert!(told(&closed).is_empty());
    }
}
