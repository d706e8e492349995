//! `nodes/*`: memory of other machines, which are processes of this program here, over the loopback.
//!
//! | cases | question |
//! |---|---|
//! | `rate-*` | how fast copies of one size go to a node, as many of them at once as fill a turn |
//! | `latency-*` | how long one copy to a node takes that is waited for |
//! | `broadcast-*` | how fast one source reaches several nodes |
//!
//! This process has one half of the processors, and those that stand for other machines the other half: two machines share
//! none.
//!
//! The baselines of the first two are a plain stream of rustls with the same cipher ([`plain`]), with one thread at each
//! end, and the same with larger reads; beside them copies over UCX, where it is installed; that of the last is a copy to each node at once.

mod halves;
mod node;
pub(crate) mod plain;

pub(crate) use node::serve;

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use transload::{AllocSpec, Buffer, Method, OnFailure, Request, TransferManager};

use crate::case::{Case, Effort, Outcome, Verdict};
use crate::contest::{self, Contender, POISON, Random, Rules};
use crate::series::Series;
use crate::way::Way;
use node::Node;
use plain::{Answer, Plain};

const RATES: [(&str, usize); 4] = [
    ("64KiB", 64 << 10),
    ("1MiB", 1 << 20),
    ("16MiB", 16 << 20),
    ("256MiB", 256 << 20),
];
const QUICK_RATES: usize = 3;
/// A turn has at most so many copies and bytes, so that its answer and the wait for the last one do not count.
const MOST_AT_ONCE: usize = 64;
const TURN_BYTES: usize = 64 << 20;
/// The share of the plain stream's rate that Transload must reach.
const SHARE: f64 = 0.9;

const LATENCIES: [(&str, usize); 2] = [("8B", 8), ("4KiB", 4 << 10)];

const NODES: [usize; 3] = [1, 2, 4];
const BROADCAST_BYTES: usize = 64 << 20;
const QUICK_PART: usize = 4;

const PLAIN: &str = "plain";
const AGAIN: &str = "plain, again";

pub(crate) fn cases(effort: Effort) -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes = if effort.quick {
        &RATES[..QUICK_RATES]
    } else {
        &RATES
    };
    for &(word, len) in sizes {
        let name = format!("nodes/rate-{word}");
        let of = name.clone();
        cases.push(Case::new(name, move |effort| {
            halves::on_the_first(|| rate(&of, len, effort))
        }));
    }
    for (word, len) in LATENCIES {
        let name = format!("nodes/latency-{word}");
        let of = name.clone();
        cases.push(Case::new(name, move |effort| {
            halves::on_the_first(|| latency(&of, len, effort))
        }));
    }
    for nodes in NODES {
        let name = format!("nodes/broadcast-{nodes}");
        let of = name.clone();
        cases.push(Case::new(name, move |effort| {
            halves::on_the_first(|| broadcast(&of, nodes, effort))
        }));
    }
    cases
}

fn rate(name: &str, len: usize, effort: Effort) -> Result<Outcome> {
    let count = (TURN_BYTES / len).clamp(1, MOST_AT_ONCE);
    let bytes = random(len * count);
    let ends = Ends::new(&bytes, 1, false)?;
    let mut contenders = vec![ends.copies("transload", &bytes, count)?];
    for (name, reads) in [
        (PLAIN, plain::READS),
        (AGAIN, plain::READS),
        ("plain, larger reads", plain::LARGE_READS),
    ] {
        contenders.push(Plain::way(name, &bytes, Answer::Byte, reads)?);
    }
    let trusting = Ends::new(&bytes, 1, true)?;
    if trusting.has_ucx()? {
        contenders.push(trusting.copies("transload over UCX", &bytes, count)?);
    }
    let (mut outcome, series) = run(name, &ends, &mut contenders, effort)?;
    let share = series[1].median() / series[0].median();
    let verdict = Verdict::at_least("of the plain stream's rate", share, SHARE, "");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

fn latency(name: &str, len: usize, effort: Effort) -> Result<Outcome> {
    let bytes = random(len);
    let ends = Ends::new(&bytes, 1, false)?;
    let (manager, src, dst) = (ends.manager.clone(), ends.src.clone(), ends.dst[0].clone());
    let turn = move || {
        manager.copy(&src, &dst).wait()?;
        Ok(())
    };
    let mut contenders = vec![ends.way("transload", &bytes, turn)];
    for (name, answer) in [
        (PLAIN, Answer::Same),
        (AGAIN, Answer::Same),
        ("plain, answered by 1 B", Answer::Byte),
    ] {
        contenders.push(Plain::way(name, &bytes, answer, plain::READS)?);
    }
    run(name, &ends, &mut contenders, effort).map(|(outcome, _)| outcome)
}

fn broadcast(name: &str, nodes: usize, effort: Effort) -> Result<Outcome> {
    let part = if effort.quick { QUICK_PART } else { 1 };
    let bytes = random(BROADCAST_BYTES / part);
    let ends = Ends::new(&bytes, nodes, false)?;
    let requests: Vec<Request> = { ends.dst.iter() }
        .map(|dst| Request::new(&ends.src, dst))
        .collect();
    let (manager, all) = (ends.manager.clone(), requests.clone());
    let mut contenders = vec![ends.way("transload", &bytes, move || {
        let results = manager.broadcast(&all)?.wait();
        results.into_iter().try_for_each(|one| one.map(drop))?;
        Ok(())
    })];
    for name in ["copies", "copies, again"] {
        let (manager, all) = (ends.manager.clone(), requests.clone());
        contenders.push(ends.way(name, &bytes, move || {
            let results = manager.copy_batch(&all, OnFailure::GoOn)?.wait();
            results.into_iter().try_for_each(|one| one.map(drop))?;
            Ok(())
        }));
    }
    run(name, &ends, &mut contenders, effort).map(|(outcome, _)| outcome)
}

fn random(len: usize) -> Rc<[u8]> {
    let mut bytes = vec![0; len];
    Random(len as u64).fill(&mut bytes);
    bytes.into()
}

/// A source here and a destination at each of some nodes.
struct Ends {
    manager: TransferManager,
    src: Buffer,
    dst: Vec<Buffer>,
    _nodes: Vec<Node>,
}

impl Ends {
    fn new(bytes: &Rc<[u8]>, nodes: usize, trusts: bool) -> Result<Ends> {
        let manager = TransferManager::builder().host().build()?;
        let src = manager.adopt(bytes.to_vec())?;
        let nodes = Node::connected(&manager, nodes, trusts)?;
        let spec = AllocSpec::bytes(bytes.len() as u64);
        let dst = { nodes.iter() }
            .map(|node| Ok(manager.allocate(node.place, spec)?))
            .collect::<Result<_>>()?;
        Ok(Ends {
            manager,
            src,
            dst,
            _nodes: nodes,
        })
    }

    /// Returns whether UCX carries copies to the first node.
    fn has_ucx(&self) -> Result<bool> {
        let (src, dst) = (self.src.memory().into(), self.dst[0].memory().into());
        let explained = self.manager.explain_places(src, dst, 256 << 20)?;
        Ok(explained.chosen.method == Method::PeerToPeer)
    }

    /// Copies `count` parts at once to the first node.
    fn copies(&self, name: &str, bytes: &Rc<[u8]>, count: usize) -> Result<Box<dyn Contender>> {
        let len = bytes.len() / count;
        let part = |of: &Buffer, at: usize| of.slice((at * len) as u64..((at + 1) * len) as u64);
        let request = |at| Ok(Request::new(part(&self.src, at)?, part(&self.dst[0], at)?));
        let requests: Vec<Request> = (0..count).map(request).collect::<Result<_>>()?;
        let manager = self.manager.clone();
        let turn = move || {
            // Not a batch, which is known as a whole: the stream does not know either what comes.
            let all: Vec<_> = { requests.iter() }
                .map(|request| manager.submit(request))
                .collect();
            all.into_iter().try_for_each(|one| one.wait().map(drop))?;
            Ok(())
        };
        Ok(self.way(name, bytes, turn))
    }

    fn way(
        &self,
        name: &str,
        bytes: &Rc<[u8]>,
        turn: impl FnMut() -> Result<()> + 'static,
    ) -> Box<dyn Contender> {
        let (own, spoilt) = (self.manager.clone(), self.dst.clone());
        let poison = move || {
            for dst in &spoilt {
                own.copy_from_slice(&vec![POISON; dst.len() as usize], dst)?;
            }
            Ok(())
        };
        let (manager, dst, bytes) = (self.manager.clone(), self.dst.clone(), Rc::clone(bytes));
        Way::boxed(name, turn, poison, move || {
            for dst in &dst {
                if manager.read_to_vec(dst)? != *bytes {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

/// Runs contenders, of which the second and the third are the same.
fn run(
    name: &str,
    ends: &Ends,
    contenders: &mut [Box<dyn Contender>],
    effort: Effort,
) -> Result<(Outcome, Vec<Series>)> {
    let rules = Rules {
        rounds: effort.rounds,
        // Where the threads of the two ends run changes from one moment to the next.
        sample: Duration::from_millis(10),
        warm: true,
    };
    let series = contest::run(contenders, rules)?;
    let mut outcome = Outcome::new(name, &series[0]);
    outcome.src = Some(ends.src.memory().to_string());
    let first = ends.dst.first().context("there is a node")?;
    outcome.dst = Some(first.memory().to_string());
    outcome.bytes = ends.src.len();
    outcome.verified = true;
    for contender in &mut *contenders {
        outcome.verified &= contender.verify()?;
    }
    let others = contenders.iter().zip(&series).skip(1);
    outcome.baselines = others
        .map(|(other, series)| (other.name().to_owned(), series.median()))
        .collect();
    outcome.noise = series[1].difference(&series[2]);
    Ok((outcome, series))
}
