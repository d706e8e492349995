//! Prints the rate of each way to copy on this machine, by size: the figures behind `Tuning`'s defaults.
//!
//! `cargo run --release -p transload-host --example kernels [LARGEST_MIB]`: GB/s of payload, medians of
//! interleaved samples between buffers touched before. Threads are those of the crate's own pool, with
//! the calling thread taking part. Marked is what the default tuning takes.

use transload_hal::processors;
use transload_host::raw::Store;
use transload_host::tuning::{Choice, CopyBench, Tuning};

const SAMPLES: usize = 15;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let largest = match std::env::args().nth(1) {
        Some(mib) => mib.parse::<usize>()? << 20,
        None => 512 << 20,
    };
    let mut bench = CopyBench::new(largest)?;
    let tuning = Tuning::default();
    let mut widths = vec![1];
    widths.extend((processors() > 1).then(processors));
    let stores = Store::available();
    let ways: Vec<Choice> = widths
        .iter()
        .flat_map(|&threads| stores.iter().map(move |&store| Choice::new(threads, store)))
        .collect();

    println!("{tuning:#?}");
    print!("{:>10}", "KiB");
    for way in &ways {
        print!("{:>15}", format!("{:?} x{}", way.store, way.threads));
    }
    println!("{:>12}", "taken/best");
    let mut size = 64usize;
    while size <= largest {
        row(&mut bench, size, &ways, tuning.choose(size, 0));
        size *= if size < 65_536 { 4 } else { 2 };
    }
    Ok(())
}

fn row(bench: &mut CopyBench, size: usize, ways: &[Choice], taken: Choice) {
    let turns = ((4 << 20) / size).clamp(1, 4096) as u32;
    let mut samples = vec![Vec::new(); ways.len()];
    for _ in 0..SAMPLES {
        for (way, times) in ways.iter().zip(&mut samples) {
            times.push(bench.sample(size, *way, turns).as_secs_f64());
        }
    }
    print!("{:>10.2}", size as f64 / 1024.0);
    let mut rates = Vec::new();
    for (way, times) in ways.iter().zip(&mut samples) {
        times.sort_by(f64::total_cmp);
        let rate = size as f64 / times[SAMPLES / 2] / 1e9;
        let mark = if *way == taken { "*" } else { "" };
        print!("{:>15}", format!("{rate:.1}{mark}"));
        rates.push(rate);
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    let mine = ways
        .iter()
        .position(|way| *way == taken)
        .map_or(0.0, |at| rates[at]);
    println!("{:>12.2}", mine / best);
}
