//! The stage that compares the project's binding of the CUDA driver with cudarc's, for every version of CUDA.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::counts::Counts;
use crate::stage::{Session, Verdict};
use crate::workspace::{VERSIONS, Workspace};

/// Builds and runs the comparison once for each version that cudarc offers: its features for versions
/// exclude each other.
///
/// # Errors
/// When cargo cannot be started, or does not know cudarc.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let folder = session.workspace.root.join(VERSIONS);
    let workspace = session.workspace.other(&folder)?;
    let packages = packages(&workspace)?;
    let offered = versions(&packages, "cudarc")?;
    let compared = versions(&packages, PACKAGE)?;
    let mut verdict = Verdict::passed();
    for version in offered.iter().filter(|version| !compared.contains(version)) {
        verdict.fail(&format!(
            "cudarc offers `{version}`, and {VERSIONS}/Cargo.toml has no such feature: add it"
        ));
    }
    for version in offered.iter().filter(|version| compared.contains(version)) {
        let mut cargo = workspace.cargo();
        cargo.args(["test", "--lib", "--locked", "--no-default-features"]);
        let finished = verdict.run_tests(cargo.args(["--features", version]))?;
        if finished.success() && Counts::read(&finished.output).ran() == 0 {
            verdict.fail(&format!("nothing was compared for `{version}`"));
        }
    }
    let ends = match (offered.first(), offered.last()) {
        (Some(first), Some(last)) => format!(", {first} to {last}"),
        _ => String::new(),
    };
    verdict.note = format!("{} versions of CUDA{ends}", offered.len());
    Ok(verdict)
}

/// The features of `package` that choose a version of CUDA, oldest first.
fn versions(packages: &[Package], package: &str) -> Result<Vec<String>> {
    let package = packages
        .iter()
        .find(|other| other.name == package)
        .with_context(|| format!("cargo does not know {package}"))?;
    let names = package.features.keys();
    let versions: Vec<String> = names.filter(|name| is_version(name)).cloned().collect();
    ensure!(!versions.is_empty(), "{} offers no version", package.name);
    Ok(versions)
}

fn is_version(feature: &str) -> bool {
    let number = feature.strip_prefix("cuda-");
    number.is_some_and(|number| number.len() == 5 && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Every package that the comparison is built from.
fn packages(workspace: &Workspace) -> Result<Vec<Package>> {
    let mut cargo = workspace.cargo();
    let output = cargo
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .context("cargo metadata wrote something unexpected")?;
    Ok(metadata.packages)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    features: BTreeMap<String, Vec<String>>,
}

/// The package of the comparison.
const PACKAGE: &str = "transload-cuda-versions";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_of_cuda_are_taken_for_such() {
        assert!(is_version("cuda-12080"));
        for other in [
            "cuda-version-from-build-system",
            "cudnn-09021",
            "cuda-1208",
            "nccl",
        ] {
            assert!(!is_version(other), "{other}");
        }
    }

    #[test]
    fn a_package_without_versions_is_refused() {
        let packages = [Package {
            name: "cudarc".into(),
            features: BTreeMap::from([("std".into(), Vec::new())]),
        }];
        assert!(versions(&packages, "cudarc").is_err());
        assert!(versions(&packages, "another").is_err());
    }
}
