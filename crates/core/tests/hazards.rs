//! Hazards, compared with a model of plain sets of bytes.

use proptest::prelude::*;
use transload_core::{Footprint, Hazards, Name, Shape, StorageId, Ticket};

/// Bytes in each of the model's storages.
const STORAGE_BYTES: usize = 96;

const STORAGES: [StorageId; 3] = [
    StorageId::Host,
    StorageId::File {
        device: 3,
        inode: 11,
    },
    StorageId::Native {
        backend: Name::constant("sim"),
        handle: 1,
    },
];

/// Positions start here, so that a wrong base shows.
const BASE: u64 = 0x7f00_0000_1000;

/// One part of a transfer, in the model's terms.
#[derive(Clone, Debug)]
struct Part {
    storage: usize,
    position: u64,
    shape: Shape,
    writes: bool,
}

impl Part {
    fn footprint(&self) -> Footprint {
        let storage = STORAGES[self.storage];
        Footprint::new(storage, BASE + self.position, self.shape, self.writes).unwrap()
    }

    /// The bytes it touches, as positions in all storages laid end to end.
    fn bytes(&self) -> Vec<usize> {
        let mut bytes = Vec::new();
        for plane in 0..self.shape.planes() {
            for row in 0..self.shape.rows() {
                for column in 0..self.shape.width_bytes() {
                    let offset =
                        plane * self.shape.plane_pitch() + row * self.shape.row_pitch() + column;
                    bytes.push(self.storage * STORAGE_BYTES + (self.position + offset) as usize);
                }
            }
        }
        bytes
    }
}

/// A transfer of the model: which bytes it reads and writes, as masks.
#[derive(Clone, Debug)]
struct Work {
    parts: Vec<Part>,
    reads: Vec<usize>,
    writes: Vec<usize>,
}

impl Work {
    fn new(parts: Vec<Part>) -> Work {
        let bytes = |writes: bool| {
            let parts = parts.iter().filter(|part| part.writes == writes);
            parts.flat_map(Part::bytes).collect()
        };
        Work {
            reads: bytes(false),
            writes: bytes(true),
            parts,
        }
    }

    fn footprints(&self) -> Vec<Footprint> {
        self.parts.iter().map(Part::footprint).collect()
    }

    fn conflicts_with(&self, other: &Work) -> bool {
        let meet = |a: &[usize], b: &[usize]| a.iter().any(|byte| b.contains(byte));
        meet(&self.writes, &other.writes)
            || meet(&self.writes, &other.reads)
            || meet(&self.reads, &other.writes)
    }

    /// Its result from the bytes that it reads: a number that depends on each of them.
    fn read(&self, memory: &[u64]) -> u64 {
        self.reads.iter().fold(17, |sum, &byte| {
            (sum ^ memory[byte]).wrapping_mul(0x100_0000_01b3)
        })
    }

    fn write(&self, memory: &mut [u64], name: usize, read: u64) {
        for (i, &byte) in self.writes.iter().enumerate() {
            memory[byte] = read ^ ((name as u64 + 1) << 32) ^ i as u64;
        }
    }
}

fn fresh_memory() -> Vec<u64> {
    (0..STORAGES.len() * STORAGE_BYTES)
        .map(|i| i as u64)
        .collect()
}

fn shapes() -> impl Strategy<Value = Shape> {
    let pitched = (0u64..5, 1u64..4, 0u64..6, 1u64..3, 0u64..6).prop_map(|(w, r, gap, p, pgap)| {
        let plane = (r - 1) * (w + gap) + w;
        Shape::pitched_3d(w, r, w + gap, p, plane + pgap).unwrap()
    });
    prop_oneof![(0u64..24).prop_map(Shape::contiguous), pitched]
}

fn parts() -> impl Strategy<Value = Part> {
    (0..STORAGES.len(), 0u64..40, shapes(), any::<bool>()).prop_map(
        |(storage, position, shape, writes)| Part {
            storage,
            position,
            shape,
            writes,
        },
    )
}

fn works(most: usize) -> impl Strategy<Value = Vec<Work>> {
    let work = proptest::collection::vec(parts(), 0..4).prop_map(Work::new);
    proptest::collection::vec(work, 1..=most)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Entered; waits or may start.
    Entered,
    /// Has read its bytes, with this result; has written none.
    Started(u64),
    /// Has written its bytes and left.
    Finished,
    /// Left before it started.
    Cancelled,
}

/// Transfers in execution, in the real hazards and in the model.
#[derive(Clone)]
struct Execution<'a> {
    works: &'a [Work],
    tickets: Vec<Ticket>,
    states: Vec<State>,
    /// Whether the hazards hold the transfer back.
    waits: Vec<bool>,
    hazards: Hazards,
    memory: Vec<u64>,
}

impl<'a> Execution<'a> {
    fn new(works: &'a [Work]) -> Execution<'a> {
        Execution {
            works,
            tickets: Vec::new(),
            states: Vec::new(),
            waits: Vec::new(),
            hazards: Hazards::new(),
            memory: fresh_memory(),
        }
    }

    fn enter(&mut self) {
        let name = self.tickets.len();
        let footprints = self.works[name].footprints();
        let blocked = self.hazards.conflicts(&footprints);
        let entered = self.hazards.enter(&footprints);
        self.tickets.push(entered.ticket);
        self.states.push(State::Entered);
        self.waits.push(entered.waits);
        assert_eq!(entered.waits, !self.predecessors(name).is_empty());
        assert_eq!(blocked, entered.waits);
    }

    /// The names of the live transfers that `name` must wait for, by the sets of bytes.
    fn predecessors(&self, name: usize) -> Vec<usize> {
        (0..name)
            .filter(|&earlier| {
                matches!(self.states[earlier], State::Entered | State::Started(_))
                    && self.works[earlier].conflicts_with(&self.works[name])
            })
            .collect()
    }

    fn may_start(&self, name: usize) -> bool {
        self.states[name] == State::Entered && !self.waits[name]
    }

    fn start(&mut self, name: usize) {
        self.states[name] = State::Started(self.works[name].read(&self.memory));
    }

    fn finish(&mut self, name: usize) {
        let State::Started(read) = self.states[name] else {
            panic!("{name} has not started");
        };
        self.works[name].write(&mut self.memory, name, read);
        self.leave(name, State::Finished);
    }

    fn cancel(&mut self, name: usize) {
        self.leave(name, State::Cancelled);
    }

    fn leave(&mut self, name: usize, state: State) {
        assert!(self.hazards.leave(self.tickets[name]));
        assert!(!self.hazards.leave(self.tickets[name]));
        self.states[name] = state;
    }

    /// Has the hazards look at one ticket behind one that has left.
    fn poll(&mut self) {
        if let Some(ticket) = self.hazards.poll_freed(&mut 1) {
            let name = self.name_of(ticket);
            assert!(self.waits[name], "{name} is freed twice");
            self.waits[name] = false;
        }
    }

    fn name_of(&self, ticket: Ticket) -> usize {
        self.tickets.iter().position(|t| *t == ticket).unwrap()
    }

    fn check(&mut self) {
        let live = self
            .states
            .iter()
            .filter(|state| matches!(state, State::Entered | State::Started(_)))
            .count();
        assert_eq!(self.hazards.len(), live);
        for name in 0..self.tickets.len() {
            let ticket = self.tickets[name];
            if !matches!(self.states[name], State::Entered | State::Started(_)) {
                assert_eq!(self.hazards.waits(ticket), None);
                continue;
            }
            let expected = self.predecessors(name);
            assert_eq!(self.hazards.waits(ticket), Some(self.waits[name]));
            assert!(self.waits[name] || expected.is_empty(), "{name} overtakes");
            if !self.hazards.has_left() {
                assert_eq!(self.waits[name], !expected.is_empty());
            }
            let blockers = self.hazards.blockers(ticket).to_vec();
            let blockers: Vec<usize> = blockers.into_iter().map(|t| self.name_of(t)).collect();
            assert_eq!(blockers, expected);
        }
    }

    /// The final bytes when the transfers that were not cancelled run one after the other in the order of submission.
    fn serial(&self) -> Vec<u64> {
        let mut memory = fresh_memory();
        for (name, state) in self.states.iter().enumerate() {
            if *state == State::Finished {
                let read = self.works[name].read(&memory);
                self.works[name].write(&mut memory, name, read);
            }
        }
        memory
    }

    /// Every step that the rules allow now. The model never cancels a transfer in execution: hazards do not track the
    /// bytes that such a transfer leaves.
    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        if self.tickets.len() < self.works.len() {
            choices.push(Choice::Enter);
        }
        if self.hazards.has_left() {
            choices.push(Choice::Poll);
        }
        for name in 0..self.tickets.len() {
            match self.states[name] {
                State::Entered => {
                    if self.may_start(name) {
                        choices.push(Choice::Start(name));
                    }
                    choices.push(Choice::Cancel(name));
                }
                State::Started(_) => choices.push(Choice::Finish(name)),
                State::Finished | State::Cancelled => {}
            }
        }
        choices
    }

    fn take(&mut self, choice: Choice) {
        match choice {
            Choice::Enter => self.enter(),
            Choice::Poll => self.poll(),
            Choice::Start(name) => self.start(name),
            Choice::Finish(name) => self.finish(name),
            Choice::Cancel(name) => self.cancel(name),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    Enter,
    Poll,
    Start(usize),
    Finish(usize),
    Cancel(usize),
}

/// Takes steps as `choices` say, one in `cancels` of which may cancel a transfer, and then all that are left.
fn run(works: &[Work], choices: Vec<(prop::sample::Index, u8)>, cancels: u8) {
    let mut execution = Execution::new(works);
    for (index, dice) in choices {
        let mut allowed = execution.choices();
        if dice % cancels > 0 {
            allowed.retain(|choice| !matches!(choice, Choice::Cancel(_)));
        }
        if allowed.is_empty() {
            break;
        }
        execution.take(*index.get(&allowed));
        execution.check();
    }
    while let Some(choice) = execution
        .choices()
        .into_iter()
        .find(|choice| !matches!(choice, Choice::Cancel(_)))
    {
        execution.take(choice);
    }
    execution.check();
    assert!(execution.hazards.is_empty(), "a transfer waits for ever");
    assert_eq!(execution.memory, execution.serial());
}

fn steps() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    proptest::collection::vec((any::<prop::sample::Index>(), 0u8..8), 200)
}

/// Transfers of a few ranges of one storage, so that most of them wait for many.
fn chains() -> impl Strategy<Value = Vec<Work>> {
    let part = (0u64..3, 1u64..4, any::<bool>()).prop_map(|(at, len, writes)| Part {
        storage: 0,
        position: at * 8,
        shape: Shape::contiguous(len * 8),
        writes,
    });
    let work = proptest::collection::vec(part, 1..3).prop_map(Work::new);
    proptest::collection::vec(work, 1..=32)
}

proptest! {
    #[test]
    fn any_allowed_order_leaves_the_bytes_of_the_order_of_submission(
        works in works(24),
        steps in steps(),
    ) {
        run(&works, steps, 8);
    }

    #[test]
    fn a_chain_keeps_its_order_whatever_of_it_is_cancelled(
        works in chains(),
        steps in steps(),
        cancels in 1u8..8,
    ) {
        run(&works, steps, cancels);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_allowed_order_of_three_leaves_the_bytes_of_the_order_of_submission(works in works(3)) {
        let mut open = vec![Execution::new(&works)];
        let mut ends = 0;
        while let Some(execution) = open.pop() {
            let choices = execution.choices();
            if choices.is_empty() {
                prop_assert!(execution.hazards.is_empty(), "a transfer waits for ever");
                prop_assert_eq!(&execution.memory, &execution.serial());
                ends += 1;
            }
            for choice in choices {
                let mut next = execution.clone();
                next.take(choice);
                open.push(next);
            }
        }
        prop_assert!(ends > 0);
    }
}
