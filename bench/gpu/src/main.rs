//! The benchmarks that want an NVIDIA GPU, as one program to carry there: `bench/gpu/run.sh`.
//!
//! It needs the driver and nothing else. It ends by itself before a deadline: what does not fit any more is
//! written as skipped, with the reason. All contestants of a case run in one process and in turn, so that whatever
//! else the machine does meets all of them alike, and bytes are verified outside the timed region, over poisoned
//! destinations. The file that it writes is whole after every case.

#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    run()
}

#[cfg(not(target_os = "linux"))]
fn run() -> ExitCode {
    eprintln!("error: the benchmarks of a GPU run on Linux alone");
    ExitCode::from(3)
}

#[cfg(target_os = "linux")]
mod adapter;
#[cfg(target_os = "linux")]
mod cases;
#[cfg(target_os = "linux")]
mod conformance;
#[cfg(target_os = "linux")]
mod contest;
#[cfg(target_os = "linux")]
mod document;
#[cfg(target_os = "linux")]
mod engine;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod raw;
#[cfg(target_os = "linux")]
mod rivals;
#[cfg(target_os = "linux")]
mod series;
#[cfg(target_os = "linux")]
mod table;

#[cfg(target_os = "linux")]
use program::run;
