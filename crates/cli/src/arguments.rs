//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{
    OsStringValueParser, PathBufValueParser, PossibleValuesParser, TypedValueParser,
};
use clap::{Args, Parser, Subcommand, value_parser};
use clap_complete::Shell;
use transload::{ByteSize, Place};
use transload_tensors::DType;

use crate::nodes::{NodeSpec, PublicKey};
use crate::stop::{Word, is_standard};

/// Moves bytes between any two memories, of this machine and others, by the fastest path that they really have
#[derive(Debug, Parser)]
#[command(name = "transload", version, after_help = ENVIRONMENT_AND_EXIT_CODES)]
pub(crate) struct Arguments {
    /// Prints one JSON object, notes and errors in it (docs/json.md has the fields)
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes that plans, or that moves bytes.
#[derive(Debug, Args)]
pub(crate) struct MachineOptions {
    /// Uses the measured costs in FILE, not the saved ones; probe writes them there
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,

    /// The private key of this machine, for --node, --nodes and serve
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// Connects to a machine that runs `transload serve`; its devices are NAME/cpu:0 and so on
    #[arg(long, value_name = "NAME=ADDRESS:PORT,PUBLIC_KEY")]
    pub(crate) node: Vec<NodeSpec>,

    /// Connects to the machines that a TOML file lists, as docs/cluster.md shows it
    #[arg(long, value_name = "FILE")]
    pub(crate) nodes: Option<PathBuf>,

    /// Lets UCX carry bytes between machines unencrypted; give it on both (docs/cluster.md says what that opens)
    #[arg(long)]
    pub(crate) trusted_network: bool,

    /// Has both sides check all that UCX carries
    #[arg(long)]
    pub(crate) checksums: bool,
}

impl Command {
    /// Those options; `None` for a command that has none of them.
    pub(crate) fn machine(&self) -> Option<&MachineOptions> {
        match self {
            Command::Devices(options) => Some(&options.machine),
            Command::Copy(options) => Some(&options.machine),
            Command::Explain(options) => Some(&options.machine),
            Command::Probe(options) => Some(&options.machine),
            Command::Load(options) => Some(&options.machine),
            Command::Serve(options) => Some(&options.machine),
            Command::Inspect { .. } | Command::Key { .. } | Command::Completions { .. } => None,
        }
    }

    /// The places that it names, of those commands that use no others.
    pub(crate) fn places(&self) -> Option<Vec<Place>> {
        match self {
            Command::Copy(options) => {
                let stops = options.stops.iter().filter_map(|word| match word {
                    Word::Stop(stop) => Some(stop.place()),
                    Word::And => None,
                });
                Some(stops.collect())
            }
            Command::Explain(options) => Some(vec![options.src, options.dst]),
            Command::Load(options) => Some(options.to.clone()),
            Command::Serve(options) => Some(options.offer.clone()),
            _ => None,
        }
    }

    /// Whether it writes the bytes of a file to standard output, so that all it says goes to standard error.
    pub(crate) fn writes_standard_output(&self) -> bool {
        let Command::Copy(options) = self else {
            return false;
        };
        let is_stop = |word: &Word| matches!(word, Word::Stop(stop) if stop.is_standard());
        options.stops.iter().any(is_stop) || options.out.as_deref().is_some_and(is_standard)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows the devices that are here, and why others are not
    Devices(DevicesOptions),
    /// Copies a file through a chain of memories
    #[command(after_help = STOPS)]
    Copy(CopyOptions),
    /// Says which way bytes would go, and why no other
    #[command(after_help = MEMORIES)]
    Explain(ExplainOptions),
    /// Measures and verifies every way between two memories, and saves what it found
    #[command(after_help = PROFILES)]
    Probe(ProbeArguments),
    /// Loads the tensors of a model into the memory of devices, says how fast, and frees it
    #[command(after_help = MODELS)]
    Load(LoadOptions),
    /// Lists the tensors of a model file
    #[command(after_help = MODELS)]
    Inspect {
        /// A file in safetensors or GGUF, a list of shards, or a folder with one model
        #[arg(value_parser = model_path())]
        model: PathBuf,
    },
    /// Prints the public key of this machine, and makes the private one if there is none
    Key {
        /// The private key: written unless it is there
        file: PathBuf,
    },
    /// Lets other machines allocate memory here, and copy to and from it
    #[command(after_help = SERVING)]
    Serve(ServeArguments),
    /// Writes completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct DevicesOptions {
    /// Adds the simulated devices of a machine that a TOML file describes
    #[arg(long, value_name = "FILE")]
    pub(crate) topology: Option<PathBuf>,

    #[command(flatten, next_help_heading = "Costs and other machines")]
    pub(crate) machine: MachineOptions,
}

#[derive(Debug, Args)]
pub(crate) struct CopyOptions {
    /// The file to copy; - is standard input
    pub(crate) file: PathBuf,

    /// The memories that its bytes visit, in this order; a + between the last ones sends them to all of those at once; - at the
    /// end is standard output
    #[arg(required = true, value_name = "STOP", value_parser = OsStringValueParser::new().try_map(|text| Word::new(&text)))]
    pub(crate) stops: Vec<Word>,

    /// Reads both ends of each hop again, compares their checksums (xxh3-64), and prints them
    #[arg(long)]
    pub(crate) verify: bool,

    /// Writes what arrived at the last stop to a file, which appears whole or not at all; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Writes what engines, staging slots and threads did to a file that Perfetto and chrome://tracing open
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Adds the simulated devices of a machine that a TOML file describes
    #[arg(long, value_name = "FILE")]
    pub(crate) topology: Option<PathBuf>,

    #[command(flatten, next_help_heading = "Costs and other machines")]
    pub(crate) machine: MachineOptions,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainOptions {
    /// Where the bytes are: a device, or one of its memories, as in cpu:0/shared
    #[arg(value_parser = memory)]
    pub(crate) src: Place,

    /// Where they would go
    #[arg(value_parser = memory)]
    pub(crate) dst: Place,

    /// The number of bytes, or a number with a binary or decimal unit, as in 64KiB or 1.5GB
    pub(crate) size: ByteSize,

    /// Runs every way in turn for up to 10 s, verified, and prints what each takes
    #[arg(long)]
    pub(crate) measure: bool,

    /// Writes what --measure found to a file, as a page for a browser that needs no network
    #[arg(long, value_name = "FILE", requires = "measure")]
    pub(crate) html: Option<PathBuf>,

    /// Plans on the machine that a TOML file describes, in place of this one
    #[arg(long, value_name = "FILE")]
    pub(crate) topology: Option<PathBuf>,

    #[command(flatten, next_help_heading = "Costs and other machines")]
    pub(crate) machine: MachineOptions,
}

#[derive(Debug, Args)]
pub(crate) struct LoadOptions {
    /// A file in safetensors or GGUF, a list of shards, or a folder with one model
    #[arg(value_parser = model_path())]
    pub(crate) model: PathBuf,

    /// The devices, or memories of them, as `transload devices` lists them, separated by commas: of several, each gets a
    /// share of the tensors like the memory that it has free, or an equal one where that is not known of all
    #[arg(
        long,
        value_name = "DEVICE",
        value_delimiter = ',',
        default_value = "cpu:0"
    )]
    pub(crate) to: Vec<Place>,

    /// Loads every tensor into each of the devices, and reads files once
    #[arg(long)]
    pub(crate) broadcast: bool,

    /// Cuts the tensors whose whole names fit a pattern along its dimension, counted from 0, a part for each of the devices;
    /// tensors that fit none go to all of them. Short rows are read with what lies between them, for each device again
    #[arg(long, value_name = "PATTERN=DIMENSION", value_delimiter = ',', value_parser = split_rule, conflicts_with = "broadcast")]
    pub(crate) split: Vec<(String, usize)>,

    /// Converts floating-point numbers while they are read; integers stay as they are
    #[arg(long, value_name = "TYPE", value_parser = float_type(), ignore_case = true)]
    pub(crate) dtype: Option<DType>,

    /// Loads only tensors whose whole names fit, or fit another --only: * stands for any characters, ? for one
    #[arg(long, value_name = "PATTERN")]
    pub(crate) only: Vec<String>,

    /// Reads both ends again and compares their checksums (xxh3-64)
    #[arg(long)]
    pub(crate) verify: bool,

    /// Writes what arrived to a safetensors file, which appears whole or not at all
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plan", "broadcast", "split"])]
    pub(crate) save: Option<PathBuf>,

    /// Prints what would be read and where it would go, and reads no tensor
    #[arg(long)]
    pub(crate) plan: bool,

    #[command(flatten, next_help_heading = "Costs and other machines")]
    pub(crate) machine: MachineOptions,
}

/// A path, and no address of something that is to be fetched.
fn model_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.to_string_lossy().contains("://") {
        true => Err("the program reads files; fetch the model first, or open it with the library's Model::open_remote"),
        false => Ok(path),
    })
}

fn float_type() -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(["f64", "f32", "f16", "bf16"]).map(|name| {
        match &name.to_lowercase()[..] {
            "f64" => DType::F64,
            "f32" => DType::F32,
            "f16" => DType::F16,
            _ => DType::BF16,
        }
    })
}

/// Takes a rule apart at its last `=`: names may have others.
fn split_rule(text: &str) -> Result<(String, usize), String> {
    let (pattern, dimension) = text
        .rsplit_once('=')
        .ok_or("a rule is PATTERN=DIMENSION, such as '*.q_proj.weight=0'")?;
    match dimension.parse() {
        Ok(dimension) => Ok((pattern.into(), dimension)),
        Err(error) => Err(format!(
            "the dimension {dimension:?} is not a number from 0 on: {error}"
        )),
    }
}

#[derive(Debug, Args)]
pub(crate) struct ProbeArguments {
    /// Probes for 10 s with sizes up to 16 MiB (default: 60 s, 64 MiB)
    #[arg(long)]
    pub(crate) quick: bool,

    /// Probes for that long at most, up to a day: less time leaves more figures uncertain
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=24 * 3600), conflicts_with = "topology")]
    pub(crate) seconds: Option<u32>,

    /// Saves nothing
    #[arg(long)]
    pub(crate) no_save: bool,

    /// Writes the results to a file, as a page for a browser that needs no network
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Probes the simulated machine that a TOML file describes, in place of this one
    #[arg(long, value_name = "FILE")]
    pub(crate) topology: Option<PathBuf>,

    #[command(flatten, next_help_heading = "Costs and other machines")]
    pub(crate) machine: MachineOptions,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7171")]
    pub(crate) listen: String,

    /// The public keys of the machines that may connect
    #[arg(
        long,
        value_name = "PUBLIC_KEY",
        value_delimiter = ',',
        required = true,
        // One key of 64 begins with a hyphen.
        allow_hyphen_values = true
    )]
    pub(crate) allow: Vec<PublicKey>,

    /// The devices, or memories of them, in which they may allocate
    #[arg(
        long,
        value_name = "DEVICE",
        value_delimiter = ',',
        default_value = "cpu:0"
    )]
    pub(crate) offer: Vec<Place>,

    /// How much memory they may hold at once, all together
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(crate) limit: ByteSize,

    #[command(flatten, next_help_heading = "Costs and other machines")]
    pub(crate) machine: MachineOptions,
}

/// A memory, for which one might take the file that a copy names.
fn memory(text: &str) -> Result<Place, String> {
    let parsed = text.parse();
    parsed.map_err(
        |error: transload::model::ParseError| match text.split_once("/file:") {
            Some((device, _)) => {
                format!(
                    "explain takes no path, because all files have the same routes: write {device}/file"
                )
            }
            None => error.to_string(),
        },
    )
}

/// Whether `--json` is among arguments that could not be read as a whole.
pub(crate) fn asks_for_json(arguments: impl IntoIterator<Item = OsString>) -> bool {
    arguments
        .into_iter()
        .take_while(|argument| argument != "--")
        .any(|argument| argument == "--json")
}

const ENVIRONMENT_AND_EXIT_CODES: &str = "\
Devices and sizes:
  A device is named by its kind and number, as in wgpu:1, or by its UUID. The
  number 0 may be left out, of every kind: wgpu is wgpu:0, cpu/shared is
  cpu:0/shared.
  Sizes are shown in binary units: 1 KiB is 1024 bytes, 1 MiB is 1024 KiB.
  Rates are shown in decimal ones: 1 GB/s is 1,000,000,000 bytes per second.

Environment:
  TRANSLOAD_PROFILE      path of the file of measured costs to use; set it to
                         an empty string to use none
  TRANSLOAD_CUDA_DRIVER  path of the library of CUDA's driver (default:
                         libcuda.so.1, on Windows nvcuda.dll)
  TRANSLOAD_UCX          path of UCX's library, for --trusted-network (default:
                         libucp.so.0 of the system or of the active Python
                         environment)

Exit codes:
  0    done
  2    usage: an argument that cannot be read, a file that cannot be opened or
       created, a topology that describes no machine, a profile that is damaged
       or of another machine
  3    a device, a memory or a way between two memories that is not here, or a
       machine that does not answer or refuses
  4    bytes differ
  5    a failure while bytes moved: a device or a machine that is gone, memory
       that ran out, a file that ended early, a disk that is full
  129  stopped by SIGHUP (the terminal is gone)
  130  stopped by SIGINT (Ctrl-C)
  141  standard output was closed before it had all bytes of a file
  143  stopped by SIGTERM";

const STOPS: &str = "\
Stops:
  cpu:0            the heap
  cpu:0/shared     shared memory
  cpu:0/file:PATH  a file, which appears whole or not at all
  cpu:0/pinned     host memory that CUDA devices reach in place; only with those
  cuda:N           the memory of a CUDA device; cuda:N/managed is managed memory
  metal:N          the memory of a Metal device, on Apple's systems
  wgpu:N           the memory of an adapter, as `transload devices` lists them
  sim:N            a simulated device of the machine that --topology describes
  NODE/cpu:0       memory of another machine, as --node names it
  -                standard output, as the last stop

A device without a number is number 0: wgpu is wgpu:0.

FILE and PATH are regular files: no pipe and no device. Bytes of a pipe come by
standard input: transload copy - cpu:0 < PIPE. A file named - is ./-.

Standard input, where it is no regular file, is read to its end into a nameless
file in the directory for temporary files (TMPDIR), and then copied. Standard
output gets its bytes from such a file when all have arrived and, with --verify,
were compared. The table goes to standard error then, and so does the object of
--json.

Holes of a file stay holes in a file that it is copied to, and zeros that come
out of memory become holes, in blocks of 64 KiB (Linux).

A file goes to and from a device through slots of a few MiB: no memory of the
host ever holds it as a whole.

A file is written as .transload-WRITER-RANDOM.partial in its directory, and
renamed when its bytes are on the disk. Ctrl-C (SIGINT), SIGTERM and SIGHUP
remove it. On Linux the next copy to the same directory on this machine removes
what SIGKILL leaves. Without --out the bytes at the last stop are dropped.

TIME is the time of the copy, and RATE its rate. CHECK is the time in which
--verify reads both ends again. TIME excludes the time until the disk has all
bytes of a file (fsync).";

const PROFILES: &str = "\
probe saves the measured costs in a profile: in --profile FILE, or at the path
in the environment variable TRANSLOAD_PROFILE (an empty string: nowhere), or as
transload/profile.toml in the user's directory for caches. copy, explain and
programs that use the library plan by the profile until the processor, a device,
a driver or the version of transload changes. The file profile.verdicts.toml
beside the profile lists the proven links between two devices, and the links
that move wrong bytes; each probe proves them anew.

probe measures a simulated machine to the end, however long that takes, and
saves its costs in --profile FILE only. The same holds for a machine where a
stand-in replaces CUDA's driver.

probe touches memory before it measures, and its files are in the page cache.
The figures are medians with their 95 % intervals. Do not trust a figure marked
!: its interval is wider than ±20% or unknown. Close other programs, and probe
again, or longer (--seconds). A probe without one figure of a link that can be
trusted does not replace a profile that has some.

The page of --html shows the machine, heat maps of bandwidth and latency, the
bandwidth by size with the sizes at which the way changes, and the links. It is
one file, which needs no network and contains no script. It appears whole or not
at all, also when the probe found wrong bytes.";

const MODELS: &str = "\
MODEL is a file in safetensors or GGUF, a list of shards
(model.safetensors.index.json), any part of a model in parts
(NAME-00001-of-00003.gguf), or a folder with one model, such as a snapshot of a
hub. The headers alone are read, and checked against the lengths of the files.
Pickled files (*.bin, *.pt) may run any code when they are read, so they are
refused.";

const SERVING: &str = "\
On each machine `transload key FILE` makes a key. Give each the public key of
the other: --allow here, and there --node NAME=ADDRESS:PORT,PUBLIC_KEY. All that
passes between the two is encrypted (TLS 1.3), and only machines with an allowed
key can connect. They can allocate in the memories that are offered, up to the
limit, copy to and from what they allocated, and have this machine send it on to
others that allow its key. Memory is freed when its owner disconnects, or is not
heard of for 4 s.";

const MEMORIES: &str = "\
Memories:
  cpu:0         the heap, as cpu:0/pageable
  cpu:0/shared  shared memory
  cpu:0/file    any file; the path makes no difference
  cpu:0/pinned  host memory that CUDA devices reach in place; only with those
  cuda:N        the memory of a CUDA device, as cuda:N/device; cuda:N/managed is
                managed memory
  metal:N       the memory of a Metal device, on Apple's systems: metal:N/mapped
                where it and the host have one memory, else metal:N/device
  wgpu:N        the memory of an adapter: wgpu:N/mapped where the host reaches
                it too, else wgpu:N/device; upload and readback are its slots
                on the way in and out
  sim:N, sim:N/KIND
                those of the machine that --topology describes, which
                `transload devices --topology FILE` lists

A device without a number is number 0: wgpu is wgpu:0.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    /// A longer line is broken anew, in the middle of a sentence.
    #[test]
    fn what_follows_the_options_fits_a_terminal_of_80() {
        for text in [
            ENVIRONMENT_AND_EXIT_CODES,
            STOPS,
            MODELS,
            MEMORIES,
            PROFILES,
            SERVING,
        ] {
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{line:?}");
            }
        }
    }

    #[test]
    fn json_is_asked_for_before_a_double_dash_only() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        assert!(asks("transload copy --json"));
        assert!(!asks("transload copy -- --json"));
    }
}
