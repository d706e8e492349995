//! Proofs in a world where links lie.
//!
//! Six links join the four pieces of memory. Each of them is honest and trusted, honest and not trusted, garbles the
//! bytes of each copy, or leaves the destination as it is. In each such world the proof runs with every copy over its
//! first way, and with each of them in turn over the sixth link, chosen for it or as a detour.

use alloc::vec;
use alloc::vec::Vec;

use super::explorer::link;
use super::{Action, Proof, Scratch, Verdict, Way};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nature {
    Trusted,
    Honest,
    /// Changes the bytes of each copy, never twice to the same.
    Garbles,
    /// Moves nothing, and reports no error.
    Idles,
}

const NATURES: [Nature; 4] = [
    Nature::Trusted,
    Nature::Honest,
    Nature::Garbles,
    Nature::Idles,
];

/// The link under proof; then, between the driver's memory and the ends: to the source, to the destination, from the
/// source, from the destination; then one that may stand in for any of those four.
type Natures = [Nature; 6];
const UNDER_PROOF: usize = 0;
const STAND_IN: usize = 5;

/// A copy that takes the sixth link: its number, and whether the sixth link is a detour.
type Deviation = Option<(usize, bool)>;

/// The most copies of a proof.
const COPIES: usize = 7;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bytes {
    Pattern,
    Poison,
    Junk(u32),
}

impl Nature {
    fn lies(self) -> bool {
        matches!(self, Nature::Garbles | Nature::Idles)
    }
}

#[test]
fn no_honest_link_is_accused_alone_and_no_liar_among_honest_links_is_proven() {
    let detours = (0..COPIES).flat_map(|nth| [Some((nth, false)), Some((nth, true))]);
    let deviations: Vec<Deviation> = core::iter::once(None).chain(detours).collect();
    for natures in worlds() {
        for &deviation in &deviations {
            // What earlier proofs left in memory may be the pattern itself.
            for stale in [Bytes::Pattern, Bytes::Junk(0)] {
                let verdict = run(natures, deviation, stale);
                let context = || alloc::format!("{natures:?} {deviation:?} {stale:?}: {verdict:?}");
                let accused = verdict == Verdict::Condemned { alone: true };
                let condemned = matches!(verdict, Verdict::Condemned { .. });
                let lies = natures[UNDER_PROOF].lies();
                let others_lie = natures[1..].iter().any(|nature| nature.lies());
                assert!(!accused || lies, "{}", context());
                assert!(condemned || verdict == Verdict::Proven, "{}", context());
                if !others_lie {
                    assert_eq!(condemned, lies, "{}", context());
                    // On the ways that were chosen first, the inquiry always finds the liar.
                    assert!(!lies || accused || deviation.is_some(), "{}", context());
                }
            }
        }
    }
}

/// Returns every world, except those where the link under proof is trusted already.
fn worlds() -> impl Iterator<Item = Natures> {
    let worlds =
        (0..1usize << 12).map(|bits| core::array::from_fn(|at| NATURES[bits >> (2 * at) & 3]));
    worlds.filter(|natures: &Natures| natures[UNDER_PROOF] != Nature::Trusted)
}

/// Carries a proof out.
fn run(natures: Natures, deviation: Deviation, stale: Bytes) -> Verdict {
    let mut proof = Proof::new();
    let mut bytes = [Bytes::Pattern, Bytes::Junk(0), stale, stale];
    let (mut copies, mut junk) = (0, 0);
    loop {
        match proof.poll_action().expect("it is stuck") {
            Action::Connect => proof.handle_connected(false),
            Action::Allocate(_) => proof.handle_allocated(),
            Action::Poison => bytes[Scratch::Back as usize] = Bytes::Poison,
            Action::Copy {
                from,
                to,
                over_link,
            } => {
                let deviates = deviation.filter(|(nth, _)| *nth == copies && !over_link);
                let over = match (from, to) {
                    _ if deviates.is_some() => STAND_IN,
                    (Scratch::Src, Scratch::Dst) => UNDER_PROOF,
                    (_, Scratch::Src) => 1,
                    (_, Scratch::Dst) => 2,
                    (Scratch::Src, _) => 3,
                    _ => 4,
                };
                copies += 1;
                junk += 1;
                match natures[over] {
                    Nature::Trusted | Nature::Honest => bytes[to as usize] = bytes[from as usize],
                    Nature::Garbles => bytes[to as usize] = Bytes::Junk(junk),
                    Nature::Idles => {}
                }
                proof.handle_copied(match deviates {
                    Some((_, true)) => Way::Detour,
                    _ => Way::Chosen {
                        links: vec![link(over as u16)],
                        is_trusted: natures[over] == Nature::Trusted,
                    },
                });
            }
            Action::Compare => {
                proof.handle_compared(bytes[Scratch::Back as usize] == Bytes::Pattern)
            }
            Action::Free(_) => {}
            Action::Finish(verdict) => return verdict,
        }
    }
}
