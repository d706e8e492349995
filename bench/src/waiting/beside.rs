//! The cost of copies while their manager has other work.

use std::time::Duration;

use anyhow::Result;
use transload::TransferManager;

use super::endpoints::payload;
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, POISON, Rules};
use crate::way::Way;

/// For information: the library makes no promise with this number. Caches are colder next to a million transfers.
const LIMIT: f64 = 1.5;

/// Times copies of `len` bytes of a manager that is busy with `others`, and of an idle one.
pub(super) fn run(
    name: String,
    busy: &TransferManager,
    others: &str,
    len: usize,
    effort: Effort,
) -> Result<Outcome> {
    let alone = TransferManager::builder().host().build()?;
    let mut contenders = vec![
        copies("beside the others", busy, len)?,
        copies("alone", &alone, len)?,
        copies("alone, again", &alone, len)?,
    ];
    let rules = Rules {
        rounds: effort.rounds,
        sample: Duration::from_millis(1),
        warm: true,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new(name, &series[0]);
    outcome.bytes = len as u64;
    for (contender, series) in contenders.iter().zip(&series).skip(1) {
        let name = contender.name().to_owned();
        outcome.baselines.insert(name, series.median());
    }
    outcome.noise = series[1].difference(&series[2]);
    outcome.verified = true;
    for contender in &mut contenders {
        outcome.verified &= contender.verify()?;
    }
    let ratio = series[0].median() / series[1].median();
    let of = format!("of the time without {others}:");
    let verdict = Verdict::at_most(of, ratio, LIMIT, "");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

/// Copies of that length, each waited for.
fn copies(name: &str, manager: &TransferManager, len: usize) -> Result<Box<dyn Contender>> {
    let src = manager.adopt(payload(len))?;
    let dst = manager.adopt(vec![POISON; len])?;
    let (poisoned, checked, manager) = (dst.clone(), dst.clone(), manager.clone());
    let turn = move || {
        manager.copy(&src, &dst).wait()?;
        Ok(())
    };
    let poison = move || {
        poisoned.write()?.fill(POISON);
        Ok(())
    };
    let check = move || Ok(*checked.read()? == *payload(len));
    Ok(Way::boxed(name, turn, poison, check))
}
