//! Makes a copy of the double that is a driver of another version: `downgrade LIBRARY 12.2 COPY [HIDDEN...]`. The
//! copy also lacks the functions that are named after that.

use std::process::ExitCode;
use std::{env, fs};

use cuda::downgrade;
use transload_cuda::raw::Version;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [library, version, copy, hidden @ ..] = &arguments[..] else {
        eprintln!("usage: downgrade LIBRARY VERSION COPY [HIDDEN...]");
        return ExitCode::from(2);
    };
    let parsed = version
        .split_once('.')
        .and_then(|(major, minor)| Some(Version::new(major.parse().ok()?, minor.parse().ok()?)));
    let Some(parsed) = parsed.filter(|version| version.0 < 100_000) else {
        eprintln!("`{version}` is no version, such as 12.2");
        return ExitCode::from(2);
    };
    let hidden: Vec<&str> = hidden.iter().map(String::as_str).collect();
    let made = fs::read(library).and_then(|mut bytes| {
        let spoilt = downgrade(&mut bytes, parsed, &hidden)?;
        fs::write(copy, bytes)?;
        Ok(spoilt)
    });
    match made {
        Ok(spoilt) => {
            println!("CUDA {parsed}: {} functions fewer", spoilt.len());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{library}: {error}");
            ExitCode::FAILURE
        }
    }
}
