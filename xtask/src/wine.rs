//! The stage that runs the host backend's tests as programs of Windows.

use anyhow::{Result, bail};

use crate::install::Absent;
use crate::stage::{Session, Verdict};
use crate::targets::{debian_toolchain, provide_debian, variable};

/// The unit tests and the conformance suite of the host backend, built for Windows and run under Wine. Wine is not
/// Windows: the run only shows that Wine accepts the calls.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(Absent("Wine runs programs of its own processor".into()));
    }
    provide_debian(session)?;
    session.installer().require(&PACKAGES)?;
    let target = session.workspace.target.join("wine");
    let mut cargo = debian_toolchain(session, &session.workspace.root);
    cargo
        .args(["test", "--target", TARGET, "--no-fail-fast"])
        .arg("-Zbuild-std=std,panic_unwind,test")
        .args(["-p", "transload-host", "--lib", "--test", "conformance"])
        .env("CARGO_TARGET_DIR", &target)
        .env(variable(TARGET, "LINKER"), LINKER)
        .env(variable(TARGET, "RUNNER"), WINE)
        .env("WINEDEBUG", "-all")
        // Wine creates its home folder there.
        .env("WINEPREFIX", target.join("prefix"));
    let mut verdict = Verdict::passed();
    verdict.run_tests(&mut cargo)?;
    Ok(verdict)
}

/// Windows since version 7. The standard library for later versions calls a library for random numbers that Debian's
/// Wine, of 2023, lacks.
const TARGET: &str = "x86_64-win7-windows-gnu";

const LINKER: &str = "x86_64-w64-mingw32-gcc";

const WINE: &str = "/usr/lib/wine/wine64";

/// Wine without its 32-bit half, and a linker for its programs.
const PACKAGES: [&str; 2] = ["wine64", "gcc-mingw-w64-x86-64-win32"];
