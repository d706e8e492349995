//! Both ends of a copy, in one order.

use super::{Axis, Strided};

/// One dimension of both ends.
#[derive(Clone, Copy)]
struct Both {
    count: u64,
    strides: [i128; 2],
}

/// As many dimensions can two arrays have together.
const MOST: usize = 2 * Strided::MOST_DIMENSIONS + 2;

impl Strided {
    /// Returns both ends of a copy with the same dimensions, in the order of the strides of one of them: those of `by`, 0 or 1, which
    /// then go upwards. A number of the first end, of `number_bytes[0]` bytes, is copied to one of the second end, of
    /// `number_bytes[1]`; both are 1 where bytes are copied as they are. Both payloads have as many numbers.
    ///
    /// `None` where no dimensions divide both arrays, as 6 rows of 4 and 4 rows of 6 that have gaps, or where there are more than
    /// eight of them. Elements are copied all the same: the payloads are equal.
    pub fn paired(ends: [&Strided; 2], number_bytes: [u64; 2], by: usize) -> Option<[Strided; 2]> {
        if ends.iter().any(|end| end.element_bytes == 0) {
            return Some([Strided::EMPTY; 2]);
        }
        let (mut both, mut len) = (
            [Both {
                count: 1,
                strides: [0; 2],
            }; MOST],
            0,
        );
        // What is left of each end's dimension, from the innermost on, and its stride.
        let mut walks = [
            Walk::new(ends[0], number_bytes[0])?,
            Walk::new(ends[1], number_bytes[1])?,
        ];
        loop {
            let [a, b] = walks.each_mut();
            let (a, b) = (a.current(), b.current());
            let count = match (a.0, b.0) {
                (1, 1) => break,
                (a, b) if a.is_multiple_of(b) => b,
                (a, b) if b.is_multiple_of(a) => a,
                _ => return None,
            };
            // One end is over before the other: the payloads differ.
            if count == 1 {
                return None;
            }
            *both.get_mut(len)? = Both {
                count,
                strides: [a.1, b.1],
            };
            len += 1;
            walks.iter_mut().for_each(|walk| walk.take(count));
        }
        let both = &mut both[..len];
        for axis in both.iter_mut().filter(|axis| axis.strides[by] < 0) {
            axis.strides = axis.strides.map(|stride| -stride);
        }
        // From the innermost on. Equal strides are those of bytes that are read several times.
        both.sort_unstable_by_key(|axis| axis.strides[by]);
        let mut made = [0, 1].map(|end| Strided {
            element_bytes: number_bytes[end],
            first: 0,
            extent_bytes: ends[end].extent_bytes,
            ..Strided::EMPTY
        });
        for axis in both.iter() {
            Strided::enclose_both(&mut made, *axis)?;
        }
        for end in &mut made {
            let dimensions = end.dimensions();
            end.axes[..dimensions].reverse();
            let below: i128 = end.axes().iter().map(|axis| axis.reach().min(0)).sum();
            end.first = -below as u64;
        }
        Some(made)
    }

    /// Adds a dimension around those that both have, the innermost first.
    fn enclose_both(made: &mut [Strided; 2], axis: Both) -> Option<()> {
        let at = made[0].dimensions();
        let goes_on = |end: usize| {
            let inner = &made[end];
            let reach = match at.checked_sub(1).map(|last| inner.axes[last]) {
                None => i128::from(inner.element_bytes),
                Some(inner) => i128::from(inner.count) * i128::from(inner.stride_bytes),
            };
            axis.strides[end] == reach
        };
        let adjoins = goes_on(0) && goes_on(1);
        for (end, stride) in made.iter_mut().zip(axis.strides) {
            match at.checked_sub(1) {
                None if adjoins => end.element_bytes *= axis.count,
                Some(last) if adjoins => end.axes[last].count *= axis.count,
                _ => {
                    let stride = i64::try_from(stride).ok()?;
                    *end.axes.get_mut(at)? = Axis::new(axis.count, stride);
                    end.dimensions += 1;
                }
            }
        }
        Some(())
    }
}

/// An array's dimensions from the innermost one on, of which the numbers of an element are the first.
struct Walk<'a> {
    array: &'a Strided,
    /// How many dimensions are left, the current one not counted.
    outer: usize,
    count: u64,
    stride: i128,
}

impl<'a> Walk<'a> {
    fn new(array: &'a Strided, number_bytes: u64) -> Option<Walk<'a>> {
        let whole = array.element_bytes.is_multiple_of(number_bytes);
        whole.then(|| Walk {
            array,
            outer: array.dimensions(),
            count: array.element_bytes / number_bytes,
            stride: i128::from(number_bytes),
        })
    }

    /// Returns how many are left of the current dimension, and their stride; 1 once all are taken.
    fn current(&mut self) -> (u64, i128) {
        while self.count == 1 && self.outer > 0 {
            self.outer -= 1;
            let axis = self.array.axes[self.outer];
            (self.count, self.stride) = (axis.count, axis.stride_bytes.into());
        }
        (self.count, self.stride)
    }

    fn take(&mut self, count: u64) {
        self.count /= count;
        self.stride *= i128::from(count);
    }
}
