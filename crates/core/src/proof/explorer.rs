//! Every sequence of answers that a proof can get.
//!
//! A search in depth over each answer to each action: done, failed, over a trusted way or not, over this way or that
//! one or a detour, equal or not. On each path the proof must keep its promises:
//!
//! - an action is asked once, answers that were not asked for change nothing, every path ends, and nothing follows the
//!   end;
//! - the pattern crosses from source to poisoned destination, and each reading goes into poisoned memory;
//! - memory is used only between its allocation and its return, and each allocation returns once;
//! - the verdict is the one that [`verdict_of`] reads from the whole path.

use alloc::vec;
use alloc::vec::Vec;
use core::mem::discriminant;

use super::{Action, Proof, Scratch, Verdict, Way};
use crate::{Access, DeviceId, DeviceKind, EngineId, LinkId, MemoryKind};

/// A path with more actions than this runs in circles.
const MOST_ACTIONS: usize = 24;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    Connected {
        was_proven: bool,
    },
    Allocated,
    Copied(Way),
    Compared(bool),
    Failed,
    /// None was awaited.
    Nothing,
}

type Path = Vec<(Action, Answer)>;

#[test]
fn every_sequence_of_answers_ends_in_the_verdict_that_it_deserves() {
    let mut ends = Vec::new();
    explore(Proof::new(), Path::new(), &mut ends);
    let count = |wanted| ends.iter().filter(|verdict| **verdict == wanted).count();
    for verdict in [
        Verdict::Connected,
        Verdict::Proven,
        Verdict::Condemned { alone: true },
        Verdict::Condemned { alone: false },
        Verdict::GivenUp,
    ] {
        assert!(count(verdict) > 0, "no path ends in {verdict:?}");
    }
    assert!(ends.len() >= 39_000, "only {} paths", ends.len());
}

/// Goes on from a proof that has just got an answer.
fn explore(mut proof: Proof, mut path: Path, ends: &mut Vec<Verdict>) {
    assert!(path.len() <= MOST_ACTIONS, "in circles: {path:?}");
    let action = loop {
        assert_ignores(&proof, &every_answer(), &path);
        let action = proof
            .poll_action()
            .unwrap_or_else(|| panic!("stuck: {path:?}"));
        match action {
            Action::Poison | Action::Free(_) => path.push((action, Answer::Nothing)),
            _ => break action,
        }
    };
    if let Action::Finish(verdict) = action {
        assert_eq!(proof.poll_action(), None, "after the end of {path:?}");
        assert_ignores(&proof, &every_answer(), &path);
        assert_uses_memory_well(&path);
        assert_eq!(verdict, verdict_of(&path), "{path:?}");
        return ends.push(verdict);
    }
    assert_eq!(proof.poll_action(), None, "{action:?} twice: {path:?}");
    let answers = answers(action);
    let mut others = every_answer();
    others.retain(|other| {
        !answers
            .iter()
            .any(|answer| discriminant(answer) == discriminant(other))
    });
    assert_ignores(&proof, &others, &path);
    for answer in answers {
        let mut next = proof.clone();
        give(&mut next, &answer);
        assert_ne!(next, proof, "{answer:?} to {action:?} changes nothing");
        let mut path = path.clone();
        path.push((action, answer));
        explore(next, path, ends);
    }
}

/// Returns the verdict that follows from all answers of a path.
fn verdict_of(path: &Path) -> Verdict {
    use Scratch::{Back, Dst, Pattern, Src};
    let compared = path.iter().filter_map(|(_, answer)| match answer {
        Answer::Compared(equal) => Some(*equal),
        _ => None,
    });
    let compared: Vec<bool> = compared.collect();
    let ways = |from, to| {
        path.iter()
            .filter_map(move |(action, answer)| match (action, answer) {
                (Action::Copy { from: a, to: b, .. }, Answer::Copied(way))
                    if (*a, *b) == (from, to) =>
                {
                    Some(way)
                }
                _ => None,
            })
    };
    let crossed = ways(Src, Dst).any(|way| *way != Way::Detour);
    let failed = path.iter().any(|(_, answer)| *answer == Answer::Failed);
    let was_proven = Answer::Connected { was_proven: true };
    let Some(came_back) = compared.first().filter(|_| crossed) else {
        return match path.iter().any(|(_, answer)| *answer == was_proven) {
            true => Verdict::Connected,
            false => Verdict::GivenUp,
        };
    };
    if *came_back {
        return Verdict::Proven;
    }
    let is_trusted = |way: &Way| {
        matches!(
            way,
            Way::Chosen {
                is_trusted: true,
                ..
            }
        )
    };
    let passed = [
        ways(Back, Dst).next(),
        ways(Pattern, Src).next(),
        ways(Dst, Back).next(),
    ];
    let all_trusted = passed.into_iter().all(|way| way.is_some_and(is_trusted));
    let links = |way: &Way| match way {
        Way::Chosen { links, .. } => Some(links.clone()),
        Way::Detour => None,
    };
    let is_chosen = |way: Option<&Way>| way.is_some_and(|way| *way != Way::Detour);
    let same_way_back = match &ways(Dst, Back).collect::<Vec<_>>()[..] {
        [first, again] => links(first).is_some() && links(first) == links(again),
        _ => false,
    };
    let others_are_innocent = !failed
        && compared[1..] == [true, true]
        && is_chosen(ways(Src, Back).next())
        && is_chosen(ways(Pattern, Dst).next())
        && same_way_back;
    let src_by_detour = ways(Src, Back).any(|way| *way == Way::Detour);
    let went_on = ways(Pattern, Dst).next().is_some();
    assert!(!src_by_detour || !went_on, "to no purpose: {path:?}");
    let alone = all_trusted || others_are_innocent;
    Verdict::Condemned { alone }
}

/// Follows the bytes of a path as if every link were honest.
fn assert_uses_memory_well(path: &Path) {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Bytes {
        Unknown,
        Poison,
        Pattern,
    }
    use Scratch::{Back, Dst, Pattern, Src};
    let mut bytes = [
        Bytes::Pattern,
        Bytes::Unknown,
        Bytes::Unknown,
        Bytes::Unknown,
    ];
    let mut held = [true, true, false, false];
    for (action, answer) in path {
        match *action {
            Action::Poison => bytes[Back as usize] = Bytes::Poison,
            Action::Allocate(end) if *answer == Answer::Allocated => {
                assert!(!held[end as usize], "{end:?} twice: {path:?}");
                held[end as usize] = true;
            }
            Action::Free(end) => {
                assert!(held[end as usize], "{end:?} is not held: {path:?}");
                assert!(
                    end == Src || end == Dst,
                    "{end:?} is the driver's: {path:?}"
                );
                held[end as usize] = false;
            }
            Action::Copy {
                from,
                to,
                over_link,
            } => {
                assert!(held[from as usize] && held[to as usize], "{path:?}");
                assert!(to != Pattern, "{path:?}");
                assert_eq!(over_link, (from, to) == (Src, Dst), "{path:?}");
                let before = (bytes[from as usize], bytes[to as usize]);
                match (from, to) {
                    (Back, Dst) => assert_eq!(before.0, Bytes::Poison, "{path:?}"),
                    (Src, Dst) => assert_eq!(before, (Bytes::Pattern, Bytes::Poison), "{path:?}"),
                    (_, Back) => assert_eq!(before, (Bytes::Pattern, Bytes::Poison), "{path:?}"),
                    _ => assert_eq!(before.0, Bytes::Pattern, "{path:?}"),
                }
                bytes[to as usize] = bytes[from as usize];
            }
            Action::Compare => assert_eq!(bytes[Back as usize], Bytes::Pattern, "{path:?}"),
            Action::Allocate(_) | Action::Connect | Action::Finish(_) => {}
        }
    }
    assert_eq!(held, [true, true, false, false], "leaked: {path:?}");
}

fn assert_ignores(proof: &Proof, answers: &[Answer], path: &Path) {
    for answer in answers {
        let mut same = proof.clone();
        give(&mut same, answer);
        assert_eq!(same, *proof, "{answer:?} was not asked for after {path:?}");
    }
}

fn give(proof: &mut Proof, answer: &Answer) {
    match answer.clone() {
        Answer::Connected { was_proven } => proof.handle_connected(was_proven),
        Answer::Allocated => proof.handle_allocated(),
        Answer::Copied(way) => proof.handle_copied(way),
        Answer::Compared(equal) => proof.handle_compared(equal),
        Answer::Failed => proof.handle_failed(),
        Answer::Nothing => {}
    }
}

/// Returns the answers that an action can get.
fn answers(action: Action) -> Vec<Answer> {
    let mut answers = match action {
        Action::Connect => vec![
            Answer::Connected { was_proven: true },
            Answer::Connected { was_proven: false },
        ],
        Action::Allocate(_) => vec![Answer::Allocated],
        Action::Copy {
            over_link: true, ..
        } => {
            vec![chosen(0, false), Answer::Copied(Way::Detour)]
        }
        Action::Copy { .. } => vec![
            chosen(1, true),
            chosen(1, false),
            chosen(2, true),
            chosen(2, false),
            Answer::Copied(Way::Detour),
        ],
        Action::Compare => vec![Answer::Compared(true), Answer::Compared(false)],
        Action::Poison | Action::Free(_) | Action::Finish(_) => return Vec::new(),
    };
    answers.push(Answer::Failed);
    answers
}

/// Returns one answer to each action at least.
fn every_answer() -> Vec<Answer> {
    let copy = |over_link| Action::Copy {
        from: Scratch::Src,
        to: Scratch::Dst,
        over_link,
    };
    let actions = [
        Action::Connect,
        Action::Allocate(Scratch::Src),
        copy(true),
        copy(false),
        Action::Compare,
    ];
    actions.into_iter().flat_map(answers).collect()
}

fn chosen(engine: u16, is_trusted: bool) -> Answer {
    let links = vec![link(engine)];
    Answer::Copied(Way::Chosen { links, is_trusted })
}

/// Returns one of several links.
pub(super) fn link(index: u16) -> LinkId {
    let device = DeviceId::new(DeviceKind::SIM, 0);
    LinkId {
        src: device.memory(MemoryKind::Device),
        dst: DeviceId::CPU0.memory(MemoryKind::Pageable),
        engine: EngineId { device, index },
        access: Access::Peer,
    }
}
