//! The machine that a command works on: this one, with simulated devices beside it where asked for,
//! or one that exists on paper only.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use transload::model::Name;
use transload::{
    Backend, Builder, DeviceKind, DeviceName, Place, PlaceError, Report, TransferManager,
};
use transload_testkit::sim::{HostSide, Sim};
use transload_testkit::topology;

use crate::costs::{Costs, Wanted};
use crate::failure::Failure;
use crate::nodes::{Lack, Nodes};
use crate::output::Output;

/// The costs that a command asks for, the machines that it connects to, and the places that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) costs: Wanted<'a>,
    pub(crate) nodes: &'a Nodes,
    /// `None` where it uses every device.
    pub(crate) places: Option<&'a [Place]>,
}

/// A manager, and the simulated part of its machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) manager: TransferManager,
    /// The costs that its plans use.
    pub(crate) costs: Costs,
    /// Other machines that could not be connected to.
    pub(crate) lacks: Vec<Lack>,
    /// What carries the bytes to others.
    networks: Vec<String>,
    /// The names of other machines that the user gave.
    given: Vec<String>,
    sim: Option<Sim>,
    /// Whether the machine exists only as a description.
    is_described: bool,
}

impl Machine {
    /// This machine; with a topology, its simulated devices too. Its description of processors is
    /// left aside: they are here.
    ///
    /// The manager keeps the system's clock even then. With the simulated one, hops between real
    /// memories would take no time at all, so hops with a simulated end are timed apart
    /// ([`Machine::modelled_ns`]).
    ///
    /// # Errors
    /// If the topology describes no machine, or the profile that was asked for does not belong to this machine.
    pub(crate) fn here(topology: Option<&Path>, asked: Asked<'_>) -> Result<Machine, Failure> {
        let verdicts = asked.costs.verdicts(topology.is_some());
        Machine::keeping(topology, asked, verdicts, false)
    }

    /// The same with a manager that records a trace.
    ///
    /// # Errors
    /// As [`Machine::here`].
    pub(crate) fn traced(topology: Option<&Path>, asked: Asked<'_>) -> Result<Machine, Failure> {
        let verdicts = asked.costs.verdicts(topology.is_some());
        Machine::keeping(topology, asked, verdicts, true)
    }

    /// The same with the verdicts of proofs in that file, and a trace if one is wanted.
    ///
    /// # Errors
    /// As [`Machine::here`].
    pub(crate) fn keeping(
        topology: Option<&Path>,
        asked: Asked<'_>,
        verdicts: Option<PathBuf>,
        is_traced: bool,
    ) -> Result<Machine, Failure> {
        // First, because it loads no driver.
        let sim = topology
            .map(|path| simulate(path, HostSide::Real))
            .transpose()?;
        // The saved profile is read below, where a refusal can be reported.
        let builder = TransferManager::builder().discover().default_costs();
        let manager = keep(builder.trace(is_traced), verdicts).build()?;
        let lacks = asked.nodes.connect(&manager)?;
        let networks = asked.nodes.networks(&manager);
        // Costs are checked against the devices that take part, so these open first.
        match asked.places {
            Some(places) => places
                .iter()
                .for_each(|place| drop(manager.resolve(*place))),
            None => drop(manager.devices()),
        }
        let costs = Costs::apply(asked.costs, &manager)?;
        if let Some(sim) = &sim {
            manager
                .register_shared(backend(sim))
                .map_err(transload::Error::from)?;
        }
        Ok(Machine {
            manager,
            costs,
            lacks,
            networks,
            given: asked.nodes.given().to_vec(),
            sim,
            is_described: false,
        })
    }

    /// Prints why the saved profile is not used, and what carries bytes to machines on a network that is trusted.
    pub(crate) fn note(&self, output: &mut Output) {
        self.costs.note(output);
        self.networks.iter().for_each(|told| output.note(told));
    }

    /// The machine that a file describes, processors included. Nothing of this machine takes part, and so
    /// neither do its saved costs.
    ///
    /// # Errors
    /// As [`Machine::here`].
    pub(crate) fn described(topology: &Path, wanted: Wanted<'_>) -> Result<Machine, Failure> {
        Machine::described_keeping(topology, wanted, wanted.verdicts(true))
    }

    /// The same with the verdicts of proofs in that file.
    ///
    /// # Errors
    /// As [`Machine::here`].
    pub(crate) fn described_keeping(
        topology: &Path,
        wanted: Wanted<'_>,
        verdicts: Option<PathBuf>,
    ) -> Result<Machine, Failure> {
        let sim = simulate(topology, HostSide::Simulated)?;
        let builder = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .backend(backend(&sim));
        let manager = keep(builder, verdicts).build()?;
        let wanted = match wanted {
            Wanted::Saved => Wanted::Default,
            other => other,
        };
        let costs = Costs::apply(wanted, &manager)?;
        Ok(Machine {
            manager,
            costs,
            lacks: Vec::new(),
            networks: Vec::new(),
            given: Vec::new(),
            sim: Some(sim),
            is_described: true,
        })
    }

    /// Whether a topology takes part, or what stands in for the driver of a device, so that each device and hop
    /// must say whether it is simulated.
    pub(crate) fn is_mixed(&self) -> bool {
        self.sim.is_some() || self.has_stand_in()
    }

    /// Whether a device that is open is simulated, by a topology or by what was loaded in the place of its driver.
    pub(crate) fn has_stand_in(&self) -> bool {
        let opened = self.manager.opened();
        opened.devices().iter().any(|device| device.simulated)
    }

    /// Checks that a place exists on this machine.
    ///
    /// # Errors
    /// If it does not; the error explains how to get simulated devices if one of those was meant.
    pub(crate) fn expect(&self, place: Place) -> Result<(), Failure> {
        let Err(source) = self.manager.resolve(place) else {
            return Ok(());
        };
        Err(self.absent(source))
    }

    /// The failure for a place that does not exist.
    pub(crate) fn absent(&self, mut source: PlaceError) -> Failure {
        // The text lists devices, so all of them open.
        if let PlaceError::UnknownDevice { known, .. } = &mut source {
            let devices = self.manager.devices().into_iter();
            let ids: Vec<String> = devices.map(|device| device.id.to_string()).collect();
            *known = ids.join(", ");
        }
        match &mut source {
            PlaceError::UnknownDevice {
                device: DeviceName::Id(id),
                ..
            } if id.kind == DeviceKind::SIM && self.sim.is_none() => {
                return Failure::NotSimulated { source };
            }
            PlaceError::UnknownDevice {
                device: DeviceName::Id(id),
                ..
            } if !self.is_described
                && (id.node.name()).is_some_and(|name| !self.has_been_given(name)) =>
            {
                return Failure::NoNode {
                    name: id
                        .node
                        .name()
                        .map(|name| name.to_string())
                        .unwrap_or_default(),
                    given: self.given.clone(),
                };
            }
            // A machine on paper lacks what it does not describe, whatever this one has.
            PlaceError::UnknownDevice { reason, .. } | PlaceError::UnknownMemory { reason, .. }
                if self.is_described =>
            {
                *reason = None;
            }
            _ => {}
        }
        Failure::Library(source.into())
    }

    fn has_been_given(&self, name: Name) -> bool {
        self.given.iter().any(|given| given == name.as_str())
    }

    /// The time by the simulated machine's clock, which moves by what simulated engines do alone.
    pub(crate) fn modelled_ns(&self) -> u64 {
        self.sim.as_ref().map_or(0, |sim| sim.clock().now_ns())
    }

    /// How long a hop took: by the model where a simulated device took part that has a clock of its own, else as
    /// measured. `since_ns` is [`Machine::modelled_ns`] before the hop.
    pub(crate) fn times(&self, report: &Report, since_ns: u64) -> Times {
        if report.is_simulated() && self.sim.is_some() {
            return Times {
                copy_ns: self.modelled_ns() - since_ns,
                check_ns: None,
            };
        }
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Times {
            copy_ns: ns(report.elapsed().saturating_sub(report.checking())),
            check_ns: report.checksum().map(|_| ns(report.checking())),
        }
    }
}

/// How long a hop took, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) copy_ns: u64,
    /// How long verification took; `None` without one, and where the model's clock does not tell it from the copy.
    pub(crate) check_ns: Option<u64>,
}

fn keep(builder: Builder, verdicts: Option<PathBuf>) -> Builder {
    match verdicts {
        Some(path) => builder.keep_verdicts(path),
        None => builder,
    }
}

#[allow(
    clippy::arc_with_non_send_sync,
    reason = "where there are no threads, no backend is `Send`, and the library takes it in an `Arc`"
)]
fn backend(sim: &Sim) -> Arc<dyn Backend> {
    Arc::new(sim.clone())
}

fn simulate(path: &Path, host: HostSide) -> Result<Sim, Failure> {
    let machine = topology::from_file(path)?;
    let built = Sim::builder(&machine).host(host).build();
    built.map_err(|source| Failure::Machine {
        path: path.into(),
        source: Box::new(source),
    })
}
