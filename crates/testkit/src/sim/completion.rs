//! When and how outcomes reach the sink.

use std::fmt;

use transload_hal::{Fence, MaybeSend, MaybeSync, Outcome};

/// The way in which a simulated machine reports that operations have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Completion {
    /// When virtual time reaches the end of a fence's last operation, in order of time, as most
    /// hardware with an interrupt does.
    #[default]
    Timed,
    /// `submit` moves the clock to the end, and returns [`Fence::immediate`]. A failed operation is reported to the sink
    /// before `submit` returns; an operation that never answers stays pending.
    AtOnce,
    /// As `Timed`, but each outcome is held back for a scrambled time of up to 100 µs, and due outcomes are reported in
    /// a scrambled order.
    OutOfOrder {
        /// Decides the scramble; the same seed gives the same one.
        seed: u64,
    },
    /// Time passes and bytes move, and outcomes are reported only in `pump` and `wait`.
    Pumped,
    /// As `Timed`; after each outcome the [`Hook`] is called, within the call that delivered the
    /// outcome and with no lock held. The hook may call any function of the sim or the manager.
    Reentrant,
    /// As `Timed`, in a build where the sim is not `Send`: it holds an `Rc`.
    #[cfg(transload_local)]
    Local,
    /// Nothing moves and no fence settles, unless its device is lost.
    Never,
}

impl Completion {
    /// The six modes besides [`Completion::Timed`], as far as this build has them.
    pub fn all() -> Vec<Completion> {
        vec![
            Completion::AtOnce,
            Completion::OutOfOrder { seed: 1 },
            Completion::Pumped,
            Completion::Reentrant,
            #[cfg(transload_local)]
            Completion::Local,
            Completion::Never,
        ]
    }

    /// The longest that an outcome is held back out of order, in nanoseconds.
    pub const MAX_SCRAMBLE_NS: u64 = 100_000;
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Completion::Timed => "simulated, settled by time",
            Completion::AtOnce => "simulated, settled at once",
            Completion::OutOfOrder { .. } => "simulated, settled out of order",
            Completion::Pumped => "simulated, settled only when pumped",
            Completion::Reentrant => "simulated, settled by callbacks that re-enter",
            #[cfg(transload_local)]
            Completion::Local => "simulated, single-threaded and not Send",
            Completion::Never => "simulated, never settled",
        })
    }
}

/// The hook that [`Completion::Reentrant`] calls after it reported an outcome. Calls never nest: an
/// outcome that is delivered while the hook runs does not call it again.
pub trait Hook: MaybeSend + MaybeSync {
    /// Called when `fence` has settled with `outcome` and the sink has been told.
    fn settled(&self, fence: Fence, outcome: &Outcome);
}

impl<F: Fn(Fence, &Outcome) + MaybeSend + MaybeSync> Hook for F {
    fn settled(&self, fence: Fence, outcome: &Outcome) {
        self(fence, outcome);
    }
}
