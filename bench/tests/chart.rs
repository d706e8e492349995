//! The picture on the project's first page shows the newest committed results.

use std::path::Path;
use std::process::Command;

#[test]
fn the_chart_is_what_the_newest_committed_results_give() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let drawn = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chart.svg");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_transload-bench"));
    let output = bench
        .arg("--chart")
        .args([&drawn, &root.join("bench/results")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let command = "cargo xtask bench --chart docs/chart.svg bench/results";
    assert!(
        read(&drawn) == read(&root.join("docs/chart.svg")),
        "docs/chart.svg shows other results; draw it: {command}"
    );
}
