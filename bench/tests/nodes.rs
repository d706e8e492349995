//! The cases of other machines, as short as they can be.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::process::Command;

use serde_json::Value;

#[test]
fn every_contender_brings_every_byte_to_the_nodes() {
    for (case, baselines) in [
        ("nodes/rate-64KiB", 3),
        ("nodes/latency-8B", 3),
        ("nodes/broadcast-2", 2),
    ] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_transload-bench"));
        bench.args(["--quick", "--rounds", "15", "--json", "--case", case]);
        // The program fails where this build is too slow for a limit.
        let output = bench.output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{case}: {error}: {output:?}"));
        let result = &document["results"][0];
        assert_eq!(result["case"], case);
        assert_eq!(result["verified"], true, "{result}");
        let others = result["baselines"].as_object().unwrap();
        let over_ucx = usize::from(others.contains_key("transload over UCX"));
        assert_eq!(others.len(), baselines + over_ucx, "{result}");
    }
}
