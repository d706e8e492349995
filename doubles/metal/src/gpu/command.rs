//! The contents of a command buffer, and their execution.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::bytes::{Gone, Storage};
use crate::classes::event::Event;
use crate::ledger::COUNTS;
use crate::runtime::Ref;

/// One thing for the GPU to do. All ranges were found to be in bounds when it was encoded.
#[derive(Debug)]
pub(crate) enum Command {
    Copy {
        source: Arc<Storage>,
        source_offset: usize,
        destination: Arc<Storage>,
        destination_offset: usize,
        len: usize,
    },
    Fill {
        destination: Arc<Storage>,
        offset: usize,
        len: usize,
        value: u8,
    },
    Rows(Rows),
    Synchronize(Arc<Storage>),
    Signal(Ref<Event>, u64),
    Wait(Ref<Event>, u64),
}

/// A copy from or to a texture: rows in images.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) source: Place,
    pub(crate) destination: Place,
    /// Bytes of a row, rows of an image, images.
    pub(crate) extent: [usize; 3],
}

/// Where the first row begins, and how far it is from row to row and from image to image.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) storage: Arc<Storage>,
    pub(crate) offset: usize,
    pub(crate) row: usize,
    pub(crate) image: usize,
    pub(crate) is_texture: bool,
}

impl Command {
    /// Whether it moves bytes: what faults count.
    pub(crate) fn is_blit(&self) -> bool {
        !matches!(self, Self::Signal(..) | Self::Wait(..))
    }

    /// The storages that it is to use.
    pub(crate) fn storages(&self) -> impl Iterator<Item = &Arc<Storage>> {
        let both = match self {
            Self::Copy {
                source,
                destination,
                ..
            } => [Some(source), Some(destination)],
            Self::Fill { destination, .. } => [Some(destination), None],
            Self::Rows(rows) => [Some(&rows.source.storage), Some(&rows.destination.storage)],
            Self::Synchronize(storage) => [Some(storage), None],
            Self::Signal(..) | Self::Wait(..) => [None, None],
        };
        both.into_iter().flatten()
    }

    pub(crate) fn carry_out(&self) -> Result<(), Gone> {
        match self {
            Self::Copy {
                source,
                source_offset,
                destination,
                destination_offset,
                len,
            } => {
                Storage::with(source, destination, |from, to| {
                    copy(from, *source_offset, to, *destination_offset, *len);
                })?;
                COUNTS.copies.one();
                COUNTS.copied_bytes.add(*len as u64);
            }
            Self::Fill {
                destination,
                offset,
                len,
                value,
            } => {
                destination.with_one(|to| {
                    // SAFETY: the range was found to be in bounds.
                    let to = unsafe { to.add(*offset) };
                    // SAFETY: as above.
                    unsafe { to.write_bytes(*value, *len) };
                })?;
                COUNTS.fills.one();
            }
            Self::Rows(rows) => rows.carry_out()?,
            Self::Synchronize(storage) => {
                storage.with_one(|_| storage.give_out())?;
                COUNTS.synchronizes.one();
            }
            Self::Signal(event, value) => {
                Event::signal(event, *value);
                COUNTS.signals.one();
            }
            Self::Wait(..) => COUNTS.waits.one(),
        }
        Ok(())
    }
}

impl Rows {
    fn carry_out(&self) -> Result<(), Gone> {
        let [len, rows, images] = self.extent;
        let (source, destination) = (&self.source, &self.destination);
        Storage::with(&source.storage, &destination.storage, |from, to| {
            for image in 0..images {
                for row in 0..rows {
                    copy(
                        from,
                        source.at(row, image),
                        to,
                        destination.at(row, image),
                        len,
                    );
                }
            }
        })?;
        match (source.is_texture, destination.is_texture) {
            (false, _) => COUNTS.copies_to_texture.one(),
            (true, false) => COUNTS.copies_from_texture.one(),
            (true, true) => COUNTS.copies_of_textures.one(),
        }
        Ok(())
    }
}

impl Place {
    fn at(&self, row: usize, image: usize) -> usize {
        self.offset + row * self.row + image * self.image
    }

    /// The last byte and one, of rows as in `extent`; `None` where the sum has no number.
    pub(crate) fn end(&self, extent: [usize; 3]) -> Option<usize> {
        let [len, rows, images] = extent;
        if len == 0 || rows == 0 || images == 0 {
            return Some(self.offset);
        }
        let rows = self.row.checked_mul(rows - 1)?;
        let images = self.image.checked_mul(images - 1)?;
        self.offset
            .checked_add(images)?
            .checked_add(rows)?
            .checked_add(len)
    }
}

fn copy(from: NonNull<u8>, from_offset: usize, to: NonNull<u8>, to_offset: usize, len: usize) {
    // SAFETY: the range was found to be in bounds when the command was encoded.
    let from = unsafe { from.add(from_offset) };
    // SAFETY: as above.
    let to = unsafe { to.add(to_offset) };
    // SAFETY: as above. Ranges that overlap are refused, and would be undefined; `copy_to` takes them all the same.
    unsafe { from.copy_to(to, len) };
}
