//! The resources that a round leaves in the process.

use crate::differential::tally::until;

/// Threads, descriptors and resident bytes after earlier rounds of the same machine.
#[derive(Clone, Default)]
pub(crate) struct Left {
    rounds: u64,
    threads: usize,
    descriptors: usize,
    resident: u64,
}

/// Drivers keep some resources once they were used; after this many rounds there must be no more.
const WARM: u64 = 2;

/// The most additional resident memory. An allocator keeps some; memory that is lost in each round adds up.
const MORE_BYTES: u64 = 256 << 20;

/// SwiftShader makes a file for compiled code each time it is loaded, and leaves it open when it is unloaded.
const KEPT_OPEN: &str = "memfd:swiftshader_jit";

fn entries(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let told = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let text = std::fs::read_link(&path).map(|to| to.display().to_string());
        text.or_else(|_| std::fs::read_to_string(path.join("comm")))
            .ok()
    };
    // A few rings of io_uring are kept, with threads of the system.
    let ours = |entry: &String| {
        [KEPT_OPEN, "[io_uring]", "iou-"]
            .iter()
            .all(|kept| !entry.contains(kept))
    };
    entries.filter_map(told).filter(ours).collect()
}

fn resident() -> u64 {
    // SAFETY: the function takes no pointer, and any thread may call it at any time.
    unsafe { libc::malloc_trim(0) };
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

impl Left {
    /// Panics where a round has left more than the first rounds did.
    pub(crate) fn compare(&mut self, context: &str) {
        self.rounds += 1;
        println!("{context}: {} MB", resident() >> 20);
        let (threads, descriptors) = ("/proc/self/task", "/proc/self/fd");
        if self.rounds <= WARM {
            self.threads = self.threads.max(entries(threads).len());
            self.descriptors = self.descriptors.max(entries(descriptors).len());
            self.resident = self.resident.max(resident());
            return;
        }
        for (folder, most) in [(threads, self.threads), (descriptors, self.descriptors)] {
            until(&format!("{context}: {folder}, at most {most}"), || {
                let found = entries(folder);
                if found.len() <= most {
                    Ok(())
                } else {
                    Err(found)
                }
            });
        }
        let (now, most) = (resident(), self.resident + MORE_BYTES);
        assert!(
            now <= most,
            "{context}: {now} bytes are resident, more than {most}"
        );
    }
}
