//! The conformance suite over the host: by default, without threads, and with more threads than processors.

use std::io::{Read, Seek, SeekFrom, Write};

use transload_hal::processors;
use transload_hal::{Backend, Buffer, HostSpan};
use transload_host::pool::Limits;
use transload_host::raw::Store;
use transload_host::tuning::{Band, Tuning};
use transload_host::{Host, HostFile, HostOptions};
use transload_testkit::conformance::{self, Exceptions, Harness, Report};

struct OfHost(Host);

impl Harness for OfHost {
    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> bool {
        if let Some(mut file) = file_at(buffer, offset) {
            return file.write_all(bytes).is_ok();
        }
        let Some(span) = buffer.host(offset, bytes.len() as u64) else {
            return false;
        };
        // SAFETY: the suite fills buffers that no operation uses, and keeps them alive.
        unsafe { HostSpan::of(bytes).copy_to(span) };
        true
    }

    /// Yields the processor to the backend's threads.
    fn drive(&self) {
        std::thread::yield_now();
    }

    /// Reads by the file's cursor, where the backend reads by position.
    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> bool {
        if let Some(mut file) = file_at(buffer, offset) {
            return file.read_exact(out).is_ok();
        }
        let Some(span) = buffer.host(offset, out.len() as u64) else {
            return false;
        };
        // SAFETY: the suite reads buffers that no operation writes, and keeps them alive.
        unsafe { span.copy_to(HostSpan::of_mut(out)) };
        true
    }
}

fn file_at(buffer: &Buffer, offset: u64) -> Option<&std::fs::File> {
    let mut file = buffer.native::<HostFile>()?.file()?;
    file.seek(SeekFrom::Start(buffer.position() + offset))
        .ok()?;
    Some(file)
}

fn run(options: HostOptions) -> Report {
    conformance::run(&OfHost(Host::with(options)), &Exceptions::none())
}

#[test]
fn the_host_conforms_as_it_comes() {
    let report = run(HostOptions::default());
    println!("{report}");
    report.assert_passed();
}

#[test]
fn the_host_conforms_without_threads() {
    let limits = Limits::default().with_threads(0);
    run(HostOptions::default().with_limits(limits)).assert_passed();
}

/// No copy is inline: every copy is streamed in pieces, by threads that take turns.
#[test]
fn the_host_conforms_when_every_copy_goes_through_the_pool() {
    let threads = processors() * 2 + 1;
    let bands = vec![Band::new(0, threads, Store::Streaming)];
    let options = HostOptions::default()
        .with_tuning(Tuning::new(0, bands))
        .with_limits(Limits::default().with_threads(threads));
    run(options).assert_passed();
}
