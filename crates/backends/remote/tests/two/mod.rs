//! What the tests of UCX share: a worker with a channel for its events, and a process of its own for the other side.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use transload_hal::HostSpan;
use transload_remote::ucx::{EndpointId, Event, Options, Ucx, Worker};

/// Set for the process that plays the other side of a test.
pub(crate) const ROLE: &str = "TRANSLOAD_UCX_TEST_ROLE";

/// Longer than anything here takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// The test runner counts the test as skipped, and not as passed.
pub(crate) fn skip(what: &str) {
    println!("skipped {what}");
    if let Some(file) = std::env::var_os("TRANSLOAD_SKIPS") {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file);
        writeln!(file.unwrap(), "{what}").unwrap();
    }
}

pub(crate) fn ucx(test: &str) -> Option<&'static Ucx> {
    match Ucx::load(None) {
        Ok(ucx) => Some(ucx),
        Err(error) => {
            skip(&format!("{test}: {error}"));
            None
        }
    }
}

pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A worker over TCP on the loopback interface, or another one.
pub(crate) struct Side {
    pub(crate) worker: Worker,
    events: Receiver<Event>,
    /// Events that came while others were waited for.
    early: Vec<Event>,
}

impl Side {
    pub(crate) fn new(ucx: &'static Ucx) -> Side {
        Side::on(ucx, "lo")
    }

    pub(crate) fn on(ucx: &'static Ucx, device: &str) -> Side {
        let mut options = Options::default();
        options.net_devices = Some(device.into());
        options.transports = Some("tcp".into());
        let (tell, events) = mpsc::channel();
        let sink = Box::new(move |event| drop(tell.send(event)));
        let worker = Worker::start(ucx, options, sink).unwrap();
        let early = Vec::new();
        Side {
            worker,
            events,
            early,
        }
    }

    pub(crate) fn connect(&self, address: &[u8]) -> EndpointId {
        // SAFETY: tests pass addresses of workers.
        unsafe { self.worker.connect(address) }
    }

    pub(crate) fn send(&self, id: u64, endpoint: EndpointId, tag: u64, bytes: &[u8]) {
        // SAFETY: tests keep the bytes until the outcome.
        unsafe { self.worker.send(id, endpoint, tag, HostSpan::of(bytes)) }
    }

    pub(crate) fn receive(&self, id: u64, tag: u64, bytes: &mut [u8]) {
        // SAFETY: tests keep the bytes until the outcome, and read them after it.
        unsafe {
            self.worker
                .receive(id, tag, u64::MAX, HostSpan::of_mut(bytes))
        }
    }

    /// The first event that fits.
    pub(crate) fn wait(&mut self, fits: impl Fn(&Event) -> bool) -> Event {
        if let Some(at) = self.early.iter().position(&fits) {
            return self.early.remove(at);
        }
        loop {
            let event = self.events.recv_timeout(LONG).expect("an event comes");
            if fits(&event) {
                return event;
            }
            self.early.push(event);
        }
    }

    pub(crate) fn outcome(&mut self, number: u64) -> Event {
        self.wait(|event| matches!(event, Event::Done { id, .. } | Event::Failed { id, .. } if *id == number))
    }

    pub(crate) fn done(&mut self, number: u64) -> usize {
        match self.outcome(number) {
            Event::Done { len, .. } => len,
            event => panic!("{number} is not done: {event:?}"),
        }
    }

    /// Drops the worker and returns every event that was not waited for.
    pub(crate) fn end(self) -> Vec<Event> {
        let Side {
            worker,
            events,
            mut early,
        } = self;
        drop(worker);
        early.extend(events.try_iter());
        early
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The other side of a test, in a process of its own: this binary again, with the same test.
pub(crate) struct Other {
    pub(crate) child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn start(test: &str, role: &str, prefix: &[&str]) -> Other {
        let exe = std::env::current_exe().unwrap();
        let exe = exe.to_str().unwrap();
        let mut words = prefix.iter().copied().chain([
            exe,
            "--exact",
            test,
            "--nocapture",
            "--include-ignored",
        ]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .env(ROLE, role)
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

    pub(crate) fn say(&mut self, word: &str) {
        writeln!(self.input, "{word}").unwrap();
    }

    /// The next line that the process wrote for this. The test runner in it writes others.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "the other process ended"
            );
            if let Some(at) = line.find("say ") {
                return line[at + 4..].trim().to_string();
            }
        }
    }

    pub(crate) fn hear_bytes(&mut self) -> Vec<u8> {
        from_hex(&self.hear())
    }

    pub(crate) fn succeeds(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

/// In the other process: says a line, and hears one.
pub(crate) fn say(word: &str) {
    println!("say {word}");
}

pub(crate) fn hear() -> String {
    let mut line = String::new();
    assert!(
        std::io::stdin().read_line(&mut line).unwrap() > 0,
        "the first process ended"
    );
    line.trim().to_string()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .map(|digit| (digit as char).to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Asserts that exactly these operations ended, each once.
pub(crate) fn assert_each_once(events: &[Event], ids: &[u64]) {
    let mut counts: HashMap<u64, usize> = ids.iter().map(|id| (*id, 0)).collect();
    for event in events {
        if let Event::Done { id, .. } | Event::Failed { id, .. } = event {
            *counts.get_mut(id).expect("only these") += 1;
        }
    }
    assert!(counts.values().all(|count| *count == 1), "{events:?}");
}
