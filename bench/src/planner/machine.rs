//! A manager of every memory that this machine has, and of those of CUDA's double.

use std::sync::Arc;

use anyhow::Result;
use transload::TransferManager;
use transload_wgpu::Wgpu;

pub(super) fn manager() -> Result<TransferManager> {
    let builder = TransferManager::builder().host();
    let builder = builder.backend(Arc::new(Wgpu::discover()));
    #[cfg(target_os = "linux")]
    let builder = {
        use crate::raw::driver::{MACHINE, double};
        builder.backend(Arc::new(transload_cuda::Cuda::with_driver(double(
            MACHINE,
        ))?))
    };
    Ok(builder.default_costs().build()?)
}
