//! The checksum of a payload, computed as it passes.

use transload_hal::{ErrorClass, Fault, Transform};
use xxhash_rust::xxh3::Xxh3Default;

use super::sync::Lock;

/// An xxh3-64 of bytes that come in payload order.
pub(crate) struct Digest {
    state: Lock<Progress>,
}

struct Progress {
    hash: Xxh3Default,
    next: u64,
}

impl Digest {
    pub(crate) fn new() -> Digest {
        Digest {
            state: Lock::new(Progress {
                hash: Xxh3Default::new(),
                next: 0,
            }),
        }
    }

    /// Forgets the bytes seen so far.
    pub(crate) fn reset(&self) {
        self.state.with(|state| {
            state.hash.reset();
            state.next = 0;
        });
    }

    /// Returns the checksum of the bytes seen so far.
    pub(crate) fn value(&self) -> u64 {
        self.state.with(|state| state.hash.digest())
    }
}

impl Transform for Digest {
    /// A part at position 0 starts over, since a leg that failed is followed by another one.
    fn inspect(&self, bytes: &[u8], position: u64) -> Result<(), Fault> {
        self.state.with(|state| {
            if position == 0 {
                state.hash.reset();
                state.next = 0;
            }
            if position != state.next {
                return Err(Fault::new(
                    ErrorClass::Failed,
                    alloc::format!(
                        "the checksum was shown byte {position} where byte {} comes next",
                        state.next
                    ),
                ));
            }
            state.hash.update(bytes);
            state.next += bytes.len() as u64;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_in_order_make_the_checksum_of_the_whole() {
        let bytes: alloc::vec::Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let digest = Digest::new();
        digest.inspect(&bytes[..1], 0).unwrap();
        digest.inspect(&bytes[1..600], 1).unwrap();
        digest.inspect(&bytes[600..], 600).unwrap();
        assert_eq!(digest.value(), xxhash_rust::xxh3::xxh3_64(&bytes));
        assert!(digest.inspect(&bytes, 7).is_err());
        digest.inspect(&bytes[..10], 0).unwrap();
        assert_eq!(digest.value(), xxhash_rust::xxh3::xxh3_64(&bytes[..10]));
    }
}
