//! The program lists its cases.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::slice;

#[test]
fn every_case_has_a_name_of_its_own_that_selects_it() {
    let all = names(&["--list"]);
    assert!(!all.is_empty());
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "{all:?}");
    let last = &all[all.len() - 1];
    assert_eq!(names(&["--list", "--case", last]), slice::from_ref(last));
}

#[test]
fn a_case_that_is_not_there_is_an_error_that_says_where_the_names_are() {
    let output = bench(&["--case", "host-moon/64B"]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("no case fits `host-moon/64B`; --list names them"),
        "{text}"
    );
}

fn names(arguments: &[&str]) -> Vec<String> {
    let output = bench(arguments);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

fn bench(arguments: &[&str]) -> Output {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_transload-bench"));
    bench.args(arguments).output().unwrap()
}
