//! Fingerprints, which tell one machine from another, and from itself after a change.

use transload_core::{DeviceId, DeviceInfo, Topology};

/// The properties of a machine on which its measurements depend, in clear text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fingerprint {
    /// The version of this library: another one may copy in another way.
    pub library: String,
    /// The operating system, by Rust's name.
    pub os: String,
    /// The processor's architecture, by Rust's name.
    pub arch: String,
    /// The name that the processor reports; empty where there is none.
    pub cpu: String,
    /// The number of processors that the process may use; 0 where the processor is simulated.
    pub cpus: u64,
    /// Every device.
    pub devices: Vec<DevicePrint>,
}

/// The properties of a device on which its measurements depend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevicePrint {
    /// Its name on this machine: `wgpu:0`.
    pub id: String,
    /// The backend that drives it.
    pub backend: String,
    /// The vendor's name of the device.
    pub name: String,
    /// The driver and its version, where known.
    pub driver: Option<String>,
    /// Its UUID, where it has one.
    pub uuid: Option<String>,
}

impl Fingerprint {
    /// Returns the fingerprint of the machine with that topology, as this process sees it.
    pub fn of(topology: &Topology) -> Fingerprint {
        let processor = topology.device(DeviceId::CPU0);
        let is_real = processor.is_some_and(|device| !device.simulated);
        let cpus = std::thread::available_parallelism().map_or(0, |cpus| cpus.get() as u64);
        Fingerprint {
            library: env!("CARGO_PKG_VERSION").into(),
            os: std::env::consts::OS.into(),
            arch: std::env::consts::ARCH.into(),
            cpu: processor.map_or_else(String::new, |device| device.name.clone()),
            cpus: if is_real { cpus } else { 0 },
            devices: topology.devices().iter().map(DevicePrint::of).collect(),
        }
    }

    /// Returns the differences from the machine `here`, each as a clause, and whether any of them means that this is
    /// another machine. `None` when measurements hold. Devices of other machines do not count: those that are connected
    /// change from process to process.
    pub(super) fn differences(&self, here: &Fingerprint) -> Option<(bool, Vec<String>)> {
        let mut found = Differences::default();
        found.compare(true, "the processor", &self.cpu, &here.cpu);
        let (there, now) = (self.cpus.to_string(), here.cpus.to_string());
        found.compare(true, "processors", &there, &now);
        found.compare(true, "the system", &self.os, &here.os);
        found.compare(true, "the architecture", &self.arch, &here.arch);
        found.compare(false, "the library's version", &self.library, &here.library);
        for device in here.devices.iter().filter(|device| device.is_here()) {
            match self.devices.iter().find(|known| known.id == device.id) {
                Some(known) => known.compare(device, &mut found),
                None => found.note(format!("{} ({}) was not measured", device.id, device.name)),
            }
        }
        // A backend that this program does not have says nothing about the machine.
        let has = |backend: &str| here.devices.iter().any(|device| device.backend == backend);
        let known = self.devices.iter().filter(|known| known.is_here());
        for known in known.filter(|known| has(&known.backend)) {
            if !here.devices.iter().any(|device| device.id == known.id) {
                found.note(format!(
                    "{} ({}) is not here any more",
                    known.id, known.name
                ));
            }
        }
        (!found.clauses.is_empty()).then_some((found.foreign, found.clauses))
    }

    /// Returns whether the device is at another machine, and is not the one that was measured under its name.
    pub(super) fn is_another(&self, device: DeviceId, here: &Fingerprint) -> bool {
        let id = device.to_string();
        let of = |print: &Fingerprint| print.devices.iter().find(|known| known.id == id).cloned();
        let (then, now) = (of(self), of(here));
        !device.node.is_here() && then.is_some() && now.is_some() && then != now
    }
}

impl Fingerprint {
    /// Returns whether the device was measured, and nothing on which its measurements depend has changed since.
    pub(super) fn has(&self, device: &DeviceInfo) -> bool {
        self.devices.contains(&DevicePrint::of(device))
    }
}

impl DevicePrint {
    /// The name of another machine stands before a slash.
    fn is_here(&self) -> bool {
        !self.id.contains('/')
    }

    fn of(device: &DeviceInfo) -> DevicePrint {
        DevicePrint {
            id: device.id.to_string(),
            backend: device.backend.to_string(),
            name: device.name.clone(),
            driver: device.driver.clone(),
            uuid: device.uuid.map(|uuid| uuid.to_string()),
        }
    }

    fn compare(&self, here: &DevicePrint, found: &mut Differences) {
        // The first processor's name is the machine's, and was compared already.
        if self.id != DeviceId::CPU0.to_string() {
            found.compare(true, &self.id, &self.name, &here.name);
        }
        let told = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        let uuid = format!("the UUID of {}", self.id);
        found.compare(true, &uuid, &told(&self.uuid), &told(&here.uuid));
        let backend = format!("the backend of {}", self.id);
        found.compare(false, &backend, &self.backend, &here.backend);
        let driver = format!("the driver of {}", self.id);
        found.compare(false, &driver, &told(&self.driver), &told(&here.driver));
    }
}

#[derive(Default)]
struct Differences {
    foreign: bool,
    clauses: Vec<String>,
}

impl Differences {
    fn compare(&mut self, foreign: bool, what: &str, there: &str, here: &str) {
        if there != here {
            self.foreign |= foreign;
            self.clauses
                .push(format!("{what}: {there} there, {here} here"));
        }
    }

    fn note(&mut self, clause: String) {
        self.clauses.push(clause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(devices: &[(&str, &str)]) -> Fingerprint {
        let device = |(id, name): &(&str, &str)| DevicePrint {
            id: (*id).into(),
            backend: id.split(['/', ':']).next().unwrap().into(),
            name: (*name).into(),
            driver: None,
            uuid: None,
        };
        Fingerprint {
            library: "1".into(),
            os: "linux".into(),
            arch: "x86_64".into(),
            cpu: "CPU".into(),
            cpus: 2,
            devices: devices.iter().map(device).collect(),
        }
    }

    #[test]
    fn other_machines_make_no_profile_stale_and_one_that_was_exchanged_is_noticed() {
        let alone = machine(&[("cpu:0", "CPU"), ("wgpu:0", "GPU")]);
        let beside = machine(&[("cpu:0", "CPU"), ("wgpu:0", "GPU"), ("box2/cpu:0", "A")]);
        let others = machine(&[
            ("cpu:0", "CPU"),
            ("wgpu:0", "GPU"),
            ("box2/cpu:0", "B"),
            ("box3/cpu:0", "A"),
        ]);
        for (there, here) in [(&alone, &beside), (&beside, &alone), (&beside, &others)] {
            assert_eq!(there.differences(here), None);
        }
        let [gone, there, new] =
            ["wgpu:0", "box2/cpu:0", "box3/cpu:0"].map(|id| id.parse().unwrap());
        assert!(beside.is_another(there, &others));
        assert!(!beside.is_another(there, &beside) && !beside.is_another(there, &alone));
        assert!(!beside.is_another(new, &others) && !beside.is_another(gone, &alone));
        assert!(
            alone
                .differences(&machine(&[("cpu:0", "CPU"), ("wgpu:0", "Card")]))
                .is_some()
        );
    }
}
