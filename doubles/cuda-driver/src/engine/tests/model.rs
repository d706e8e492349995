//! The engine against a naive model: one list of ready work, looked through from the front.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Job {
    /// The earlier works that it comes after, counted back from itself.
    after: Vec<usize>,
    /// The channels, as bits.
    channels: u8,
    duration_ns: u64,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Move,
    Never,
    Gate,
}

#[derive(Clone, Debug)]
enum Op {
    Submit(Job),
    Advance(u64),
    OpenGate,
}

const CHANNELS: usize = 3;

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Waiting,
    Queued,
    Running { end_ns: u64 },
    AtGate,
    Stuck,
    Done { at_ns: u64 },
}

#[derive(Default)]
struct Model {
    now_ns: u64,
    gate_open: bool,
    jobs: Vec<(Job, Stage)>,
    /// Ready work that has not ended, in the order of readiness.
    line: Vec<usize>,
    moved: Vec<u64>,
}

impl Model {
    fn done(&self, index: usize) -> bool {
        matches!(self.jobs[index].1, Stage::Done { .. })
    }

    /// Queues the jobs that are ready, and starts each job whose channels no earlier job in the
    /// line holds or wants.
    fn settle(&mut self) {
        for index in 0..self.jobs.len() {
            let (job, stage) = &self.jobs[index];
            let ready = job.after.iter().all(|&before| self.done(before));
            if *stage == Stage::Waiting && ready {
                self.jobs[index].1 = Stage::Queued;
                self.line.push(index);
            }
        }
        let mut taken = 0;
        for &index in &self.line {
            let (job, stage) = &mut self.jobs[index];
            if *stage == Stage::Queued && job.channels & taken == 0 {
                *stage = Stage::Running {
                    end_ns: self.now_ns + job.duration_ns,
                };
            }
            taken |= job.channels;
        }
    }

    fn next_end(&self) -> Option<u64> {
        let ends = self.jobs.iter().filter_map(|(_, stage)| match stage {
            Stage::Running { end_ns } => Some(*end_ns),
            _ => None,
        });
        ends.min()
    }

    fn round(&mut self) {
        let now = Stage::Running {
            end_ns: self.now_ns,
        };
        let due: Vec<usize> = (0..self.jobs.len())
            .filter(|&index| self.jobs[index].1 == now)
            .collect();
        self.line.retain(|index| !due.contains(index));
        for index in due {
            let (job, stage) = &mut self.jobs[index];
            *stage = match job.end {
                End::Never => Stage::Stuck,
                End::Gate if !self.gate_open => Stage::AtGate,
                End::Gate => Stage::Done { at_ns: self.now_ns },
                End::Move => {
                    self.moved.push(index as u64);
                    Stage::Done { at_ns: self.now_ns }
                }
            };
        }
        self.settle();
    }

    fn advance(&mut self, ns: u64) {
        let target = self.now_ns + ns;
        while let Some(end_ns) = self.next_end().filter(|&end| end <= target) {
            self.now_ns = end_ns;
            self.round();
        }
        self.now_ns = target;
    }

    fn open_gate(&mut self) {
        self.gate_open = true;
        for (_, stage) in &mut self.jobs {
            if *stage == Stage::AtGate {
                *stage = Stage::Done { at_ns: self.now_ns };
            }
        }
        self.settle();
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let end = prop_oneof![
        8 => Just(End::Move),
        1 => Just(End::Never),
        2 => Just(End::Gate),
    ];
    // Few different durations, so that ends coincide.
    let duration = prop_oneof![Just(0u64), Just(1), Just(2), Just(5)];
    let after = proptest::collection::vec(1..6usize, 0..3);
    let job = (after, 0..1u8 << CHANNELS, duration, end).prop_map(
        |(after, channels, duration_ns, end)| {
            Op::Submit(Job {
                after,
                channels,
                duration_ns,
                end,
            })
        },
    );
    let op = prop_oneof![
        12 => job,
        4 => (0..8u64).prop_map(Op::Advance),
        1 => Just(Op::OpenGate),
    ];
    proptest::collection::vec(op, 0..60)
}

fn same(ops: Vec<Op>) {
    let engine = Engine::new(Clock::Virtual);
    let channels: Vec<ChannelId> = (0..CHANNELS)
        .map(|index| engine.channel(format!("{index}")))
        .collect();
    let gate = engine.gate();
    let log = Log::default();
    let mut tickets: Vec<Ticket> = Vec::new();
    let mut model = Model::default();
    for op in ops.into_iter().chain([Op::Advance(1_000)]) {
        match op {
            Op::Submit(mut job) => {
                let index = tickets.len();
                job.after.retain(|&back| back <= index);
                for back in &mut job.after {
                    *back = index - *back;
                }
                let held = (0..CHANNELS).filter(|bit| job.channels >> bit & 1 == 1);
                tickets.push(engine.submit(Work {
                    after: job.after.iter().map(|&at| tickets[at].clone()).collect(),
                    channels: held.map(|bit| channels[bit]).collect(),
                    duration_ns: job.duration_ns,
                    action: match job.end {
                        End::Move => Action::Move(log.note(index as u64)),
                        End::Never => Action::Never,
                        End::Gate => Action::Until(gate.bar()),
                    },
                }));
                model.jobs.push((job, Stage::Waiting));
                model.settle();
            }
            Op::Advance(ns) => {
                engine.advance(ns);
                model.advance(ns);
            }
            Op::OpenGate => {
                gate.open();
                model.open_gate();
            }
        }
        assert_eq!(engine.now_ns(), model.now_ns);
        for (index, (ticket, (_, stage))) in tickets.iter().zip(&model.jobs).enumerate() {
            let expected = match *stage {
                Stage::Done { at_ns } => Some(at_ns),
                _ => None,
            };
            assert_eq!(ticket.done_at_ns(), expected, "work {index}");
        }
        assert_eq!(log.names(), model.moved);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_goes_as_in_the_naive_model(ops in ops()) {
        same(ops);
    }
}
