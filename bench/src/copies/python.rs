//! NumPy and PyTorch, in a process of their own that answers over a pipe, so that they take turns
//! with the other contenders.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::contest::Contender;

/// The script of the other process.
const DRIVER: &str = include_str!("driver.py");
/// Names the interpreter; `python3` otherwise.
const INTERPRETER: &str = "TRANSLOAD_BENCH_PYTHON";
/// Makes PyTorch's threads park as soon as a copy is over, by the variables of GNU's, LLVM's and Intel's OpenMP:
/// threads that go on spinning would slow down the next contender.
const PASSIVE: [(&str, &str); 2] = [("OMP_WAIT_POLICY", "passive"), ("KMP_BLOCKTIME", "0")];

/// The other process.
pub(crate) struct Python {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// One library in that process.
pub(crate) struct Library {
    python: Rc<RefCell<Python>>,
    name: String,
}

/// The script's first message.
#[derive(Deserialize)]
struct Hello {
    present: BTreeMap<String, String>,
    absent: BTreeMap<String, String>,
}

impl Python {
    /// Starts the process with buffers of `len` bytes. Returns the libraries that are present, and for the others the
    /// reasons.
    pub(crate) fn start(len: usize) -> (Vec<Library>, BTreeMap<String, String>) {
        match Python::try_start(len) {
            Ok((python, hello)) => {
                let python = Rc::new(RefCell::new(python));
                let library = |name: String| Library {
                    python: Rc::clone(&python),
                    name,
                };
                let present = hello.present.into_iter();
                let named = present.map(|(name, version)| library(format!("{name} {version}")));
                (named.collect(), hello.absent)
            }
            Err(error) => {
                let reason = format!("{error:#}");
                let absent = ["numpy", "torch"].map(|name| (name.to_owned(), reason.clone()));
                (Vec::new(), absent.into())
            }
        }
    }

    fn try_start(len: usize) -> Result<(Python, Hello)> {
        let interpreter = std::env::var(INTERPRETER).unwrap_or_else(|_| "python3".into());
        let mut child = Command::new(&interpreter)
            .args(["-c", DRIVER, &len.to_string()])
            .envs(PASSIVE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {interpreter}"))?;
        let to = child.stdin.take().context("the child has an input")?;
        let from = child.stdout.take().context("the child has an output")?;
        let mut python = Python {
            child,
            to,
            from: BufReader::new(from),
        };
        let hello = serde_json::from_str(&python.line()?)?;
        Ok((python, hello))
    }

    fn ask(&mut self, question: &str) -> Result<String> {
        writeln!(self.to, "{question}")?;
        self.to.flush()?;
        self.line()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("the interpreter ended");
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended already, and then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Library {
    fn ask(&self, verb: &str, turns: u32) -> Result<String> {
        let library = self.name.split(' ').next().unwrap_or_default();
        let mut python = self.python.borrow_mut();
        python.ask(&format!("{verb} {library} {turns}"))
    }
}

impl Contender for Library {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let ns = self.ask("time", turns)?.parse()?;
        Ok(Duration::from_nanos(ns))
    }

    fn verify(&mut self) -> Result<bool> {
        Ok(self.ask("verify", 1)? == "equal")
    }
}
