//! What lies in a package as a registry gets it.

use std::path::{Component, Path};

use super::about::README;

/// What is wrong with `files`, each with its length, which the package `name` would have.
pub(super) fn complaints(name: &str, files: &[(&str, u64)]) -> Vec<String> {
    let mut complaints = Vec::new();
    for needed in NEEDED {
        if !files.iter().any(|(file, _)| *file == needed) {
            complaints.push(format!("`{name}` would come without {needed}"));
        }
    }
    for (file, length) in files {
        if !belongs(Path::new(file)) {
            complaints.push(format!(
                "`{name}` would come with {file}, which nobody needs"
            ));
        }
        if *length > LARGEST {
            complaints.push(format!("`{name}` would come with {file} of {length} bytes"));
        }
    }
    complaints
}

/// Sources and examples; tests are not among them, as the stand-ins for hardware that they want are not published.
fn belongs(file: &Path) -> bool {
    let mut parts = file.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(folder)), Some(_)) => {
            (folder == "src" || folder == "examples")
                && file.extension().is_some_and(|end| end == "rs")
        }
        _ => {
            let known = |names: &[&str]| names.iter().any(|name| file == Path::new(name));
            known(&NEEDED) || known(&MADE) || file == Path::new("build.rs")
        }
    }
}

const NEEDED: [&str; 4] = ["Cargo.toml", README, "LICENSE-MIT", "LICENSE-APACHE"];

/// By cargo itself.
const MADE: [&str; 3] = ["Cargo.toml.orig", "Cargo.lock", ".cargo_vcs_info.json"];

/// No source comes near it.
const LARGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(files: &[&str]) -> Vec<String> {
        let length = |file: &str| LARGEST + u64::from(file == "src/large.rs");
        let files: Vec<_> = files.iter().map(|&file| (file, length(file))).collect();
        complaints("a", &files)
    }

    const WHOLE: [&str; 8] = [
        ".cargo_vcs_info.json",
        "Cargo.toml",
        "Cargo.toml.orig",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
        "build.rs",
        "src/table.rs",
    ];

    #[test]
    fn sources_with_their_licences_are_a_whole_package() {
        assert!(told(&WHOLE).is_empty());
    }

    #[test]
    fn a_licence_that_is_missing_is_told() {
        let without: Vec<&str> = WHOLE
            .into_iter()
            .filter(|&file| file != "LICENSE-MIT")
            .collect();
        assert_eq!(told(&without), ["`a` would come without LICENSE-MIT"]);
    }

    #[test]
    fn what_does_not_belong_is_told() {
        for stray in ["notes.txt", "tests/a.rs", "src/picture.png", "out/src/a.rs"] {
            let mut files = WHOLE.to_vec();
            files.push(stray);
            assert_eq!(
                told(&files),
                [format!("`a` would come with {stray}, which nobody needs")]
            );
        }
    }

    #[test]
    fn what_is_larger_than_a_megabyte_is_told() {
        let mut files = WHOLE.to_vec();
        files.push("src/large.rs");
        assert_eq!(
            told(&files),
            ["`a` would come with src/large.rs of 1048577 bytes"]
        );
    }
}
