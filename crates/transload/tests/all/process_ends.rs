//! A process ends cleanly while adapters execute its transfers.
//!
//! Each test ends a few processes in one way. `TRANSLOAD_ENDS=500` raises that to 500 processes for each set of
//! drivers.
#![cfg(all(adapters, target_os = "linux"))]

use crate::adapter;
use std::cell::RefCell;
use std::env;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{self, Command};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use transload::wgpu_backend::Wgpu;
use transload::{AllocSpec, Buffer, Transfer, TransferManager};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const LEN: u64 = 32 << 20;

/// Seconds after which the system kills a process that hangs.
const LIMIT_S: u32 = 300;

const WAY: &str = "TRANSLOAD_TEST_WAY";
/// Set for processes that have moved bytes before. In other processes the proof of a link is in flight, too.
const WARM: &str = "TRANSLOAD_TEST_WARM";

/// The line that a process prints when its transfers are in flight.
const UNDER_WAY: &str = "transfers are under way";

#[test]
fn by_an_error_with_a_handle_held() {
    all_end("error", 101);
}

#[test]
fn by_exit() {
    all_end("exit", 3);
}

#[test]
fn with_all_handles_dropped() {
    all_end("dropped", 0);
}

#[test]
fn by_a_panic() {
    all_end("panic", 101);
}

#[test]
fn with_futures_dropped_by_a_timeout() {
    all_end("timeout", 0);
}

#[test]
fn after_waiting() {
    all_end("wait", 0);
}

#[test]
fn while_threads_go_on_copying() {
    all_end("busy", 0);
}

#[test]
fn by_exit_on_the_thread_of_a_device() {
    all_end("callback", 3);
}

#[test]
fn while_threads_discover_devices() {
    all_end("discovery", 0);
}

#[test]
fn in_a_handler_that_goes_on_copying() {
    all_end("handler", 3);
}

#[test]
fn with_a_manager_among_the_locals_of_a_thread() {
    all_end("locals", 0);
}

/// Asserts that processes that end in that way, with each driver alone and with all of them, exit with that code.
fn all_end(way: &str, code: i32) {
    if Wgpu::discover().is_empty() {
        return adapter::skip();
    }
    let count = env::var("TRANSLOAD_ENDS").map_or(2, |count| count.parse().unwrap());
    for drivers in sets_of_drivers() {
        for number in 0..count {
            let mut child = Command::new(env::current_exe().unwrap());
            child.args(["--exact", "process_ends::child", "--nocapture"]);
            child.env(WAY, way);
            if number % 2 == 1 {
                child.env(WARM, "1");
            }
            for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
                child.envs(drivers.as_ref().map(|drivers| (variable, drivers)));
            }
            let ended = child.output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout);
            assert!(
                ended.status.code() == Some(code) && said.contains(UNDER_WAY),
                "{way}, process {number} with {drivers:?}: code {:?}, signal {:?}\n{said}{}",
                ended.status.code(),
                ended.status.signal(),
                String::from_utf8_lossy(&ended.stderr),
            );
        }
        println!("{way}: {count} processes ended with {drivers:?}");
    }
}

/// The lists of drivers for Vulkan's loader; `None` keeps the list of the system.
fn sets_of_drivers() -> Vec<Option<String>> {
    let Ok(all) = env::var("VK_DRIVER_FILES") else {
        return vec![None];
    };
    let alone = all.split(':').map(|driver| Some(driver.to_owned()));
    let mut sets: Vec<_> = alone.collect();
    if sets.len() > 1 {
        sets.push(Some(all));
    }
    sets
}

/// Lets the other threads run for a moment. The process registers this handler before it loads drivers, so it runs
/// after their exit handlers. Without it the process would mostly be gone before another thread touches the memory that
/// those handlers freed.
extern "C" fn linger() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        thread::yield_now();
    }
}

/// Transfers in flight, and the objects for submitting more.
struct Work {
    manager: TransferManager,
    ends: Vec<(Buffer, Buffer)>,
    transfers: Vec<Transfer>,
}

impl Work {
    /// Copies within the devices and to and from the host, and then drops everything. Refused copies are ignored.
    fn go_on(self) {
        for (src, dst) in &self.ends {
            let _ = self.manager.copy(src, dst).wait();
            let place = dst.memory().device.into();
            let _ = self.manager.allocate(place, AllocSpec::bytes(LEN));
        }
        for transfer in self.transfers {
            let _ = transfer.wait();
        }
    }
}

static LATER: Mutex<Option<Work>> = Mutex::new(None);

extern "C" fn go_on() {
    if let Some(work) = LATER.lock().unwrap().take() {
        work.go_on();
    }
}

struct Local(RefCell<Option<Work>>);

impl Drop for Local {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work.go_on();
        }
    }
}

thread_local! {
    static LOCAL: Local = const { Local(RefCell::new(None)) };
}

/// Ends this process in the way that a test above has set. Returns at once if none is set.
#[test]
fn child() -> Outcome {
    let Ok(way) = env::var(WAY) else {
        return Ok(());
    };
    // SAFETY: no handler is installed, so the alarm kills the process.
    unsafe { libc::alarm(LIMIT_S) };
    // SAFETY: the handler does not unwind.
    unsafe { libc::atexit(linger) };
    let manager = TransferManager::discover()?;
    let mut ends = Vec::new();
    for device in manager.devices().split_off(1) {
        let src = manager.adopt(vec![7u8; LEN as usize])?;
        let dst = manager.allocate(device.id.into(), AllocSpec::bytes(LEN + 1))?;
        let mut begin = 0;
        if env::var_os(WARM).is_some() {
            manager.copy(&src, &dst.slice(..LEN)?).wait()?;
            // A shader moves bytes to other positions within their words.
            begin = 1;
        }
        let dst = dst.slice(begin..begin + LEN)?;
        ends.push((src, dst));
    }
    let transfers = ends.iter().map(|(src, dst)| manager.copy(src, dst));
    let transfers: Vec<Transfer> = transfers.collect();
    if env::var_os(WARM).is_some() {
        for transfer in &transfers {
            while !transfer.is_over() && transfer.fences().is_none() {
                thread::yield_now();
            }
        }
    }
    println!("{UNDER_WAY}");
    match way.as_str() {
        "error" => Err("an error with handles held")?,
        "exit" => process::exit(3),
        "dropped" => drop(transfers),
        "panic" => panic!("a panic with handles held"),
        "timeout" => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_time()
                .build()?;
            runtime.block_on(async {
                for transfer in transfers {
                    let _ = tokio::time::timeout(Duration::from_millis(1), transfer).await;
                }
            });
        }
        "wait" => {
            for transfer in transfers {
                transfer.wait()?;
            }
        }
        "busy" => {
            for (src, dst) in ends {
                let manager = manager.clone();
                thread::spawn(move || {
                    loop {
                        let _ = manager.copy(&src, &dst).wait();
                        let place = dst.memory().device.into();
                        let _ = manager.allocate(place, AllocSpec::bytes(LEN));
                    }
                });
            }
        }
        "callback" => {
            let adapters = manager.backend::<Wgpu>().unwrap();
            let devices = ends.iter().map(|(_, dst)| dst.memory().device);
            let handles = devices.filter_map(|device| adapters.handles(device));
            let (device, queue) = { handles }.next().unwrap();
            adapters.when_done(&device, queue.submit([]), || process::exit(3))?;
            transfers
                .into_iter()
                .try_for_each(|transfer| transfer.wait().map(drop))?;
            loop {
                thread::park();
            }
        }
        "discovery" => {
            for _ in 0..2 {
                thread::spawn(|| {
                    loop {
                        let _ = TransferManager::discover().map(|manager| manager.devices());
                    }
                });
            }
        }
        "handler" => {
            *LATER.lock().unwrap() = Some(Work {
                manager,
                ends,
                transfers,
            });
            // SAFETY: the handler does not unwind: if it panics, the process aborts.
            unsafe { libc::atexit(go_on) };
            process::exit(3);
        }
        "locals" => {
            let work = Work {
                manager,
                ends,
                transfers,
            };
            // Thread-locals are dropped in the opposite order of their first use: wgpu's before this one.
            let thread = thread::spawn(|| {
                LOCAL.with(|local| {
                    let (src, dst) = &work.ends[0];
                    work.manager.copy(src, dst).wait().unwrap();
                    local.0.replace(Some(work))
                })
            });
            thread.join().map(drop).unwrap();
        }
        _ => Err("no such way")?,
    }
    Ok(())
}
