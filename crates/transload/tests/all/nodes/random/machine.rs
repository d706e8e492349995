//! Processes that serve memory, at an address that stays.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

use transload::model::Name;
use transload::remote::{PrivateKey, PublicKey};
use transload::{ServeOptions, TransferManager};

use super::proxy::Way;

const LIMIT_BYTES: u64 = 1 << 30;

/// What the process is told.
const KEY: &str = "TRANSLOAD_TEST_KEY";
const ADDRESS: &str = "TRANSLOAD_TEST_ADDRESS";
const ALLOW: &str = "TRANSLOAD_TEST_ALLOW";

/// What comes before the process's answers.
const SAYS: &str = "the node says ";

/// A process that serves.
pub(super) struct Machine {
    pub(super) name: Name,
    pub(super) key: PrivateKey,
    allow: String,
    address: SocketAddr,
    pub(super) way: Way,
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Machine {
    pub(super) fn start(name: Name, key: PrivateKey, allow: &[PublicKey]) -> Machine {
        let allow: Vec<String> = allow.iter().map(ToString::to_string).collect();
        let allow = allow.join(" ");
        let (child, said, address) = begin(&key, &allow, ([127, 0, 0, 1], 0).into());
        Machine {
            name,
            key,
            allow,
            address,
            way: Way::to(address),
            child,
            said,
        }
    }

    /// Whether a text names it, or its address.
    pub(super) fn is_named(&self, text: &str) -> bool {
        text.contains(self.name.as_str()) || text.contains(&self.way.address().to_string())
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn restart(&mut self) {
        (self.child, self.said, self.address) = begin(&self.key, &self.allow, self.address);
    }

    /// Lets it stand still, or go on.
    pub(super) fn stop(&self, stop: bool) {
        let signal = if stop { libc::SIGSTOP } else { libc::SIGCONT };
        // SAFETY: the call takes two numbers; the process is a child that was not waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Returns how many bytes its clients have.
    pub(super) fn used_bytes(&mut self) -> u64 {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "used").unwrap();
        hear(&mut self.said).unwrap().parse().unwrap()
    }

    /// Returns how many bytes of memory the process has.
    pub(super) fn resident_bytes(&self) -> u64 {
        resident_bytes(&self.child.id().to_string())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn resident_bytes(process: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.parse::<u64>().unwrap() << 10
}

fn begin(
    key: &PrivateKey,
    allow: &str,
    address: SocketAddr,
) -> (Child, BufReader<ChildStdout>, SocketAddr) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "nodes::random::machine::child", "--nocapture"]);
    command.env(KEY, &*key.to_pem()).env(ALLOW, allow);
    command.env(ADDRESS, address.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let address = hear(&mut said).unwrap().parse().unwrap();
    (child, said, address)
}

/// The next answer; the test runner's own words go before it.
fn hear(said: &mut impl BufRead) -> Option<String> {
    loop {
        let mut line = String::new();
        if said.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        if let Some((_, answer)) = line.split_once(SAYS) {
            return Some(answer.trim().to_owned());
        }
    }
}

/// The process: it serves, and answers each line with the bytes in use, until its input ends.
#[test]
fn child() {
    let Ok(key) = env::var(KEY) else { return };
    // SAFETY: the call takes numbers alone. A process that stands still would stay when its parent is gone.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let manager = TransferManager::builder().host().build().unwrap();
    let key = PrivateKey::from_pem(&key).unwrap();
    let mut options = ServeOptions::new(key, LIMIT_BYTES);
    options.listen = env::var(ADDRESS).unwrap().parse().unwrap();
    options.offer.push("cpu:0".parse().unwrap());
    let allow = env::var(ALLOW).unwrap();
    options.allow = allow.split(' ').map(|key| key.parse().unwrap()).collect();
    options.session = super::super::session_options();
    let server = manager.serve(options).unwrap();
    println!("{SAYS}{}", server.address());
    for line in std::io::stdin().lines() {
        line.unwrap();
        println!("{SAYS}{}", server.used_bytes());
    }
}
