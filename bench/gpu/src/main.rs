//! The benchmarks for an NVIDIA GPU, as one program to copy to a machine with one: `bench/gpu/run.sh`.
//!
//! The program needs only the driver. It ends by itself before a deadline: cases that do not fit any more are written
//! as skipped, with the reason. All contestants of a case run in one process and in turn, so that other load on the
//! machine affects all of them alike. Bytes are verified outside the timed region, over poisoned destinations. The
//! output file is valid after every case.

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
mod case;
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
