//! Developer tools that stages run, built once into the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::cargo_in;
use crate::files;
use crate::process::{Limit, first_line, must_run};
use crate::stage::Session;

/// A program of a package, and the build of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool<'a> {
    pub(crate) package: &'static str,
    /// The name of the program.
    pub(crate) program: &'static str,
    /// The version, exactly.
    pub(crate) version: &'a str,
    /// Whether to build with its authors' lockfile.
    pub(crate) locked: bool,
    /// Settings for a short build: the tool runs only for seconds.
    pub(crate) optimisation: &'static str,
}

impl Tool<'_> {
    /// The path of the program in the target folder, which is built if it is missing or of another version.
    ///
    /// # Errors
    /// When it cannot be built.
    pub(crate) fn provide(&self, session: &Session) -> Result<PathBuf> {
        let folder = session.workspace.target.join("tools");
        let program = folder.join("bin").join(self.program);
        if !self.is_at(&program) {
            self.build(&folder)?;
            let Self {
                package, version, ..
            } = self;
            let built = format!("{package} {version}");
            ensure!(self.is_at(&program), "{built} was built, and does not run");
            session.installer().note(format!("{built} (cargo install)"));
        }
        Ok(program)
    }

    /// Whether `program` runs and is of the version.
    fn is_at(&self, program: &Path) -> bool {
        let told = first_line(Command::new(program).arg("--version"));
        told.is_some_and(|told| told.split(' ').any(|word| word == self.version))
    }

    fn build(&self, folder: &Path) -> Result<()> {
        let Self {
            package, version, ..
        } = self;
        println!("   building {package} {version}, which is not installed: minutes, and once ...");
        let built = must_run(&mut self.install(folder), LIMIT);
        // The object files are not needed any more. If some cannot be deleted, they do no harm.
        let _ = files::remove(&folder.join("build"));
        let advice = "cannot be built here; install it, and try again";
        built.with_context(|| format!("{package} is needed, and {advice}"))?;
        Ok(())
    }

    fn install(&self, folder: &Path) -> Command {
        let mut install = cargo_in(Path::new("."));
        install
            .args(["install", self.package, "--bin", self.program, "--force"])
            .args(self.locked.then_some("--locked"))
            .args(["--version", self.version, "--root"])
            .arg(folder)
            .env("CARGO_TARGET_DIR", folder.join("build"))
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", self.optimisation);
        install
    }
}

/// The longest build takes five minutes on two idle cores.
const LIMIT: Limit = Limit::minutes(60);

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::process::describe;
    use crate::workspace::Workspace;

    /// A tool of the version that `/bin/echo` tells: some print the argument, others know the option.
    fn with_echo(check: impl FnOnce(Tool<'_>)) {
        let told = first_line(Command::new("/bin/echo").arg("--version")).unwrap();
        check(Tool {
            package: "cargo-transload-pretends",
            program: "cargo-transload-pretends",
            version: told.split(' ').next_back().unwrap(),
            locked: true,
            optimisation: "0",
        });
    }

    #[test]
    fn the_version_that_was_chosen_is_built_as_its_authors_locked_it() {
        with_echo(|tool| {
            let told = describe(&tool.install(Path::new("/there")));
            let version = format!(" --locked --version {} --root /there", tool.version);
            assert!(told.ends_with(&version), "{told}");
            assert!(told.contains("CARGO_TARGET_DIR=/there/build"), "{told}");
        });
    }

    #[test]
    fn what_must_be_of_one_version_is_not_taken_in_another() {
        with_echo(|mut tool| {
            assert!(tool.is_at(Path::new("/bin/echo")));
            tool.version = "0.2.999";
            assert!(!tool.is_at(Path::new("/bin/echo")));
        });
    }

    #[test]
    fn what_was_built_before_is_not_built_again() {
        let target = tempfile::tempdir().unwrap();
        let folder = target.path().join("tools/bin");
        files::make(&folder).unwrap();
        let mut workspace = Workspace::load().unwrap();
        workspace.target = target.path().to_path_buf();
        let session = Session::new(workspace);
        with_echo(|tool| {
            let program = folder.join(tool.program);
            symlink("/bin/echo", &program).unwrap();
            let provided = tool.provide(&session);
            assert_eq!(provided.unwrap(), program);
        });
        assert!(session.installer().installed().is_empty());
    }
}
