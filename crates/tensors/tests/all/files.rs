//! Model files, made byte by byte.

use std::path::PathBuf;

use tempfile::TempDir;

/// Returns a safetensors file of that header and so many bytes of data.
pub(crate) fn safetensors(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..data_bytes).map(|at| at as u8));
    file
}

/// A GGUF file of version 3.
#[derive(Clone, Default)]
pub(crate) struct Gguf {
    pub(crate) metadata: Vec<u8>,
    pub(crate) entries: u64,
    pub(crate) tensors: Vec<u8>,
    pub(crate) count: u64,
}

/// A string of GGUF, which may be no UTF-8.
pub(crate) fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = (text.as_ref().len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_ref());
    bytes
}

impl Gguf {
    /// Adds an entry whose value has that type, and those bytes.
    pub(crate) fn with(mut self, key: impl AsRef<[u8]>, kind: u32, value: &[u8]) -> Gguf {
        self.metadata.extend(text(key));
        self.metadata.extend(kind.to_le_bytes());
        self.metadata.extend(value);
        self.entries += 1;
        self
    }

    /// Adds a tensor of `sizes`, the innermost first, at that byte of the data.
    pub(crate) fn tensor(
        mut self,
        name: impl AsRef<[u8]>,
        sizes: &[u64],
        kind: u32,
        offset: u64,
    ) -> Gguf {
        self.tensors.extend(text(name));
        self.tensors.extend((sizes.len() as u32).to_le_bytes());
        self.tensors
            .extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.count += 1;
        self
    }

    /// Returns the file, with so many bytes of data after a multiple of `alignment`.
    pub(crate) fn file(&self, alignment: usize, data_bytes: usize) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.count.to_le_bytes());
        file.extend(self.entries.to_le_bytes());
        file.extend(&self.metadata);
        file.extend(&self.tensors);
        file.resize(file.len().next_multiple_of(alignment), 0);
        file.extend((0..data_bytes).map(|at| at as u8));
        file
    }
}

/// A folder of files.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn of(files: &[(&str, &[u8])]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        Folder(folder)
    }

    /// An empty folder in memory, where the system has one for that: tests that sync a thousand files wait for no disk.
    pub(crate) fn in_memory() -> Folder {
        let shared = std::path::Path::new("/dev/shm");
        Folder(match shared.is_dir() {
            true => tempfile::tempdir_in(shared).unwrap(),
            false => tempfile::tempdir().unwrap(),
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
