use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// Where each payload byte lies, from the lowest one of all: element by element.
fn places(element_bytes: u64, axes: &[Axis]) -> Vec<i128> {
    let mut all: Vec<i128> = (0..i128::from(element_bytes)).collect();
    for axis in axes.iter().rev() {
        let step = |number: u64| i128::from(number) * i128::from(axis.stride_bytes);
        let inner = core::mem::take(&mut all);
        let outer = (0..axis.count).flat_map(|at| inner.iter().map(move |place| place + step(at)));
        all.extend(outer);
    }
    let lowest = all.iter().copied().min().unwrap_or(0);
    all.into_iter().map(|place| place - lowest).collect()
}

fn places_of(array: &Strided) -> Vec<i128> {
    (0..array.payload_bytes())
        .map(|at| array.locate(at).0.into())
        .collect()
}

fn small_axes() -> impl Strategy<Value = Vec<Axis>> {
    let axis = (0u64..5, -40i64..41).prop_map(|(count, stride)| Axis::new(count, stride));
    proptest::collection::vec(axis, 0..5)
}

/// Views of an array without gaps: permuted, reversed, every second or third element.
fn views() -> impl Strategy<Value = (u64, Vec<Axis>)> {
    let axis = (1u64..5, 1i64..4, any::<bool>());
    let shape = proptest::collection::vec(axis, 1..5);
    (
        1u64..5,
        shape.clone(),
        shape
            .prop_map(|shape| (0..shape.len()).collect::<Vec<_>>())
            .prop_shuffle(),
    )
        .prop_map(|(element, shape, order)| {
            let mut pitch = element as i64;
            let mut axes: Vec<Axis> = Vec::new();
            for (count, step, is_back) in shape.iter().rev() {
                let stride = pitch * step;
                axes.push(Axis::new(*count, if *is_back { -stride } else { stride }));
                pitch = stride * *count as i64;
            }
            let mut order: Vec<usize> = order.into_iter().filter(|at| *at < axes.len()).collect();
            order.extend(
                (0..axes.len())
                    .filter(|at| !order.contains(at))
                    .collect::<Vec<_>>(),
            );
            (element, order.into_iter().map(|at| axes[at]).collect())
        })
}

proptest! {
    #[test]
    fn an_array_has_the_bytes_of_its_elements_in_their_order(
        element in 0u64..5, axes in small_axes(), offset in 0u64..400, len in 0u64..400,
    ) {
        let wanted = places(element, &axes);
        let array = Strided::new(element, &axes).unwrap();
        prop_assert_eq!(array.payload_bytes(), wanted.len() as u64);
        let extent = wanted.iter().max().map_or(0, |highest| highest + 1);
        prop_assert_eq!(i128::from(array.extent_bytes()), extent);
        prop_assert_eq!(places_of(&array), wanted.clone());
        if let Some(first) = wanted.first() {
            prop_assert_eq!(i128::from(array.first()), *first);
        }
        let mut sorted = wanted.clone();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(array.repeats(), sorted.len() < wanted.len());

        let mut at = offset.min(array.payload_bytes());
        let end = (offset + len).min(array.payload_bytes()).max(at);
        let mut count = 0;
        for portion in array.portions(1, Span::new(offset, len)) {
            prop_assert_eq!(portion.position, at);
            let (begin, strides) = array.strides_of(&portion, 1);
            let part: Vec<Axis> = portion.counts().iter().zip(strides)
                .map(|(count, stride)| Axis::new(*count, stride)).collect();
            let part = places(1, &part);
            let lowest = part.first().copied().unwrap_or(0);
            let part: Vec<i128> = part.iter().map(|place| place - lowest + i128::from(begin)).collect();
            prop_assert_eq!(&part[..], &wanted[at as usize..at as usize + part.len()]);
            let packed: Vec<Axis> = portion.counts().iter().zip(portion.packed(1))
                .map(|(count, stride)| Axis::new(*count, stride)).collect();
            prop_assert_eq!(places(1, &packed), (0..part.len() as i128).collect::<Vec<_>>());
            at += portion.numbers();
            count += 1;
        }
        prop_assert_eq!(at, end);
        prop_assert!(count <= 2 * array.axes().len() + 3);
    }

    #[test]
    fn views_of_an_array_repeat_no_byte_and_a_shape_is_the_same_bytes((element, axes) in views()) {
        let array = Strided::new(element, &axes).unwrap();
        prop_assert!(!array.repeats());
        if let Some(shape) = array.shape() {
            let places: Vec<i128> =
                (0..shape.payload_bytes()).map(|at| shape.locate(at).0.into()).collect();
            prop_assert_eq!(places, places_of(&array));
            prop_assert_eq!(Strided::of_shape(&shape), Some(array));
        }
    }

    #[test]
    fn arrays_that_share_a_byte_are_never_said_to_be_apart(
        element in 1u64..5, axes in small_axes(), other in small_axes(), size in 1u64..5, bases in (0u64..90, 0u64..90),
    ) {
        let (array, other) = (Strided::new(element, &axes).unwrap(), Strided::new(size, &other).unwrap());
        let at = |of: &Strided, base| places_of(of).into_iter().map(move |at| at + i128::from(base)).collect::<Vec<_>>();
        let (own, others) = (at(&array, bases.0), at(&other, bases.1));
        let shares = own.iter().any(|place| others.contains(place));
        prop_assert!(!shares || array.may_meet(bases.0, &other, bases.1));
        prop_assert!(!shares || other.may_meet(bases.1, &array, bases.0));
    }

    #[test]
    fn paired_ends_have_the_same_pairs_of_bytes(
        (element, axes) in views(), other in views(), keeps in any::<bool>(), by in 0usize..2, size in 1u64..4,
    ) {
        let (from, _) = (Strided::new(element, &axes).unwrap(), ());
        // The same numbers at other strides, or without gaps.
        let counts: Vec<u64> = axes.iter().map(|axis| axis.count).collect();
        let mut pitch = element as i64;
        let dense: Vec<Axis> = counts.iter().rev().map(|count| {
            let axis = Axis::new(*count, pitch);
            pitch *= *count as i64;
            axis
        }).collect();
        let mut dense: Vec<Axis> = dense.into_iter().rev().collect();
        if keeps && !dense.is_empty() {
            let last = dense.len() - 1;
            let gap = other.0 as i64;
            dense.iter_mut().take(last).for_each(|axis| axis.stride_bytes *= 1 + gap);
        }
        let to = Strided::new(element, &dense).unwrap();
        let pairs = |ends: [&Strided; 2], bytes: [u64; 2]| {
            let mut pairs: Vec<(u64, u64)> = (0..ends[0].payload_bytes() / bytes[0])
                .map(|number| (ends[0].locate(number * bytes[0]).0, ends[1].locate(number * bytes[1]).0))
                .collect();
            pairs.sort_unstable();
            pairs
        };
        let paired = Strided::paired([&from, &to], [1, 1], by).unwrap();
        prop_assert_eq!(pairs([&from, &to], [1, 1]), pairs(paired.each_ref(), [1, 1]));
        prop_assert!(paired[0].axes().iter().zip(paired[1].axes()).all(|(a, b)| a.count == b.count));
        prop_assert!(paired[by].axes().is_sorted_by(|a, b| a.stride_bytes >= b.stride_bytes));
        // Numbers that become numbers of another size.
        let wide: Vec<Axis> = dense.iter().map(|axis| Axis::new(axis.count, axis.stride_bytes * size as i64)).collect();
        let wide = Strided::new(element * size, &wide).unwrap();
        let sizes = [element, element * size];
        let paired = Strided::paired([&from, &wide], sizes, by).unwrap();
        prop_assert_eq!(pairs([&from, &wide], sizes), pairs(paired.each_ref(), sizes));
    }

    #[test]
    fn descriptions_of_any_size_are_refused_or_fit(
        element in any::<u64>(), axes in proptest::collection::vec((any::<u64>(), any::<i64>(), 0u32..64, 0u32..64), 0..10),
    ) {
        let axes: Vec<Axis> = axes.into_iter()
            .map(|(count, stride, less, fewer)| Axis::new(count >> less, stride >> fewer)).collect();
        let element = element >> (element & 63);
        check(element, &axes);
    }
}

/// Compares a description with integers that do not overflow.
fn check(element: u64, axes: &[Axis]) {
    let made = Strided::new(element, axes);
    if element == 0 || axes.iter().any(|axis| axis.count == 0) {
        assert_eq!(made, Ok(Strided::EMPTY));
        return;
    }
    let mut payload = Some(u128::from(element));
    let (mut below, mut above) = (0i128, i128::from(element));
    for axis in axes {
        payload = payload.and_then(|bytes| bytes.checked_mul(axis.count.into()));
        let reach = i128::from(axis.count - 1) * i128::from(axis.stride_bytes);
        below = below.saturating_add(reach.min(0));
        above = above.saturating_add(reach.max(0));
    }
    let extent = above.saturating_sub(below);
    let fits = payload.is_some_and(|bytes| bytes <= u64::MAX.into()) && extent <= u64::MAX.into();
    match made {
        Ok(array) => {
            assert!(fits);
            assert_eq!(payload, Some(array.payload_bytes().into()));
            assert_eq!(extent, i128::from(array.extent_bytes()));
            assert_eq!(below, -i128::from(array.first()));
            let last = array.locate(array.payload_bytes() - 1).0;
            assert!(last < array.extent_bytes());
        }
        Err(StridedError::TooLarge { .. }) => assert!(!fits),
        Err(StridedError::TooManyDimensions { .. }) => {
            assert!(fits && axes.iter().filter(|axis| axis.count > 1).count() > 8);
        }
    }
}

#[test]
fn dimensions_that_adjoin_are_merged() {
    let array = |element, axes: &[(u64, i64)]| {
        let axes: Vec<Axis> = axes
            .iter()
            .map(|(count, stride)| Axis::new(*count, *stride))
            .collect();
        Strided::new(element, &axes).unwrap()
    };
    assert_eq!(array(4, &[(3, 20), (5, 4)]), array(60, &[]));
    assert_eq!(array(4, &[(3, 40), (1, 7), (5, 8)]), array(4, &[(15, 8)]));
    assert_eq!(array(4, &[(3, -20), (5, -4)]), array(4, &[(15, -4)]));
    assert_eq!(array(4, &[(2, 0), (3, 0)]), array(4, &[(6, 0)]));
    assert_eq!(array(4, &[(5, 4), (3, 20)]).axes().len(), 2);
    assert!(array(4, &[(2, 0)]).repeats());
    // Too many to be compared.
    assert!(array(1, &[(2, 5), (2, 34), (40_000, 30)]).repeats());
    let nine: Vec<Axis> = (0..9).map(|at| Axis::new(2, 3i64.pow(at))).collect();
    assert_eq!(
        Strided::new(1, &nine),
        Err(StridedError::TooManyDimensions { dimensions: 9 })
    );
}

#[test]
fn even_and_odd_columns_are_apart() {
    let columns = |element| Strided::new(element, &[Axis::new(5, 40), Axis::new(4, 8)]).unwrap();
    assert!(!columns(4).may_meet(0, &columns(4), 4));
    assert!(!columns(4).may_meet(4, &columns(4), 0));
    assert!(columns(4).may_meet(0, &columns(4), 3));
    assert!(columns(5).may_meet(0, &columns(4), 4));
    assert!(columns(4).may_meet(0, &columns(5), 4));
    let back = Strided::new(4, &[Axis::new(5, -40), Axis::new(4, -8)]).unwrap();
    assert!(!columns(4).may_meet(0, &back, 4));
    let one = Strided::new(4, &[]).unwrap();
    assert!(one.may_meet(0, &one, 3) && !one.may_meet(0, &one, 4));
}

#[test]
fn ends_that_no_dimensions_divide_are_not_paired() {
    let rows = |count, each: u64, pitch| {
        Strided::new(4, &[Axis::new(count, pitch), Axis::new(each, 8)]).unwrap()
    };
    let (six, four) = (rows(6, 4, 100), rows(4, 6, 100));
    assert_eq!(Strided::paired([&six, &four], [1, 1], 1), None);
    let flat = Strided::new(96, &[]).unwrap();
    let paired = Strided::paired([&six, &flat], [1, 1], 1).unwrap();
    assert_eq!(paired[0], six);
    assert_eq!(
        paired[1],
        Strided {
            axes: paired[1].axes,
            dimensions: 2,
            element_bytes: 4,
            ..flat
        }
    );
}
