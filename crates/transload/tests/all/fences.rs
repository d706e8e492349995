//! The fences that a transfer still waits for, as a caller sees them who makes a stream of its own wait.

use crate::fixture::{Fixture, Outcome, bytes, without_peers};
use transload::hal::ErrorClass;
use transload::{Request, TransferManager};
use transload_testkit::sim::{Call, Completion, Rule, Script};

const MIB: usize = 1 << 20;

fn fixture() -> Fixture {
    Fixture::new(&without_peers(2), Completion::Timed, 64 << 20)
}

#[test]
fn a_copy_in_one_piece_has_its_fences_as_soon_as_it_was_asked_for() -> Outcome {
    let fixture = fixture();
    let src = fixture.filled("sim:0", &bytes(4096, 1));
    let dst = fixture.empty("sim:0", 4096);
    let mut transfer = fixture.manager.copy(&src, &dst);
    let fences = transfer.fences().expect("nothing is left to be submitted");
    assert_eq!(fences.len(), 1);
    assert!(!transfer.is_over());
    assert!(transfer.wait_timeout(std::time::Duration::MAX).is_some());
    assert_eq!(transfer.fences(), None, "its result was taken");
    assert_eq!(fixture.bytes_of(&dst), bytes(4096, 1));

    let transfer = fixture.manager.copy(&src, &dst);
    fixture.manager.copy(&dst, &src).wait()?;
    assert!(transfer.is_over());
    assert_eq!(transfer.fences(), Some(Vec::new()));
    assert!(transfer.wait().is_ok());
    Ok(())
}

#[test]
fn what_is_not_submitted_yet_has_none() -> Outcome {
    let fixture = fixture();
    let src = fixture.filled("sim:0", &bytes(4096, 2));
    let [dst, other] = [4096; 2].map(|len| fixture.empty("sim:0", len));
    // The transfer waits for the user's event.
    let event = fixture.manager.event();
    let held = fixture
        .manager
        .submit(&Request::new(&src, &dst).after(&event));
    assert_eq!(held.fences(), None);
    // This transfer waits for the one before.
    let behind = fixture.manager.copy(&dst, &other);
    assert_eq!(behind.fences(), None);
    event.set();
    assert_eq!(held.fences().map(|fences| fences.len()), Some(1));
    assert_eq!(behind.fences(), None, "its predecessor is under way");
    held.wait()?;
    behind.wait()?;

    // A comparison follows the copy.
    let verified = fixture.manager.submit(&Request::new(&src, &dst).verify());
    assert_eq!(verified.fences(), None);
    verified.wait()?;

    // Two hops, with more chunks than are in flight at once.
    let far = fixture.empty("sim:1", 8 * MIB);
    let near = fixture.filled("sim:0", &bytes(8 * MIB, 3));
    let staged = fixture.manager.copy(&near, &far);
    assert_eq!(staged.fences(), None);
    staged.wait()?;
    assert_eq!(fixture.bytes_of(&far), bytes(8 * MIB, 3));
    Ok(())
}

#[test]
fn a_refused_or_failed_transfer_has_none() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let buffer = manager.adopt(vec![0u8; 100])?;
    let refused = manager.copy(buffer.slice(..10)?, buffer.slice(..20)?);
    assert_eq!(refused.fences(), None);
    // This transfer is over at once.
    let done = manager.copy(buffer.slice(..10)?, buffer.slice(50..60)?);
    if done.is_over() {
        assert_eq!(done.fences(), Some(Vec::new()));
    }
    drop((refused, done));

    let refusal = Rule::refuse(Call::Submit, ErrorClass::Failed).always();
    let script = Script::new().with(refusal);
    let budget = std::sync::Arc::new(transload::StagingBudget::new(64 << 20));
    let fixture = Fixture::scripted(&without_peers(1), Completion::Timed, &budget, script);
    let src = fixture.empty("sim:0", 100);
    let failed = fixture.manager.copy(&src, fixture.empty("sim:0", 100));
    assert_eq!(failed.fences(), None);
    assert!(failed.wait().is_err());
    Ok(())
}
