//! The stage that runs tests of the doubles under two sanitizers: random operations on that of NVIDIA's driver, and all
//! that the double of Metal has.
//!
//! Each sanitizer first shows that it looks: a program with a known fault, built in the same way, must be
//! told for what it is. Only then does the silence about the doubles mean something.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::checks::first_line;
use crate::doubles::Double;
use crate::install::Provision;
use crate::stage::{Outcome, Session, Verdict};
use crate::targets::{DEBIAN_SOURCES, debian_toolchain, provide_debian};
use crate::workspace::{METAL, Workspace};

/// Both sanitizers, the one that needs nothing installed first.
///
/// # Errors
/// When Debian's toolchain was installed and cannot be used, or a folder cannot be written.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Verdict::skipped("the recipes are for Linux on x86-64"));
    }
    let cuda = Double::cuda_driver(&session.workspace)?;
    let subjects = [
        Subject::cuda(cuda.workspace.clone()),
        Subject::metal(&session.workspace)?,
    ];
    let mut verdict = Verdict::passed();
    let mut ran = vec!["AddressSanitizer"];
    ADDRESS.examine(&mut verdict, &subjects, address_cargo)?;
    match thread_sysroot(session, &cuda)? {
        Ok(sysroot) => {
            let cargo = |subject: &Workspace| thread_cargo(session, subject, &sysroot);
            THREAD.examine(&mut verdict, &subjects, cargo)?;
            ran.push("ThreadSanitizer");
        }
        Err(reason) => session.skipped.push(format!("ThreadSanitizer: {reason}")),
    }
    verdict.note = ran.join(", ");
    Ok(verdict)
}

/// A package whose tests are run, each in a process of its own: a process poses as one machine.
struct Subject {
    workspace: Workspace,
    package: &'static str,
    suites: Vec<String>,
}

impl Subject {
    /// The test of many threads that do random operations.
    fn cuda(workspace: Workspace) -> Self {
        Self {
            workspace,
            package: "transload-cuda-double",
            suites: vec!["stress".into()],
        }
    }

    /// Every integration test.
    fn metal(main: &Workspace) -> Result<Self> {
        let workspace = main.other(&main.root.join(METAL))?;
        let mut suites = Vec::new();
        let folder = workspace.root.join("tests");
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str());
            if let Some(name) = name.filter(|_| path.is_file()) {
                suites.push(name.to_owned());
            }
        }
        suites.sort();
        Ok(Self {
            workspace,
            package: "transload-metal-double",
            suites,
        })
    }
}

/// A sanitizer, and the program by which it proves itself.
struct Sanitizer {
    guilty: &'static str,
    says: &'static str,
    /// Arguments behind cargo's task.
    arguments: &'static [&'static str],
}

const ADDRESS: Sanitizer = Sanitizer {
    guilty: "use_after_free",
    says: "AddressSanitizer: heap-use-after-free",
    arguments: &[],
};

const THREAD: Sanitizer = Sanitizer {
    guilty: "race",
    says: "ThreadSanitizer: data race",
    // It sees only what it compiled: with a finished standard library it would miss the order that a
    // contended lock makes, and report races that are none.
    arguments: &["-Zbuild-std=std,panic_unwind,test"],
};

impl Sanitizer {
    /// Has it prove itself in the first workspace, and watch what all of them test.
    fn examine(
        &self,
        verdict: &mut Verdict,
        subjects: &[Subject],
        cargo: impl Fn(&Workspace) -> Command,
    ) -> Result<()> {
        let task = |workspace: &Workspace, task: &str| -> Result<Command> {
            let mut cargo = cargo(workspace);
            cargo.arg(task).args(workspace.arguments()?);
            cargo.args(self.arguments);
            cargo.args(["--locked", "--target", TARGET]);
            Ok(cargo)
        };
        if let Some(first) = subjects.first() {
            let mut proof = task(&first.workspace, "run")?;
            proof.args(["--package", "transload-guilty", "--bin", self.guilty]);
            verdict.run_guilty(&mut proof, self.says)?;
        }
        for subject in subjects {
            for suite in &subject.suites {
                if verdict.outcome == Outcome::Failed {
                    return Ok(());
                }
                let test = || -> Result<Command> {
                    let mut test = task(&subject.workspace, "test")?;
                    test.args(["--package", subject.package, "--test", suite, "--"]);
                    Ok(test)
                };
                watch(verdict, suite, test)?;
            }
        }
        Ok(())
    }
}

/// Runs each test of `suite` by a call of `test`.
fn watch(verdict: &mut Verdict, suite: &str, test: impl Fn() -> Result<Command>) -> Result<()> {
    let listed = verdict.run(test()?.args(["--list", "--format", "terse"]))?;
    if !listed.success() {
        return Ok(());
    }
    let tests: Vec<&str> = listed
        .output
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .collect();
    for name in &tests {
        verdict.run_tests(test()?.args([name, "--exact"]))?;
    }
    if tests.is_empty() {
        verdict.fail(&format!("the suite {suite} has no test"));
    }
    Ok(())
}

/// The usual toolchain: its standard library need not be rebuilt, as this sanitizer watches every
/// allocation by itself. The flag is unstable, and harmless where no release is built.
fn address_cargo(workspace: &Workspace) -> Command {
    let mut cargo = workspace.cargo();
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", workspace.target.join("asan"))
        .env("ASAN_OPTIONS", "detect_leaks=1");
    cargo
}

/// Debian's toolchain, which has the standard library's sources.
fn thread_cargo(session: &Session, workspace: &Workspace, sysroot: &Path) -> Command {
    let mut cargo = debian_toolchain(session, &workspace.root);
    let flags = format!("-Zsanitizer=thread --sysroot={}", sysroot.display());
    cargo
        .env("RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", workspace.target.join("tsan"))
        .env("TSAN_OPTIONS", "halt_on_error=1");
    cargo
}

/// Debian ships no runtime for this sanitizer. A folder is made that looks to the compiler like a
/// sysroot of its own: with the sources of Debian's, and the runtime of the toolchain in use.
fn thread_sysroot(session: &mut Session, double: &Double) -> Result<Result<PathBuf, String>> {
    let Some(runtime) = thread_runtime() else {
        return Ok(Err("no runtime for it beside the compiler in use".into()));
    };
    if let Provision::Unavailable(reason) = provide_debian(session)? {
        return Ok(Err(reason));
    }
    let sysroot = double.workspace.target.join("tsan-sysroot");
    let library = sysroot.join("lib/rustlib");
    let runtimes = library.join(TARGET).join("lib");
    // Made anew: the toolchain in use may be another than last time.
    if sysroot.exists() {
        fs::remove_dir_all(&sysroot)
            .with_context(|| format!("cannot remove {}", sysroot.display()))?;
    }
    fs::create_dir_all(&runtimes).with_context(|| format!("cannot make {}", runtimes.display()))?;
    symlink(Path::new(DEBIAN_SOURCES), &library.join("src"))?;
    symlink(&runtime, &runtimes.join(RUNTIME))?;
    Ok(Ok(sysroot))
}

fn thread_runtime() -> Option<PathBuf> {
    let folder = first_line(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let entries = fs::read_dir(folder).ok()?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        // The middle names the toolchain's channel.
        name.is_some_and(|name| name.starts_with("librustc-") && name.ends_with("_rt.tsan.a"))
    })
}

#[cfg(unix)]
fn symlink(original: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(original, link)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What the compiler of Debian asks for.
const RUNTIME: &str = "librustc-stable_rt.tsan.a";
