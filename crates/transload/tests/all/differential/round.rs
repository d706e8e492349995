//! A round: fresh managers, four threads at work, and a check of all remaining stores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use transload::{Buffer, Event, MemoryKind, StagingBudget, TransferManager};
use transload_cuda::Cuda;
use transload_cuda::raw::Driver;
use transload_wgpu::Wgpu;

use crate::dice::Dice;
use crate::differential::bytes::{Lay, fresh};
use crate::differential::tally::{self, Kind, count, until};
use crate::differential::worker::Worker;
use crate::differential::world::{Store, World};

/// The backends that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    Host,
    Adapters,
    Cuda,
    All,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    Everything,
    Words,
}

type Device = (wgpu::Device, wgpu::Queue);

const THREADS: usize = 4;

/// Steps of a thread in a round.
const STEPS: u32 = 500;

fn adapters() -> Vec<Device> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    let instance = wgpu::Instance::new(descriptor);
    let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    let opened = found
        .iter()
        .filter_map(|adapter| transload_wgpu::open_device(adapter).ok());
    opened.collect()
}

pub(crate) fn has_adapters() -> bool {
    !adapters().is_empty()
}

pub(crate) fn has_mapped() -> bool {
    let backend = Arc::new(Wgpu::with_devices(adapters()));
    let manager = TransferManager::builder()
        .host()
        .backend(backend)
        .build()
        .unwrap();
    let memories = manager.memories();
    memories
        .iter()
        .any(|memory| memory.id.kind == MemoryKind::Mapped)
}

fn driver() -> Driver {
    static SET: OnceLock<()> = OnceLock::new();
    SET.get_or_init(|| {
        let root = env!("CARGO_MANIFEST_DIR");
        let machine = format!("{root}/../../doubles/cuda-driver/topologies/pcie-peer.toml");
        let set = format!("set TRANSLOAD_DOUBLE_TOPOLOGY={machine}");
        cuda::control(&set).expect("it is not in use yet");
    });
    // SAFETY: the functions are the double's, which stay loaded.
    unsafe { Driver::from_table(cuda::table(), "the double") }
}

/// Backends, which the last manager, transfer or buffer frees.
#[derive(Default)]
struct Alive(Vec<(&'static str, Weak<dyn transload::Backend>)>);

fn managers(machine: Machine, dice: &mut Dice, context: &str) -> ([World; 2], Alive) {
    let mut alive = Alive::default();
    let mut build = |name, devices: &[Device], with_cuda: bool| {
        // The budget has few slots or many.
        let budget = Arc::new(StagingBudget::new((1 << 20) << dice.below(6)));
        let mut builder = TransferManager::builder()
            .host()
            .staging(Arc::clone(&budget));
        if !devices.is_empty() {
            let backend: Arc<dyn transload::Backend> =
                Arc::new(Wgpu::with_devices(devices.iter().cloned()));
            alive.0.push(("wgpu", Arc::downgrade(&backend)));
            builder = builder.backend(backend);
        }
        if with_cuda {
            let devices = Cuda::with_driver(driver()).expect("the machine has devices");
            let backend: Arc<dyn transload::Backend> = Arc::new(devices);
            alive.0.push(("cuda", Arc::downgrade(&backend)));
            builder = builder.backend(backend);
        }
        let manager = builder.build().unwrap();
        World::new(
            name,
            (manager, budget),
            devices.to_vec(),
            context.to_owned(),
        )
    };
    let devices = || match machine {
        Machine::Adapters | Machine::All => adapters(),
        Machine::Host | Machine::Cuda => Vec::new(),
    };
    let with_cuda = matches!(machine, Machine::Cuda | Machine::All);
    // Each world opens the adapters for itself. The driver's devices are shared.
    let worlds = ["one", "other"].map(|name| build(name, &devices(), with_cuda));
    (worlds, alive)
}

/// Counts a thread as over, even when it panics.
struct Leaves<'a>(&'a AtomicUsize, usize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
        tally::idle(self.1);
    }
}

pub(crate) fn round(machine: Machine, mix: Mix, dice: &mut Dice, context: String) {
    tally::doing(0, "makes managers");
    let ([one, other], alive) = managers(machine, dice, &context);
    let worlds = [&one, &other];
    let working = &AtomicUsize::new(THREADS);
    thread::scope(|scope| {
        let (gates, opened) = mpsc::channel();
        for seat in 1..=THREADS {
            let mut worker = Worker {
                worlds,
                dice: Dice(dice.below(1 << 50) << 1 | 1),
                seat,
                gates: gates.clone(),
                held: Vec::new(),
                ends: None,
                words: mix == Mix::Words,
            };
            let leaves = Leaves(working, seat);
            scope.spawn(move || {
                let _leaves = leaves;
                worker.begin(seat == 1);
                for _ in 0..STEPS {
                    if tally::has_failed() {
                        break;
                    }
                    worker.step();
                }
                worker.settle_all();
                worker.doing("has done all");
            });
        }
        drop(gates);
        open_gates(&opened, dice);
    });
    assert!(!tally::has_failed(), "{context}: a thread panicked");
    for world in worlds {
        tally::doing(0, "waits until all is idle");
        world.manager.wait_idle();
        finish(world);
    }
    let budgets = worlds.map(|world| Arc::clone(&world.budget));
    drop((one, other));
    tally::doing(0, "waits until all is given back");
    until("the backends", || {
        let mut kept = alive
            .0
            .iter()
            .filter(|(_, backend)| backend.strong_count() > 0);
        kept.next().map_or(Ok(()), |(name, _)| Err(*name))
    });
    until("the staging budget", || {
        let used: u64 = budgets.iter().map(|budget| budget.used_bytes()).sum();
        if used == 0 { Ok(()) } else { Err(used) }
    });
    if matches!(machine, Machine::Cuda | Machine::All) {
        until("the double's leaks", || {
            match cuda::control("leaks").unwrap() {
                leaks if leaks.is_empty() => Ok(()),
                leaks => Err(leaks),
            }
        });
        assert_eq!(cuda::control("notes").unwrap(), "", "{context}");
    }
    tally::idle(0);
}

/// Sets the events that transfers start after, some out of order, until the threads have left.
fn open_gates(opened: &mpsc::Receiver<Event>, dice: &mut Dice) {
    let mut shut = Vec::new();
    loop {
        tally::doing(0, "opens gates");
        match opened.recv_timeout(Duration::from_millis(2)) {
            Ok(gate) => {
                shut.push(gate);
                if dice.below(3) > 0 {
                    continue;
                }
                let gate = shut.swap_remove(dice.below(shut.len() as u64) as usize);
                match dice.below(2) {
                    0 => gate.set(),
                    _ => gate.setter()(),
                }
            }
            Err(RecvTimeoutError::Timeout) => shut.drain(..).for_each(|gate| gate.set()),
            Err(RecvTimeoutError::Disconnected) => {
                return shut.drain(..).for_each(|gate| gate.set());
            }
        }
    }
}

impl Worker<'_> {
    /// Creates the first memory: from one of the threads, a little of each sort.
    fn begin(&mut self, is_first: bool) {
        if !self.words {
            return (0..4).for_each(|_| self.create());
        }
        let world = self.worlds[0];
        for place in world.places.iter().filter(|_| is_first) {
            let times = if place.ends_with("mapped") { 2 } else { 1 };
            for len in [64, 4096, 20_000].into_iter().cycle().take(3 * times) {
                let bytes = fresh(&mut self.dice, len);
                let store = self.allocated(world, place, bytes);
                world.lock().stores.push(store);
            }
        }
    }
}

/// Compares every byte, in more than one way, and drops all stores.
fn finish(world: &World) {
    tally::doing(0, "compares everything");
    let stores = std::mem::take(&mut world.lock().stores);
    for store in &stores {
        count(Kind::Whole);
        let all = Lay::run(0, store.len());
        for view in &store.views {
            let mut found = vec![0xE7; store.len() as usize];
            let answer = world.manager.copy_into_slice(view, &mut found);
            world.good("copy_into_slice", answer);
            world.compare("in the end", (store.number, all), &store.bytes, &found);
            if let Ok(guard) = view.read() {
                world.compare(
                    "a guard in the end",
                    (store.number, all),
                    &store.bytes,
                    &guard,
                );
            }
        }
        store.check_file(world);
        check_native(world, store);
    }
    for store in stores {
        store.remove_file();
    }
    until("staging slots", || {
        world.manager.wait_idle();
        world.manager.clear_cache();
        match world.budget.used_bytes() {
            0 => Ok(()),
            used => Err(used),
        }
    });
}

/// Reads an adapter's buffer by commands of the test's own.
fn check_native(world: &World, store: &Store) {
    let native = |view: &Buffer| Some((view.memory(), view.native::<wgpu::Buffer>()?.clone()));
    let Some((memory, buffer)) = store.views.first().and_then(native) else {
        return;
    };
    if !buffer.usage().contains(wgpu::BufferUsages::COPY_SRC) {
        return;
    }
    count(Kind::NativeDevice);
    let (device, queue) = &world.adapters[memory.device.index as usize];
    let copy = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: buffer.size(),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(&buffer, 0, &copy, 0, buffer.size());
    queue.submit([encoder.finish()]);
    copy.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    let mut found = copy.get_mapped_range(..).unwrap().to_vec();
    found.truncate(store.len() as usize);
    let all = Lay::run(0, store.len());
    world.compare(
        "the adapter's own copy",
        (store.number, all),
        &store.bytes,
        &found,
    );
}
