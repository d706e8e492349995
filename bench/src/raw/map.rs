//! Mappings of files, as the usual loaders read models.

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use memmap2::Mmap;

/// Maps a whole file that the benchmark has made.
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the file lies in a folder of this process's own, which no program changes.
    Ok(unsafe { Mmap::map(&file) }?)
}
