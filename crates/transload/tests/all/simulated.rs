//! The engine on a simulated machine.

use std::error::Error;
use std::sync::Arc;

use transload::{AllocSpec, Buffer, Method, Place, Request, TransferManager};
use transload_testkit::sim::{Completion, Rule, Script, Sim};
use transload_testkit::topology;

type Outcome = Result<(), Box<dyn Error>>;

fn machine(file: &str, completion: Completion, script: Script) -> (Sim, TransferManager) {
    let path = format!("{}/../../topologies/{file}", env!("CARGO_MANIFEST_DIR"));
    let machine = topology::from_file(path).unwrap();
    let sim = Sim::builder(&machine)
        .completion(completion)
        .script(script)
        .build()
        .unwrap();
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .build()
        .unwrap();
    (sim, manager)
}

fn place(text: &str) -> Place {
    text.parse().unwrap()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect()
}

fn modes() -> Vec<Completion> {
    let mut modes = vec![Completion::Timed];
    modes.extend(
        Completion::all()
            .into_iter()
            .filter(|mode| *mode != Completion::Never),
    );
    modes
}

fn filled(sim: &Sim, manager: &TransferManager, at: &str, bytes: &[u8]) -> Buffer {
    let buffer = manager
        .allocate(place(at), AllocSpec::bytes(bytes.len() as u64))
        .unwrap();
    sim.write(buffer.raw(), 0, bytes).unwrap();
    buffer
}

#[test]
fn staged_bytes_arrive_in_every_completion_mode() -> Outcome {
    for mode in modes() {
        let (sim, manager) = machine("workstation.toml", mode, Script::new());
        for len in [0usize, 1, 4096, (1 << 20) + 3, 40 << 20] {
            let wanted = bytes(len);
            let src = filled(&sim, &manager, "sim:0", &wanted);
            let dst = manager.allocate(place("sim:1"), AllocSpec::bytes(len as u64))?;
            let report = manager.submit(&Request::new(&src, &dst).verify()).wait()?;
            assert_eq!(report.method(), Method::HostStaged, "{mode}");
            assert!(report.is_simulated());
            let mut back = vec![0; len];
            sim.read(dst.raw(), 0, &mut back)?;
            assert!(back == wanted, "{mode}, {len} bytes");
        }
        assert!(
            sim.violations().is_empty(),
            "{mode}: {:?}",
            sim.violations()
        );
    }
    Ok(())
}

#[test]
fn a_peer_link_is_proven_before_it_is_used_and_replaced_when_it_lies() -> Outcome {
    for lies in [false, true] {
        let script = if lies {
            let peer = |n: u32| format!("sim:{n}/device").parse().unwrap();
            Script::new().with(Rule::corrupt(5).over(peer(0), peer(1)).always())
        } else {
            Script::new()
        };
        let (sim, manager) = machine("eight-gpu.toml", Completion::Timed, script);
        let wanted = bytes(3 << 20);
        let src = filled(&sim, &manager, "sim:0", &wanted);
        let dst = manager.allocate(place("sim:1"), AllocSpec::bytes(src.len()))?;
        let report = manager.copy(&src, &dst).wait()?;
        assert_eq!(report.fallbacks().len(), usize::from(lies), "{report}");
        let mut back = vec![0; wanted.len()];
        sim.read(dst.raw(), 0, &mut back)?;
        assert!(back == wanted, "lies: {lies}");
    }
    Ok(())
}

#[test]
fn a_failed_route_is_replaced_and_reported() -> Outcome {
    let peer = |n: u32| format!("sim:{n}/device").parse().unwrap();
    let script = Script::new().with(Rule::fail_after(100).over(peer(0), peer(1)).nth(2).always());
    let (sim, manager) = machine("eight-gpu.toml", Completion::Timed, script);
    let wanted = bytes(70 << 20);
    let src = filled(&sim, &manager, "sim:0", &wanted);
    let dst = manager.allocate(place("sim:1"), AllocSpec::bytes(src.len()))?;
    let report = manager.copy(&src, &dst).wait()?;
    assert_eq!(report.fallbacks().len(), 1);
    let mut back = vec![0; wanted.len()];
    sim.read(dst.raw(), 0, &mut back)?;
    assert!(back == wanted);
    Ok(())
}
