//! The stage that compares the project's binding of the CUDA driver with cudarc's, for every version of CUDA.

use anyhow::{Context, Result, ensure};

use crate::cargo::{Metadata, Package};
use crate::stage::{Session, Verdict};
use crate::workspace::VERSIONS;

/// Builds and runs the comparison once for each version that cudarc offers: its features for versions
/// exclude each other.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let folder = session.workspace.root.join(VERSIONS);
    let workspace = session.workspace.other(&folder)?;
    let packages = Metadata::read(&folder, &["--locked"])?.packages;
    let offered = versions(&packages, "cudarc")?;
    let compared = versions(&packages, PACKAGE)?;
    let mut verdict = Verdict::passed();
    for version in &offered {
        if !compared.contains(version) {
            verdict.fail(format!(
                "cudarc offers `{version}`, and {VERSIONS}/Cargo.toml has no such feature: add it"
            ));
            continue;
        }
        let mut cargo = workspace.cargo();
        cargo.args(["test", "--lib", "--locked", "--no-default-features"]);
        verdict.run_tests(cargo.args(["--features", version]))?;
    }
    let (first, last) = (offered[0], offered[offered.len() - 1]);
    verdict.note = format!("{} versions of CUDA, {first} to {last}", offered.len());
    Ok(verdict)
}

/// The features of `package` that choose a version of CUDA, oldest first: one at least.
fn versions<'a>(packages: &'a [Package], package: &str) -> Result<Vec<&'a str>> {
    let found = packages.iter().find(|other| other.name == package);
    let found = found.with_context(|| format!("cargo does not know {package}"))?;
    let names = found.features.keys().map(String::as_str);
    let versions: Vec<&str> = names.filter(|name| is_version(name)).collect();
    ensure!(!versions.is_empty(), "{package} offers no version");
    Ok(versions)
}

fn is_version(feature: &str) -> bool {
    let number = feature.strip_prefix("cuda-");
    number.is_some_and(|number| number.len() == 5 && number.bytes().all(|b| b.is_ascii_digit()))
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
        let packages = crate::workspace::Workspace::load().unwrap().members;
        assert!(versions(&packages, "transload").is_err());
        assert!(versions(&packages, "another").is_err());
    }
}
