//! A fixed piece of memory that is filled at its end and emptied from its front.

/// Bytes on their way to or from the socket.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(crate) fn new(capacity: usize) -> Buffer {
        Buffer {
            bytes: vec![0; capacity].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Returns where further bytes go.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// The first `len` bytes of the space are filled.
    pub(crate) fn fill(&mut self, len: usize) {
        debug_assert!(len <= self.bytes.len() - self.end);
        self.end += len;
    }

    /// The first `len` filled bytes are done with.
    pub(crate) fn take(&mut self, len: usize) {
        debug_assert!(len <= self.end - self.start);
        self.start += len;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Returns whether `len` bytes have space. May move bytes to make it, but never more than were taken since the last
    /// move, so that moving costs no more than filling.
    pub(crate) fn has_space(&mut self, len: usize) -> bool {
        if self.bytes.len() - self.end >= len {
            return true;
        }
        let filled = self.end - self.start;
        if filled > self.start || self.bytes.len() - filled < len {
            return false;
        }
        self.bytes.copy_within(self.start..self.end, 0);
        self.start = 0;
        self.end = filled;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_order_when_they_are_moved() {
        let mut buffer = Buffer::new(8);
        buffer.space()[..6].copy_from_slice(b"abcdef");
        buffer.fill(6);
        buffer.take(4);
        assert!(!buffer.has_space(7), "two bytes are filled");
        assert!(buffer.has_space(6));
        assert_eq!(buffer.filled(), b"ef");
        assert_eq!(buffer.space().len(), 6);
        buffer.take(2);
        assert_eq!(buffer.space().len(), 8);
        buffer.fill(8);
        assert!(!buffer.has_space(1));
        buffer.take(1);
        assert!(
            !buffer.has_space(1),
            "seven bytes would move, and one was taken"
        );
        buffer.take(3);
        assert!(buffer.has_space(4));
    }
}
