//! One fault in one scenario, and the errors in its result.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use transload_cuda::Cuda;
use transload_cuda::raw::{Driver, Version};
use transload_hal::{Backend, ErrorClass, Inventory};

use crate::common::ages::table_of;
use crate::common::faults::{self, Calls};
use crate::common::{control, machine};
use crate::run::{Run, Trouble, attach};

pub(crate) type Scenario = fn(&mut Run<'_>);

/// The limit for a single step on any machine: a step that takes longer counts as hanging.
pub(crate) const HANG: Duration = Duration::from_secs(600);

/// The machine of this process: two devices on a bus that reach each other, and a driver version.
static AGE: OnceLock<Version> = OnceLock::new();

/// Sets the machine. Call it once, before anything else.
pub(crate) fn of_age(age: Version) {
    AGE.set(age).unwrap();
    control(&format!("set TRANSLOAD_DOUBLE_VERSION={age}")).unwrap();
    let two = machine("pcie-peer");
    control(&format!("set TRANSLOAD_DOUBLE_TOPOLOGY={two}")).unwrap();
}

pub(crate) fn open() -> Result<Cuda, transload_cuda::OpenError> {
    let age = *AGE.get().expect("the machine is settled first");
    // SAFETY: the functions are the double's, which stay loaded.
    Cuda::with_driver(unsafe { Driver::from_table(table_of(age), "the double") })
}

/// The inventory of the machine without a fault.
fn whole() -> &'static Inventory {
    static WHOLE: OnceLock<Inventory> = OnceLock::new();
    WHOLE.get_or_init(|| open().unwrap().inventory())
}

/// The calls of a scenario without a fault, which must succeed; the number of its allocations, and of the devices'
/// operations.
pub(crate) fn clean_run(scenario: Scenario) -> Calls {
    whole();
    let leaks_before = leaks();
    let before = faults::calls();
    let cuda = open().unwrap();
    let sink = attach(&cuda);
    let mut run = Run::new(&cuda, &sink, HANG);
    scenario(&mut run);
    let calls = faults::calls_since(&before);
    let crimes = crimes_of(&mut run, &BTreeSet::new());
    let troubles = &run.troubles;
    assert!(
        troubles.is_empty() && crimes.is_empty(),
        "{troubles:?} {crimes:?}"
    );
    drop(run);
    drop((sink, cuda));
    assert_eq!(leaks(), leaks_before, "not given back");
    calls
}

/// Returns every broken promise. `may_lose` says whether the fault may lose a device.
pub(crate) fn suffer(scenario: Scenario, line: &str, may_lose: bool) -> Vec<String> {
    let whole = whole();
    let leaks_before = leaks();
    faults::order(line);
    let opened = open();
    let mut crimes = match opened {
        Ok(cuda) => live_through(scenario, &cuda, whole, may_lose),
        // A driver that does not start gives an error instead of a backend.
        Err(_) => Vec::new(),
    };
    faults::take_back();
    crimes.extend(clean(scenario));
    let new = leaks()
        .into_iter()
        .filter(|leak| !leaks_before.contains(leak));
    // Memory of a pool belongs to the device and to no context, so it outlives a lost context; but only that context
    // could free it.
    let is_excused = |leak: &String| may_lose && leak.starts_with("Pool ");
    let leaked = new.filter(|leak| !is_excused(leak));
    crimes.extend(leaked.map(|leak| format!("leak: {leak}")));
    crimes
}

fn leaks() -> Vec<String> {
    let text = control("leaks").unwrap();
    text.lines().map(str::to_owned).collect()
}

fn live_through(scenario: Scenario, cuda: &Cuda, whole: &Inventory, may_lose: bool) -> Vec<String> {
    let sink = attach(cuda);
    let mut run = Run::new(cuda, &sink, HANG);
    scenario(&mut run);
    faults::take_back();
    let mut gone = lost(&run.troubles);
    let mut crimes = crimes_of(&mut run, &gone);
    for device in &gone {
        let before = run.troubles.len();
        let prods = run.prod(device);
        if run.troubles.len() - before != prods {
            crimes.push(format!("{device} was lost, and works"));
        }
    }
    drop(run);
    // If the fault hid a part of the machine, a backend that opens it again finds that part, and not before.
    if cuda.inventory() != *whole {
        return crimes;
    }
    let mut then = Run::new(cuda, &sink, HANG);
    scenario(&mut then);
    gone.extend(lost(&then.troubles));
    if !gone.is_empty() && !may_lose {
        crimes.push(format!("{gone:?} is lost for no reason"));
    }
    crimes.extend(crimes_of(&mut then, &gone));
    // All steps work again, except those that need a lost device.
    for trouble in &then.troubles {
        let is_its = !lost(std::slice::from_ref(trouble)).is_disjoint(&gone);
        if !is_its {
            crimes.push(format!("afterwards: {}: {}", trouble.step, trouble.text));
        }
    }
    crimes
}

/// Runs a scenario on a backend of its own, without a fault; it must succeed.
fn clean(scenario: Scenario) -> Vec<String> {
    let cuda = match open() {
        Ok(cuda) => cuda,
        Err(error) => return vec![format!("opened again: {error}")],
    };
    let sink = attach(&cuda);
    let mut run = Run::new(&cuda, &sink, HANG);
    scenario(&mut run);
    let mut crimes = crimes_of(&mut run, &BTreeSet::new());
    let told = |trouble: &Trouble| format!("opened again: {}: {}", trouble.step, trouble.text);
    crimes.extend(run.troubles.iter().map(told));
    crimes
}

/// The errors of a run whose faults were cancelled.
fn crimes_of(run: &mut Run<'_>, gone: &BTreeSet<String>) -> Vec<String> {
    let mut crimes = std::mem::take(&mut run.crimes);
    if run.unsettled > 0 {
        crimes.push(format!("{} fences never settled", run.unsettled));
    }
    for memory in &run.memories {
        let lies_in = memory.buffer.memory();
        match memory.read(run.cuda) {
            Ok(bytes) => crimes.extend(memory.wrong(&bytes)),
            // The memory of a lost device cannot be read.
            Err(_) if gone.contains(&lies_in.device.to_string()) => {}
            Err(error) => crimes.push(format!("{lies_in} cannot be read: {error}")),
        }
    }
    for trouble in &run.troubles {
        let told = trouble.text.matches(" is lost: ").count();
        if told != usize::from(trouble.class == ErrorClass::Lost) {
            crimes.push(format!(
                "says {told} times that it is lost: {}",
                trouble.text
            ));
        }
    }
    crimes
}

/// The devices that were reported as lost.
fn lost(troubles: &[Trouble]) -> BTreeSet<String> {
    let of_lost = troubles
        .iter()
        .filter(|trouble| trouble.class == ErrorClass::Lost);
    let device = |trouble: &Trouble| {
        let (before, _) = trouble.text.split_once(" is lost: ")?;
        Some(before.rsplit_once(' ')?.1.to_owned())
    };
    of_lost.filter_map(device).collect()
}
