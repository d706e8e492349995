//! What happens to a machine, or to the way to it.

use std::thread::park_timeout;
use std::time::Duration;

use super::machine::Machine;
use super::pick;
use super::proxy::Mode;
use crate::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It stands still, for a moment or until its sessions have ended.
    Stop { long: bool },
    /// What goes there or comes from there does not arrive, as long.
    Hold { long: bool },
    /// Each piece of what goes there or comes from there is late.
    Delay,
    /// Some of its connections end.
    Cut,
    /// It ends without a word. It is back at once, or after the transfers have ended.
    Kill { away: bool },
}

impl Trouble {
    /// Trouble for half of the rounds. Sessions end after 4 s without a byte, so long trouble is rare.
    pub(super) fn any(dice: &mut Dice) -> Option<Trouble> {
        let long = dice.below(16) == 0;
        let all = [
            Trouble::Stop { long },
            Trouble::Hold { long },
            Trouble::Delay,
            Trouble::Cut,
            Trouble::Kill { away: false },
            Trouble::Kill { away: true },
        ];
        (dice.below(2) == 0).then(|| pick(dice, &all))
    }

    /// Whether sessions may end of it.
    pub(super) fn is_fatal(self) -> bool {
        match self {
            Trouble::Stop { long } | Trouble::Hold { long } => long,
            Trouble::Delay => false,
            Trouble::Cut | Trouble::Kill { .. } => true,
        }
    }

    /// Whether it lasts until the transfers have ended.
    fn is_lasting(self) -> bool {
        self.is_fatal() || self == Trouble::Delay
    }

    pub(super) fn begin(self, machine: &mut Machine, dice: &mut Dice) {
        match self {
            Trouble::Stop { .. } => machine.stop(true),
            Trouble::Hold { .. } => machine.way.set(Mode::Hold),
            Trouble::Delay => {
                let ms = 1 + dice.below(8);
                machine.way.set(Mode::Delay(Duration::from_millis(ms)));
            }
            Trouble::Cut => drop(machine.way.cut(dice)),
            Trouble::Kill { away } => {
                machine.kill();
                if !away {
                    machine.restart();
                }
            }
        }
    }

    /// Called when all transfers of the round have been submitted.
    pub(super) fn go_on(self, machine: &mut Machine, dice: &mut Dice) {
        if !self.is_lasting() {
            park_timeout(Duration::from_millis(dice.below(40)));
            self.lift(machine);
        }
    }

    /// Called when all transfers have ended.
    pub(super) fn end(self, machine: &mut Machine) {
        if self.is_lasting() {
            self.lift(machine);
        }
    }

    fn lift(self, machine: &mut Machine) {
        match self {
            Trouble::Stop { .. } => machine.stop(false),
            Trouble::Hold { .. } | Trouble::Delay => machine.way.set(Mode::Forward),
            Trouble::Cut | Trouble::Kill { away: false } => {}
            Trouble::Kill { away: true } => machine.restart(),
        }
    }
}
