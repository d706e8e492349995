//! Another process, which runs the other half of a test: the same test program once more. The two tell each other
//! lines, and so take turns.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// By this a test finds that it is the other half.
const OTHER: &str = "OTHER_HALF_OF_A_TEST";
/// The prefix of the child's messages, among the output of the test harness.
const TELLS: &str = "tells: ";

/// The other half, seen by the first.
pub(crate) struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    /// Starts the other half of a test of this program.
    pub(crate) fn start(test: &str) -> Other {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(OTHER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Other {
            child,
            input,
            output,
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Waits for a line.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the other half ended before it told anything");
            if let Some((_, told)) = line.trim_end().split_once(TELLS) {
                return told.into();
            }
        }
    }

    /// Waits until the other half is through, which it has to be without a fault.
    #[track_caller]
    pub(crate) fn end(mut self) {
        drop(self.input);
        io::copy(&mut self.output, &mut io::sink()).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the other half: {status}");
    }
}

/// Whether this is the other half.
pub(crate) fn is_other() -> bool {
    env::var_os(OTHER).is_some()
}

/// Tells the first half a line.
pub(crate) fn tell(line: &str) {
    println!("{TELLS}{line}");
}

/// Waits for a line of the first half.
#[track_caller]
pub(crate) fn hear() -> String {
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line).unwrap();
    assert_ne!(read, 0, "the first half ended before it told anything");
    line.trim_end().into()
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes from which [`hex`] was made.
pub(crate) fn unhex<const LEN: usize>(text: &str) -> [u8; LEN] {
    assert_eq!(text.len(), 2 * LEN, "{text}");
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}
