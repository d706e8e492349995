//! Loads a BERT model with candle's loader and with Transload's, compares what the models compute, and prints what each load
//! took: `compare FOLDER WORK`. FOLDER has `model.safetensors` and `config.json`; a half-precision copy is made in WORK.
//!
//! Every load is a process of its own, because the system counts page faults and peak memory by process.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use transload_candle::transload_tensors::transload::TransferManager;
use transload_candle::transload_tensors::{self, Loader, Model, Save};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LOADERS: [&str; 2] = ["candle", "transload"];

/// Rounds that count. One more comes first and brings the files into the system's cache.
const ROUNDS: usize = 15;

/// "[CLS] hello world [SEP]" in BERT's vocabulary.
const TOKENS: [u32; 4] = [101, 7592, 2088, 102];

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [folder, work] => compare(Path::new(folder), Path::new(work)),
        [folder, loader, weights] => load(Path::new(folder), loader, Path::new(weights)),
        _ => Err("give the folder of a BERT model, and a folder to work in".into()),
    }
}

/// Loads the model with each loader in turn, and prints medians.
fn compare(folder: &Path, work: &Path) -> Result<()> {
    let (single, half) = (
        folder.join("model.safetensors"),
        work.join("half.safetensors"),
    );
    halve(&single, &half)?;
    println!("FILE  LOADER     TIME     (LEAST TO MOST)     PEAK MEMORY  PAGE FAULTS");
    for (name, weights) in [("f32", &single), ("f16", &half)] {
        let mut runs = [Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            // Each loader is the first one in every other round.
            for turn in [round % 2, (round + 1) % 2] {
                runs[turn].push(Run::new(folder, LOADERS[turn], weights)?);
            }
        }
        let all = runs.iter().flatten();
        if all.clone().any(|run| run.hidden != runs[0][0].hidden) {
            return Err(format!("the models of {} differ", weights.display()).into());
        }
        for (loader, runs) in LOADERS.iter().zip(&runs) {
            let sorted = |of: fn(&Run) -> u64| {
                let mut all: Vec<u64> = runs[1..].iter().map(of).collect();
                all.sort_unstable();
                all
            };
            let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
            let times = sorted(|run| run.time_us);
            let spread = format!("({} to {})", ms(times[0]), ms(times[ROUNDS - 1]));
            println!(
                "{name:<5} {loader:<10} {:>5} ms {spread:<20} {:>8.1} MB  {:>11}",
                ms(times[ROUNDS / 2]),
                sorted(|run| run.peak_kib)[ROUNDS / 2] as f64 * 1.024e-3,
                sorted(|run| run.faults)[ROUNDS / 2],
            );
        }
    }
    println!("Both loaders gave the same hidden states, bit for bit, in every run.");
    Ok(())
}

/// Saves the model with numbers of half precision.
fn halve(single: &Path, half: &Path) -> Result<()> {
    let manager = TransferManager::builder().host().build()?;
    let (model, loader) = (Model::open(single)?, Loader::new(&manager));
    let halves = loader.load(&model).dtype_of(|tensor| match tensor.dtype {
        transload_tensors::DType::F32 => transload_tensors::DType::F16,
        other => other,
    });
    let tensors = halves
        .start()?
        .collect::<std::result::Result<Vec<_>, _>>()?;
    Save::new(&manager).tensors(&tensors).start(half)?.wait()?;
    Ok(())
}

/// What a process told of its load.
struct Run {
    time_us: u64,
    peak_kib: u64,
    faults: u64,
    hidden: String,
}

impl Run {
    fn new(folder: &Path, loader: &str, weights: &Path) -> Result<Run> {
        let mut command = Command::new(env::current_exe()?);
        let output = command
            .args([folder, Path::new(loader), weights])
            .output()?;
        let (told, error) = (
            String::from_utf8(output.stdout)?,
            String::from_utf8_lossy(&output.stderr),
        );
        match told.split_whitespace().collect::<Vec<_>>()[..] {
            [time, peak, faults, hidden] => Ok(Run {
                time_us: time.parse()?,
                peak_kib: peak.parse()?,
                faults: faults.parse()?,
                hidden: hidden.into(),
            }),
            _ => Err(format!("the process of {loader} failed: {error}").into()),
        }
    }
}

/// Loads the model, tells what that took, and what the model computes.
fn load(folder: &Path, loader: &str, weights: &Path) -> Result<()> {
    let config = fs::read_to_string(folder.join("config.json"))?;
    let config: Config = serde_json::from_str(&config)?;
    let (device, faults, start) = (Device::Cpu, page_faults()?, Instant::now());
    let variables = match loader {
        // SAFETY: nothing writes the file meanwhile.
        "candle" => unsafe {
            VarBuilder::from_mmaped_safetensors(&[weights], DType::F32, &device)?
        },
        _ => {
            let manager = TransferManager::builder().host().build()?;
            transload_candle::var_builder(&manager, weights, DType::F32, &device)?
        }
    };
    let model = BertModel::load(variables, &config)?;
    let time_us = start.elapsed().as_micros();
    let (faults, peak_kib) = (page_faults()? - faults, peak_kib()?);
    let tokens = Tensor::new(&[TOKENS], &device)?;
    let hidden = model.forward(&tokens, &tokens.zeros_like()?, None)?;
    let hidden = hidden.flatten_all()?.to_vec1::<f32>()?;
    if !hidden.iter().all(|number| number.is_finite()) {
        return Err("the model computes no numbers".into());
    }
    let hidden = hidden.iter().map(|of| format!("{:08x}", of.to_bits()));
    println!(
        "{time_us} {peak_kib} {faults} {}",
        hidden.collect::<String>()
    );
    Ok(())
}

/// The page faults of this process that needed no disk.
fn page_faults() -> Result<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in parentheses, may hold spaces.
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    Ok(fields.split(' ').nth(7).unwrap_or_default().parse()?)
}

/// The most memory that this process has had so far, in KiB.
fn peak_kib() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(word.unwrap_or_default().parse()?)
}
