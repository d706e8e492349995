//! Copies of elements at strides: nested loops over both ends, tiled where the ends go through memory in different orders.
//!
//! A line of memory is read and written as a whole, however few of its bytes are wanted. Where the innermost loop of one end
//! is an outer one of the other, as in a transposed array, tiles of both loops keep a line in the first-level cache until all
//! of its elements have been used.

#[cfg(target_arch = "x86_64")]
mod x86_64;

use arrayvec::ArrayVec;
use transload_hal::{Conversion, Strided};

use super::{Store, convert};

/// One loop: how often, and how far each end goes on, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loop {
    /// How often it runs.
    pub count: usize,
    /// From one element of the source to the next.
    pub src: isize,
    /// From one element of the destination to the next.
    pub dst: isize,
}

impl Loop {
    const ONCE: Self = Self {
        count: 1,
        src: 0,
        dst: 0,
    };

    /// The same elements in the other direction, and how far both ends begin further on.
    const fn reversed(self) -> (Self, isize, isize) {
        let last = self.count as isize - 1;
        let back = Self {
            count: self.count,
            src: -self.src,
            dst: -self.dst,
        };
        (back, last * self.src, last * self.dst)
    }
}

/// The most loops: the dimensions of an array, and the bytes or numbers of an element.
const MOST_LOOPS: usize = Strided::MOST_DIMENSIONS + 1;

/// Loops, the outermost first.
pub type Loops = ArrayVec<Loop, MOST_LOOPS>;

/// Copies elements of `element` bytes from `src` on to `dst` on, along the loops.
///
/// # Safety
/// All elements of the source may be read, and those of the destination written, by this call alone; no element of the
/// destination shares a byte with another one or with the source.
pub unsafe fn copy_nest(
    dst: *mut u8,
    src: *const u8,
    element: usize,
    loops: &[Loop],
    store: Store,
) {
    let nest = Nest::new(loops, element, element);
    nest.outer.walk(dst, src, |dst, src| {
        if nest.is_plane() {
            // SAFETY: the caller's contract, for the elements of the inner loops.
            unsafe { copy_plane(dst, src, element, nest.rows, nest.columns) }
        } else if nest.columns.count == 1 {
            // SAFETY: as above.
            unsafe { super::copy(dst, src, element, store) }
        } else {
            // SAFETY: as above.
            unsafe { copy_row(dst, src, element, nest.columns) }
        }
    });
}

/// Converts the numbers from `src` on to `dst` on, along the loops.
///
/// # Safety
/// As [`copy_nest`].
pub unsafe fn convert_nest(
    dst: *mut u8,
    src: *const u8,
    conversion: Conversion,
    loops: &[Loop],
    store: Store,
) {
    let [from, to] = [conversion.from(), conversion.to()].map(|of| of.len_bytes() as usize);
    let nest = Nest::new(loops, from, to);
    let (rows, columns) = (nest.rows, nest.columns);
    let mut tile = [0u64; TILE_ROWS * TILE_COLUMNS];
    let tile = tile.as_mut_ptr().cast::<u8>();
    let mut line = [0u64; TILE_COLUMNS];
    let line = line.as_mut_ptr().cast::<u8>();
    nest.outer.walk(dst, src, |dst, src| {
        for row in (0..rows.count).step_by(TILE_ROWS) {
            for column in (0..columns.count).step_by(TILE_COLUMNS) {
                let high = TILE_ROWS.min(rows.count - row);
                let wide = TILE_COLUMNS.min(columns.count - column);
                let src = at(src, row, rows.src).wrapping_offset(column as isize * columns.src);
                let dst = at_mut(dst, row, rows.dst).wrapping_offset(column as isize * columns.dst);
                // Where the source's numbers lie side by side, they are converted where they are.
                let is_packed = columns.src != from as isize;
                let width = Loop {
                    count: wide,
                    src: columns.src,
                    dst: from as isize,
                };
                match high {
                    _ if !is_packed => {}
                    // SAFETY: the caller's contract; the tile has room for its numbers.
                    1 => unsafe { copy_row(tile, src, from, width) },
                    _ => {
                        let height = Loop {
                            count: high,
                            src: rows.src,
                            dst: (wide * from) as isize,
                        };
                        // SAFETY: as above.
                        unsafe { copy_plane(tile, src, from, height, width) };
                    }
                }
                for row in 0..high {
                    let src = match is_packed {
                        true => tile.wrapping_add(row * wide * from).cast_const(),
                        false => at(src, row, rows.src),
                    };
                    let dst = at_mut(dst, row, rows.dst);
                    if columns.dst == to as isize {
                        // SAFETY: as above.
                        unsafe { convert(dst, src, wide, conversion, store) };
                    } else {
                        // SAFETY: the line has room for a tile's numbers.
                        unsafe { convert(line, src, wide, conversion, Store::Plain) };
                        let width = Loop {
                            count: wide,
                            src: to as isize,
                            dst: columns.dst,
                        };
                        // SAFETY: the caller's contract.
                        unsafe { copy_row(dst, line, to, width) };
                    }
                }
            }
        }
    });
}

/// Numbers of a tile that is converted: a row of it is as long as a call of [`convert`] deserves, and all of it stays in the
/// first-level cache.
const TILE_ROWS: usize = 8;
const TILE_COLUMNS: usize = 256;

/// The loops of a copy by what is done with them.
struct Nest {
    outer: Outer,
    /// The innermost loop of the source, if the destination has another one; else it runs once.
    rows: Loop,
    /// The innermost loop of the destination.
    columns: Loop,
}

impl Nest {
    fn new(loops: &[Loop], from: usize, to: usize) -> Self {
        let mut outer: Loops = loops.iter().filter(|of| of.count > 1).copied().collect();
        // Bytes that are read several times have one place in the source: a stride of 0 is no way through memory.
        let innermost = |loops: &Loops, end: fn(&Loop) -> isize| {
            let ways = (0..loops.len()).filter(|at| end(&loops[*at]) != 0);
            ways.min_by_key(|at| end(&loops[*at]).unsigned_abs())
        };
        let columns = innermost(&outer, |of| of.dst).map_or(Loop::ONCE, |at| outer.remove(at));
        let rows = innermost(&outer, |of| of.src);
        let is_closer = |of: &Loop| of.src.unsigned_abs() < columns.src.unsigned_abs();
        let rows = rows.filter(|at| is_closer(&outer[*at]) && from.max(to) <= LARGE_BYTES);
        let rows = rows.map_or(Loop::ONCE, |at| outer.remove(at));
        let mut nest = Self {
            outer: Outer {
                loops: outer,
                src: 0,
                dst: 0,
            },
            rows,
            columns,
        };
        // Upwards, where the innermost elements lie side by side.
        if nest.rows.src < 0 {
            nest.rows = nest.outer.begin_at(nest.rows.reversed());
        }
        if nest.columns.dst < 0 {
            nest.columns = nest.outer.begin_at(nest.columns.reversed());
        }
        nest
    }

    const fn is_plane(&self) -> bool {
        self.rows.count > 1
    }
}

/// The outer loops, and where the first element of the inner ones lies.
struct Outer {
    loops: Loops,
    src: isize,
    dst: isize,
}

impl Outer {
    fn begin_at(&mut self, (inner, src, dst): (Loop, isize, isize)) -> Loop {
        self.src += src;
        self.dst += dst;
        inner
    }

    /// Calls `inner` with the places of each turn.
    fn walk(&self, dst: *mut u8, src: *const u8, mut inner: impl FnMut(*mut u8, *const u8)) {
        let (mut dst, mut src) = (dst.wrapping_offset(self.dst), src.wrapping_offset(self.src));
        let mut turns = [0usize; MOST_LOOPS];
        loop {
            inner(dst, src);
            let mut level = self.loops.len();
            loop {
                let Some(next) = level.checked_sub(1) else {
                    return;
                };
                level = next;
                let of = self.loops[level];
                turns[level] += 1;
                if turns[level] < of.count {
                    (dst, src) = (dst.wrapping_offset(of.dst), src.wrapping_offset(of.src));
                    break;
                }
                turns[level] = 0;
                let back = of.count as isize - 1;
                dst = dst.wrapping_offset(-back * of.dst);
                src = src.wrapping_offset(-back * of.src);
            }
        }
    }
}

/// Elements from this size on fill a line of memory by themselves, and need no tiles.
const LARGE_BYTES: usize = 64;

fn at(place: *const u8, number: usize, stride: isize) -> *const u8 {
    place.wrapping_offset(number as isize * stride)
}

fn at_mut(place: *mut u8, number: usize, stride: isize) -> *mut u8 {
    place.wrapping_offset(number as isize * stride)
}

/// Copies the elements of one loop.
///
/// # Safety
/// As [`copy_nest`].
unsafe fn copy_row(dst: *mut u8, src: *const u8, element: usize, of: Loop) {
    // SAFETY of all calls: the caller's contract.
    match element {
        // SAFETY: as above.
        1 => unsafe { row::<u8>(dst, src, of) },
        // SAFETY: as above.
        2 => unsafe { row::<u16>(dst, src, of) },
        // SAFETY: as above.
        4 => unsafe { row::<u32>(dst, src, of) },
        // SAFETY: as above.
        8 => unsafe { row::<u64>(dst, src, of) },
        // SAFETY: as above.
        16 => unsafe { row::<u128>(dst, src, of) },
        // SAFETY: as above.
        3 => unsafe { row::<[u8; 3]>(dst, src, of) },
        // SAFETY: as above.
        6 => unsafe { row::<[u16; 3]>(dst, src, of) },
        // SAFETY: as above.
        12 => unsafe { row::<[u32; 3]>(dst, src, of) },
        _ => {
            for number in 0..of.count {
                let (dst, src) = (at_mut(dst, number, of.dst), at(src, number, of.src));
                // SAFETY: as above.
                unsafe { super::copy(dst, src, element, Store::Plain) };
            }
        }
    }
}

/// Copies the elements of two loops: `rows`, along which the source's elements lie closest, and `columns`, along which the
/// destination's do.
///
/// # Safety
/// As [`copy_nest`].
unsafe fn copy_plane(dst: *mut u8, src: *const u8, element: usize, rows: Loop, columns: Loop) {
    // SAFETY of all calls: the caller's contract.
    match element {
        // SAFETY: as above.
        1 => unsafe { plane::<u8>(dst, src, rows, columns) },
        // SAFETY: as above.
        2 => unsafe { plane::<u16>(dst, src, rows, columns) },
        // SAFETY: as above.
        4 => unsafe { plane::<u32>(dst, src, rows, columns) },
        // SAFETY: as above.
        8 => unsafe { plane::<u64>(dst, src, rows, columns) },
        // SAFETY: as above.
        16 => unsafe { plane::<u128>(dst, src, rows, columns) },
        _ => {
            let side = (TILE_BYTES / element).max(1);
            tiles(
                rows.count,
                columns.count,
                side,
                |row, column, high, wide| {
                    for column in column..column + wide {
                        let of = Loop {
                            count: high,
                            ..rows
                        };
                        let dst = at_mut(at_mut(dst, row, rows.dst), column, columns.dst);
                        let src = at(at(src, row, rows.src), column, columns.src);
                        // SAFETY: a part of the elements.
                        unsafe { copy_row(dst, src, element, of) };
                    }
                },
            );
        }
    }
}

/// Calls `tile` with the first row and column of each tile, and how many there are: `side` of each, or more of one where there are
/// fewer of the other, such as the channels of a pixel.
fn tiles(
    rows: usize,
    columns: usize,
    side: usize,
    mut tile: impl FnMut(usize, usize, usize, usize),
) {
    let beside = |few: usize| side * (side / few.clamp(1, side));
    let (most_rows, most_columns) = (beside(columns), beside(rows));
    for column in (0..columns).step_by(most_columns) {
        for row in (0..rows).step_by(most_rows) {
            let (high, wide) = (rows - row, columns - column);
            tile(row, column, most_rows.min(high), most_columns.min(wide));
        }
    }
}

/// Bytes of a side of a tile: two lines of memory, as processors fetch them in pairs.
const TILE_BYTES: usize = 128;

/// # Safety
/// As [`copy_nest`].
unsafe fn row<T: Copy>(dst: *mut u8, src: *const u8, of: Loop) {
    let size = size_of::<T>() as isize;
    if of.dst == size {
        // SAFETY of all calls: the caller's contract.
        match of.src {
            // SAFETY: as above.
            step if step == -size => return unsafe { packed::<T, -1>(dst, src, of.count) },
            // SAFETY: as above.
            step if step == 2 * size => return unsafe { packed::<T, 2>(dst, src, of.count) },
            // SAFETY: as above.
            step if step == 3 * size => return unsafe { packed::<T, 3>(dst, src, of.count) },
            // SAFETY: as above.
            step if step == 4 * size => return unsafe { packed::<T, 4>(dst, src, of.count) },
            _ => {}
        }
    }
    for number in 0..of.count {
        let (dst, src) = (at_mut(dst, number, of.dst), at(src, number, of.src));
        // SAFETY: the caller's contract; any address will do.
        let element = unsafe { src.cast::<T>().read_unaligned() };
        // SAFETY: as above.
        unsafe { dst.cast::<T>().write_unaligned(element) };
    }
}

/// Packs every `STEP`th element: the compiler makes shuffles of registers of it, as the step is known.
///
/// # Safety
/// As [`copy_nest`].
unsafe fn packed<T: Copy, const STEP: isize>(dst: *mut u8, src: *const u8, count: usize) {
    let (dst, src) = (dst.cast::<T>(), src.cast::<T>());
    for number in 0..count {
        let src = src.wrapping_offset(number as isize * STEP);
        // SAFETY: the caller's contract; any address will do.
        let element = unsafe { src.read_unaligned() };
        // SAFETY: as above.
        unsafe { dst.wrapping_add(number).write_unaligned(element) };
    }
}

/// # Safety
/// As [`copy_nest`].
unsafe fn plane<T: Element>(dst: *mut u8, src: *const u8, rows: Loop, columns: Loop) {
    let size = size_of::<T>();
    let is_unit = rows.src == size as isize && columns.dst == size as isize;
    let side = (TILE_BYTES / size).max(T::BLOCK);
    tiles(
        rows.count,
        columns.count,
        side,
        |row, column, high, wide| {
            let dst = at_mut(at_mut(dst, row, rows.dst), column, columns.dst);
            let src = at(at(src, row, rows.src), column, columns.src);
            let (whole_rows, whole_columns) = match is_unit {
                true => (high / T::BLOCK * T::BLOCK, wide / T::BLOCK * T::BLOCK),
                false => (0, 0),
            };
            for column in (0..whole_columns).step_by(T::BLOCK) {
                for row in (0..whole_rows).step_by(T::BLOCK) {
                    let dst = at_mut(dst, row, rows.dst).wrapping_add(column * size);
                    let src = at(src, column, columns.src).wrapping_add(row * size);
                    // SAFETY: the caller's contract, for a block of both.
                    unsafe { T::transpose(dst, rows.dst, src, columns.src) };
                }
            }
            // What is left: below the blocks, and beside them.
            let below = (whole_rows..high, 0..whole_columns);
            let beside = (0..high, whole_columns..wide);
            for (part_rows, part_columns) in [below, beside] {
                let dst = at_mut(dst, part_rows.start, rows.dst);
                let dst = at_mut(dst, part_columns.start, columns.dst);
                let src = at(
                    at(src, part_rows.start, rows.src),
                    part_columns.start,
                    columns.src,
                );
                let part = |of: Loop, count| Loop { count, ..of };
                let parts = [
                    part(rows, part_rows.len()),
                    part(columns, part_columns.len()),
                ];
                // The longer loop is the inner one.
                let [outer, inner] = match parts[0].count <= parts[1].count {
                    true => parts,
                    false => [parts[1], parts[0]],
                };
                for number in 0..outer.count {
                    let dst = at_mut(dst, number, outer.dst);
                    // SAFETY: a part of the elements.
                    unsafe { self::row::<T>(dst, at(src, number, outer.src), inner) };
                }
            }
        },
    );
}

/// An element whose blocks are transposed in registers.
trait Element: Copy {
    /// Rows and columns of a block.
    const BLOCK: usize;

    /// Transposes a block: of the source, each column of the destination is elements side by side, `src_pitch` bytes from one
    /// to the next; of the destination each row, `dst_pitch` bytes apart.
    ///
    /// # Safety
    /// The block of the source may be read, and that of the destination written.
    unsafe fn transpose(dst: *mut u8, dst_pitch: isize, src: *const u8, src_pitch: isize);
}

macro_rules! plain {
    ($($element:ty: $block:literal),*) => {$(
        impl Element for $element {
            const BLOCK: usize = $block;

            #[inline]
            unsafe fn transpose(dst: *mut u8, dst_pitch: isize, src: *const u8, src_pitch: isize) {
                let size = size_of::<$element>();
                for row in 0..$block {
                    let columns = Loop { count: $block, src: src_pitch, dst: size as isize };
                    let dst = at_mut(dst, row, dst_pitch);
                    // SAFETY: the caller's contract.
                    unsafe { self::row::<$element>(dst, src.wrapping_add(row * size), columns) };
                }
            }
        }
    )*};
}

plain!(u128: 4);
#[cfg(not(target_arch = "x86_64"))]
plain!(u8: 8, u16: 8, u32: 4, u64: 4);

#[cfg(test)]
mod tests;
