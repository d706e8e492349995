//! Discovery of this machine's memories and devices.

use alloc::sync::Arc;

use super::profile::Costs;
use crate::{Builder, Error, TransferManager};

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

    /// Adds the CUDA devices of this machine. `Cuda::discover` tells why there are none.
    #[cfg(cuda)]
    fn cuda(self) -> Builder {
        match transload_cuda::Cuda::discover() {
            Ok(devices) => self.backend(Arc::new(devices)),
            Err(_) => self,
        }
    }

    /// Adds the Metal devices of this machine. `Metal::discover` tells why there are none.
    #[cfg(metal)]
    fn metal(self) -> Builder {
        match transload_metal::Metal::discover() {
            Ok(devices) => self.backend(Arc::new(devices)),
            Err(_) => self,
        }
    }

    /// Adds the adapters of this machine. A backend without adapters is not registered.
    #[cfg(all(adapters, not(browser)))]
    fn adapters(self) -> Builder {
        let adapters = transload_wgpu::Wgpu::discover();
        if adapters.is_empty() {
            return self;
        }
        self.backend(Arc::new(adapters))
    }
}

impl TransferManager {
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
        static PROCESS: super::PerProcess<TransferManager> = super::PerProcess::new();
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
