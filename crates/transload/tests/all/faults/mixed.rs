//! Plans whose steps belong to two backends: the real host reads, and a simulated device writes.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use transload::host::Host;
use transload::{AllocSpec, Method, StagingBudget, TransferError, TransferManager};
use transload_testkit::sim::{Completion, HostSide, Rule, Sim};

use crate::common::{SECOND, SLOT, Sketch, marked, modes, place};

const LEN: u64 = 5 * SLOT + 77;

struct Mixed {
    sim: Sim,
    manager: TransferManager,
    budget: Arc<StagingBudget>,
    path: PathBuf,
}

impl Mixed {
    fn new(mode: Completion, name: &str) -> Mixed {
        let sketch = Sketch::new()
            .device("cpu:0", &["pageable"])
            .device("sim:0", &["device"])
            .link("cpu:0/pageable", "sim:0/device", "sim:0#0", "native")
            .link("sim:0/device", "cpu:0/pageable", "sim:0#1", "native");
        let sim = Sim::builder(&sketch.machine())
            .host(HostSide::Real)
            .completion(mode)
            .build()
            .unwrap();
        let budget = Arc::new(StagingBudget::new(3 * SLOT));
        let manager = TransferManager::builder()
            .clock(Arc::new(sim.clock()))
            .staging(Arc::clone(&budget))
            .lanes(1)
            .backend(Arc::new(Host::new()))
            .backend(Arc::new(sim.clone()))
            .build()
            .unwrap();
        let path = std::env::temp_dir().join(format!("transload-{name}-{}", std::process::id()));
        fs::write(&path, marked(LEN)).unwrap();
        Mixed {
            sim,
            manager,
            budget,
            path,
        }
    }

    fn finish(&self) {
        self.manager.clear_cache();
        assert_eq!(self.budget.used_bytes(), 0);
        assert_eq!(self.sim.violations(), []);
        assert_eq!(self.sim.leaks(), []);
    }
}

impl Drop for Mixed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
fn a_file_reaches_a_device_past_every_fault_of_the_device() {
    let mut combinations = 0;
    for mode in modes() {
        for nth in 1..40 {
            let mixed = Mixed::new(mode, "past-faults");
            let file = mixed.manager.open_file(&mixed.path).unwrap();
            let device = mixed
                .manager
                .allocate(place("sim:0"), AllocSpec::bytes(LEN))
                .unwrap();
            mixed.sim.add_rule(Rule::fail_after(300).nth(nth));
            let result = mixed.manager.copy(&file, &device).wait();
            let struck = mixed.sim.script().rules()[0].fired() > 0;
            match result {
                Ok(report) => assert_eq!(report.method(), Method::HostStaged),
                Err(TransferError::Failed(failure)) => {
                    assert!(struck, "{failure}");
                    assert_eq!(failure.backend.to_string(), "sim", "{failure}");
                    assert_eq!(failure.device.unwrap().to_string(), "sim:0", "{failure}");
                    assert_eq!(failure.step, Some(1), "{failure}");
                    mixed
                        .sim
                        .run_until(mixed.manager.now().plus_ns(30 * SECOND));
                    mixed.manager.copy(&file, &device).wait().unwrap();
                }
                Err(error) => panic!("{error}"),
            }
            let mut there = vec![0; LEN as usize];
            mixed.sim.read(device.raw(), 0, &mut there).unwrap();
            assert!(there == marked(LEN), "{mode}, {nth}");
            drop((file, device));
            mixed.finish();
            combinations += 1;
            if !struck {
                break;
            }
        }
    }
    println!("{combinations} combinations of mode and operation");
    assert!(combinations > 10);
}

#[test]
fn a_file_that_shrinks_on_its_way_to_a_device_is_named() {
    for mode in modes() {
        let mixed = Mixed::new(mode, "shrinks");
        let file = mixed.manager.open_file(&mixed.path).unwrap();
        let device = mixed
            .manager
            .allocate(place("sim:0"), AllocSpec::bytes(LEN))
            .unwrap();
        let whole = fs::OpenOptions::new()
            .write(true)
            .open(&mixed.path)
            .unwrap();
        whole.set_len(2 * SLOT + 5).unwrap();
        let error = mixed.manager.copy(&file, &device).wait().unwrap_err();
        let TransferError::Failed(failure) = &error else {
            panic!("{mode}: {error}");
        };
        assert_eq!(failure.backend.to_string(), "host", "{mode}: {error}");
        assert_eq!(failure.span.offset, 2 * SLOT, "{mode}: {error}");
        assert!(error.to_string().contains("shrinks"), "{mode}: {error}");
        drop((file, device));
        mixed.finish();
    }
}
