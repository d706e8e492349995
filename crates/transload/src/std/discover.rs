//! Discovery of this machine's memories and devices.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::TypeId;
use core::cell::Cell;
use core::fmt;
use std::sync::{Mutex, OnceLock};

use transload_core::{DeviceId, DeviceKind, DeviceName, MemoryKind};
use transload_hal::Backend;

use super::profile::{Costs, Profile};
use crate::engine::unwind::guarded;
use crate::manager::Wanted;
use crate::{Builder, Error, PlaceError, TransferManager};

impl Builder {
    /// Adds the host backend: the heap, shared memory and files.
    pub fn host(self) -> Builder {
        self.backend(Arc::new(transload_host::Host::new()))
    }

    /// Adds every backend of this build whose hardware is present: the host, with the feature `cuda` every device of
    /// NVIDIA's driver, with the feature `metal` every device of Metal, and with the feature `wgpu` every adapter on
    /// which a device can be opened. Uses the costs of the saved profile and the verdicts beside it, unless another
    /// profile was given. A GPU that several backends drive appears once for each; CUDA and wgpu give it one UUID.
    ///
    /// Building the manager calls no driver. A kind of device opens when a call first needs it, on the calling thread:
    /// - a place names a device of the kind; a UUID may be a device of each kind that has UUIDs; `cpu:0/pinned` is
    ///   CUDA's memory;
    /// - [`TransferManager::devices`], [`memories`](TransferManager::memories), [`topology`](TransferManager::topology),
    ///   [`backends`](TransferManager::backends) and [`probe`](TransferManager::probe) list all kinds;
    /// - [`TransferManager::backend`] asks for its backend, and [`TransferManager::lacks`] why there is none.
    ///
    /// Copies, plans and explanations between host memories and files open no kind. A kind opens once: other threads that
    /// need it wait meanwhile, and transfers go on. A kind that could not be opened stays closed for the life of the
    /// manager, and [`TransferManager::lacks`] tells why.
    ///
    /// In the browser this adds no adapters: await `Wgpu::request` to open a device, and register the backend.
    pub fn discover(mut self) -> Builder {
        if let Costs::Default = self.costs {
            self.costs = Costs::Saved;
        }
        self.kinds = Kinds::of_this_build();
        self.host()
    }
}

/// The kinds of devices that discovery looks for, in the order of their names.
#[derive(Default)]
pub(crate) struct Kinds {
    all: Vec<Kind>,
    /// The profile for the devices of kinds that open later. Locked under the lock of the state alone.
    pub(super) profile: Mutex<Option<Profile>>,
}

/// A kind of device, which a call opens that needs it.
#[allow(dead_code, reason = "some builds have no kind")]
struct Kind {
    /// Its name is that of its backend, too.
    id: DeviceKind,
    backend: TypeId,
    has_uuids: bool,
    open: fn() -> Opened,
    /// Why it has no devices, or does not use some: once it was opened.
    absent: OnceLock<Vec<String>>,
}

/// The result of opening a kind.
#[allow(dead_code, reason = "some builds have no kind")]
struct Opened {
    backend: Option<Arc<dyn Backend>>,
    absent: Vec<String>,
}

impl Kinds {
    fn of_this_build() -> Kinds {
        Kinds {
            all: Vec::from([
                #[cfg(cuda)]
                Kind::new::<transload_cuda::Cuda>(DeviceKind::CUDA, true, || {
                    let found = transload_cuda::Cuda::discover();
                    Opened::new(found.map(|cuda| {
                        let absent = cuda.absent().iter();
                        let noted = absent.map(|of| format!("{}: {}", of.device, of.reason));
                        (noted.collect(), cuda)
                    }))
                }),
                #[cfg(metal)]
                Kind::new::<transload_metal::Metal>(DeviceKind::METAL, false, || {
                    let found = transload_metal::Metal::discover();
                    Opened::new(found.map(|metal| {
                        let absent = metal.absent().iter();
                        let noted = absent.map(|of| format!("{}: {}", of.device, of.reason));
                        (noted.collect(), metal)
                    }))
                }),
                #[cfg(all(adapters, not(browser)))]
                Kind::new::<transload_wgpu::Wgpu>(DeviceKind::WGPU, true, || {
                    let adapters = transload_wgpu::Wgpu::discover();
                    Opened::new(match adapters.is_empty() {
                        true => Err(NO_ADAPTER),
                        false => Ok((Vec::new(), adapters)),
                    })
                }),
            ]),
            profile: Mutex::default(),
        }
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.all.iter();
        f.debug_map()
            .entries(all.map(|kind| (kind.id, &kind.absent)))
            .finish()
    }
}

#[cfg(any(cuda, metal, all(adapters, not(browser))))]
impl Kind {
    fn new<B: Backend>(id: DeviceKind, has_uuids: bool, open: fn() -> Opened) -> Kind {
        Kind {
            id,
            backend: TypeId::of::<B>(),
            has_uuids,
            open,
            absent: OnceLock::new(),
        }
    }
}

impl Kind {
    /// Returns whether what is wanted may be found when the kind is open.
    fn may_have(&self, wanted: &Wanted) -> bool {
        match *wanted {
            Wanted::All => true,
            Wanted::Kind(kind) => kind == self.id,
            Wanted::Backend(backend) => backend.0 == self.id.0,
            Wanted::Type(backend) => backend == self.backend,
            Wanted::Place(place) => match place.device {
                DeviceName::Uuid(_) => self.has_uuids,
                DeviceName::Id(device) if device == DeviceId::CPU0 => {
                    self.id == DeviceKind::CUDA && place.memory == Some(MemoryKind::Pinned)
                }
                DeviceName::Id(device) => device.node.is_here() && device.kind == self.id,
            },
        }
    }
}

#[cfg(any(cuda, metal, all(adapters, not(browser))))]
impl Opened {
    #[allow(
        clippy::arc_with_non_send_sync,
        reason = "where there are no threads, no backend is `Send`, and managers take it in an `Arc`"
    )]
    fn new<B: Backend>(found: Result<(Vec<String>, B), impl ToString>) -> Opened {
        match found {
            Ok((absent, backend)) => Opened {
                backend: Some(Arc::new(backend)),
                absent,
            },
            Err(error) => Opened {
                backend: None,
                absent: Vec::from([error.to_string()]),
            },
        }
    }
}

/// Why there is no adapter, and what would bring one.
#[cfg(all(adapters, not(browser)))]
const NO_ADAPTER: &str = if cfg!(target_os = "linux") {
    "no adapter was found: a GPU needs its vendor's Vulkan driver; without a GPU, the package mesa-vulkan-drivers \
     (Debian, Ubuntu) brings one in software"
} else if cfg!(target_vendor = "apple") {
    "no adapter was found: Metal lists none"
} else {
    "no adapter was found: a GPU needs its vendor's driver"
};

/// Returns why this build has no backend for devices of a kind.
fn unbuilt(kind: DeviceKind) -> Option<String> {
    let (is_wanted, is_built) = match kind {
        DeviceKind::METAL if cfg!(not(target_vendor = "apple")) => {
            return Some("only Apple's systems have Metal".into());
        }
        DeviceKind::CUDA => (cfg!(feature = "cuda"), cfg!(cuda)),
        DeviceKind::METAL => (cfg!(feature = "metal"), cfg!(metal)),
        DeviceKind::WGPU => (cfg!(feature = "wgpu"), cfg!(adapters)),
        _ => return None,
    };
    match (is_wanted, is_built) {
        (true, true) => None,
        (true, false) => Some(format!(
            "this build has one thread, and the backend of {kind} needs more"
        )),
        (false, _) => Some(format!("this build lacks the library's feature `{kind}`")),
    }
}

thread_local! {
    /// Whether this thread opens a kind of device.
    static OPENS: Cell<bool> = const { Cell::new(false) };
}

impl TransferManager {
    /// Opens the kinds of devices that are wanted and not open yet. Blocks on their drivers, and on threads that open one
    /// of them.
    ///
    /// Does nothing on a thread that opens a kind: code of the program may run inside, such as a panic hook that lists
    /// devices.
    pub(crate) fn open(&self, wanted: Wanted) {
        if self.shared.is_forked() || OPENS.get() {
            return;
        }
        for kind in self.shared.kinds.all.iter() {
            if !kind.may_have(&wanted) {
                continue;
            }
            kind.absent.get_or_init(|| {
                OPENS.set(true);
                let absent = guarded(|| self.open_kind(kind));
                OPENS.set(false);
                absent.unwrap_or_else(|fault| Vec::from([fault.to_string()]))
            });
            // The kinds are in the order of the ids, and the first id of a UUID is meant.
            if let Wanted::Place(place) = wanted
                && self
                    .find(place)
                    .is_ok_and(|found| found.is_ok_and(|found| found.device.kind == kind.id))
            {
                return;
            }
        }
    }

    /// Opens a kind of device. Returns why it has no devices, or does not use some.
    fn open_kind(&self, kind: &Kind) -> Vec<String> {
        let Opened {
            backend,
            mut absent,
        } = (kind.open)();
        let Some(backend) = backend else {
            return absent;
        };
        let before = self.opened();
        let registered = self.register(Arc::clone(&backend), backend.inventory());
        match registered {
            Ok(()) => self.adopt_kept_profile(&before),
            Err(error) => absent.push(error.to_string()),
        }
        absent
    }

    /// Returns why this manager has no devices of `kind`, or why it leaves some out: the feature is off, there is no
    /// driver, or the driver refuses a device. Returns `None` where it has all that it looked for, and for kinds that
    /// [`Builder::discover`] does not look for. Opens the kind.
    pub fn lacks(&self, kind: DeviceKind) -> Option<String> {
        self.open(Wanted::Kind(kind));
        let looked_for = self.shared.kinds.all.iter();
        let mut noted = { looked_for }
            .filter(|of| of.id == kind)
            .filter_map(|of| of.absent.get());
        if let Some(noted) = noted.find(|noted| !noted.is_empty()) {
            return Some(noted.join("; "));
        }
        let known = [DeviceKind::CUDA, DeviceKind::METAL, DeviceKind::WGPU];
        let opened = self.opened();
        if !known.contains(&kind) || opened.devices().iter().any(|device| device.id.kind == kind) {
            return None;
        }
        Some(unbuilt(kind).unwrap_or_else(|| match cfg!(browser) {
            true => "in the browser `Wgpu::request` opens an adapter".into(),
            false => format!(
                "this manager was made without {kind} devices, for which `Builder::discover` looks"
            ),
        }))
    }

    /// Adds to an error what this manager knows about devices that are absent.
    pub(crate) fn explained(&self, mut error: PlaceError) -> PlaceError {
        match &mut error {
            PlaceError::UnknownDevice {
                device: DeviceName::Id(id),
                reason,
                known,
            } => {
                let closed = self.shared.kinds.all.iter();
                for kind in closed.filter(|kind| kind.absent.get().is_none()) {
                    *known += &format!(", and those of {}, which is not open yet", kind.id);
                }
                *reason = match id.node.name() {
                    None => self.lacks(id.kind),
                    Some(node) if self.registered().iter().any(|known| known.id.0 == node) => {
                        Some(format!("{node} does not offer it"))
                    }
                    Some(node) => Some(format!("this program is connected to no machine {node}")),
                }
            }
            PlaceError::UnknownMemory { place, reason, .. }
                if place.memory == Some(MemoryKind::Pinned) =>
            {
                let why = self.lacks(DeviceKind::CUDA);
                *reason = why.map(|why| format!("CUDA devices bring pinned memory: {why}"));
            }
            _ => {}
        }
        error
    }

    /// Makes a manager with every backend of this build whose hardware is present, as [`Builder::discover`] finds it.
    /// Each kind of device opens when a call first needs it. Each manager opens its own devices.
    ///
    /// The manager plans with the costs that `transload probe` or [`TransferManager::probe`] measured on this machine
    /// and saved at [`saved_path`](crate::profile::saved_path). It ignores a saved profile that is damaged, out of date
    /// or of another machine; [`Profile::saved`](crate::Profile::saved) and [`TransferManager::apply_profile`] tell
    /// why. [`Builder::default_costs`] ignores every saved profile. The verdicts of proofs of links between devices are
    /// kept beside the profile ([`Builder::keep_verdicts`]).
    ///
    /// # Errors
    /// When the host's own memory cannot be used.
    pub fn discover() -> Result<TransferManager, Error> {
        TransferManager::builder().discover().build()
    }

    /// Returns the manager that the whole process shares. The first call discovers it. A child of `fork` discovers its
    /// own.
    ///
    /// # Errors
    /// As [`TransferManager::discover`]; the next caller tries again.
    #[cfg(threads)]
    pub fn shared() -> Result<&'static TransferManager, Error> {
        static PROCESS: super::PerProcess<TransferManager> = super::PerProcess::new();
        if let Some(manager) = PROCESS.get() {
            return Ok(manager);
        }
        // A manager that another thread was faster to make has opened no device.
        let manager = TransferManager::discover()?;
        Ok(PROCESS.get_or_init(|| manager.clone()))
    }

    /// Returns the manager that the whole process, which has one thread, shares. The first call discovers it.
    ///
    /// # Errors
    /// As [`TransferManager::discover`]; the next caller tries again.
    #[cfg(not(threads))]
    pub fn shared() -> Result<&'static TransferManager, Error> {
        use super::PerProcess;
        std::thread_local! {
            static PROCESS: PerProcess<&'static TransferManager> = const { PerProcess::new() };
        }
        PROCESS.with(|process| {
            if let Some(manager) = process.get() {
                return Ok(*manager);
            }
            let manager = Box::leak(Box::new(TransferManager::discover()?));
            Ok(*process.get_or_init(|| manager))
        })
    }
}

#[cfg(all(test, threads, not(loom)))]
mod tests {
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::{panic, thread};

    use super::*;

    static MANAGER: OnceLock<TransferManager> = OnceLock::new();
    static LISTED: AtomicUsize = AtomicUsize::new(0);

    /// What a hook or a destructor of the program does.
    fn list() {
        MANAGER.get().unwrap().devices();
        LISTED.fetch_add(1, Ordering::Relaxed);
    }

    struct Lists;

    impl Drop for Lists {
        fn drop(&mut self) {
            list();
        }
    }

    #[test]
    fn code_of_the_program_that_lists_devices_while_a_kind_opens_does_not_wait_for_itself() {
        let kind = |id, open| Kind {
            id,
            backend: TypeId::of::<()>(),
            has_uuids: false,
            open,
            absent: OnceLock::new(),
        };
        let mut builder = TransferManager::builder().host();
        builder.kinds.all.push(kind(DeviceKind::CUDA, || {
            let _lists = Lists;
            panic!("it broke")
        }));
        // It opens after the other one, on the same thread.
        builder.kinds.all.push(kind(DeviceKind::WGPU, || {
            let _lists = Lists;
            Opened {
                backend: None,
                absent: Vec::from(["it is gone".into()]),
            }
        }));
        let manager = MANAGER.get_or_init(|| builder.build().unwrap());
        let own = thread::current().id();
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |about| match thread::current().id() == own {
            true => list(),
            false => before(about),
        }));
        manager.devices();
        let _ = panic::take_hook();
        assert_eq!(LISTED.load(Ordering::Relaxed), 3);
        let broke = manager.lacks(DeviceKind::CUDA).unwrap();
        assert!(broke.contains("it broke"), "{broke}");
        let gone = manager.lacks(DeviceKind::WGPU);
        assert_eq!(gone.as_deref(), Some("it is gone"));
    }
}
