//! A case: the memory that it needs, its contenders, and its run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::contest::{self, Contender, Rules, reason, unfit};
use crate::document::{Contestant, Outcome};
use crate::engine::{Entry, Party, TRANSLOAD};
use crate::machine;
use crate::raw::gpu::Gpu;
use crate::rivals::{Rivals, Roll};

/// From this size on, a neighbour's leftovers in the caches do not matter, and an operation takes too long to do each
/// one twice.
const COLD_FROM: u64 = 64 << 20;

/// The state that the cases share.
pub(crate) struct Session {
    pub(crate) gpu: Arc<Gpu>,
    /// Another device, if there is one.
    pub(crate) other: Option<Arc<Gpu>>,
    pub(crate) quick: bool,
    /// The end of the run.
    pub(crate) end: Instant,
    /// The most time for the samples of one case, so that no case uses up the run.
    pub(crate) share: Duration,
    pub(crate) rivals: Option<Rc<RefCell<Rivals>>>,
    pub(crate) roll: Roll,
    /// Transload, or the reason why it takes no part.
    pub(crate) parties: Result<Vec<Party>, String>,
}

/// One measurement.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) group: &'static str,
    /// The bytes that one operation moves.
    pub(crate) bytes: u64,
    /// The requirements of the case.
    pub(crate) needs: Needs,
    pub(crate) make: Make,
}

/// Allocates the memory of a case, and adds the contestants.
pub(crate) type Make = Box<dyn Fn(&Session) -> Result<Field>>;

/// The bytes that a case holds at one time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Needs {
    pub(crate) host: u64,
    pub(crate) device: u64,
    /// The part of them that each rival library holds at both ends.
    pub(crate) rival: u64,
}

/// The contenders in a case.
#[derive(Default)]
pub(crate) struct Field {
    pub(crate) contenders: Vec<Box<dyn Contender>>,
    pub(crate) absent: BTreeMap<String, String>,
    pub(crate) facts: BTreeMap<String, String>,
    /// The reason why the case is skipped.
    pub(crate) skipped: Option<String>,
}

impl Field {
    /// Adds a contender, or keeps the reason for its absence.
    pub(crate) fn enter(&mut self, name: &str, made: Result<Box<dyn Contender>>) {
        match made {
            Ok(contender) => self.contenders.push(contender),
            Err(error) => {
                self.absent.insert(name.to_owned(), reason(&error));
            }
        }
    }

    /// Adds Transload, or keeps the reason for its absence.
    pub(crate) fn transload(&mut self, session: &Session, make: impl Fn(&Party) -> Result<Entry>) {
        let parties = match &session.parties {
            Ok(parties) => parties,
            Err(why) => return drop(self.absent.insert(TRANSLOAD.into(), why.clone())),
        };
        for party in parties {
            let made = make(party).map(|Entry { contender, way }| {
                self.facts.insert(party.name.to_owned(), way);
                contender
            });
            self.enter(party.name, made);
        }
    }
}

impl Case {
    /// Runs the case if it fits into the remaining time and memory.
    pub(crate) fn run(&self, session: &Session) -> Outcome {
        let mut outcome = Outcome {
            case: self.name.clone(),
            group: self.group,
            bytes: self.bytes,
            ..Outcome::default()
        };
        match self.unfit(session) {
            Ok(None) => {
                if let Err(error) = self.fill(session, &mut outcome) {
                    outcome.failed = Some(reason(&error));
                }
            }
            Ok(skipped) => outcome.skipped = skipped,
            Err(error) => outcome.failed = Some(reason(&error)),
        }
        outcome
    }

    fn fill(&self, session: &Session, outcome: &mut Outcome) -> Result<()> {
        let field = (self.make)(session)?;
        outcome.absent = field.absent;
        outcome.facts = field.facts;
        if field.skipped.is_some() {
            outcome.skipped = field.skipped;
            return Ok(());
        }
        let (mut running, mut places) = (Vec::new(), Vec::new());
        for mut contender in field.contenders {
            let name = contender.name().to_owned();
            let verified = contender.verify();
            // If a contender moves wrong bytes, its time does not matter.
            if matches!(verified, Ok(true)) {
                places.push(outcome.contestants.len());
                running.push(contender);
            }
            outcome.contestants.push(Contestant::new(&name, verified));
        }
        let contest = contest::run(&mut running, self.rules(session))?;
        let scores = contest.series.into_iter().zip(contest.turns);
        for (place, (series, turns)) in places.into_iter().zip(scores) {
            outcome.contestants[place].scored(series, turns, self.bytes);
        }
        outcome.skipped = contest.cut;
        Ok(())
    }

    fn rules(&self, session: &Session) -> Rules {
        let few = session.quick || self.bytes >= COLD_FROM;
        Rules {
            rounds: if few { 15 } else { 25 },
            sample: Duration::from_micros(if session.quick { 100 } else { 2000 }),
            warm: self.bytes < COLD_FROM,
            end: session.end.min(Instant::now() + session.share),
        }
    }

    /// The reason why the case cannot run.
    fn unfit(&self, session: &Session) -> Result<Option<String>> {
        let others = session.roll.present.len() as u64 * self.needs.rival;
        // The host allocates, fills, pins and checks a byte within about one nanosecond.
        let preparing = PREPARING + Duration::from_nanos(self.needs.host + others);
        if let Some(reason) = unfit(preparing, session.end) {
            return Ok(Some(reason));
        }
        let host = (self.needs.host + others, machine::available_bytes());
        let device = (self.needs.device + others, Some(session.gpu.free_bytes()?));
        let ends = [("host", host), ("device", device)];
        Ok(ends.into_iter().find_map(|(end, (needs, free))| {
            // Leaves a tenth to other users of the device, and to the rounding of allocators.
            let room = free.unwrap_or(u64::MAX) / 10 * 9;
            (needs > room).then(|| {
                let mib = |bytes| bytes >> 20;
                format!(
                    "it needs {} MiB of the {end}, which has {} MiB to spare",
                    mib(needs),
                    mib(room)
                )
            })
        }))
    }
}

/// The time of the smallest case before and after its samples.
const PREPARING: Duration = Duration::from_millis(100);

/// A size such as `64KiB`.
pub(crate) fn size(len: usize) -> String {
    match len {
        len if len >= 1 << 30 => format!("{}GiB", len >> 30),
        len if len >= 1 << 20 => format!("{}MiB", len >> 20),
        len => format!("{}KiB", len >> 10),
    }
}
