//! `cargo xtask size`: writes `docs/size.md`, what each feature adds to a program. Linux alone tells processor times here.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{self, call_in};
use crate::files;
use crate::process::{Limit, first_line, must_run, output_of};
use crate::workspace::Workspace;

/// Builds a program for each line of [`PROGRAMS`] from nothing and writes the page.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let mut rows = String::new();
    for (name, features, program) in PROGRAMS {
        let figures = build(workspace, &dependency(workspace, name, features)?, program)?;
        let words = [name].into_iter().chain(features.split_whitespace());
        let words: Vec<String> = words.map(|word| format!("`{word}`")).collect();
        let row = format!("| {} | {figures} |\n", words.join(" "));
        print!("{row}");
        rows += &row;
    }
    let date = output_of(workspace.call("git").args(["log", "-1", "--format=%cs"]))?;
    let rustc = first_line(Command::new("rustc").arg("--version")).context("there is no rustc")?;
    let page = PAGE
        .replace("{rows}", &rows)
        .replace("{rustc}", &rustc)
        .replace("{date}", date.trim());
    files::write(&workspace.root.join("docs/size.md"), page)?;
    Ok(true)
}

/// The line of a manifest for `name` with those features: a package of the workspace, or the version that it locks.
fn dependency(workspace: &Workspace, name: &str, features: &str) -> Result<String> {
    if name == STD {
        return Ok(String::new());
    }
    let features: Vec<&str> = features.split_whitespace().collect();
    let place = match workspace.members.iter().find(|member| member.name == name) {
        Some(member) => format!("path = {:?}", member.manifest_path.with_file_name("")),
        None => {
            let version = cargo::locked_version(&workspace.root, name)?;
            format!("version = \"={version}\", default-features = false")
        }
    };
    Ok(format!("{name} = {{ {place}, features = {features:?} }}"))
}

/// Builds `program` in an empty folder, with the versions of the workspace's lockfile. Returns the figures of its row.
fn build(workspace: &Workspace, dependency: &str, program: &str) -> Result<String> {
    let folder = workspace.target.join("size");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    files::write(
        &folder.join("Cargo.toml"),
        format!("{MANIFEST}{dependency}\n"),
    )?;
    files::write(&folder.join("src/main.rs"), program)?;
    let lock = files::read(&workspace.root.join("Cargo.lock"))?;
    files::write(&folder.join("Cargo.lock"), lock)?;
    let cargo = |task: &str| {
        let mut cargo = call_in(&folder, cargo::program());
        cargo.env("CARGO_TARGET_DIR", folder.join("target"));
        cargo.env_remove("CARGO_BUILD_TARGET").arg(task);
        cargo
    };
    must_run(&mut cargo("fetch"), LIMIT)?;
    let before = children_s()?;
    let output = must_run(cargo("build").arg("--release"), LIMIT)?;
    let seconds = children_s()? - before;
    let is_package = |line: &&str| line.trim_start().starts_with("Compiling ");
    // The last one is the program itself.
    let packages = output.lines().filter(is_package).count() - 1;
    let bytes = fs::metadata(folder.join("target/release/size"))?.len();
    fs::remove_dir_all(&folder)?;
    let megabytes = bytes as f64 / 1e6;
    Ok(format!("{packages} | {seconds:.0} | {megabytes:.2}"))
}

/// Processor seconds of the processes that this one has waited for, and of those that they waited for: proc(5),
/// `cutime` and `cstime`.
fn children_s() -> Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = files::read(Path::new("/proc/self/stat"))?;
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
    let times = fields
        .context("/proc/self/stat names no program")?
        .skip(13)
        .take(2);
    let ticks: u64 = times.map(str::parse::<u64>).sum::<Result<_, _>>()?;
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

/// For one program. Only a compiler that hangs meets it.
const LIMIT: Limit = Limit::minutes(60);

const MANIFEST: &str = "\
[package]
name = \"size\"
edition = \"2024\"
[workspace]
[profile.release]
strip = true
[dependencies]
";

/// What a program has without a dependency.
const STD: &str = "std";

/// A dependency, its features, and a program that uses them.
const PROGRAMS: [(&str, &str, &str); 10] = [
    (STD, "", "fn main() {}"),
    ("safetensors", "std", SAFETENSORS),
    ("wgpu", "std parking_lot wgsl vulkan gles dx12 metal", WGPU),
    ("transload", "", COPY),
    ("transload", "cuda", COPY),
    ("transload", "remote", REMOTE),
    ("transload", "wgpu", COPY),
    ("transload", "cuda wgpu remote ucx tracing metrics", REMOTE),
    ("transload-tensors", "", LOAD),
    ("transload-tensors", "cuda wgpu", LOAD),
];

const SAFETENSORS: &str = r#"
fn main() {
    let bytes = std::fs::read("model.safetensors").unwrap();
    for (name, tensor) in safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors() {
        println!("{name} {}", tensor.data().to_vec().len());
    }
}
"#;

const WGPU: &str = r#"
use std::{pin::pin, task::{Context, Poll, Waker}};
use wgpu::{BufferUsages, util::{BufferInitDescriptor, DeviceExt}};

fn ready<F: Future>(future: F) -> F::Output {
    let Poll::Ready(value) = pin!(future).poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
    value
}

fn main() {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = ready(instance.request_adapter(&Default::default())).unwrap();
    let (device, queue) = ready(adapter.request_device(&Default::default())).unwrap();
    let contents = &[7; 1 << 20];
    device.create_buffer_init(&BufferInitDescriptor { label: None, contents, usage: BufferUsages::COPY_SRC });
    queue.submit([]);
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
}
"#;

const COPY: &str = r#"
use transload::{AllocSpec, TransferManager};

fn main() {
    let manager = TransferManager::discover().unwrap();
    let bytes = manager.adopt(vec![7; 1 << 20]).unwrap();
    let device = manager.devices().last().unwrap().id;
    let there = manager.allocate(device.into(), AllocSpec::bytes(1 << 20)).unwrap();
    println!("{}", manager.copy(&bytes, &there).wait().unwrap());
}
"#;

const REMOTE: &str = r#"
use transload::remote::PrivateKey;
use transload::{AllocSpec, ServeOptions, TransferManager, model::Name};

fn main() {
    let [server, client] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let there = TransferManager::discover().unwrap();
    let mut options = ServeOptions::new(server.clone(), 1 << 20);
    options.allow.push(client.public());
    options.offer.push("cpu:0".parse().unwrap());
    let served = there.serve(options).unwrap();
    let here = TransferManager::discover().unwrap();
    here.connect(Name::new("box2").unwrap(), &served.address().to_string(), &client, server.public()).unwrap();
    let bytes = here.adopt(vec![7; 1 << 20]).unwrap();
    let theirs = here.allocate("box2/cpu:0".parse().unwrap(), AllocSpec::bytes(1 << 20)).unwrap();
    println!("{}", here.copy(&bytes, &theirs).wait().unwrap());
}
"#;

const LOAD: &str = r#"
use transload_tensors::{Loader, Model, transload::TransferManager};

fn main() {
    let manager = TransferManager::discover().unwrap();
    let device = manager.devices().last().unwrap().id;
    let model = Model::open("model.safetensors").unwrap();
    for tensor in Loader::new(&manager).load(&model).to(device).start().unwrap() {
        println!("{}", tensor.unwrap().name());
    }
}
"#;

const PAGE: &str = "\
# What a dependency costs

`cargo xtask size` writes this page. Each row is a program of about ten lines that uses the dependency of the row (`xtask/src/size.rs`).
It was built from nothing by `cargo build --release` with `strip = true`, on Linux on x86-64, by {rustc}, from the source of {date}.

| dependency and features | packages | building, processor s | program, MB |
|---|---|---|---|
{rows}
- *Packages* are those that cargo compiles, the program itself left out.
- *Building* is the processor time of all compilers. On a free machine with several cores the wait is a part of it.
- *Program* is the length of the file.
- The feature `metal` adds nothing on Linux. `cuda` and `ucx` link no library: the program looks for the driver and for UCX when it runs.
";
