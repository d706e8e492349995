//! Freed blocks of ordinary memory stay within their bound, and within the memory that the process's cgroup has. This is the only
//! test of its process: it counts the process's memory, and a child of it runs in a small group.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use transload_hal::{AllocSpec, Backend, Room};
use transload_host::{Host, memory::PAGEABLE};

const LIMIT: u64 = 512 << 20;
/// A sixteenth of the limit: the store's bound.
const BOUND: u64 = LIMIT / 16;
const CHILD: &str = "TRANSLOAD_TEST_IN_GROUP";

struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("transload-store-{}", std::process::id());
        let versions = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
        versions.into_iter().find_map(|(controller, limit)| {
            let folder = Path::new("/sys/fs/cgroup").join(controller).join(&name);
            fs::create_dir(&folder).ok()?;
            let group = Group(folder);
            fs::write(group.0.join(limit), LIMIT.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// Random numbers (xorshift64, Marsaglia 2003).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Allocates, writes and frees memory of random lengths, most of the time more than the group has.
fn allocate_and_free(count: u64) {
    let host = Host::new();
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    let start = resident();
    let mut live: Vec<_> = (0..160).map(|_| None).collect();
    let (mut given, mut refused) = (0u64, 0u64);
    for _ in 0..count {
        let at = numbers.below(live.len() as u64) as usize;
        live[at] = None;
        let largest = 1u64 << (10 + numbers.below(17));
        let len = 1 + numbers.below(largest);
        match host.allocate(PAGEABLE, &AllocSpec::bytes(len)) {
            Ok(buffer) => {
                // SAFETY: just allocated, and this test alone uses it.
                unsafe { buffer.host(0, len).unwrap().fill(7) };
                live[at] = Some(buffer);
                given += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("bytes available"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(given > count / 2 && refused > 0, "{given} and {refused}");
    drop(live);
    let kept = resident().saturating_sub(start);
    assert!(kept < BOUND + (16 << 20), "{kept} bytes are kept");
    Room::give_back();
    let left = resident().saturating_sub(start);
    assert!(left < 16 << 20, "{left} bytes are left");
    println!("{given} given, {refused} refused, {kept} bytes kept, {left} left");
}

#[test]
fn memory_that_comes_and_goes_fits_a_small_group() {
    if let Ok(count) = env::var(CHILD) {
        return allocate_and_free(count.parse().unwrap());
    }
    let Some(group) = Group::new() else {
        println!("skipped: may make no cgroup");
        return;
    };
    let count = env::var("TRANSLOAD_STORE_ALLOCATIONS").unwrap_or_else(|_| "2000".into());
    let ran = Command::new("sh")
        .args(["-c", r#"echo $$ > "$0" && exec "$@""#])
        .arg(group.0.join("cgroup.procs"))
        .arg(env::current_exe().unwrap())
        .args([
            "--exact",
            "memory_that_comes_and_goes_fits_a_small_group",
            "--nocapture",
        ])
        .env(CHILD, count)
        .output()
        .unwrap();
    let told = [ran.stdout, ran.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(ran.status.success(), "{}: {told}", ran.status);
    println!("{told}");
}
