//! PyTorch and CuPy, in a process of their own that answers over a pipe, so that they take turns with the other
//! contenders. That process may hang on the GPU, so every answer has a time limit.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::contest::{Contender, reason};

/// The script of the other process.
const SCRIPT: &str = include_str!("rivals.py");
/// Names the interpreter; `python3` otherwise. The name is that of the other benchmarks.
const INTERPRETER: &str = "TRANSLOAD_BENCH_PYTHON";
/// The limit for loading both libraries from a cold disk.
const START: Duration = Duration::from_secs(90);
/// The limit for one sample, including the allocation of 4 GiB. After a longer one the run goes on without them.
const ANSWER: Duration = Duration::from_secs(60);

/// The libraries that are present, and for the others the reasons.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Roll {
    pub(crate) present: BTreeMap<String, String>,
    pub(crate) absent: BTreeMap<String, String>,
}

/// The other process.
pub(crate) struct Rivals {
    child: Child,
    to: ChildStdin,
    lines: Receiver<String>,
    end: Instant,
}

/// One way of one of the libraries.
struct Rival {
    name: String,
    way: usize,
    prepared: Rc<Prepared>,
}

/// The memory of a case, in the other process.
struct Prepared(Rc<RefCell<Rivals>>);

impl Rivals {
    /// Starts the process, unless both libraries are absent. All answers must come before `end`.
    pub(crate) fn start(device: i32, end: Instant) -> (Option<Rc<RefCell<Rivals>>>, Roll) {
        match Rivals::try_start(device, end) {
            Ok((rivals, roll)) if !roll.present.is_empty() => {
                (Some(Rc::new(RefCell::new(rivals))), roll)
            }
            Ok((_, roll)) => (None, roll),
            Err(error) => (None, neither(&reason(&error))),
        }
    }

    fn try_start(device: i32, end: Instant) -> Result<(Rivals, Roll)> {
        let interpreter = std::env::var(INTERPRETER).unwrap_or_else(|_| "python3".into());
        let mut child = Command::new(&interpreter)
            .args(["-c", SCRIPT, &format!("cuda:{device}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {interpreter}"))?;
        let to = child.stdin.take().context("the child has an input")?;
        let from = child.stdout.take().context("the child has an output")?;
        let (tell, lines) = channel();
        // The thread ends with the child, which `drop` kills.
        thread::spawn(move || {
            let lines = BufReader::new(from).lines();
            lines
                .map_while(Result::ok)
                .try_for_each(|line| tell.send(line))
        });
        let mut rivals = Rivals {
            child,
            to,
            lines,
            end,
        };
        let roll = serde_json::from_str(&rivals.line(START)?)?;
        Ok((rivals, roll))
    }

    fn ask(&mut self, question: &str) -> Result<String> {
        writeln!(self.to, "{question}")?;
        self.to.flush()?;
        let answer = self.line(ANSWER)?;
        match answer.strip_prefix("error ") {
            Some(reason) => bail!("{question}: {reason}"),
            None => Ok(answer),
        }
    }

    fn line(&mut self, limit: Duration) -> Result<String> {
        let left = self.end.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left.min(limit)) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                // The process might still answer, and that would be taken for the answer to the next question. It may
                // also have ended meanwhile.
                let _ = self.child.kill();
                bail!("the interpreter did not answer in time");
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the interpreter ended"),
        }
    }
}

impl Drop for Rivals {
    fn drop(&mut self) {
        // It may have ended already, and then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both libraries, absent for one reason.
pub(crate) fn neither(reason: &str) -> Roll {
    Roll {
        present: BTreeMap::new(),
        absent: ["torch", "cupy"]
            .map(|name| (name.to_owned(), reason.to_owned()))
            .into(),
    }
}

/// All ways of copying `what` bytes in a direction, `up` or `down`, or of a `load` of the file at the path `what`.
pub(crate) fn contenders(
    rivals: &Rc<RefCell<Rivals>>,
    direction: &str,
    what: impl Display,
) -> Result<Vec<Box<dyn Contender>>> {
    // Released even if only one of the libraries found memory.
    let prepared = Rc::new(Prepared(Rc::clone(rivals)));
    let answer = rivals
        .borrow_mut()
        .ask(&format!("prepare {direction} {what}"))?;
    let names: Vec<String> = serde_json::from_str(&answer)?;
    let ways = names.into_iter().enumerate().map(|(way, name)| {
        let prepared = Rc::clone(&prepared);
        Box::new(Rival {
            name,
            way,
            prepared,
        }) as Box<dyn Contender>
    });
    Ok(ways.collect())
}

impl Rival {
    fn ask(&self, question: &str) -> Result<String> {
        self.prepared.0.borrow_mut().ask(question)
    }
}

impl Contender for Rival {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let ns = self.ask(&format!("time {} {turns}", self.way))?.parse()?;
        Ok(Duration::from_nanos(ns))
    }

    fn verify(&mut self) -> Result<bool> {
        Ok(self.ask(&format!("verify {}", self.way))? == "equal")
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // A process that does not answer any more cannot free anything.
        let _ = self.0.borrow_mut().ask("release");
    }
}
