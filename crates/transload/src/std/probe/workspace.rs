//! The memory that a probe works in, and the patterns that it sends.

use std::collections::HashMap;
use std::time::Duration;

use transload_core::{DeviceId, LinkId, MemoryId, MemoryKind};
use transload_hal::{AllocError, AllocSpec, ErrorClass, Fault};

use super::measurement::Measurement;
use crate::engine::checked::Only;
use crate::{Buffer, Error, Request, TransferError, TransferManager};

/// The use of a buffer. Copies that bring a pattern there and copies that bring it back never share one: bytes that one
/// of them left would look like the work of the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Role {
    From,
    To,
    /// On the way to [`Role::From`] or [`Role::To`].
    There,
    /// On the way back.
    Back,
}

/// Buffers, allocated at their first use, and patterns.
pub(super) struct Workspace<'a> {
    manager: &'a TransferManager,
    buffers: HashMap<(MemoryId, u64, Role), Buffer>,
    patterns: Patterns,
    /// The largest buffer that leaves room for all else that its copies need.
    most: u64,
}

/// How much memory the copies of one size need at once, as a multiple of the size: the pattern and its inverse, both ends,
/// the way there and back, and two slots.
const AT_ONCE: u64 = 8;

/// What a probe leaves of each memory, in bytes. A software adapter takes about as much of the host's for its own work.
const SPARED: u64 = 16 << 20;

impl<'a> Workspace<'a> {
    /// `most` is the largest size of a pattern, in bytes.
    pub(super) fn new(manager: &'a TransferManager, most: u64) -> Workspace<'a> {
        let room = manager.available_bytes(HOME).unwrap_or(u64::MAX);
        let most = most.min(room.saturating_sub(SPARED) / AT_ONCE);
        Workspace {
            manager,
            buffers: HashMap::new(),
            patterns: Patterns::new(usize::try_from(most).unwrap_or(0)),
            most,
        }
    }

    /// Returns the buffer for that use.
    pub(super) fn buffer(
        &mut self,
        memory: MemoryId,
        bytes: u64,
        role: Role,
    ) -> Result<Buffer, Error> {
        let key = (memory, bytes, role);
        if let Some(buffer) = self.buffers.get(&key) {
            return Ok(buffer.clone());
        }
        // Each buffer is written, and the small ones are many.
        let available = self.manager.available_bytes(memory);
        let is_short = |available: u64| available.saturating_sub(SPARED) < bytes;
        if bytes > self.most || available.is_some_and(is_short) {
            let available = available.or(self.manager.available_bytes(HOME));
            let message = format!(
                "a probe with this size needs up to {AT_ONCE} times as much and leaves {SPARED}, and the system has {} bytes available",
                available.unwrap_or(0)
            );
            return Err(AllocError::OutOfMemory {
                memory,
                len_bytes: bytes,
                fault: Fault::new(ErrorClass::Exhausted, message),
            }
            .into());
        }
        let spec = AllocSpec::bytes(bytes);
        let spec = match memory.kind {
            // Memories that hold only slots.
            MemoryKind::Upload | MemoryKind::Readback => spec.for_staging(),
            _ => spec,
        };
        let buffer = self.manager.allocate(memory.into(), spec)?;
        self.buffers.insert(key, buffer.clone());
        Ok(buffer)
    }

    /// Copies all of one buffer to another where the link may hang: gives the copy up after a while, with all buffers, since it may still be under
    /// way.
    fn try_copy(&mut self, src: &Buffer, dst: &Buffer, over: Option<LinkId>) -> Result<(), Error> {
        let request =
            request(src, dst, over.map(Only::Link)).deadline(self.manager.now() + PATIENCE);
        let copied = self.manager.submit(&request).wait();
        if let Err(TransferError::Deadline { .. }) = copied {
            self.buffers.clear();
        }
        copied?;
        Ok(())
    }

    /// Copies for the check of a measurement, from one of its ends to the other.
    pub(super) fn cross(&mut self, measurement: &Measurement) -> Result<Buffer, Error> {
        let src = self.buffer(measurement.src, measurement.bytes, Role::From)?;
        let dst = self.buffer(measurement.dst, measurement.bytes, Role::To)?;
        self.try_copy(&src, &dst, measurement.over)?;
        Ok(dst)
    }

    /// Brings bytes to `dst`, link by link.
    pub(super) fn bring(
        &mut self,
        what: What,
        dst: &Buffer,
        way: &[LinkId],
    ) -> Result<(), Stopped> {
        let bytes = dst.len();
        let Some((last, before)) = way.split_last() else {
            return self.write(what, dst).map_err(Stopped::at_home);
        };
        let mut at = self
            .buffer(HOME, bytes, Role::There)
            .map_err(Stopped::at_home)?;
        self.write(what, &at).map_err(Stopped::at_home)?;
        for link in before {
            at = self
                .hop(&at, *link, Role::There)
                .map_err(Stopped::on(*link))?;
        }
        self.try_copy(&at, dst, Some(*last))
            .map_err(Stopped::on(*last))
    }

    /// Brings the bytes of `src` back, link by link, and compares them with the pattern.
    pub(super) fn compare(
        &mut self,
        number: usize,
        src: &Buffer,
        way: &[LinkId],
    ) -> Result<bool, Stopped> {
        let bytes = src.len();
        let mut at = src.clone();
        if !way.is_empty() {
            let home = self
                .buffer(HOME, bytes, Role::Back)
                .map_err(Stopped::at_home)?;
            self.write(What::Poison(number), &home)
                .map_err(Stopped::at_home)?;
        }
        for link in way {
            at = self
                .hop(&at, *link, Role::Back)
                .map_err(Stopped::on(*link))?;
        }
        let arrived = at.read().map_err(|error| Stopped::at_home(error.into()))?;
        Ok(*arrived == *self.patterns.bytes(What::Pattern(number), bytes))
    }

    /// Copies over the link to the buffer at its other end.
    fn hop(&mut self, at: &Buffer, link: LinkId, role: Role) -> Result<Buffer, Error> {
        let next = self.buffer(link.dst, at.len(), role)?;
        self.try_copy(at, &next, Some(link))?;
        Ok(next)
    }

    fn write(&self, what: What, dst: &Buffer) -> Result<(), Error> {
        let mut bytes = dst.write()?;
        bytes.copy_from_slice(self.patterns.bytes(what, dst.len()));
        Ok(())
    }

    pub(super) fn manager(&self) -> &TransferManager {
        self.manager
    }
}

/// Copies all of one buffer to another, by the only way that is named, or by the planner's choice.
pub(super) fn request(src: &Buffer, dst: &Buffer, only: Option<Only>) -> Request {
    let mut request = Request::new(src, dst);
    request.terms.only = only;
    request
}

/// No useful link takes this long for 64 MiB.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a pattern was not brought there or back.
pub(super) struct Stopped {
    /// The link that failed on the way; `None` where no link failed.
    pub(super) at: Option<Box<LinkId>>,
    pub(super) why: String,
}

impl Stopped {
    fn at_home(error: Error) -> Stopped {
        Stopped {
            at: None,
            why: error.to_string(),
        }
    }

    fn on(link: LinkId) -> impl FnOnce(Error) -> Stopped {
        move |error| Stopped {
            at: Some(Box::new(link)),
            why: error.to_string(),
        }
    }
}

/// Where patterns begin and end.
pub(super) const HOME: MemoryId = DeviceId::CPU0.memory(MemoryKind::Pageable);

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The pattern of that number.
    Pattern(usize),
    /// Bytes that differ from it everywhere.
    Poison(usize),
}

/// Bytes that do not repeat within a wide range, seen through a window that moves from number to number: bytes that an
/// earlier copy left are not taken for the work of a later one.
struct Patterns {
    plain: Vec<u8>,
    inverse: Vec<u8>,
}

/// The number of places where windows begin: as many as a page has bytes, sixteen times over, so that no two
/// neighbouring windows look alike to hardware that works in pages.
const WINDOWS: usize = 64 << 10;

impl Patterns {
    fn new(most: usize) -> Patterns {
        let words = (most + WINDOWS).div_ceil(8);
        let mut plain = Vec::with_capacity(words * 8);
        for at in 0..words as u64 {
            // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every word is a mixed counter.
            let mut word = at.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            plain.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
        }
        let inverse = plain.iter().map(|byte| !byte).collect();
        Patterns { plain, inverse }
    }

    fn bytes(&self, what: What, len: u64) -> &[u8] {
        let (bytes, number) = match what {
            What::Pattern(number) => (&self.plain, number),
            What::Poison(number) => (&self.inverse, number),
        };
        // An odd step visits every window before any comes again.
        let start = number.wrapping_mul(4099) % WINDOWS;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        &bytes[start..start + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_from_number_to_number_and_poison_from_its_pattern_everywhere() {
        let patterns = Patterns::new(5000);
        let pattern = |number| patterns.bytes(What::Pattern(number), 5000);
        for number in 0..100 {
            assert_ne!(pattern(number), pattern(number + 1));
            let poison = patterns.bytes(What::Poison(number), 5000);
            assert!(pattern(number).iter().zip(poison).all(|(a, b)| a != b));
        }
        assert_eq!(pattern(7), pattern(7 + WINDOWS));
    }
}
