//! Developer tools that stages run: an installed one, or else one that is built once.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::checks::first_line;
use crate::install::Installer;
use crate::process;
use crate::workspace::{Workspace, cargo_in};

/// The build of a tool that is not installed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recipe<'a> {
    pub(crate) package: &'static str,
    /// The name of the program.
    pub(crate) program: &'static str,
    pub(crate) call: Call,
    pub(crate) version: &'a str,
    /// Whether to build with its authors' lockfile.
    pub(crate) locked: bool,
    /// Further arguments of `cargo install`, each of which may be given only once.
    pub(crate) arguments: &'static [&'static str],
    /// Build settings for a short build: the tool runs only for seconds.
    pub(crate) settings: &'static [(&'static str, &'static str)],
}

/// The call of a tool, and the check of its version.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    /// `cargo COMMAND`, of any version.
    Cargo(&'static str),
    /// By its own name, in the exact version: an installed one rarely has it.
    Itself,
}

/// A usable tool.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    name: &'static str,
    call: Call,
    version: String,
    /// The program, where cargo does not find it by itself.
    program: Option<PathBuf>,
}

impl Tool {
    /// The tool that cargo finds, or else the one in the target folder of `workspace`, which is built if missing.
    ///
    /// # Errors
    /// When it can be neither found nor built.
    pub(crate) fn provide(
        recipe: &Recipe,
        installer: &mut Installer,
        workspace: &Workspace,
    ) -> Result<Self> {
        if matches!(recipe.call, Call::Cargo(_))
            && let Some(tool) = Self::find(recipe, workspace, None)
        {
            return Ok(tool);
        }
        let folder = workspace.target.join("tools");
        let program = folder.join("bin").join(recipe.program);
        if let Some(tool) = Self::find(recipe, workspace, Some(program.clone())) {
            return Ok(tool);
        }
        recipe.build(&folder)?;
        let Recipe {
            package, version, ..
        } = recipe;
        installer.note(format!("{package} {version} (cargo install)"));
        match Self::find(recipe, workspace, Some(program)) {
            Some(tool) => Ok(tool),
            None => bail!("cargo install reported success, and {package} does not run"),
        }
    }

    /// The tool, if it runs and has a usable version.
    fn find(recipe: &Recipe, workspace: &Workspace, program: Option<PathBuf>) -> Option<Self> {
        let mut tool = Self {
            name: recipe.program,
            call: recipe.call,
            version: String::new(),
            program,
        };
        tool.version = first_line(tool.call(workspace).arg("--version"))?;
        let is_the_one = || {
            let mut words = tool.version.split(' ');
            words.any(|word| word == recipe.version)
        };
        let will_do = matches!(recipe.call, Call::Cargo(_)) || is_the_one();
        will_do.then_some(tool)
    }

    /// The version that it reports.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// A call of it in `workspace`.
    pub(crate) fn call(&self, workspace: &Workspace) -> Command {
        let mut call = match &self.program {
            Some(program) => workspace.call(program),
            None => workspace.cargo(),
        };
        if let Call::Cargo(command) = self.call {
            call.arg(command);
        }
        call
    }

    /// Its path.
    pub(crate) fn program(&self) -> PathBuf {
        let own = self.program.clone();
        own.unwrap_or_else(|| found(self.name))
    }
}

/// The path of the program: in cargo's own folder, else on the search path.
fn found(program: &str) -> PathBuf {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = home
        .map(|home| home.join("bin"))
        .into_iter()
        .chain(env::split_paths(&path));
    let there = folders.find_map(|folder| Some(folder.join(program)).filter(|path| path.is_file()));
    there.unwrap_or_else(|| program.into())
}

impl Recipe<'_> {
    /// Builds the tool from its sources into `folder`.
    fn build(&self, folder: &Path) -> Result<()> {
        let Self {
            package, version, ..
        } = self;
        println!("   building {package} {version}, which is not installed: minutes, and once ...");
        let built = process::run(&mut self.install(folder), LIMIT)?;
        // The object files are not needed any more. If some cannot be deleted, they do no harm.
        let _ = std::fs::remove_dir_all(folder.join("build"));
        if !built.success() {
            bail!(
                "{package} is needed, and cannot be built here:\n{}\ninstall it, and try again",
                built.output
            );
        }
        Ok(())
    }

    fn install(&self, folder: &Path) -> Command {
        let mut install = cargo_in(Path::new("."));
        install
            .args(["install", self.package, "--bin", self.program])
            .args(self.locked.then_some("--locked"))
            .args(["--version", self.version])
            .args(self.arguments)
            .arg("--root")
            .arg(folder)
            .env("CARGO_TARGET_DIR", folder.join("build"))
            .envs(self.settings.iter().copied());
        install
    }
}

/// The longest build takes five minutes on two idle cores.
const LIMIT: Duration = Duration::from_secs(30 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    const PRETENDED: Recipe = Recipe {
        package: "cargo-transload-pretends",
        program: "cargo-transload-pretends",
        call: Call::Cargo("transload-pretends"),
        version: "1.2.3",
        locked: true,
        arguments: &["--no-default-features"],
        settings: &[("CARGO_PROFILE_RELEASE_LTO", "off")],
    };

    #[test]
    fn the_version_that_was_chosen_is_built_as_its_authors_locked_it() {
        let install = PRETENDED.install(Path::new("/there"));
        let told = process::describe(&install);
        assert!(
            told.ends_with(
                "install cargo-transload-pretends --bin cargo-transload-pretends --locked \
                 --version 1.2.3 --no-default-features --root /there"
            ),
            "{told}"
        );
        assert!(told.contains("CARGO_TARGET_DIR=/there/build"), "{told}");
        assert!(told.contains("CARGO_PROFILE_RELEASE_LTO=off"), "{told}");
    }

    #[cfg(unix)]
    #[test]
    fn what_must_be_of_one_version_is_not_taken_in_another() {
        let mut workspace = Workspace::load().unwrap();
        workspace.target = std::env::temp_dir();
        let found = |version| {
            let recipe = Recipe {
                call: Call::Itself,
                version,
                ..PRETENDED
            };
            // `echo` prints its argument: `--version`.
            Tool::find(&recipe, &workspace, Some("/bin/echo".into())).is_some()
        };
        let said = Command::new("/bin/echo").arg("--version").output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let first = said.lines().next().unwrap();
        let own = first.split(' ').next_back().unwrap().to_owned();
        assert!(found(&own), "{said}");
        assert!(!found("0.2.999"));
    }

    #[cfg(unix)]
    #[test]
    fn what_was_built_before_is_not_built_again() {
        use std::fs;
        use std::os::unix::fs::symlink;

        let mut workspace = Workspace::load().unwrap();
        workspace.target = std::env::temp_dir().join(format!("tool-{}", std::process::id()));
        let folder = workspace.target.join("tools/bin");
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join(PRETENDED.package);
        // `echo` prints its argument.
        symlink("/bin/echo", &program).unwrap();

        let mut installer = Installer::default();
        let tool = Tool::provide(&PRETENDED, &mut installer, &workspace);
        fs::remove_dir_all(&workspace.target).unwrap();

        let tool = tool.unwrap();
        assert_eq!(tool.version(), "transload-pretends --version");
        assert_eq!(tool.call(&workspace).get_program(), program.as_os_str());
        assert!(installer.installed().is_empty());
    }
}
