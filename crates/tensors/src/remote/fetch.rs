//! Requests for ranges of objects, and where the bytes of their answers go.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::path::{MAIN_SEPARATOR_STR, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};
use transload::hal::{DeviceId, GUEST_KINDS, HostSpan, Layout, Op, Span};

use super::RemoteObject;

/// A request that is longer takes no more ranges in. Single ranges are as long as the engine's chunks, up to 4 MiB.
const REQUEST_BYTES: u64 = 4 << 20;

/// The most bytes between two ranges that are read with them. A store that answers after 20 ms serves 32 requests in that
/// time; in a 32nd of it 400 MB/s bring as many bytes.
const GAP_BYTES: u64 = 256 << 10;

/// An object of a store.
#[derive(Debug)]
pub(super) struct Object {
    store: Arc<dyn ObjectStore>,
    /// As the program wrote it.
    pub(super) path: PathBuf,
    pub(super) len_bytes: u64,
    /// What the store said of the object when it was found.
    meta: ObjectMeta,
}

impl Object {
    /// Finds an object, and reads up to so many of its first bytes.
    pub(super) async fn find(
        store: Arc<dyn ObjectStore>,
        path: PathBuf,
        most_bytes: u64,
    ) -> io::Result<(Object, Vec<u8>)> {
        use object_store::Error::{PermissionDenied as Refused, Unauthenticated};
        let location = location(&path)?;
        let options = GetOptions {
            range: Some(GetRange::Bounded(0..most_bytes)),
            ..GetOptions::default()
        };
        let got = store.get_opts(&location, options).await;
        let got = got.map_err(|error| match error {
            Refused { .. } | Unauthenticated { .. } => {
                io::Error::new(io::ErrorKind::PermissionDenied, error)
            }
            error => error.into(),
        })?;
        let object = Object {
            store,
            path,
            len_bytes: got.meta.size,
            meta: got.meta.clone(),
        };
        let mut bytes = Vec::new();
        let range = 0..object.len_bytes.min(most_bytes);
        object
            .stream(got, range, |part| bytes.extend_from_slice(part))
            .await?;
        Ok((object, bytes))
    }

    /// Reads a range. `take` gets its bytes in their order, as they arrive, and never more than the range has.
    pub(super) async fn read(&self, range: Range<u64>, take: impl FnMut(&[u8])) -> io::Result<()> {
        // A server compares weak ETags with none (RFC 9110, 13.1.1); the answer's is compared in any case.
        let e_tag = self.meta.e_tag.clone();
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: e_tag.filter(|tag| !tag.starts_with("W/")),
            ..GetOptions::default()
        };
        let got = self.store.get_opts(&self.meta.location, options).await?;
        self.stream(got, range, take).await
    }

    async fn stream(
        &self,
        got: GetResult,
        range: Range<u64>,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.check(&got, &range)?;
        let mut at = range.start;
        let mut parts = got.into_stream();
        while let Some(part) = poll_fn(|context| parts.as_mut().poll_next(context)).await {
            let part = part?;
            if part.len() as u64 > range.end - at {
                return Err(wrong(format!("the answer has more bytes than {range:?}")));
            }
            at += part.len() as u64;
            take(&part);
        }
        match at == range.end {
            true => Ok(()),
            false => Err(wrong(format!("the answer ended at byte {at}"))),
        }
    }

    /// Checks that the answer is to the question, and from the object that was found.
    fn check(&self, got: &GetResult, range: &Range<u64>) -> io::Result<()> {
        let (was, is) = (&self.meta, &got.meta);
        let changed = |what: &str, was: String, is: String| {
            wrong(format!(
                "the object was changed: its {what} was {was} and is {is}"
            ))
        };
        if is.size != was.size {
            return Err(changed("length", was.size.to_string(), is.size.to_string()));
        }
        if is.e_tag != was.e_tag {
            let [was, is] = [was, is].map(|of| of.e_tag.as_deref().unwrap_or("none").to_owned());
            return Err(changed("ETag", was, is));
        }
        if is.e_tag.is_none() && is.last_modified != was.last_modified {
            let [was, is] = [was, is].map(|of| of.last_modified.to_string());
            return Err(changed("time of change", was, is));
        }
        match got.range == *range {
            true => Ok(()),
            false => Err(wrong(format!(
                "the store answered with bytes {:?}",
                got.range
            ))),
        }
    }
}

fn wrong(message: String) -> io::Error {
    io::Error::other(message)
}

/// Returns the path as stores write it.
fn location(path: &Path) -> io::Result<object_store::path::Path> {
    let text = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
    Ok(text.replace(MAIN_SEPARATOR_STR, "/").into())
}

/// The requests of one submission.
#[derive(Default)]
pub(super) struct Requests(pub(super) Vec<Request>);

/// A range to ask for, and where its bytes go.
pub(super) struct Request {
    object: Arc<Object>,
    range: Range<u64>,
    /// In the order of the object, each with its place in memory. What lies between two of them is dropped.
    pieces: Vec<(Range<u64>, HostSpan)>,
}

impl Requests {
    /// Adds what an operation reads. Returns `None` for an operation that is not a copy from an object to memory of the host.
    pub(super) fn add(&mut self, op: &Op<'_>) -> Option<()> {
        let (src, dst, span): (Layout<'_>, Layout<'_>, Span) = match *op {
            Op::Copy { src, dst } => (src.into(), dst.into(), Span::new(0, src.len_bytes)),
            Op::Pitched { src, dst, span } => (src, dst, span),
            _ => return None,
        };
        let object = Arc::clone(&src.buffer.native::<RemoteObject>()?.0);
        let to = dst.buffer.memory();
        if to.device != DeviceId::CPU0 || !GUEST_KINDS.contains(&to.kind) {
            return None;
        }
        for run in { src.shape }.runs(src.offset, &dst.shape, dst.offset, span) {
            let span = dst.buffer.host(run.other_offset, run.len_bytes)?;
            self.add_run(&object, src.buffer.position() + run.offset, span);
        }
        Some(())
    }

    /// Adds bytes that lie together in the object and in memory.
    fn add_run(&mut self, object: &Arc<Object>, start: u64, span: HostSpan) {
        if span.is_empty() {
            return;
        }
        let range = start..start + span.len() as u64;
        let last = { self.0.last_mut() }.filter(|last| Arc::ptr_eq(&last.object, object));
        match last.filter(|last| is_joined(&last.range, start)) {
            Some(last) => {
                last.range.end = range.end;
                last.pieces.push((range, span));
            }
            None => self.0.push(Request {
                object: Arc::clone(object),
                range: range.clone(),
                pieces: vec![(range, span)],
            }),
        }
    }
}

/// Whether bytes from `start` on are asked for together with a range.
fn is_joined(range: &Range<u64>, start: u64) -> bool {
    let near = range.end..=range.end.saturating_add(GAP_BYTES);
    near.contains(&start) && start - range.start < REQUEST_BYTES
}

/// Returns how many bytes of an object are read for rows of it.
pub(crate) fn read_bytes(rows: impl Iterator<Item = Span>) -> u64 {
    let mut last: Option<Range<u64>> = None;
    rows.fold(0, |sum: u64, row| {
        let begin = { last.take() }.filter(|last| is_joined(last, row.offset));
        let (begin, end) = begin.map_or((row.offset, row.offset), |last| (last.start, last.end));
        last = Some(begin..row.offset + row.len);
        sum.saturating_add(row.offset + row.len - end)
    })
}

impl Request {
    /// Fetches the range, and counts the bytes that have reached their places.
    pub(super) async fn run(self, moved: &AtomicU64) -> Result<(), String> {
        let Request {
            object,
            range,
            pieces,
        } = self;
        let (mut at, mut pieces) = (range.start, pieces.into_iter().peekable());
        let take = |mut part: &[u8]| {
            while let Some((place, span)) = pieces.peek() {
                let skipped = place.start.saturating_sub(at).min(part.len() as u64);
                part = &part[skipped as usize..];
                at += skipped;
                let many = (place.end - at).min(part.len() as u64);
                let Some(target) = span.slice(at.saturating_sub(place.start), many) else {
                    unreachable!("a piece is as long as its place");
                };
                let (now, later) = part.split_at(many as usize);
                // SAFETY: until the fence has settled, which is when no request is left, the engine keeps the destination
                // alive and lets nothing else touch it.
                unsafe { HostSpan::of(now).copy_to(target) };
                moved.fetch_add(many, Ordering::Relaxed);
                (at, part) = (at + many, later);
                if at < place.end {
                    return;
                }
                pieces.next();
            }
        };
        let read = object.read(range.clone(), take).await;
        read.map_err(|error| {
            let Range { start, end } = range;
            let path = object.path.display();
            format!(
                "bytes {start} to {end} of {path} were not read: {}",
                Causes(&error)
            )
        })
    }
}

/// Displays an error with those of its causes that it does not name itself.
pub(super) struct Causes<'a>(pub(super) &'a dyn Error);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut told, mut next) = (self.0.to_string(), self.0.source());
        f.write_str(&told)?;
        while let Some(cause) = next {
            let text = cause.to_string();
            if !told.contains(&text) {
                write!(f, ": {text}")?;
                told = text;
            }
            next = cause.source();
        }
        Ok(())
    }
}
