//! The stage that runs the tests of the Metal backend, over its double, under two sanitizers.
//!
//! Each sanitizer first shows that it looks: a program with a known fault, built in the same way, must be
//! told for what it is. Only then does the silence about the backend mean something.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::doubles::Double;
use crate::doubles::bindings::METAL;
use crate::files;
use crate::install::{Absent, or_absent};
use crate::process::first_line;
use crate::runner::run_by_this_program;
use crate::stage::{Outcome, Session, Verdict};
use crate::targets::{DEBIAN_SOURCES, debian_toolchain, provide_debian};
use crate::workspace::Workspace;

/// Both sanitizers, the one that needs nothing installed first.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(Absent("the recipes are for Linux on x86-64".into()));
    }
    let main = &session.workspace;
    let guilty = Double::cuda_driver(main)?.workspace;
    let backend = main.other(&main.root.join(METAL))?;
    let mut verdict = Verdict::passed();
    let target = session.workspace.target.join("asan");
    ADDRESS.examine(&mut verdict, &guilty, &backend, |workspace| {
        // The standard library need not be rebuilt, as this sanitizer watches every allocation by itself. The flag is
        // unstable, and harmless where no release is built.
        let mut cargo = workspace.cargo();
        cargo
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env("CARGO_TARGET_DIR", &target);
        cargo
    })?;
    verdict.note = "AddressSanitizer".into();
    match or_absent(thread_sysroot(session))? {
        Ok(sysroot) => {
            let target = session.workspace.target.join("tsan");
            let flags = format!("-Zsanitizer=thread --sysroot={}", sysroot.display());
            THREAD.examine(&mut verdict, &guilty, &backend, |workspace| {
                // Debian's toolchain has the standard library's sources.
                let mut cargo = debian_toolchain(session, &workspace.root);
                cargo
                    .env("RUSTFLAGS", &flags)
                    .env("CARGO_TARGET_DIR", &target);
                cargo
            })?;
            verdict.note += ", ThreadSanitizer";
        }
        Err(reason) => session.skip(format!("ThreadSanitizer: {reason}")),
    }
    Ok(verdict)
}

/// A sanitizer, and the program by which it proves itself.
struct Sanitizer {
    guilty: &'static str,
    says: &'static str,
    /// A variable of its runtime.
    options: (&'static str, &'static str),
    /// Arguments behind cargo's task.
    arguments: &'static [&'static str],
    /// Tests that it does not watch.
    skipped: &'static str,
}

const ADDRESS: Sanitizer = Sanitizer {
    guilty: "use_after_free",
    says: "AddressSanitizer: heap-use-after-free",
    options: ("ASAN_OPTIONS", "detect_leaks=1"),
    arguments: &[],
    skipped: "conformance::two_devices",
};

const THREAD: Sanitizer = Sanitizer {
    guilty: "race",
    says: "ThreadSanitizer: data race",
    options: ("TSAN_OPTIONS", "halt_on_error=1"),
    // It sees only what it compiled: with a finished standard library it would miss the order that a
    // contended lock makes, and report races that are none.
    arguments: &["-Zbuild-std=std,panic_unwind,test"],
    // One thread asks there, and waits for each answer.
    skipped: "conformance::",
};

impl Sanitizer {
    /// Has it prove itself on the guilty program, and watch the tests of the backend. They share a target folder: the standard
    /// library is built once.
    fn examine(
        &self,
        verdict: &mut Verdict,
        guilty: &Workspace,
        backend: &Workspace,
        cargo: impl Fn(&Workspace) -> Command,
    ) -> Result<()> {
        let call = |workspace: &Workspace, task: &str| -> Result<Command> {
            let mut call = cargo(workspace);
            call.env(self.options.0, self.options.1);
            call.arg(task).args(workspace.arguments()?);
            call.args(self.arguments)
                .args(["--locked", "--target", TARGET]);
            Ok(call)
        };
        let mut proof = call(guilty, "run")?;
        proof.args(["--package", "transload-guilty", "--bin", self.guilty]);
        verdict.run_guilty(&mut proof, self.says)?;
        if verdict.outcome != Outcome::Failed {
            let mut tests = call(backend, "test")?;
            run_by_this_program(&mut tests, TARGET)?;
            // All but `allocations`, which looks at the stack of every allocation, and takes minutes here.
            tests.args(["--package", "transload-metal", "--lib", "--test=all"]);
            verdict.run_tests(tests.args(["--", "--skip", self.skipped]))?;
        }
        Ok(())
    }
}

/// Debian ships no runtime for this sanitizer. A folder is made that looks to the compiler like a
/// sysroot of its own: with the sources of Debian's, and the runtime of the toolchain in use.
fn thread_sysroot(session: &Session) -> Result<PathBuf> {
    let none = || Absent("no runtime for it beside the compiler in use".into());
    let runtime = thread_runtime().ok_or_else(none)?;
    provide_debian(session)?;
    let sysroot = session.workspace.target.join("tsan-sysroot");
    let library = sysroot.join("lib/rustlib");
    let runtimes = library.join(TARGET).join("lib");
    // Made anew: the toolchain in use may be another than last time.
    files::remove(&sysroot)?;
    files::make(&runtimes)?;
    symlink(Path::new(DEBIAN_SOURCES), &library.join("src"))?;
    symlink(&runtime, &runtimes.join(RUNTIME))?;
    Ok(sysroot)
}

fn thread_runtime() -> Option<PathBuf> {
    let folder = first_line(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let mut paths = files::entries(Path::new(&folder)).ok()?.into_iter();
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
