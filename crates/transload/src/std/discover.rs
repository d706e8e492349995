//! Finding out what this machine has.

use alloc::sync::Arc;

use super::profile::Costs;
use crate::{Builder, Error, TransferManager};

impl Builder {
    /// With the host: the heap, shared memory and files.
    pub fn host(self) -> Builder {
        self.backend(Arc::new(transload_host::Host::new()))
    }

    /// With every backend of this build whose hardware is here, and with the costs of the saved profile
    /// and the verdicts beside it unless another one was given: the host, with the feature `cuda` every
    /// device that NVIDIA's driver shows, with the feature `metal` every device of Metal's, and with the feature `wgpu`
    /// every adapter that a device can be opened on. A GPU that answers to several is there as often; CUDA and wgpu
    /// give it one UUID.
    ///
    /// In the browser adapters are not among them: a device is opened by awaiting `Wgpu::request`, and registered by hand.
    ///
    /// Blocks on the drivers, some of which write to standard error what they think of the environment.
    /// [`Builder::host`] asks none.
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

    /// With the CUDA devices that are here. Why there are none `Cuda::discover` says.
    #[cfg(cuda)]
    fn cuda(self) -> Builder {
        match transload_cuda::Cuda::discover() {
            Ok(devices) => self.backend(Arc::new(devices)),
            Err(_) => self,
        }
    }

    /// With the Metal devices that are here. Why there are none `Metal::discover` says.
    #[cfg(metal)]
    fn metal(self) -> Builder {
        match transload_metal::Metal::discover() {
            Ok(devices) => self.backend(Arc::new(devices)),
            Err(_) => self,
        }
    }

    /// With the adapters that are here. A backend without any would only be asked in vain.
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
    /// A manager with every backend of this build whose hardware is here, as [`Builder::discover`]
    /// finds it. Each call opens devices of its own.
    ///
    /// It plans with the costs that `transload probe` or [`TransferManager::probe`] measured of this
    /// machine and saved at [`saved_path`](crate::profile::saved_path). A saved profile that is damaged,
    /// out of date or of another machine is not used, and nothing else comes of it;
    /// [`Profile::saved`](crate::Profile::saved) and [`TransferManager::apply_profile`] say why.
    /// [`Builder::default_costs`] does without. What proofs found out about links between devices is kept
    /// beside it ([`Builder::keep_verdicts`]).
    ///
    /// # Errors
    /// When the host's own memory cannot be used.
    pub fn discover() -> Result<TransferManager, Error> {
        TransferManager::builder().discover().build()
    }

    /// The manager that the whole process shares, discovered by the first who asks. A child of `fork` discovers its own.
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

    /// The manager that the whole process, which has one thread, shares; discovered by the first who
    /// asks.
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
