//! Faults on request: the call or operation that fails, and the way it fails.

use transload_hal::{ErrorClass, Fault, MemoryId};

/// A method of [`Backend`](transload_hal::Backend).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(
    missing_docs,
    reason = "each is named for the method that it stands for"
)]
pub enum Call {
    Inventory,
    Allocate,
    Import,
    Export,
    Connect,
    Submit,
    Attach,
    Pump,
    Wait,
}

impl Call {
    /// All methods.
    pub const ALL: [Call; 9] = [
        Call::Inventory,
        Call::Allocate,
        Call::Import,
        Call::Export,
        Call::Connect,
        Call::Submit,
        Call::Attach,
        Call::Pump,
        Call::Wait,
    ];
}

/// A sort of operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OpKind {
    /// Contiguous copies.
    Copy,
    /// Pitched copies.
    Pitched,
    /// Copies of elements at strides.
    Strided,
    /// Transforms.
    Transform,
    /// Prefetch, advice, visibility.
    Hint,
}

/// One fault, and the match at which it strikes: by default the first one, once.
///
/// Calls and operations are counted from the moment that the rule is given to the sim.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) inject: Inject,
    nth: u64,
    times: u64,
    kind: Option<OpKind>,
    link: Option<(MemoryId, MemoryId)>,
    memory: Option<MemoryId>,
    seen: u64,
    fired: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Inject {
    Panic(Call),
    Refuse(Call, ErrorClass),
    OutOfMemory,
    Op(OpFault),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpFault {
    FailAfter { bytes: u64, class: ErrorClass },
    Delay { ns: u64 },
    Corrupt { at_byte: u64 },
    NeverAnswer,
    LoseDevice,
}

impl Rule {
    /// The call panics before it has done anything.
    pub fn panic_in(call: Call) -> Rule {
        Rule::new(Inject::Panic(call))
    }

    /// The call is refused with an error of that class, and does nothing. Only for calls that return errors: allocate,
    /// import, export, connect, submit.
    pub fn refuse(call: Call, class: ErrorClass) -> Rule {
        Rule::new(Inject::Refuse(call, class))
    }

    /// The allocation finds no room.
    pub fn out_of_memory() -> Rule {
        Rule::new(Inject::OutOfMemory)
    }

    /// The operation takes its full time, moves its first `bytes` bytes, and fails.
    pub fn fail_after(bytes: u64) -> Rule {
        let class = ErrorClass::Failed;
        Rule::new(Inject::Op(OpFault::FailAfter { bytes, class }))
    }

    /// The operation takes `ns` nanoseconds more.
    pub fn delay_ns(ns: u64) -> Rule {
        Rule::new(Inject::Op(OpFault::Delay { ns }))
    }

    /// The payload byte `at_byte` (modulo the length) of a copy arrives with all bits flipped, and
    /// the copy settles as done.
    pub fn corrupt(at_byte: u64) -> Rule {
        Rule::new(Inject::Op(OpFault::Corrupt { at_byte }))
    }

    /// The operation moves nothing and its fence never settles, unless its device is lost.
    pub fn never_answer() -> Rule {
        Rule::new(Inject::Op(OpFault::NeverAnswer))
    }

    /// At the end of the operation's time, a device is lost: the engine's device or, if that is a processor, the link's
    /// end that is not one. The operation moves no bytes.
    pub fn lose_device() -> Rule {
        Rule::new(Inject::Op(OpFault::LoseDevice))
    }

    /// The operation fails with that class instead of [`ErrorClass::Failed`]. Only after [`Rule::fail_after`].
    pub fn with_class(mut self, failed_as: ErrorClass) -> Rule {
        if let Inject::Op(OpFault::FailAfter { class, .. }) = &mut self.inject {
            *class = failed_as;
        }
        self
    }

    /// Strikes at the match number `nth`, counted from 1, instead of the first.
    pub fn nth(mut self, nth: u64) -> Rule {
        self.nth = nth.max(1);
        self
    }

    /// Strikes at that many matches in a row instead of one.
    pub fn times(mut self, times: u64) -> Rule {
        self.times = times;
        self
    }

    /// Strikes at every match from its first one on.
    pub fn always(self) -> Rule {
        self.times(u64::MAX)
    }

    /// Matches only operations of that sort.
    pub fn kind(mut self, kind: OpKind) -> Rule {
        self.kind = Some(kind);
        self
    }

    /// Matches only operations from `src` to `dst`.
    pub fn over(mut self, src: MemoryId, dst: MemoryId) -> Rule {
        self.link = Some((src, dst));
        self
    }

    /// Matches only allocations, imports and exports in that memory.
    pub fn in_memory(mut self, memory: MemoryId) -> Rule {
        self.memory = Some(memory);
        self
    }

    /// The number of times that the rule has struck.
    pub fn fired(&self) -> u64 {
        self.fired
    }

    fn new(inject: Inject) -> Rule {
        Rule {
            inject,
            nth: 1,
            times: 1,
            kind: None,
            link: None,
            memory: None,
            seen: 0,
            fired: 0,
        }
    }

    /// Counts a match. Returns true if the rule strikes at it.
    fn strikes(&mut self) -> bool {
        self.seen += 1;
        let first = self.nth;
        let strikes = self.seen >= first && self.seen - first < self.times;
        self.fired += u64::from(strikes);
        strikes
    }

    fn looks_at_ops(&self) -> bool {
        self.kind.is_some() || self.link.is_some()
    }
}

/// Rules in force together. If several strike at one operation, the first one in the script wins.
#[derive(Clone, Debug, Default)]
pub struct Script {
    rules: Vec<Rule>,
}

/// The fault of a call, in place of its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallFault {
    Panic,
    Refuse(ErrorClass),
    OutOfMemory,
}

impl Script {
    /// No faults.
    pub fn new() -> Script {
        Script::default()
    }

    /// The same script with one more rule.
    pub fn with(mut self, rule: Rule) -> Script {
        self.rules.push(rule);
        self
    }

    /// The rules with their counts.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(super) fn push(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// The fault of a call that is about to start.
    pub(super) fn at_call(&mut self, call: Call, memory: Option<MemoryId>) -> Option<CallFault> {
        let mut found = None;
        for rule in &mut self.rules {
            let fault = match rule.inject {
                Inject::Panic(at) if at == call => CallFault::Panic,
                Inject::Refuse(at, class) if at == call => CallFault::Refuse(class),
                Inject::OutOfMemory if call == Call::Allocate => CallFault::OutOfMemory,
                _ => continue,
            };
            if rule.looks_at_ops() || (rule.memory.is_some() && rule.memory != memory) {
                continue;
            }
            if rule.strikes() {
                found = found.or(Some(fault));
            }
        }
        found
    }

    /// The fault of one operation of a submission that is otherwise valid.
    pub(super) fn at_op(
        &mut self,
        kind: OpKind,
        link: Option<(MemoryId, MemoryId)>,
    ) -> Option<Strike> {
        let mut found = None;
        for rule in &mut self.rules {
            let strike = match rule.inject {
                Inject::Op(fault) => Strike::Op(fault),
                Inject::Panic(Call::Submit) if rule.looks_at_ops() => {
                    Strike::Call(CallFault::Panic)
                }
                Inject::Refuse(Call::Submit, class) if rule.looks_at_ops() => {
                    Strike::Call(CallFault::Refuse(class))
                }
                _ => continue,
            };
            let fits = rule.kind.is_none_or(|wanted| wanted == kind)
                && rule.link.is_none_or(|wanted| Some(wanted) == link);
            if fits && rule.strikes() {
                found = found.or(Some(strike));
            }
        }
        found
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strike {
    Call(CallFault),
    Op(OpFault),
}

/// A fault whose text names the script.
pub(super) fn scripted(class: ErrorClass) -> Fault {
    Fault::new(
        class,
        match class {
            ErrorClass::Caller => "simulated fault: a caller's mistake",
            ErrorClass::Unsupported => "simulated fault: a missing capability",
            ErrorClass::Exhausted => "simulated fault: out of resources",
            ErrorClass::Lost => "simulated fault: the device is gone",
            _ => "simulated fault: the operation failed",
        },
    )
}
