//! The stage that runs a page's tests in a browser.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cargo::locked_version;
use crate::files;
use crate::install::Absent;
use crate::process::Limit;
use crate::stage::{Session, Verdict};
use crate::targets::{Library, Toolchain, toolchains_for, variable};
use crate::tool::Tool;
use crate::workspace::Workspace;
use crate::{process, runner};

/// Runs clippy over the tests in `browser/`, and the tests in headless Chromium, on its software adapter. The tests
/// show the browser's treatment of the calls, and nothing of any GPU. Then Chromium reads the pages of `--html`.
pub(crate) fn stage(session: &Session) -> Result<Verdict> {
    let (toolchain, _) = toolchains_for(session, &[TARGET])?[0];
    let mut packages = CHROMIUM.to_vec();
    if toolchain == Toolchain::Debian {
        packages.push(LINKER_PACKAGE);
    }
    session.installer().require(&packages)?;
    let adapter = adapter(&session.workspace)?;
    session.note_found(format!("WebGPU in Chromium: {adapter}"));
    let runner = Tool {
        // The tests are linked with this version.
        version: &locked_version(&session.workspace.root, "wasm-bindgen")?,
        ..RUNNER
    };
    let runner = runner.provide(session)?;

    let mut verdict = Verdict::passed();
    let mut lint = toolchain.cargo(session, "clippy", &[TARGET], Library::Std);
    lint.args(["-p", PACKAGE, "--tests", "--", "-D", "warnings"]);
    verdict.run(&mut lint)?;
    let mut tests = toolchain.cargo(session, "test", &[TARGET], Library::Std);
    tests
        .args(["-p", PACKAGE, "--test", "browser"])
        .env(variable(TARGET, "RUNNER"), runner)
        // The tests are not debugged.
        .env("CARGO_PROFILE_TEST_DEBUG", "none")
        .env("CHROMEDRIVER", "/usr/bin/chromedriver")
        .env(
            "WASM_BINDGEN_TEST_TIMEOUT",
            LIMIT.busy.as_secs().to_string(),
        );
    if toolchain == Toolchain::Debian {
        tests.env(variable(TARGET, "LINKER"), LINKER);
    }
    verdict.run_tests(&mut tests)?;
    // The program's own pages, which other stages show where a browser happens to be.
    let mut pages = runner::tests(&session.workspace)?;
    pages
        .args(["-p", "transload-cli", "--all-features", "--test", "page"])
        .env("TRANSLOAD_CHROMIUM", BROWSER);
    session.run_tests(&mut verdict, &mut pages)?;
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

fn flags(root: &Path) -> Result<Vec<String>> {
    let path = root.join("browser/webdriver.json");
    let capabilities: Capabilities = serde_json::from_str(&files::read(&path)?)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(capabilities.chrome.args)
}

/// The adapter that a page without the project's code finds in the browser.
///
/// # Errors
/// [`Absent`] when it finds none.
fn adapter(workspace: &Workspace) -> Result<String> {
    let folder = workspace.target.join("browser");
    let page = folder.join("adapter.html");
    files::write(&page, PAGE)?;
    let profile = folder.join("profile");
    let mut chromium = Command::new(BROWSER);
    chromium
        .args(flags(&workspace.root)?)
        .arg(format!("--user-data-dir={}", profile.display()))
        // The page's promises settle before its text is dumped.
        .args(["--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("file://{}", page.display()));
    let output = process::run(&mut chromium, LIMIT)?.output;
    let found = told(&output);
    Ok(found.with_context(|| format!("Chromium does not show a page:\n{output}"))??)
}

/// The result that the page wrote.
fn told(output: &str) -> Option<Result<String, Absent>> {
    let (_, rest) = output.split_once("<body>")?;
    let (text, _) = rest.split_once("</body>")?;
    if let Some(adapter) = text.strip_prefix("adapter: ") {
        return Some(Ok(adapter.to_owned()));
    }
    let none = text.starts_with("no adapter: ");
    none.then(|| Err(Absent(format!("Chromium has {text}"))))
}

const BROWSER: &str = "/usr/bin/chromium";

const TARGET: &str = "wasm32-unknown-unknown";

/// The package in `browser/`.
const PACKAGE: &str = "transload-browser-tests";

/// Debian's browser has its software adapter with it.
const CHROMIUM: [&str; 2] = ["chromium", "chromium-driver"];

/// A linker of the same LLVM as Debian's toolchain, which has no linker for this target.
const LINKER_PACKAGE: &str = "lld-22";

const LINKER: &str = "/usr/bin/wasm-ld-22";

/// All tests take a quarter of a minute; a page takes a second.
const LIMIT: Limit = Limit::minutes(10);

/// With its authors' lockfile it needs a package that some registries do not have yet. Building it takes two minutes of
/// processor time with these settings; it runs for seconds.
const RUNNER: Tool = Tool {
    package: "wasm-bindgen-cli",
    program: "wasm-bindgen-test-runner",
    version: "that of Cargo.lock",
    locked: false,
    optimisation: "0",
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
        let found = told(&page("adapter: google swiftshader")).unwrap();
        assert_eq!(found.unwrap(), "google swiftshader");
        let none = told(&page("no adapter: requestAdapter() answers null")).unwrap();
        let reason = "Chromium has no adapter: requestAdapter() answers null";
        assert_eq!(none.unwrap_err().to_string(), reason);
        for output in [&page("nothing yet"), "Segmentation fault"] {
            assert!(told(output).is_none());
        }
    }
}
