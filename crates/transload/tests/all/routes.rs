//! Every sort of copy: the pairs of memories that tests move bytes between.

use std::path::PathBuf;
use std::thread;

use transload::{AllocSpec, Buffer, Request, TransferManager};

use crate::fixture::{self, Fixture, modes, place, without_peers};
use crate::plain;

pub(crate) const MIB: usize = 1 << 20;

/// A pair of memories, and the bytes that a copy moves from one to the other.
pub(crate) struct Route {
    pub(crate) name: String,
    pub(crate) manager: TransferManager,
    pub(crate) src: Buffer,
    pub(crate) dst: Buffer,
    pub(crate) wanted: Vec<u8>,
    files: Vec<PathBuf>,
}

impl Route {
    pub(crate) fn request(&self) -> Request {
        Request::new(&self.src, &self.dst)
    }

    pub(crate) fn check(&self) {
        // A plain backend has no link to the heap, and simulated devices have no guards.
        if let Ok(found) = self.dst.read() {
            assert!(*found == *self.wanted, "wrong bytes");
            return;
        }
        let mut found = vec![0xEE; self.wanted.len()];
        self.manager.copy_into_slice(&self.dst, &mut found).unwrap();
        assert!(found == self.wanted, "wrong bytes");
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Bytes in which no two blocks are alike.
fn marked(len: usize) -> Vec<u8> {
    let block = fixture::bytes(MIB, 1);
    let mut bytes = Vec::with_capacity(len + MIB);
    for number in 0..len.div_ceil(MIB) {
        bytes.extend_from_slice(&block);
        bytes[number * MIB..][..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn host() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

pub(crate) fn on_the_host(to: &str, len: usize) -> Route {
    let (manager, wanted) = (host(), marked(len));
    let src = manager.adopt(wanted.clone()).unwrap();
    let dst = manager
        .allocate(place(to), AllocSpec::bytes(len as u64))
        .unwrap();
    Route {
        name: format!("the heap to {to}"),
        manager,
        src,
        dst,
        wanted,
        files: Vec::new(),
    }
}

fn path(name: &str) -> PathBuf {
    let (process, thread) = (std::process::id(), thread::current().id());
    std::env::temp_dir().join(format!("transload-{name}-{process}-{thread:?}"))
}

pub(crate) fn out_of_a_file() -> Route {
    let (manager, wanted, path) = (host(), marked(16 * MIB), path("advance-from"));
    std::fs::write(&path, &wanted).unwrap();
    let src = manager.open_file(&path).unwrap();
    let dst = manager.adopt(vec![0u8; wanted.len()]).unwrap();
    Route {
        name: "a file to the heap".into(),
        manager,
        src,
        dst,
        wanted,
        files: vec![path],
    }
}

pub(crate) fn into_a_file() -> Route {
    let (manager, wanted, path) = (host(), marked(16 * MIB), path("advance-to"));
    let src = manager.adopt(wanted.clone()).unwrap();
    let dst = manager.create_file(&path, src.len()).unwrap();
    Route {
        name: "the heap to a file".into(),
        manager,
        src,
        dst,
        wanted,
        files: vec![path],
    }
}

/// Staged copies between two devices of a simulated machine, one for each way of reporting outcomes.
pub(crate) fn on_simulated_machines() -> Vec<Route> {
    let route = |completion| {
        let fixture = Fixture::advancing(&without_peers(2), completion, 256 << 10);
        let wanted = marked(MIB + 3);
        Route {
            name: completion.to_string(),
            src: fixture.filled("sim:0", &wanted),
            dst: fixture.empty("sim:1", wanted.len()),
            manager: fixture.manager,
            wanted,
            files: Vec::new(),
        }
    };
    modes().into_iter().map(route).collect()
}

pub(crate) fn on_a_plain_backend() -> Route {
    let (manager, _) = plain::manager(&["plain"]);
    let wanted = vec![7; 100_000];
    let src = plain::filled(&manager, "plain", 100_000, 7);
    let dst = plain::filled(&manager, "plain", 100_000, 0);
    Route {
        name: "a backend with every default".into(),
        manager,
        src,
        dst,
        wanted,
        files: Vec::new(),
    }
}

pub(crate) fn routes() -> Vec<Route> {
    let mut routes = vec![
        on_the_host("cpu:0", 16 * MIB),
        on_the_host("cpu:0/shared", 16 * MIB),
        out_of_a_file(),
        into_a_file(),
        on_a_plain_backend(),
    ];
    routes.extend(on_simulated_machines());
    routes
}
