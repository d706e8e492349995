//! Discovery of this machine's memories and devices.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::{DeviceKind, DeviceName, MemoryKind};

use super::profile::Costs;
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
    /// In the browser this adds no adapters: await `Wgpu::request` to open a device, and register the backend.
    ///
    /// Blocks on the drivers, some of which write messages about the environment to standard error. [`Builder::host`]
    /// calls no driver.
    pub fn discover(mut self) -> Builder {
        if let Costs::Default = self.costs {
            self.costs = Costs::Saved;
        }
        let found = self.host();
        #[cfg(cuda)]
        let found = found.cuda();
        #[cfg(metal)]
        let found = found.metal();
        #[cfg(all(adapters, not(browser)))]
        let found = found.adapters();
        found
    }

    /// Adds the CUDA devices of this machine, and notes why there are none, or which are not used.
    #[cfg(cuda)]
    fn cuda(mut self) -> Builder {
        match transload_cuda::Cuda::discover() {
            Ok(devices) => {
                let absent = devices.absent().iter();
                let noted = absent.map(|absent| format!("{}: {}", absent.device, absent.reason));
                self.note(DeviceKind::CUDA, noted);
                self.backend(Arc::new(devices))
            }
            Err(error) => {
                self.note(DeviceKind::CUDA, [format!("{error}")]);
                self
            }
        }
    }

    /// Adds the Metal devices of this machine, and notes why there are none, or which are not used.
    #[cfg(metal)]
    fn metal(mut self) -> Builder {
        match transload_metal::Metal::discover() {
            Ok(devices) => {
                let absent = devices.absent().iter();
                let noted = absent.map(|absent| format!("{}: {}", absent.device, absent.reason));
                self.note(DeviceKind::METAL, noted);
                self.backend(Arc::new(devices))
            }
            Err(error) => {
                self.note(DeviceKind::METAL, [format!("{error}")]);
                self
            }
        }
    }

    /// Adds the adapters of this machine. A backend without adapters is not registered.
    #[cfg(all(adapters, not(browser)))]
    fn adapters(mut self) -> Builder {
        let adapters = transload_wgpu::Wgpu::discover();
        if adapters.is_empty() {
            self.note(DeviceKind::WGPU, [NO_ADAPTER.into()]);
            return self;
        }
        self.backend(Arc::new(adapters))
    }

    #[cfg(any(cuda, metal, all(adapters, not(browser))))]
    fn note(&mut self, kind: DeviceKind, reasons: impl IntoIterator<Item = String>) {
        let noted = reasons
            .into_iter()
            .map(|reason| super::Absent { kind, reason });
        self.absent.extend(noted);
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

impl TransferManager {
    /// Returns why this manager has no devices of `kind`, or why it leaves some out: the feature is off, there is no
    /// driver, or the driver refuses a device. Returns `None` where it has all that it looked for, and for kinds that
    /// [`Builder::discover`] does not look for.
    pub fn lacks(&self, kind: DeviceKind) -> Option<String> {
        let noted = self
            .shared
            .absent
            .iter()
            .filter(|absent| absent.kind == kind);
        let noted: Vec<&str> = noted.map(|absent| &*absent.reason).collect();
        if !noted.is_empty() {
            return Some(noted.join("; "));
        }
        let known = [DeviceKind::CUDA, DeviceKind::METAL, DeviceKind::WGPU];
        if !known.contains(&kind) || self.devices().iter().any(|device| device.id.kind == kind) {
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
                ..
            } => {
                *reason = match id.node.name() {
                    None => self.lacks(id.kind),
                    Some(node) if self.backends().iter().any(|known| known.id.0 == node) => {
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
    /// Each call opens its own devices.
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
        use std::sync::{Mutex, PoisonError};

        static PROCESS: super::PerProcess<TransferManager> = super::PerProcess::new();
        // The others wait for the one that discovers, and do not open devices to drop them again: NVIDIA's Vulkan driver
        // takes 0.3 to 0.5 s for each, one after the other.
        static DISCOVERS: super::PerProcess<Mutex<()>> = super::PerProcess::new();
        if let Some(manager) = PROCESS.get() {
            return Ok(manager);
        }
        let turn = DISCOVERS.get_or_init(Mutex::default);
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manager) = PROCESS.get() {
            return Ok(manager);
        }
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
