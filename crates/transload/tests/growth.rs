//! The memory that remains after many transfers have ended.

mod counted;

use counted::live_bytes;
use transload::{Instant, Request, Transfer, TransferManager};

const MANY: usize = 20_000;

/// The most bytes that may remain for each past transfer: its number, and room in lists.
const LEFT_BYTES: i64 = 64;

/// The memory that a manager keeps so that a steady load allocates nothing, mainly 256 places for transfers and 16,384 for
/// operations of the host's threads.
const KEPT_BYTES: i64 = 12 << 20;

#[test]
fn memory_goes_back_when_transfers_have_ended() -> Result<(), transload::Error> {
    let manager = TransferManager::builder().host().build()?;
    let len = 8 * MANY as u64;
    let src = manager.adopt(vec![7u8; len as usize])?;
    let dst = manager.adopt(vec![0u8; len as usize])?;
    manager.copy(&src, &dst).wait()?;
    let never = manager.event();
    for (is_chain, is_cancelled) in [(false, false), (false, true), (true, false), (true, true)] {
        let before = live_bytes();
        let gate = manager.event();
        let submit = |at: usize| {
            let at = if is_chain { 0 } else { at };
            let range = 8 * at as u64..8 * at as u64 + 8;
            let request = Request::new(src.slice(range.clone())?, dst.slice(range)?);
            let request = request.after(if is_cancelled { &never } else { &gate });
            Ok(manager.submit(&request.deadline(Instant(u64::MAX))))
        };
        let transfers = (0..MANY).map(submit);
        let transfers = transfers.collect::<Result<Vec<Transfer>, transload::Error>>()?;
        let most = live_bytes() - before;
        match is_cancelled {
            true => transfers.into_iter().for_each(|transfer| {
                transfer.cancel();
            }),
            false => {
                gate.set();
                for transfer in transfers {
                    transfer.wait()?;
                }
            }
        }
        // The manager shortens its lists when further transfers come.
        manager
            .submit(&Request::new(&src, &dst).after(&never))
            .cancel();
        manager.copy(&src, &dst).wait()?;
        let left = live_bytes() - before;
        assert!(
            left < KEPT_BYTES + LEFT_BYTES * MANY as i64,
            "{left} of {most} bytes stay, chain: {is_chain}, cancelled: {is_cancelled}"
        );
    }
    assert_eq!(*dst.read()?, [7; 8 * MANY]);
    Ok(())
}
