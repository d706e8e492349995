//! The stages that compare the project's binding of the CUDA driver with cudarc's, for every version of CUDA.

use anyhow::{Context, Result, ensure};

use crate::cargo::{Metadata, Package};
use crate::stage::{Session, Verdict};
use crate::workspace::VERSIONS;

/// The comparison for the oldest version, and for the last one of each generation: those have all functions, numbers and
/// structures.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    compare(session, &|is_end| is_end)
}

/// The comparison for the versions between, which tell since when each is there.
pub(crate) fn between(session: &Session) -> Result<Verdict> {
    compare(session, &|is_end| !is_end)
}

/// Builds and runs the comparison once for each version that is wanted, of those that cudarc offers: its features for
/// versions exclude each other. `wants` is told whether it is the oldest, or the last of its generation.
fn compare(session: &Session, wants: &dyn Fn(bool) -> bool) -> Result<Verdict> {
    let folder = session.workspace.root.join(VERSIONS);
    let workspace = session.workspace.other(&folder)?;
    let packages = Metadata::read(&folder, &["--locked"])?.packages;
    let offered = versions(&packages, "cudarc")?;
    let compared = versions(&packages, PACKAGE)?;
    let mut verdict = Verdict::passed();
    let mut tested = 0;
    for (at, version) in offered.iter().enumerate() {
        let generation = |version: &&str| version.get(..GENERATION).map(str::to_owned);
        let is_last = offered.get(at + 1).and_then(generation) != generation(version);
        if !wants(at == 0 || is_last) {
            continue;
        }
        tested += 1;
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
    let all = offered.len();
    verdict.note = format!("{tested} of {all} versions of CUDA, {first} to {last}");
    Ok(verdict)
}

/// The letters of `cuda-12`.
const GENERATION: usize = 7;

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
