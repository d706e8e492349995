//! The stage that builds the doubles and runs their own tests.

use anyhow::Result;

use super::{Calls, Double, Profile, unusable};
use crate::counts::Counts;
use crate::runner;
use crate::skips::Skips;
use crate::stage::{Session, Verdict};

/// Builds each double, and runs its tests.
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
        double.build(Profile::Debug)?;
        let skips = Skips::new(&double.workspace.target, "tests")?;
        let calls = double
            .counts_calls()
            .then(|| Calls::new(&double, "doubles"));
        let calls = calls.transpose()?;
        let mut tests = runner::tests(&double.workspace)?;
        tests.arg("--tests");
        skips.tell(&mut tests);
        if let Some(calls) = &calls {
            calls.tell(&mut tests);
        }
        let finished = verdict.run_tests(&mut tests)?;
        if finished.success() && Counts::read(&finished.output).ran() == 0 {
            verdict.fail(&format!("{} has no test", double.name));
        }
        let mut examples = double.workspace.task("test")?;
        verdict.run_tests(examples.args(["--doc", "--locked", "--no-fail-fast"]))?;
        session.skipped.extend(skips.settle(&mut verdict.counts)?);
        if let Some(calls) = calls {
            session.calls.insert("doubles", calls);
        }
        notes.push(double.name);
    }
    verdict.note = notes.join(", ");
    Ok(verdict)
}
