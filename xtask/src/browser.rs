//! The stage that runs a page's tests in a browser.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::install::Provision;
use crate::process;
use crate::stage::{Session, Verdict};
use crate::targets::{Choice, Library, Toolchain, toolchains_for};
use crate::tool::{Call, Recipe, Tool};
use crate::workspace::Workspace;

/// Runs clippy over the tests in `browser/`, and the tests in headless Chromium, on its software adapter. The tests
/// show the browser's treatment of the calls, and nothing of any GPU.
///
/// # Errors
/// When something was installed and cannot be used.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    let toolchain = match toolchains_for(session, &[TARGET])? {
        Choice::Use(toolchains) => toolchains[0].0,
        Choice::Skip(reason) => return Ok(Verdict::skipped(reason)),
    };
    let mut packages = CHROMIUM.to_vec();
    if toolchain == Toolchain::Debian {
        packages.push(LINKER_PACKAGE);
    }
    if let Provision::Unavailable(reason) = session.installer.require(&packages)? {
        return Ok(Verdict::skipped(reason));
    }
    let folder = session.workspace.root.join(PACKAGE_FOLDER);
    let flags = flags(&folder)?;
    let adapter = match adapter(&session.workspace, &flags)? {
        Ok(adapter) => adapter,
        Err(reason) => return Ok(Verdict::skipped(reason)),
    };
    session.found(format!("WebGPU in Chromium: {adapter}"));
    let version = bindgen_version(&session.workspace)?;
    let recipe = Recipe {
        version: &version,
        ..RUNNER
    };
    let runner = Tool::provide(&recipe, &mut session.installer, &session.workspace)?;

    let mut verdict = Verdict::passed();
    let mut lint = toolchain.cargo(session, "clippy", &[TARGET], Library::Std);
    lint.args(["-p", PACKAGE, "--tests", "--", "-D", "warnings"]);
    verdict.run(&mut lint)?;
    let mut tests = toolchain.cargo(session, "test", &[TARGET], Library::Std);
    tests
        .args(["-p", PACKAGE, "--test", "browser"])
        .env(
            "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER",
            runner.program(),
        )
        // The tests are not debugged.
        .env("CARGO_PROFILE_TEST_DEBUG", "none")
        .env("CHROMEDRIVER", "/usr/bin/chromedriver")
        .env("WASM_BINDGEN_TEST_TIMEOUT", LIMIT.as_secs().to_string());
    if toolchain == Toolchain::Debian {
        tests.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", LINKER);
    }
    let finished = verdict.run_tests(&mut tests)?;
    if finished.success() && verdict.counts.ran() == 0 {
        verdict.fail("no test ran in the browser");
    }
    verdict.note = format!("Chromium's adapter: {adapter}");
    Ok(verdict)
}

/// The settings that the test runner makes the browser's driver pass to the browser.
#[derive(Deserialize)]
struct Capabilities {
    #[serde(rename = "goog:chromeOptions")]
    chrome: Options,
}

#[derive(Deserialize)]
struct Options {
    args: Vec<String>,
}

fn flags(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("webdriver.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let capabilities: Capabilities =
        serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(capabilities.chrome.args)
}

/// The adapter that a page without the project's code finds in the browser, or the reason why it finds none.
fn adapter(workspace: &Workspace, flags: &[String]) -> Result<Result<String, String>> {
    let folder = workspace.target.join("browser");
    fs::create_dir_all(&folder)?;
    let page = folder.join("adapter.html");
    fs::write(&page, PAGE)?;
    let mut chromium = Command::new("/usr/bin/chromium");
    chromium
        .args(flags)
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        // The page's promises settle before its text is dumped.
        .args(["--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("file://{}", page.display()));
    let finished = process::run(&mut chromium, LIMIT)?;
    let found = told(&finished.output);
    ensure!(
        found.is_some(),
        "Chromium does not show a page:\n{}",
        finished.output
    );
    Ok(found.unwrap_or_else(|| Err(String::new())))
}

/// The result that the page wrote.
fn told(output: &str) -> Option<Result<String, String>> {
    let (_, rest) = output.split_once("<body>")?;
    let (text, _) = rest.split_once("</body>")?;
    if let Some(adapter) = text.strip_prefix("adapter: ") {
        return Some(Ok(adapter.to_owned()));
    }
    text.starts_with("no adapter: ")
        .then(|| Err(format!("Chromium has {text}")))
}

/// The version of wasm-bindgen that the tests are linked with; their runner must have the same version.
fn bindgen_version(workspace: &Workspace) -> Result<String> {
    let lock = fs::read_to_string(workspace.root.join("Cargo.lock"))?;
    version_of("wasm-bindgen", &lock).context("Cargo.lock has no wasm-bindgen")
}

fn version_of(package: &str, lock: &str) -> Option<String> {
    let lock: toml::Table = toml::from_str(lock).ok()?;
    let packages = lock.get("package")?.as_array()?;
    let named = |of: &&toml::Value| of.get("name").and_then(toml::Value::as_str) == Some(package);
    let version = packages.iter().find(named)?.get("version")?;
    version.as_str().map(str::to_owned)
}

const TARGET: &str = "wasm32-unknown-unknown";

/// The package in `browser/`.
const PACKAGE: &str = "transload-browser-tests";

const PACKAGE_FOLDER: &str = "browser";

/// Debian's browser has its software adapter with it.
const CHROMIUM: [&str; 2] = ["chromium", "chromium-driver"];

/// A linker of the same LLVM as Debian's toolchain, which has no linker for this target.
const LINKER_PACKAGE: &str = "lld-22";

const LINKER: &str = "/usr/bin/wasm-ld-22";

/// All tests take a quarter of a minute; a page takes a second.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// With its authors' lockfile it needs a package that some registries do not have yet. Building it takes two minutes of
/// processor time with these settings; it runs for seconds.
const RUNNER: Recipe = Recipe {
    package: "wasm-bindgen-cli",
    program: "wasm-bindgen-test-runner",
    call: Call::Itself,
    // That of `Cargo.lock` takes its place.
    version: "",
    locked: false,
    arguments: &[],
    settings: &[
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ],
};

/// A page that writes the browser's adapter into its own text.
const PAGE: &str = r#"<body><script>
const tell = text => { document.body.textContent = text; };
tell("nothing yet");
(async () => {
  if (!navigator.gpu) return tell("no adapter: navigator.gpu is missing");
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) return tell("no adapter: requestAdapter() answers null");
  tell("adapter: " + adapter.info.vendor + " " + adapter.info.architecture);
})().catch(error => tell("no adapter: " + error));
</script></body>
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_found_nothing_says_why() {
        let page = |text: &str| format!("ERROR: bus\n<html><body>{text}</body></html>\n");
        let found = told(&page("adapter: google swiftshader"));
        assert_eq!(found, Some(Ok("google swiftshader".to_owned())));
        let none = told(&page("no adapter: requestAdapter() answers null"));
        let reason = "Chromium has no adapter: requestAdapter() answers null";
        assert_eq!(none, Some(Err(reason.to_owned())));
        assert_eq!(told(&page("nothing yet")), None);
        assert_eq!(told("Segmentation fault"), None);
    }

    #[test]
    fn the_runner_is_of_the_version_that_is_locked() {
        let lock = "[[package]]\nname = \"wasm-bindgen-macro\"\nversion = \"1.0.0\"\n\n\
                    [[package]]\nname = \"wasm-bindgen\"\nversion = \"0.2.7\"\n";
        assert_eq!(version_of("wasm-bindgen", lock).as_deref(), Some("0.2.7"));
        assert_eq!(version_of("other", lock), None);
        assert!(bindgen_version(&Workspace::load().unwrap()).is_ok());
    }
}
