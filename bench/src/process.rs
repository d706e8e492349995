//! Other processes of this program, which answer over pipes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// A process with the arguments `--serve` and a word. Killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program, or another build of it, as `program`.
    pub(crate) fn start(program: &Path, word: &str) -> Result<Process> {
        let mut child = Command::new(program)
            .args(["--serve", word])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let to = child.stdin.take().context("the child has an input")?;
        let from = child.stdout.take().context("the child has an output")?;
        Ok(Process {
            child,
            to,
            from: BufReader::new(from),
        })
    }

    /// Writes a line to the process, and returns the line that it answers with. Blocks until then.
    pub(crate) fn ask(&mut self, question: &str) -> Result<String> {
        writeln!(self.to, "{question}")?;
        self.to.flush()?;
        let mut line = String::new();
        let len = self.from.read_line(&mut line)?;
        ensure!(len > 0, "the process that was asked `{question}` has ended");
        Ok(line.trim().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, and then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
