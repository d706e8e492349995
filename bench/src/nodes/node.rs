//! Processes that serve their memory.

use anyhow::{Context, Result};
use transload::model::Name;
use transload::remote::{Options, PrivateKey};
use transload::{Place, ServeOptions, TransferManager};

use super::halves;
use crate::process::Process;

/// More than any case allocates.
const LIMIT_BYTES: u64 = 2 << 30;

/// A process that serves, until it is dropped.
pub(super) struct Node {
    pub(super) place: Place,
    _process: Process,
}

impl Node {
    /// Starts so many processes, which also reach each other, and connects to them.
    /// If `trusts`, over UCX where it is installed.
    pub(super) fn connected(
        manager: &TransferManager,
        count: usize,
        trusts: bool,
    ) -> Result<Vec<Node>> {
        let key = PrivateKey::generate()?;
        let program = std::env::current_exe()?;
        let mut processes = Vec::new();
        let mut keys = vec![key.public()];
        for _ in 0..count {
            let mut process = halves::on_the_second(|| Process::start(&program, "node"))?;
            keys.push(process.ask("key")?.parse()?);
            processes.push(process);
        }
        let allowed: Vec<String> = keys.iter().map(ToString::to_string).collect();
        let mut nodes = Vec::new();
        for (number, (mut process, peer)) in processes.into_iter().zip(&keys[1..]).enumerate() {
            let name = format!("node{number}");
            let address = process.ask(&allowed.join(" "))?;
            let node: Name = name.parse().ok().context("it is a name")?;
            let mut session = Options::default();
            session.trusted_network = trusts;
            manager.connect_with(node, &address, &key, *peer, session)?;
            nodes.push(Node {
                place: format!("{name}/cpu:0").parse()?,
                _process: process,
            });
        }
        Ok(nodes)
    }
}

/// Tells its key, serves the keys of the next line at the address that it tells, and goes on until the input ends.
pub(crate) fn serve() -> Result<()> {
    let mut lines = std::io::stdin().lines();
    let mut next = || lines.next().transpose();
    next()?;
    let key = PrivateKey::generate()?;
    println!("{}", key.public());
    let mut options = ServeOptions::new(key, LIMIT_BYTES);
    options.offer.push("cpu:0".parse()?);
    options.session.trusted_network = true;
    for key in next()?.context("the keys follow")?.split(' ') {
        options.allow.push(key.parse()?);
    }
    let manager = TransferManager::builder().host().build()?;
    let server = manager.serve(options)?;
    println!("{}", server.address());
    while next()?.is_some() {}
    Ok(())
}
