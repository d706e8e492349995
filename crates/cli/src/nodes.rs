//! Other machines: the key of this one, those that a command connects to, and serving others.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs};

use serde::Deserialize;
pub(crate) use transload::ServeError;
use transload::model::{Access, Name, ParseError};
use transload::remote::PrivateKey;
pub(crate) use transload::remote::{KeyError, PublicKey};
use transload::{DeviceKind, DeviceName, MemoryId, Place, TransferManager};
use transload_testkit::topology::one_line;

use crate::arguments::{Command, ServeArguments};
use crate::failure::Failure;
use crate::json;
use crate::machine::{Asked, Machine};
use crate::output::Output;

/// Another machine, as it is typed: `box2=10.0.0.2:7171,PUBLIC_KEY`.
#[derive(Clone, Debug)]
pub(crate) struct NodeSpec {
    name: Name,
    address: String,
    key: PublicKey,
}

/// Text that names no machine.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text:?} is not a machine: write NAME=ADDRESS:PORT,PUBLIC_KEY; {reason}")]
pub(crate) struct NodeSpecError {
    text: String,
    reason: String,
}

impl FromStr for NodeSpec {
    type Err = NodeSpecError;

    fn from_str(text: &str) -> Result<NodeSpec, NodeSpecError> {
        let error = |reason: &dyn fmt::Display| NodeSpecError {
            text: text.into(),
            reason: reason.to_string(),
        };
        let (name, rest) = (text.split_once('=')).ok_or_else(|| error(&"there is no ="))?;
        let (address, key) = (rest.rsplit_once(',')).ok_or_else(|| error(&"there is no key"))?;
        let (_, port) = (address.rsplit_once(':')).ok_or_else(|| error(&"there is no port"))?;
        if !matches!(port.parse(), Ok::<u16, _>(1..)) {
            return Err(error(&format_args!("{port:?} is no port: 1 to 65535")));
        }
        Ok(NodeSpec {
            name: node_name(name).map_err(|wrong| error(&wrong))?,
            address: address.into(),
            key: key.parse().map_err(|wrong| error(&wrong))?,
        })
    }
}

/// Reads the name of a machine. A kind of device is none: `cpu/shared` is a memory here.
fn node_name(text: &str) -> Result<Name, String> {
    let name: Name = text
        .parse()
        .map_err(|wrong: ParseError| wrong.to_string())?;
    let kinds = [
        DeviceKind::CPU,
        DeviceKind::WGPU,
        DeviceKind::CUDA,
        DeviceKind::METAL,
        DeviceKind::SIM,
        DeviceKind::NETWORK,
    ];
    match kinds.contains(&DeviceKind(name)) {
        true => Err(format!("{name} is a kind of device")),
        false => Ok(name),
    }
}

/// A file of machines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesFile {
    /// The file of this machine's key, beside the file of machines unless it is a whole path.
    #[serde(default)]
    key: Option<PathBuf>,
    #[serde(default, rename = "trusted-network")]
    trusted_network: bool,
    #[serde(default)]
    checksums: bool,
    #[serde(default)]
    node: BTreeMap<String, NodeEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    address: String,
    key: String,
}

/// The machines that a command connects to, and the file of the key with which it does.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    key: Option<PathBuf>,
    all: Vec<NodeSpec>,
    /// The names of all that were given, also those that the command does not need.
    given: Vec<String>,
    /// UCX may carry bytes, with checksums.
    trusted_network: bool,
    checksums: bool,
    /// The command goes on without those that cannot be connected to.
    may_lack: bool,
}

/// A machine that could not be connected to, and why.
#[derive(Debug)]
pub(crate) struct Lack {
    pub(crate) name: Name,
    pub(crate) error: transload::Error,
}

impl Nodes {
    /// Those that a command needs: the ones that its places name, or else all.
    ///
    /// # Errors
    /// If the file of machines cannot be read, or two machines have one name.
    pub(crate) fn of(command: &Command) -> Result<Nodes, Failure> {
        let Some(options) = command.machine() else {
            return Ok(Nodes::default());
        };
        let mut nodes = Nodes {
            key: options.key.clone(),
            all: options.node.clone(),
            given: Vec::new(),
            trusted_network: options.trusted_network,
            checksums: options.checksums,
            may_lack: matches!(command, Command::Devices(_)),
        };
        if let Some(path) = &options.nodes {
            nodes.read(path)?;
        }
        nodes.all.sort_by_key(|node| node.name);
        if let Some(twins) = nodes
            .all
            .windows(2)
            .find(|pair| pair[0].name == pair[1].name)
        {
            return Err(Failure::Twins {
                name: twins[0].name.to_string(),
            });
        }
        nodes.given = nodes.all.iter().map(|node| node.name.to_string()).collect();
        if let Some(places) = command.places() {
            let named = |node: &NodeSpec| places.iter().any(|place| node.has(*place));
            nodes.all.retain(named);
        }
        Ok(nodes)
    }

    fn read(&mut self, path: &Path) -> Result<(), Failure> {
        let wrong = |reason: &dyn fmt::Display| Failure::Nodes {
            path: path.into(),
            reason: reason.to_string(),
        };
        let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let file: NodesFile =
            toml::from_str(&text).map_err(|error| wrong(&one_line(&error, &text)))?;
        self.trusted_network |= file.trusted_network;
        self.checksums |= file.checksums;
        if self.key.is_none() {
            let folder = path.parent().unwrap_or(Path::new(""));
            self.key = file.key.map(|key| folder.join(key));
        }
        for (name, NodeEntry { address, key }) in file.node {
            self.all.push(NodeSpec {
                name: node_name(&name).map_err(|error| wrong(&error))?,
                address,
                key: (key.parse()).map_err(|error| wrong(&format_args!("{name}: {error}")))?,
            });
        }
        Ok(())
    }

    /// Checks that no machine was given beside a described one, whose costs are all that counts.
    ///
    /// # Errors
    /// If there is one.
    pub(crate) fn spare(&self, topology: Option<&Path>) -> Result<(), Failure> {
        match (topology, &self.given[..]) {
            (Some(_), [_, ..]) => Err(Failure::Arguments(
                "--topology describes all machines: leave out --node and --nodes".into(),
            )),
            _ => Ok(()),
        }
    }

    /// The names of those that were given.
    pub(crate) fn given(&self) -> &[String] {
        &self.given
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn private_key(&self) -> Result<PrivateKey, Failure> {
        let path = self.key.as_deref().ok_or(Failure::NoKey)?;
        Ok(PrivateKey::read(path)?)
    }

    fn options(&self) -> transload::remote::Options {
        let mut options = transload::remote::Options::default();
        options.trusted_network = self.trusted_network;
        options.checksums = self.checksums;
        options
    }

    /// Connects to them. Returns those that the command goes on without.
    ///
    /// # Errors
    /// If one that the command needs cannot be connected to.
    pub(crate) fn connect(&self, manager: &TransferManager) -> Result<Vec<Lack>, Failure> {
        let mut lacks = Vec::new();
        if self.is_empty() {
            return Ok(lacks);
        }
        let key = self.private_key()?;
        for NodeSpec {
            name,
            address,
            key: peer,
        } in &self.all
        {
            let name = *name;
            match manager.connect_with(name, address, &key, *peer, self.options()) {
                Ok(()) => {}
                Err(error) if self.may_lack => lacks.push(Lack { name, error }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(lacks)
    }
}

impl Nodes {
    /// Says of each machine whether UCX carries bytes to it, where that was asked for.
    pub(crate) fn networks(&self, manager: &TransferManager) -> Vec<String> {
        let topology = manager.opened();
        let told = |NodeSpec { name, .. }: &NodeSpec| {
            let is_ucx = |dst: MemoryId, access| {
                dst.device.node.name() == Some(*name) && access == Access::Peer
            };
            let mut links = topology.links().iter();
            if links.any(|link| is_ucx(link.id.dst, link.id.access)) {
                return Some(format!("{name}: UCX carries large copies, unencrypted"));
            }
            let mut lacks = topology.lacks().iter();
            let lack = lacks.find(|lack| is_ucx(lack.dst, lack.access))?;
            Some(format!("{name}: {}; TLS carries all bytes", lack.reason))
        };
        let all = self.all.iter().filter(|_| self.trusted_network);
        all.filter_map(told).collect()
    }
}

impl NodeSpec {
    /// Returns whether a place is at the machine.
    fn has(&self, place: Place) -> bool {
        match place.device {
            DeviceName::Id(id) => id.node.name() == Some(self.name),
            _ => false,
        }
    }
}

fn resolve(address: &str) -> Result<SocketAddr, Failure> {
    let wrong = |reason: String| Failure::Address {
        address: address.into(),
        reason,
    };
    let found = address.to_socket_addrs();
    let mut found = found.map_err(|error| wrong(error.to_string()))?;
    found
        .next()
        .ok_or_else(|| wrong("it has no address".into()))
}

/// `transload key FILE`
pub(crate) fn key(path: &Path, output: &mut Output) -> Result<(), Failure> {
    let key = match path.exists() {
        true => PrivateKey::read(path)?,
        false => {
            let key = PrivateKey::generate()?;
            key.write_new(path)?;
            key
        }
    };
    let public_key = key.public().to_string();
    match output.is_json() {
        true => output.json(&json::Key { public_key }),
        false => output.line(public_key),
    }
}

/// `transload serve --key FILE --allow PUBLIC_KEY --offer cpu:0`
pub(crate) fn serve(
    options: &ServeArguments,
    asked: Asked<'_>,
    output: &mut Output,
) -> Result<(), Failure> {
    if options.limit.0 == 0 {
        let message = "--limit 0 lets no machine allocate anything: name a size, as in 1GiB";
        return Err(Failure::Arguments(message.into()));
    }
    let mut serve = transload::ServeOptions::new(asked.nodes.private_key()?, options.limit.0);
    serve.listen = resolve(&options.listen)?;
    serve.allow.clone_from(&options.allow);
    serve.offer.clone_from(&options.offer);
    serve.session = asked.nodes.options();
    let trusted = serve.session.trusted_network;
    let machine = Machine::here(None, asked)?;
    machine.note(output);
    if trusted {
        output.note(&match transload::remote::ucx_version() {
            Ok(version) => format!(
                "UCX {version} carries large copies, unencrypted, of clients that trust the network too"
            ),
            Err(reason) => format!("{reason}; TLS carries all bytes"),
        });
    }
    let server = machine.manager.serve(serve)?;
    let address = server.address();
    let text = match output.is_json() {
        // Not the last word: the end of the program has that.
        true => output.document(&json::Serving {
            address: address.to_string(),
        })?,
        false => format!("serving on {address}; Ctrl-C ends it"),
    };
    output.line(text)?;
    loop {
        // A signal ends the program.
        std::thread::park();
    }
}
