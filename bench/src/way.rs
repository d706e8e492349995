//! Contenders of a few lines.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::contest::Contender;

/// One way to do it.
pub(crate) struct Way {
    name: String,
    turn: Box<dyn FnMut() -> Result<()>>,
    poison: Box<dyn FnMut() -> Result<()>>,
    check: Box<dyn FnMut() -> Result<bool>>,
}

impl Way {
    /// `turn` does the operation once and returns when it is done; `poison` overwrites the destination before, and
    /// `check` checks every byte of it.
    pub(crate) fn boxed(
        name: impl Into<String>,
        turn: impl FnMut() -> Result<()> + 'static,
        poison: impl FnMut() -> Result<()> + 'static,
        check: impl FnMut() -> Result<bool> + 'static,
    ) -> Box<dyn Contender> {
        Box::new(Way {
            name: name.into(),
            turn: Box::new(turn),
            poison: Box::new(poison),
            check: Box::new(check),
        })
    }
}

impl Contender for Way {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..turns {
            (self.turn)()?;
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        (self.poison)()?;
        (self.turn)()?;
        (self.check)()
    }
}
