//! The adapters through which the demo moves its file.

use anyhow::{Context, Result};
use serde_json::Value;

use super::program::Program;
use crate::install::Installer;
use crate::process::{describe, output_of};
use crate::vulkan::Drivers;

/// An adapter, as the program lists it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Adapter {
    id: String,
    software: bool,
}

/// The adapters of this machine. Without a GPU, software adapters are provided, so that bytes still go from one driver
/// to another. Where these are not available either, the result is empty, after a message that says what to install.
pub(super) fn find(program: &mut Program<'_>) -> Result<Vec<Adapter>> {
    let adapters = list(program)?;
    if !wants_more(&adapters) {
        return Ok(adapters);
    }
    println!("\nThere is no GPU here; looking for adapters in software ...");
    let mut installer = Installer::default();
    match Drivers::provide(&mut installer, &program.workspace.target) {
        Ok(drivers) => {
            for absent in drivers.absent() {
                println!("No {absent}");
            }
            program.drivers = Some(drivers);
        }
        // The demo still shows the host.
        Err(error) => println!("Nothing was installed: {error:#}"),
    }
    list(program)
}

/// The memories that the file visits before it comes back, two at least.
pub(super) fn stops(adapters: &[Adapter]) -> Vec<&str> {
    let ids = adapters.iter().map(|adapter| adapter.id.as_str());
    let mut stops: Vec<&str> = ids.take(MOST_ADAPTERS).collect();
    stops.push("cpu:0");
    if adapters.is_empty() {
        stops.push("cpu:0/shared");
    }
    stops
}

/// One software adapter has no second device to copy to; a GPU is shown alone.
fn wants_more(adapters: &[Adapter]) -> bool {
    adapters.len() < MOST_ADAPTERS && adapters.iter().all(|adapter| adapter.software)
}

fn list(program: &Program<'_>) -> Result<Vec<Adapter>> {
    let mut command = program.command(&["devices", "--json"]);
    let document = serde_json::from_str(&output_of(&mut command)?)
        .with_context(|| format!("`{}` gave no JSON", describe(&command)))?;
    Ok(read(&document))
}

fn read(document: &Value) -> Vec<Adapter> {
    let devices = document["devices"].as_array().into_iter().flatten();
    let adapters = devices.filter(|device| device["backend"] == "wgpu");
    let adapter = |device: &Value| Adapter {
        id: device["id"].as_str().unwrap_or_default().to_owned(),
        software: device["software"] == true,
    };
    adapters.map(adapter).collect()
}

const MOST_ADAPTERS: usize = 2;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn adapters(software: &[bool]) -> Vec<Adapter> {
        let adapter = |(index, &software)| json!({ "id": format!("wgpu:{index}"), "backend": "wgpu", "software": software });
        let mut devices = vec![json!({ "id": "cpu:0", "backend": "host", "software": false })];
        devices.extend(software.iter().enumerate().map(adapter));
        read(&json!({ "devices": devices }))
    }

    #[test]
    fn the_file_visits_the_first_two_adapters_and_without_any_shared_memory() {
        assert_eq!(stops(&adapters(&[])), ["cpu:0", "cpu:0/shared"]);
        assert_eq!(stops(&adapters(&[true])), ["wgpu:0", "cpu:0"]);
        let two = ["wgpu:0", "wgpu:1", "cpu:0"];
        assert_eq!(stops(&adapters(&[false, true])), two);
        assert_eq!(stops(&adapters(&[false, false, true])), two);
    }

    #[test]
    fn software_is_looked_for_only_where_there_is_no_gpu() {
        assert!(wants_more(&adapters(&[])));
        assert!(wants_more(&adapters(&[true])));
        assert!(!wants_more(&adapters(&[true, true])));
        assert!(!wants_more(&adapters(&[false])));
    }
}
