//! Loads a BERT model into burn with burn's loader and with Transload's, on a wgpu device, compares what the models compute,
//! and prints what each load took: `compare FOLDER WORK`. FOLDER has `model.safetensors` of all-MiniLM-L6-v2; a
//! half-precision copy is made in WORK.
//!
//! Every load is a process of its own, because the system counts page faults and peak memory by process.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, LinearLayout,
};
use burn::store::{FloatCastAdapter, ModuleSnapshot, SafetensorsStore};
use burn::tensor::wgpu::WgpuInitError;
use burn::tensor::{DType, Device, Int, Tensor, activation};
use transload_burn::Loader;
use transload_burn::transload_tensors::transload::TransferManager;
use transload_burn::transload_tensors::{self, Model, Save};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LOADERS: [&str; 2] = ["burn", "transload"];

/// Rounds that count. One more comes first and brings the files into the system's cache.
const ROUNDS: usize = 15;

/// "[CLS] hello world [SEP]" in BERT's vocabulary.
const TOKENS: [[i32; 4]; 1] = [[101, 7592, 2088, 102]];

/// Names of the module beside those of the file, the longer one first where one ends like another.
const NAMES: [(&str, &str); 13] = [
    ("words.", "embeddings.word_embeddings."),
    ("positions.", "embeddings.position_embeddings."),
    ("types.", "embeddings.token_type_embeddings."),
    ("embedded.", "embeddings.LayerNorm."),
    ("layers.", "encoder.layer."),
    (".query.", ".attention.self.query."),
    (".key.", ".attention.self.key."),
    (".value.", ".attention.self.value."),
    (".mixed.", ".attention.output.dense."),
    (".attended.", ".attention.output.LayerNorm."),
    (".wide.", ".intermediate.dense."),
    (".narrow.", ".output.dense."),
    (".finished.", ".output.LayerNorm."),
];

#[derive(Module, Debug)]
struct Bert {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    embedded: LayerNorm,
    layers: Vec<Layer>,
}

#[derive(Module, Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    mixed: Linear,
    attended: LayerNorm,
    wide: Linear,
    narrow: Linear,
    finished: LayerNorm,
}

const HIDDEN: usize = 384;
const HEADS: usize = 12;

impl Bert {
    fn new(device: &Device) -> Bert {
        let table = |rows| EmbeddingConfig::new(rows, HIDDEN).init(device);
        Bert {
            words: table(30522),
            positions: table(512),
            types: table(2),
            embedded: norm(device),
            layers: (0..6).map(|_| Layer::new(device)).collect(),
        }
    }

    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, len] = tokens.dims();
        let positions = Tensor::<1, Int>::arange(0..len as i64, &tokens.device());
        let types = self.types.forward(tokens.zeros_like());
        let hidden = self.words.forward(tokens) + types;
        let hidden = self
            .embedded
            .forward(hidden + self.positions.forward(positions.unsqueeze()));
        { self.layers.iter() }.fold(hidden, |hidden, layer| layer.forward(hidden))
    }
}

impl Layer {
    fn new(device: &Device) -> Layer {
        // PyTorch's layout: a row for each output.
        let linear = |from, to| {
            let config = LinearConfig::new(from, to).with_layout(LinearLayout::Col);
            config.init(device)
        };
        Layer {
            query: linear(HIDDEN, HIDDEN),
            key: linear(HIDDEN, HIDDEN),
            value: linear(HIDDEN, HIDDEN),
            mixed: linear(HIDDEN, HIDDEN),
            attended: norm(device),
            wide: linear(HIDDEN, 4 * HIDDEN),
            narrow: linear(4 * HIDDEN, HIDDEN),
            finished: norm(device),
        }
    }

    fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        let [one, len, _] = hidden.dims();
        let heads = |linear: &Linear| {
            let all = linear.forward(hidden.clone());
            all.reshape([one, len, HEADS, HIDDEN / HEADS])
                .swap_dims(1, 2)
        };
        let scores = heads(&self.query).matmul(heads(&self.key).transpose());
        let scores = scores / ((HIDDEN / HEADS) as f64).sqrt();
        let mixed = activation::softmax(scores, 3).matmul(heads(&self.value));
        let mixed = mixed.swap_dims(1, 2).reshape([one, len, HIDDEN]);
        let hidden = self.attended.forward(self.mixed.forward(mixed) + hidden);
        let wide = activation::gelu(self.wide.forward(hidden.clone()));
        self.finished.forward(self.narrow.forward(wide) + hidden)
    }
}

fn norm(device: &Device) -> LayerNorm {
    LayerNormConfig::new(HIDDEN)
        .with_epsilon(1e-12)
        .init(device)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [folder, work] => compare(Path::new(folder), Path::new(work)),
        [loader, weights, ""] => load(loader, Path::new(weights)),
        _ => Err("give the folder of a BERT model, and a folder to work in".into()),
    }
}

/// Loads the model with each loader in turn, and prints medians.
fn compare(folder: &Path, work: &Path) -> Result<()> {
    match Loader::new(Device::wgpu_options()) {
        Err(transload_burn::Error::Device(WgpuInitError::AdapterUnavailable { .. })) => {
            println!("skipped: no adapter is here");
            return Ok(());
        }
        loader => println!("burn's device: {:?}", loader?.device()),
    }
    let (single, half) = (
        folder.join("model.safetensors"),
        work.join("half.safetensors"),
    );
    halve(&single, &half)?;
    println!("FILE  LOADER     TIME     (LEAST TO MOST)   LOAD OF PEAK MEMORY  PAGE FAULTS");
    for (name, weights) in [("f32", &single), ("f16", &half)] {
        let mut runs = [Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            // Each loader is the first one in every other round.
            for turn in [round % 2, (round + 1) % 2] {
                runs[turn].push(Run::new(LOADERS[turn], weights)?);
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
            let mb = |kib: u64| kib as f64 * 1.024e-3;
            let times = sorted(|run| run.time_us);
            let spread = format!("({} to {})", ms(times[0]), ms(times[ROUNDS - 1]));
            println!(
                "{name:<5} {loader:<10} {:>5} ms {spread:<20} {:>5.1} of {:>5.1} MB  {:>11}",
                ms(times[ROUNDS / 2]),
                mb(sorted(|run| run.peak_kib - run.base_kib)[ROUNDS / 2]),
                mb(sorted(|run| run.peak_kib)[ROUNDS / 2]),
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
    let model = Model::open(single)?;
    let loader = transload_tensors::Loader::new(&manager);
    let halves = loader.load(&model).dtype(transload_tensors::DType::F16);
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
    /// The peak before the load, with the device open.
    base_kib: u64,
    hidden: String,
}

impl Run {
    fn new(loader: &str, weights: &Path) -> Result<Run> {
        let mut command = Command::new(env::current_exe()?);
        let output = command.arg(loader).arg(weights).arg("").output()?;
        let (told, error) = (
            String::from_utf8(output.stdout)?,
            String::from_utf8_lossy(&output.stderr),
        );
        match told.split_whitespace().collect::<Vec<_>>()[..] {
            [time, peak, faults, base, hidden] => Ok(Run {
                time_us: time.parse()?,
                peak_kib: peak.parse()?,
                faults: faults.parse()?,
                base_kib: base.parse()?,
                hidden: hidden.into(),
            }),
            _ => Err(format!("the process of {loader} failed: {error}").into()),
        }
    }
}

/// Loads the model, tells what that took, and what the model computes.
fn load(loader: &str, weights: &Path) -> Result<()> {
    // The device is opened, in the same way for both, before the clock starts.
    let shared = Loader::new(Device::wgpu_options())?;
    let device = shared.device();
    device.sync()?;
    let (base_kib, faults, start) = (peak_kib()?, page_faults()?, Instant::now());
    let mut model = Bert::new(device);
    if loader == "burn" {
        let mut store = SafetensorsStore::from_file(weights)
            .with_from_adapter(FloatCastAdapter::to(DType::F32))
            .with_key_remapping(r"LayerNorm\.weight$", "LayerNorm.gamma")
            .with_key_remapping(r"LayerNorm\.bias$", "LayerNorm.beta")
            .allow_partial(true);
        for (own, files) in NAMES {
            store = store.with_key_remapping(files.replace('.', r"\."), own);
        }
        let applied = model.load_from(&mut store)?;
        if !applied.missing.is_empty() {
            return Err(format!("burn did not find {:?}", applied.missing).into());
        }
    } else {
        model = shared.open(weights)?.fill(model, |path| {
            let name = NAMES.iter().fold(path.to_owned(), |name, (own, files)| {
                name.replace(own, files)
            });
            name.replace(".gamma", ".weight").replace(".beta", ".bias")
        })?;
    }
    device.sync()?;
    let time_us = start.elapsed().as_micros();
    let (faults, peak_kib) = (page_faults()? - faults, peak_kib()?);
    let hidden = model.forward(Tensor::from_data(TOKENS, device));
    let hidden = hidden.into_data().try_into_vec::<f32>()?;
    if !hidden.iter().all(|number| number.is_finite()) {
        return Err("the model computes no numbers".into());
    }
    let hidden = hidden.iter().map(|of| format!("{:08x}", of.to_bits()));
    println!(
        "{time_us} {peak_kib} {faults} {base_kib} {}",
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
