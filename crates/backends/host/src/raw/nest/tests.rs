use proptest::prelude::*;
use transload_hal::Element;

use super::*;
use crate::raw::tests::{GUARD, pattern};

/// The places of all elements of one end, in the order of the loops, from the lowest one on.
fn places(loops: &[Loop], stride: fn(&Loop) -> isize) -> Vec<usize> {
    let mut all = vec![0isize];
    for of in loops {
        let outer = all.into_iter();
        all = outer
            .flat_map(|at| (0..of.count as isize).map(move |number| at + number * stride(of)))
            .collect();
    }
    let lowest = all.iter().copied().min().unwrap_or(0);
    all.into_iter().map(|at| (at - lowest) as usize).collect()
}

/// Copies along the loops, or converts, and compares all of the destination with what single elements give.
fn check(element: usize, wide: usize, loops: &[Loop], of: Option<Conversion>) {
    let (from, to) = (places(loops, |of| of.src), places(loops, |of| of.dst));
    let end = |places: &[usize]| places.iter().max().unwrap_or(&0) + 9;
    let src = pattern(end(&from) + element);
    let mut dst = vec![GUARD; end(&to) + wide];
    let mut wanted = dst.clone();
    for (from, to) in from.iter().zip(&to) {
        let place = &mut wanted[to + 5..][..wide];
        match of {
            None => place.copy_from_slice(&src[from + 3..][..element]),
            // SAFETY: one number lies within both.
            Some(of) => unsafe {
                convert(
                    place.as_mut_ptr(),
                    src[from + 3..].as_ptr(),
                    1,
                    of,
                    Store::Plain,
                );
            },
        }
    }
    let (first_from, first_to) = (from.first().unwrap_or(&0), to.first().unwrap_or(&0));
    let from = src.as_ptr().wrapping_add(first_from + 3);
    let place = dst.as_mut_ptr().wrapping_add(first_to + 5);
    match of {
        // SAFETY: both vectors were made for all places.
        None => unsafe { copy_nest(place, from, element, loops, Store::Plain) },
        // SAFETY: as above.
        Some(of) => unsafe { convert_nest(place, from, of, loops, Store::Plain) },
    }
    assert!(dst == wanted, "{element} to {wide} bytes along {loops:?}");
}

/// Loops over a source whose dimensions come in another order, of which some go backwards, with a gap now and then. The
/// destination's come in their own order.
fn nests() -> impl Strategy<Value = Vec<(usize, usize, bool, bool)>> {
    let of = (1usize..40, 1usize..3, any::<bool>(), any::<bool>());
    proptest::collection::vec(of, 1..4)
}

fn loops(nest: &[(usize, usize, bool, bool)], order: usize, from: usize, to: usize) -> Vec<Loop> {
    let mut all: Vec<Loop> = Vec::new();
    let sign = |is_back| if is_back { -1 } else { 1 };
    let mut pitch = to as isize;
    for (count, gap, _, is_back) in nest.iter().rev() {
        let dst = pitch * *gap as isize;
        all.insert(
            0,
            Loop {
                count: *count,
                src: 0,
                dst: dst * sign(*is_back),
            },
        );
        pitch = dst * *count as isize;
    }
    let mut pitch = from as isize;
    let turned = (0..nest.len()).map(|at| (at + order) % nest.len());
    for at in turned {
        let (count, gap, is_back, _) = nest[at];
        let src = pitch * (gap % 2 + 1) as isize;
        all[at].src = src * sign(is_back);
        pitch = src * count as isize;
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn elements_of_any_size_go_to_their_places_in_any_order(
        nest in nests(), order in 0usize..3,
        element in proptest::sample::select(vec![1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 64, 100]),
    ) {
        check(element, element, &loops(&nest, order, element, element), None);
    }

    #[test]
    fn numbers_are_converted_on_their_way_in_any_order(
        nest in nests(), order in 0usize..3,
        from in proptest::sample::select(vec![Element::F64, Element::F32, Element::F16, Element::F8E5M2]),
        to in proptest::sample::select(vec![Element::F64, Element::F32, Element::BF16]),
    ) {
        let [wide, narrow] = [from, to].map(|of| of.len_bytes() as usize);
        let of = Conversion::new(from, to).unwrap();
        check(wide, narrow, &loops(&nest, order, wide, narrow), Some(of));
    }
}

#[test]
fn large_planes_and_elements_that_are_read_several_times_are_whole() {
    for element in [1, 2, 4, 8, 16, 3] {
        let pitch = 300 * element as isize;
        let transposed = [
            Loop {
                count: 300,
                src: element as isize,
                dst: 517 * element as isize,
            },
            Loop {
                count: 517,
                src: pitch,
                dst: element as isize,
            },
        ];
        check(element, element, &transposed, None);
        let repeated = [
            Loop {
                count: 40,
                src: 0,
                dst: 50 * element as isize,
            },
            Loop {
                count: 50,
                src: element as isize,
                dst: element as isize,
            },
        ];
        check(element, element, &repeated, None);
        check(
            element,
            element,
            &[Loop {
                count: 70,
                src: 0,
                dst: element as isize,
            }],
            None,
        );
        check(element, element, &[], None);
    }
}
