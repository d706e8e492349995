//! What the program does with the library.

use alloc::vec;
use alloc::vec::Vec;

use transload::{AllocSpec, DeviceId, Error, TransferManager};

use crate::backend::Words;

/// Copies some bytes, and answers whether they arrived.
pub(crate) fn arrive() -> Result<bool, Error> {
    let manager = TransferManager::new();
    manager.register_backend(Words::new())?;
    let wanted: Vec<u8> = (0..10_000u32).map(|i| (i * 31 >> 3) as u8).collect();
    let src = manager.adopt(wanted.clone())?;
    let dst = manager.allocate(DeviceId::CPU0.into(), AllocSpec::bytes(src.len()))?;

    // The work is handed over here, and done in turns, between whatever else the loop does.
    let transfer = manager.copy(&src, &dst);
    let done_at_once = transfer.is_over();
    let mut turns = 0u32;
    while !transfer.is_over() {
        let next = manager.turn();
        turns += 1;
        if next.is_some() || turns > 1000 {
            return Ok(false);
        }
    }
    let report = transfer.wait()?;

    // Or blocking, where the loop has nothing else to do.
    let mut back = vec![0; wanted.len()];
    manager.copy_into_slice(&dst, &mut back)?;
    let arrived = *dst.read().map_err(transload::Error::from)? == wanted[..] && back == wanted;
    let counted = report.bytes() == src.len();
    Ok(arrived && counted && !done_at_once && turns > 0)
}
