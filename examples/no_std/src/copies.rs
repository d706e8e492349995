//! The program's use of the library.

use alloc::vec;
use alloc::vec::Vec;

use transload::{AllocSpec, DeviceId, Error, TransferManager};

use crate::backend::Words;

/// Copies some bytes. Returns whether they arrived.
pub(crate) fn arrive() -> Result<bool, Error> {
    let manager = TransferManager::new();
    manager.register_backend(Words::new())?;
    let wanted: Vec<u8> = (0..10_000u32).map(|i| (i * 31 >> 3) as u8).collect();
    let src = manager.adopt(wanted.clone())?;
    let dst = manager.allocate(DeviceId::CPU0.into(), AllocSpec::bytes(src.len()))?;

    // The call submits the work; the turns below execute it, between the loop's other work.
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

    // A blocking call, for a loop without other work.
    let mut back = vec![0; wanted.len()];
    manager.copy_into_slice(&dst, &mut back)?;
    let arrived = *dst.read().map_err(transload::Error::from)? == wanted[..] && back == wanted;
    let counted = report.bytes() == src.len();
    Ok(arrived && counted && !done_at_once && turns > 0)
}
