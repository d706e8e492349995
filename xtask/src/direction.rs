//! The stage that holds the direction of the dependencies: towards the core.
//!
//! The table in [`Role::may_use`] is the whole rule. A package that the table
//! does not know is refused too, so that a new one must be given its place.

use std::fmt;
use std::path::Path;

use anyhow::Result;

use crate::stage::{Session, Verdict};
use crate::workspace::Workspace;

/// Reads every dependency between members of the workspace and fails with one
/// sentence for each that points the wrong way.
///
/// # Errors
/// None of its own; the signature is that of every stage.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let mut verdict = Verdict::passed();
    let rooms = rooms(&session.workspace);
    let arrows = arrows(&session.workspace);
    for complaint in complaints(&rooms, &arrows) {
        verdict.fail(&complaint);
    }
    verdict.note = format!("{} packages, {} dependencies", rooms.len(), arrows.len());
    Ok(verdict)
}

/// The place of a package in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Core,
    Hal,
    Backend,
    Library,
    Testkit,
    Program,
    /// A small program that shows the library; nothing depends on it.
    Example,
    Bench,
    /// Tests of the library where nothing else of the workspace's runs.
    Trial,
    Xtask,
}

/// A package and its place.
#[derive(Debug, Clone)]
struct Room {
    package: String,
    /// `None` when the table knows no such package.
    role: Option<Role>,
}

/// One package names another in its manifest.
#[derive(Debug, Clone)]
struct Arrow {
    from: String,
    to: String,
    /// A dev-dependency: only the package's own tests use it.
    for_tests: bool,
}

impl Role {
    fn of(package: &str, folder: &Path) -> Option<Self> {
        if folder.starts_with("crates/backends") {
            return Some(Self::Backend);
        }
        if folder.starts_with("examples") {
            return Some(Self::Example);
        }
        Some(match package {
            "transload-core" => Self::Core,
            "transload-hal" => Self::Hal,
            "transload" => Self::Library,
            "transload-testkit" => Self::Testkit,
            "transload-cli" => Self::Program,
            "transload-bench" | "transload-gpu-bench" => Self::Bench,
            "transload-browser-tests" => Self::Trial,
            "xtask" => Self::Xtask,
            _ => return None,
        })
    }

    /// What a package in this place may depend on.
    fn may_use(self) -> &'static [Self] {
        use Role::{Backend, Core, Hal, Library, Testkit};
        match self {
            Self::Core => &[],
            Self::Hal => &[Core],
            Self::Backend | Self::Testkit => &[Core, Hal],
            Self::Library => &[Core, Hal, Backend],
            Self::Program => &[Library, Testkit],
            Self::Example | Self::Bench | Self::Trial => &[Core, Hal, Backend, Library, Testkit],
            Self::Xtask => &[],
        }
    }

    /// What its tests may use on top of that. The testkit stands on the core
    /// and hal alone, so that no test of theirs reaches the library.
    fn tests_may_use(self) -> &'static [Self] {
        &[Self::Testkit]
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "the core",
            Self::Hal => "hal",
            Self::Backend => "backends",
            Self::Library => "the library",
            Self::Testkit => "the testkit",
            Self::Program => "the program",
            Self::Example => "examples",
            Self::Bench => "the benchmarks",
            Self::Trial => "tests in the browser",
            Self::Xtask => "xtask",
        })
    }
}

fn rooms(workspace: &Workspace) -> Vec<Room> {
    workspace
        .members
        .iter()
        .map(|package| Room {
            package: package.name.clone(),
            role: Role::of(&package.name, workspace.relative(&package.manifest_path)),
        })
        .collect()
}

fn arrows(workspace: &Workspace) -> Vec<Arrow> {
    let mut arrows = Vec::new();
    for package in &workspace.members {
        for dependency in &package.dependencies {
            if workspace.member(&dependency.name).is_some() {
                arrows.push(Arrow {
                    from: package.name.clone(),
                    to: dependency.name.clone(),
                    for_tests: dependency.kind.as_deref() == Some("dev"),
                });
            }
        }
    }
    arrows
}

fn complaints(rooms: &[Room], arrows: &[Arrow]) -> Vec<String> {
    let role = |package: &str| {
        rooms
            .iter()
            .find(|room| room.package == package)
            .and_then(|room| room.role)
    };
    let mut complaints = Vec::new();
    for room in rooms.iter().filter(|room| room.role.is_none()) {
        complaints.push(format!(
            "the package `{}` has no place in the table of dependencies \
             (xtask/src/direction.rs): give it one",
            room.package
        ));
    }
    for arrow in arrows {
        let (Some(from), Some(to)) = (role(&arrow.from), role(&arrow.to)) else {
            continue;
        };
        let allowed =
            from.may_use().contains(&to) || (arrow.for_tests && from.tests_may_use().contains(&to));
        if !allowed {
            complaints.push(sentence(arrow, from));
        }
    }
    complaints
}

fn sentence(arrow: &Arrow, from: Role) -> String {
    let mut allowed = from.may_use().to_vec();
    if arrow.for_tests {
        allowed.extend(from.tests_may_use());
    }
    let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    let allowed = if allowed.is_empty() {
        "nothing of the workspace".to_owned()
    } else {
        format!("only {}", allowed.join(", "))
    };
    let (verb, subject) = if arrow.for_tests {
        ("uses in its tests", format!("tests of {from}"))
    } else {
        ("depends on", from.to_string())
    };
    format!(
        "`{}` {verb} `{}`: {subject} may use {allowed}",
        arrow.from, arrow.to
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Vec<Room> {
        [
            ("transload-core", "crates/core"),
            ("transload-hal", "crates/hal"),
            ("transload-host", "crates/backends/host"),
            ("transload-cuda", "crates/backends/cuda"),
            ("transload", "crates/transload"),
            ("transload-testkit", "crates/testkit"),
            ("transload-cli", "crates/cli"),
            ("transload-bench", "bench"),
            ("xtask", "xtask"),
        ]
        .map(|(package, folder)| Room {
            package: package.to_owned(),
            role: Role::of(package, Path::new(folder)),
        })
        .to_vec()
    }

    fn arrow(from: &str, to: &str) -> Arrow {
        Arrow {
            from: from.to_owned(),
            to: to.to_owned(),
            for_tests: false,
        }
    }

    fn test_arrow(from: &str, to: &str) -> Arrow {
        Arrow {
            for_tests: true,
            ..arrow(from, to)
        }
    }

    #[test]
    fn the_designed_arrows_are_allowed() {
        let arrows = [
            arrow("transload-hal", "transload-core"),
            arrow("transload-host", "transload-hal"),
            arrow("transload", "transload-core"),
            arrow("transload", "transload-hal"),
            arrow("transload", "transload-host"),
            arrow("transload-testkit", "transload-hal"),
            arrow("transload-cli", "transload"),
            arrow("transload-cli", "transload-testkit"),
            arrow("transload-bench", "transload"),
            test_arrow("transload", "transload-testkit"),
            test_arrow("transload-host", "transload-testkit"),
            test_arrow("transload-core", "transload-testkit"),
        ];
        assert_eq!(complaints(&tree(), &arrows), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_arrow_is_told_with_both_packages_and_the_rule() {
        let complaints = complaints(&tree(), &[arrow("transload-core", "transload-hal")]);
        assert_eq!(
            complaints,
            [
                "`transload-core` depends on `transload-hal`: the core may use \
              nothing of the workspace"
            ]
        );
    }

    #[test]
    fn backends_know_neither_each_other_nor_the_library() {
        for wrong in [
            arrow("transload-host", "transload-cuda"),
            arrow("transload-host", "transload"),
            test_arrow("transload-host", "transload-cuda"),
            test_arrow("transload-host", "transload"),
        ] {
            let told = complaints(&tree(), &[wrong]);
            assert_eq!(told.len(), 1, "{told:?}");
        }
    }

    #[test]
    fn tests_of_the_lower_crates_do_not_reach_the_library() {
        for from in ["transload-core", "transload-hal", "transload-testkit"] {
            let told = complaints(&tree(), &[test_arrow(from, "transload")]);
            assert_eq!(told.len(), 1);
            assert!(
                told[0].contains("uses in its tests `transload`"),
                "{told:?}"
            );
        }
    }

    #[test]
    fn nothing_depends_on_programs_or_tasks() {
        for to in ["transload-cli", "transload-bench", "xtask"] {
            for room in tree() {
                assert_eq!(complaints(&tree(), &[arrow(&room.package, to)]).len(), 1);
            }
        }
    }

    #[test]
    fn a_package_without_a_place_is_refused() {
        let mut rooms = tree();
        rooms.push(Room {
            package: "transload-extra".to_owned(),
            role: Role::of("transload-extra", Path::new("crates/extra")),
        });
        let told = complaints(&rooms, &[]);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("`transload-extra`"));
    }

    #[test]
    fn the_arrows_of_this_very_workspace_are_read() {
        let workspace = Workspace::load().unwrap();
        assert!(
            arrows(&workspace)
                .iter()
                .any(|arrow| arrow.from == "transload-hal" && arrow.to == "transload-core")
        );
    }
}
