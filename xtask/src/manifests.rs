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
    verdict.note = format!("{} packages", session.workspace.members.len());
    Ok(verdict)
}

fn complaints(package: &str, manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = toml::from_str(manifest).with_context(|| package.to_owned())?;
    let inherits =
        |path: &[&str]| value(&manifest, path).and_then(toml::Value::as_bool) == Some(true);
    let mut complaints = Vec::new();
    for field in [
        "version",
        "edition",
        "rust-version",
        "license",
        "repository",
    ] {
        if !inherits(&["package", field, "workspace"]) {
            complaints.push(format!(
                "`{package}` does not take `{field}` from the workspace"
            ));
        }
    }
    if !inherits(&["lints", "workspace"]) {
        complaints.push(format!("`{package}` does not take the workspace's lints"));
    }
    Ok(complaints)
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
}
