//! The stage that builds the doubles and runs their own tests.

use anyhow::Result;

use super::{Calls, Double, Profile, unusable};
use crate::counts::Counts;
use crate::skips::Skips;
use crate::stage::{Session, Verdict};
use crate::suites::runner;

/// Builds each double cold, to tell how long that takes; then in its usual place, and tests it there.
///
/// # Errors
/// When one does not build, or cargo cannot be started.
pub(crate) fn stage(session: &mut Session) -> Result<Verdict> {
    if let Some(reason) = unusable() {
        return Ok(Verdict::skipped(reason));
    }
    let mut verdict = Verdict::passed();
    let mut notes = Vec::new();
    for double in Double::all(&session.workspace)? {
        let cold = double.build_cold(&mut verdict)?;
        double.build(Profile::Debug)?;
        let skips = Skips::new(&double.workspace.target, "tests")?;
        let calls = double
            .counts_calls()
            .then(|| Calls::new(&double, "doubles"));
        let calls = calls.transpose()?;
        let mut runner = runner(session, &double.workspace)?;
        skips.tell(&mut runner);
        if let Some(calls) = &calls {
            calls.tell(&mut runner);
        }
        let finished = verdict.run_tests(&mut runner)?;
        if finished.success() && Counts::read(&finished.output).ran() == 0 {
            verdict.fail(&format!("{} has no test", double.name));
        }
        // Nextest runs no examples of documentation.
        let mut examples = double.workspace.task("test")?;
        verdict.run_tests(examples.args(["--doc", "--locked", "--no-fail-fast"]))?;
        session.skipped.extend(skips.settle(&mut verdict.counts)?);
        if let Some(calls) = calls {
            session.calls.insert("doubles", calls);
        }
        notes.push(format!(
            "{} built cold in {:.1} s",
            double.name,
            cold.as_secs_f64()
        ));
    }
    verdict.note = notes.join(", ");
    Ok(verdict)
}
