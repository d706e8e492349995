//! What a transfer touches in one storage.

use crate::{Shape, StorageId};

/// The bytes of one storage that a transfer reads or writes: a shape at a position.
///
/// The constructor has checked that its end fits `u64`, so nothing below can wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footprint {
    storage: StorageId,
    position: u64,
    /// The first position after the last byte; `position` for an empty shape.
    end: u64,
    shape: Shape,
    writes: bool,
}

/// Why a footprint was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FootprintError {
    /// The shape's end lies past `u64::MAX`.
    #[error(
        "{extent_bytes} bytes from position {position} of {storage:?} on end past {limit}",
        limit = u64::MAX
    )]
    PastEnd {
        /// The storage.
        storage: StorageId,
        /// Where the shape starts in it.
        position: u64,
        /// From the shape's first byte to the end of its last row.
        extent_bytes: u64,
    },
}

impl Footprint {
    /// The bytes of `shape` from `position` of `storage` on: written where `writes`, else read. In
    /// [`StorageId::Host`] a position is an address, in other storages an offset.
    ///
    /// # Errors
    /// When the shape ends past `u64::MAX`.
    pub const fn new(
        storage: StorageId,
        position: u64,
        shape: Shape,
        writes: bool,
    ) -> Result<Footprint, FootprintError> {
        let extent_bytes = shape.extent_bytes();
        match position.checked_add(extent_bytes) {
            Some(end) => Ok(Footprint {
                storage,
                position,
                end,
                shape,
                writes,
            }),
            None => Err(FootprintError::PastEnd {
                storage,
                position,
                extent_bytes,
            }),
        }
    }

    /// The storage that the bytes are in.
    pub const fn storage(&self) -> StorageId {
        self.storage
    }

    /// Where the shape's first byte lies.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The first position after the shape's last byte.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Which bytes from the position on.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether the bytes are written; else they are read.
    pub const fn writes(&self) -> bool {
        self.writes
    }

    /// Whether the two share a byte and one of them writes. Exact as far as [`Shape::overlaps`] is.
    pub fn conflicts_with(&self, other: &Footprint) -> bool {
        (self.writes || other.writes)
            && self.storage == other.storage
            && self
                .shape
                .overlaps(self.position, &other.shape, other.position)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.position == self.end
    }

    pub(super) const fn first_point(&self) -> Point {
        point(self.storage, self.position)
    }

    pub(super) const fn end_point(&self) -> Point {
        point(self.storage, self.end)
    }
}

/// A position in all storages laid end to end, in no particular order: one ordered index serves
/// them all, and a comparison is that of two integers. Two storages may lie on top of each other;
/// then a search by points finds footprints that only seem to meet.
pub(super) type Point = u128;

const fn point(storage: StorageId, position: u64) -> Point {
    let upper = match storage {
        StorageId::Host => 0,
        // Not every bit counts: files are on few devices, and handles are of few backends.
        StorageId::File { device, inode } => !inode ^ device.rotate_left(32),
        StorageId::Native { handle, .. } => handle ^ 1 << 63,
    };
    (upper as u128) << 64 | position as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: StorageId = StorageId::Host;

    #[test]
    fn footprints_that_end_past_the_last_position_are_refused() {
        let at = |position, shape| Footprint::new(HOST, position, shape, true);
        assert!(at(u64::MAX, Shape::contiguous(0)).is_ok());
        assert_eq!(
            at(u64::MAX - 4, Shape::contiguous(4)).unwrap().end(),
            u64::MAX
        );
        assert_eq!(
            at(u64::MAX - 4, Shape::contiguous(5)),
            Err(FootprintError::PastEnd {
                storage: HOST,
                position: u64::MAX - 4,
                extent_bytes: 5,
            })
        );
        let rows = Shape::pitched(1, 3, 1 << 62).unwrap();
        assert!(at((1 << 63) - 2, rows).is_ok());
        assert!(at(1 << 63, rows).is_err());
    }

    #[test]
    fn only_writes_to_shared_bytes_of_one_storage_conflict() {
        let footprint = |storage, position, writes| {
            Footprint::new(storage, position, Shape::contiguous(8), writes).unwrap()
        };
        let file = StorageId::File {
            device: 1,
            inode: 2,
        };
        let write = footprint(HOST, 0, true);
        assert!(write.conflicts_with(&footprint(HOST, 7, false)));
        assert!(footprint(HOST, 7, false).conflicts_with(&write));
        assert!(!write.conflicts_with(&footprint(HOST, 8, true)));
        assert!(!write.conflicts_with(&footprint(file, 0, true)));
        assert!(!footprint(HOST, 0, false).conflicts_with(&footprint(HOST, 0, false)));
    }
}
