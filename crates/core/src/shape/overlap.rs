//! Tells whether two shapes in one storage share a byte.

use super::Shape;

pub(super) fn overlaps(a: &Shape, a_base: u64, b: &Shape, b_base: u64) -> bool {
    if a.payload_bytes() == 0 || b.payload_bytes() == 0 {
        return false;
    }
    let (a_base, b_base) = (u128::from(a_base), u128::from(b_base));
    let a_end = a_base + u128::from(a.extent_bytes());
    let b_end = b_base + u128::from(b.extent_bytes());
    if a_base >= b_end || b_base >= a_end {
        return false;
    }
    if a.is_contiguous() && b.is_contiguous() {
        return true;
    }
    if a.planes() == 1
        && b.planes() == 1
        && (a.is_contiguous() || b.is_contiguous() || a.row_pitch() == b.row_pitch())
    {
        return rows_at_one_pitch(a, a_base, b, b_base);
    }
    if a.rows() * a.planes() + b.rows() * b.planes() > Shape::OVERLAP_ROWS {
        return true;
    }
    walk(a, a_base, b, b_base)
}

/// Row `i` of `a` meets row `j` of `b` when `-b.width < d + (j - i) * pitch < a.width` with `d` the
/// distance of the bases; `j - i` takes every value from `1 - a.rows` to `b.rows - 1`. A contiguous
/// shape is one row, whatever the other's pitch.
fn rows_at_one_pitch(a: &Shape, a_base: u128, b: &Shape, b_base: u128) -> bool {
    let pitch = if a.is_contiguous() { b } else { a }.row_pitch() as i128;
    let d = b_base as i128 - a_base as i128;
    let (a_width, b_width) = (a.width_bytes() as i128, b.width_bytes() as i128);
    // The smallest k with d + k * pitch > -b_width.
    let first = (-b_width - d).div_euclid(pitch) + 1;
    let k = first.max(1 - a.rows() as i128);
    k < b.rows() as i128 && d + k * pitch < a_width
}

/// Steps through the rows of both in order of address.
fn walk(a: &Shape, a_base: u128, b: &Shape, b_base: u128) -> bool {
    let row = |shape: &Shape, base: u128, i: u64| {
        let start = base
            + u128::from(i / shape.rows()) * u128::from(shape.plane_pitch())
            + u128::from(i % shape.rows()) * u128::from(shape.row_pitch());
        (start, start + u128::from(shape.width_bytes()))
    };
    let (mut i, mut j) = (0, 0);
    while i < a.rows() * a.planes() && j < b.rows() * b.planes() {
        let (a_start, a_end) = row(a, a_base, i);
        let (b_start, b_end) = row(b, b_base, j);
        if a_start < b_end && b_start < a_end {
            return true;
        }
        if a_end <= b_start {
            i += 1;
        } else {
            j += 1;
        }
    }
    false
}
