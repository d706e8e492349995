//! Proofs without an engine.

use transload_core::{
    Access, Cost, DeviceId, DeviceKind, EngineId, Lane, MemoryKind, Method, Name, Role, Step,
    StepKind,
};

use super::super::types::Index;
use super::*;

const BACKEND: BackendId = BackendId(Name::constant("sim"));

fn link(engine: u16, access: Access) -> LinkId {
    let device = |index| DeviceId::new(DeviceKind::SIM, index);
    LinkId {
        src: device(0).memory(MemoryKind::Device),
        dst: device(1).memory(MemoryKind::Device),
        engine: EngineId {
            device: device(0),
            index: engine,
        },
        access,
    }
}

fn transfer(position: usize) -> TransferId {
    TransferId {
        index: Index::of(position),
        generation: 0,
    }
}

fn way(over: LinkId) -> Arc<Plan> {
    let (from, to) = (Role::Src, Role::Dst);
    let step = Step {
        kind: StepKind::Copy { from, to },
        backend: BACKEND,
        engine: over.engine,
        cost: Cost::ZERO.into(),
        host_load: 0,
        link: Some(over),
    };
    let lane = Lane {
        route: None,
        steps: vec![step],
        rings: Vec::new(),
        chunk_bytes: 1,
        depth: 1,
        share: 1,
    };
    let estimate = Cost::ZERO.into();
    Arc::new(Plan::new(Method::PeerToPeer, vec![lane], estimate))
}

/// Carries a job out until it ends: copies take the first of `ways`, and comparisons find `equal`. Returns its last
/// effects, and how many copies it made.
fn run(proofs: &mut Proofs, ways: &[Arc<Plan>], equal: bool) -> (Effects, usize) {
    let (mut effects, mut copies) = (Effects::new(), 0);
    loop {
        if let Some(Effect::Send { job, over, .. }) = effects.first() {
            copies += 1;
            let way = over.is_none().then(|| proofs.choose_way(*job, ways));
            assert!(way.is_none_or(|way| way.is_some()));
            effects = proofs.handle_copied(*job, Ok(true));
        } else if let Some((job, backend, errand)) = proofs.poll_errand() {
            assert_eq!(backend, BACKEND);
            let found = match errand {
                Errand::Connect { .. } => Found::Connected,
                Errand::Allocate { .. } => Found::Scratch(poison()),
                Errand::Compare { .. } => Found::Equal(equal),
            };
            effects = proofs.handle_found(job, Ok(found));
        } else {
            return (effects, copies);
        }
    }
}

/// Returns the transfers that go on, whether with a fault, and how many buffers are dropped.
fn released(effects: &Effects) -> Option<(&[TransferId], bool, usize)> {
    match effects.last()? {
        Effect::Release {
            waiting,
            fault,
            buffers,
        } => Some((waiting, fault.is_some(), buffers.len())),
        _ => None,
    }
}

#[test]
fn transfers_over_one_link_wait_for_one_proof() {
    let (peer, trusted) = (link(0, Access::Peer), way(link(1, Access::Native)));
    let mut proofs = Proofs::default();
    for slot in [3, 5] {
        assert!(proofs.enter(peer, BACKEND, transfer(slot)).is_empty());
    }
    assert_eq!(proofs.first_unproven(&way(peer)), Some(peer));
    let (effects, copies) = run(&mut proofs, &[trusted], true);
    assert_eq!(copies, 4, "poison, pattern, link, reading");
    let told = matches!(&effects[0], Effect::Report { link, judgement: Some(Judgement::Proven) } if *link == peer);
    assert!(told);
    let both = [transfer(3), transfer(5)];
    assert_eq!(released(&effects), Some((&both[..], false, 4)));
    assert_eq!(proofs.first_unproven(&way(peer)), None);
}

#[test]
#[cfg(feature = "std")]
fn a_link_that_an_earlier_process_has_proven_is_only_connected() {
    let peer = link(0, Access::Peer);
    let mut proofs = Proofs::default();
    assert!(proofs.recall(peer, Judgement::Proven).is_none());
    assert!(proofs.enter(peer, BACKEND, transfer(0)).is_empty());
    let (effects, copies) = run(&mut proofs, &[], true);
    assert_eq!((effects.len(), copies), (1, 0), "neither told nor sent");
    assert_eq!(released(&effects), Some((&[transfer(0)][..], false, 0)));
    assert!(proofs.is_proven(peer) && proofs.was_proven_before(peer));
}

#[test]
fn every_process_hears_of_a_liar_only_if_the_ways_there_and_back_are_trusted() {
    let peer = link(0, Access::Peer);
    for (access, alone) in [(Access::Native, true), (Access::Peer, false)] {
        let mut proofs = Proofs::default();
        assert!(proofs.enter(peer, BACKEND, transfer(0)).is_empty());
        let (effects, _) = run(&mut proofs, &[way(link(1, access))], false);
        let told = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Report { .. }));
        assert_eq!(told, alone);
        assert!(
            effects
                .iter()
                .any(|effect| matches!(effect, Effect::Condemn { link, .. } if *link == peer))
        );
        assert!(matches!(released(&effects), Some((_, true, _))));
        assert!(!proofs.is_proven(peer));
    }
}

#[test]
fn a_proof_that_fails_bars_its_link_and_leaves_its_number_to_the_next() {
    let [first, second, third] = [0, 1, 2].map(|engine| link(engine, Access::Peer));
    let mut proofs = Proofs::default();
    for link in [first, second] {
        assert!(proofs.enter(link, BACKEND, transfer(0)).is_empty());
    }
    let (failed, ..) = proofs.poll_errand().expect("it connects first");
    let fault = Fault::new(ErrorClass::Exhausted, "no room");
    let effects = proofs.handle_found(failed, Err(fault));
    assert!(
        matches!(&effects[0], Effect::Bar { link, reason } if *link == first && reason.contains("no room"))
    );
    assert!(matches!(released(&effects), Some((_, true, 0))));
    assert!(proofs.enter(third, BACKEND, transfer(0)).is_empty());
    let (other, ..) = proofs.poll_errand().expect("the second");
    let (again, ..) = proofs.poll_errand().expect("the third");
    assert!(again == failed && other != failed);
}

#[test]
fn a_copy_of_a_proof_prefers_trusted_ways_and_then_ways_without_its_link() {
    let [under_proof, unproven] = [0, 1].map(|engine| way(link(engine, Access::Peer)));
    let trusted = way(link(2, Access::Native));
    let mut proofs = Proofs::default();
    assert!(
        proofs
            .enter(link(0, Access::Peer), BACKEND, transfer(0))
            .is_empty()
    );
    let ways = [under_proof, unproven, trusted];
    for (given, chosen) in [
        (&ways[..], Some(2)),
        (&ways[..2], Some(1)),
        (&ways[..1], Some(0)),
        (&[], None),
    ] {
        let way = proofs.choose_way(0, given);
        assert_eq!(way, chosen.map(|at: usize| ways[at].clone()));
    }
}
