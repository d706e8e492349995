//! Footprints: the bytes of one storage that a transfer touches.

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
    /// Makes a footprint of the bytes of `shape` from `position` of `storage` on: written where `writes`, else read. In
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

    /// The same, with what is left of the units of `grain` bytes, a power of two, that it covers in part:
    /// for memory that engines write in such units, putting back what the rest of one held. Rows whose
    /// pitches are no multiples of it, or that come to overlap, count as one run.
    #[must_use]
    pub fn widened(self, grain: u64) -> Footprint {
        let lead = self.position % grain;
        let rounded = |bytes: u64| bytes.checked_next_multiple_of(grain);
        let shape = &self.shape;
        let keeps_rows = (shape.row_pitch() | shape.plane_pitch()).is_multiple_of(grain);
        let rows =
            rounded(lead + shape.width_bytes()).filter(|_| keeps_rows && !shape.is_contiguous());
        let pitched = rows.and_then(|width| {
            let (rows, planes) = (shape.rows(), shape.planes());
            Shape::pitched_3d(width, rows, shape.row_pitch(), planes, shape.plane_pitch()).ok()
        });
        let run = || Some(Shape::contiguous(rounded(self.end - self.position + lead)?));
        let widened = pitched.or_else(run).filter(|_| !self.is_empty());
        let at =
            |shape| Footprint::new(self.storage, self.position - lead, shape, self.writes).ok();
        widened.and_then(at).unwrap_or(self)
    }

    /// Returns the storage that the bytes are in.
    pub const fn storage(&self) -> StorageId {
        self.storage
    }

    /// Returns where the shape's first byte lies.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Returns the first position after the shape's last byte.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Returns the shape of the bytes from the position on.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns whether the bytes are written; else they are read.
    pub const fn writes(&self) -> bool {
        self.writes
    }

    /// Returns whether the two share a byte and one of them writes. Exact as far as [`Shape::overlaps`] is.
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
        StorageId::Remote { number, .. } => number ^ 1 << 62,
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

    #[test]
    fn widened_footprints_hold_whole_units_and_no_more() {
        let at = |position, shape| Footprint::new(HOST, position, shape, true).unwrap();
        let run = |position, len| at(position, Shape::contiguous(len));
        for (exact, wide) in [
            (run(8, 8), run(8, 8)),
            (run(5, 2), run(4, 4)),
            (run(7, 2), run(4, 8)),
            (run(7, 0), run(7, 0)),
            (run(u64::MAX - 2, 2), run(u64::MAX - 2, 2)),
            (
                at(9, Shape::pitched(3, 5, 16).unwrap()),
                at(8, Shape::pitched(4, 5, 16).unwrap()),
            ),
            // From the first word to the last.
            (at(9, Shape::pitched(3, 5, 15).unwrap()), run(8, 64)),
            (at(11, Shape::pitched(10, 5, 12).unwrap()), run(8, 64)),
            (
                at(10, Shape::pitched_3d(3, 2, 16, 3, 64).unwrap()),
                at(8, Shape::pitched_3d(8, 2, 16, 3, 64).unwrap()),
            ),
        ] {
            assert_eq!(exact.widened(4), wide, "{exact:?}");
            assert_eq!(exact.widened(1), exact);
        }
    }
}
