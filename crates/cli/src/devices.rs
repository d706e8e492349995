//! `transload devices`

use transload::hal::DeviceInfo;
use transload::{ByteSize, DeviceId, DeviceKind, MemoryId};

use crate::arguments::DevicesOptions;
use crate::failure::Failure;
use crate::json;
use crate::machine::{Asked, Machine};
use crate::output::Output;

pub(crate) fn run(
    options: &DevicesOptions,
    asked: Asked<'_>,
    output: &mut Output,
) -> Result<(), Failure> {
    let machine = Machine::here(options.topology.as_deref(), asked)?;
    machine.note(output);
    if output.is_json() {
        return output.json(&document(&machine));
    }
    let rows = machine.manager.devices().into_iter().map(|device| {
        vec![
            device.id.to_string(),
            device.backend.to_string(),
            // The name of a simulated device says that it is one.
            match device.software {
                true => format!("{} (software)", device.name),
                false => device.name,
            },
            device.driver.unwrap_or_else(|| "–".into()),
            device
                .memory_bytes
                .map_or_else(|| "unknown".into(), |bytes| ByteSize(bytes).to_string()),
            memories(&machine, device.id, |memory| memory.kind.to_string()).join(", "),
        ]
    });
    output.table(
        &["DEVICE", "BACKEND", "NAME", "DRIVER", "SIZE", "MEMORIES"],
        rows.collect(),
    )?;
    output.line("")?;
    let rows = absent(&machine).map(|absent| vec![absent.backend, absent.reason]);
    output.table(&["ABSENT", "WHY"], rows.collect())
}

/// The kinds of devices of which there is none, or not each, and the other machines that are not there, with the reason.
fn absent(machine: &Machine) -> impl Iterator<Item = json::Absent> {
    let kinds = [DeviceKind::WGPU, DeviceKind::CUDA, DeviceKind::METAL];
    let kinds = kinds.into_iter().filter_map(|kind| {
        let reason = machine.manager.lacks(kind)?;
        let backend = kind.to_string();
        Some(json::Absent { backend, reason })
    });
    let nodes = machine.lacks.iter().map(|lack| {
        let backend = lack.name.to_string();
        let reason = lack.error.to_string();
        let reason = reason
            .strip_prefix(&format!("{backend}: "))
            .map(str::to_owned)
            .unwrap_or(reason);
        json::Absent { backend, reason }
    });
    kinds.chain(nodes)
}

/// The memories of a device, the default one first.
fn memories(machine: &Machine, device: DeviceId, told: impl Fn(MemoryId) -> String) -> Vec<String> {
    let memories = machine.manager.memories().into_iter();
    let memories = memories.filter(|memory| memory.id.device == device);
    memories.map(|memory| told(memory.id)).collect()
}

fn document(machine: &Machine) -> json::Devices {
    let device = |device: DeviceInfo| json::Device {
        id: device.id.to_string(),
        backend: device.backend.to_string(),
        name: device.name,
        driver: device.driver,
        software: device.software,
        memory_bytes: device.memory_bytes,
        memories: memories(machine, device.id, |memory| memory.to_string()),
        uuid: device.uuid.map(|uuid| uuid.to_string()),
        pci: device.pci.map(|pci| pci.to_string()),
        simulated: machine.is_mixed().then_some(device.simulated),
    };
    json::Devices {
        devices: machine.manager.devices().into_iter().map(device).collect(),
        absent: absent(machine).collect(),
    }
}
