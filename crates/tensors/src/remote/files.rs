//! The files of a model in a store: their headers, read by ranges.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;

use super::{Remote, RemoteObject};
use crate::model::{Files, Source};
use crate::{Header, HeaderError, Model, ModelError};

/// The first request for a file asks for so many bytes: a header with some thousand tensors. 512 KiB take about as long as
/// a second answer would.
const FIRST_BYTES: u64 = 512 << 10;

/// The most bytes of a further request for a header.
const MOST_BYTES: u64 = 8 << 20;

impl Model {
    /// Opens the model at `path` in a store and reads its headers, by requests for ranges. Blocks on the network. The path is
    /// a file in safetensors or GGUF, any part of a model in parts, or a list of shards, as in [`Model::open`]; its
    /// parts are separated by `/`, and the other files of the model lie beside it.
    ///
    /// A load needs a manager with this backend, or another [`Remote`].
    ///
    /// # Errors
    /// As [`Model::open`]; and when the store does not answer requests for ranges. A store that does not answer ends it by
    /// the timeouts of `object_store` alone.
    pub fn open_remote(
        remote: &Remote,
        store: &Arc<dyn ObjectStore>,
        path: impl AsRef<Path>,
    ) -> Result<Model, ModelError> {
        Model::open_file(&InStore { remote, store }, path.as_ref())
    }
}

/// The files of a store.
pub(crate) struct InStore<'a> {
    remote: &'a Remote,
    store: &'a Arc<dyn ObjectStore>,
}

impl InStore<'_> {
    fn reader(&self, path: &Path) -> io::Result<Reader<'_>> {
        let (object, bytes) = self.remote.first(self.store, path, FIRST_BYTES)?;
        Ok(Reader {
            remote: self.remote,
            object,
            end: bytes.len() as u64,
            bytes: bytes.into(),
        })
    }
}

impl Files for InStore<'_> {
    fn read(&self, path: &Path, most_bytes: u64) -> Result<Vec<u8>, ModelError> {
        let read = || {
            let mut reader = self.reader(path)?;
            let len = reader.object.len_bytes();
            if len > most_bytes {
                let message = format!("it has {len} bytes, and at most {most_bytes} are read");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
            }
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|source| ModelError::Read {
            path: path.to_owned(),
            source,
        })
    }

    /// A store that may not be listed says no more of an object that is missing: S3 answers 403, hubs 401.
    fn may_be_missing(&self, error: &io::Error) -> bool {
        use io::ErrorKind::{NotFound, PermissionDenied};
        matches!(error.kind(), NotFound | PermissionDenied)
    }

    /// Says that it exists: opening it tells.
    fn exists(&self, _: &Path) -> bool {
        true
    }

    fn open(&self, path: &Path) -> Result<(Source, Header), ModelError> {
        let failed = |source| ModelError::Header {
            path: path.to_owned(),
            source,
        };
        let reader = self.reader(path);
        let mut reader = reader.map_err(|error| failed(HeaderError::Read(error)))?;
        let len = reader.object.len_bytes();
        let header = Header::read_names_later(&mut reader, len).map_err(failed)?;
        Ok((Source::Remote(reader.object), header))
    }
}

/// Reads an object from its first byte on.
struct Reader<'a> {
    remote: &'a Remote,
    object: RemoteObject,
    /// What was fetched and not read.
    bytes: std::collections::VecDeque<u8>,
    /// Where the fetched bytes end.
    end: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.object.len_bytes() - self.end;
        if self.bytes.is_empty() && left > 0 {
            // As much again as was read so far: a long header takes few requests, and a short one few bytes.
            let range = self.end..self.end + left.min(self.end.clamp(FIRST_BYTES, MOST_BYTES));
            self.end = range.end;
            let object = self.object.clone();
            let fetched = self.remote.queue.block_on(async move {
                let mut bytes = Vec::new();
                let read = object.0.read(range, |part| bytes.extend_from_slice(part));
                read.await.map(|()| bytes)
            });
            self.bytes = fetched??.into();
        }
        self.bytes.read(to)
    }
}
