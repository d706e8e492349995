//! The cases and their order.

mod blocks;
mod copies;
mod interop;
mod latency;
pub(crate) mod load;
mod managed;
mod peers;
mod registration;

use crate::case::{Case, Session};

/// From 64 KiB to 4 GiB.
const SIZES: [usize; 9] = [
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
    4 << 30,
];
const QUICK_SIZES: [usize; 2] = [64 << 10, 1 << 20];

/// All cases, the small ones first: when time runs out, the largest are left out.
pub(crate) fn all(session: &Session) -> Vec<Case> {
    let sizes = if session.quick {
        &QUICK_SIZES[..]
    } else {
        &SIZES
    };
    let mut cases = latency::cases();
    for len in sizes {
        cases.extend(copies::cases(*len));
        cases.push(peers::case(*len));
        cases.extend(managed::cases(*len));
        cases.push(registration::case(*len));
    }
    cases.extend(blocks::cases(session.quick));
    cases.extend(load::cases(session.quick));
    cases.sort_by_key(|case| case.bytes);
    // These come last: they use another driver, which may crash or hang.
    cases.extend(interop::cases(session.quick));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::size;

    #[test]
    fn sizes_are_named_as_people_say_them() {
        let named: Vec<String> = SIZES.into_iter().map(size).collect();
        assert_eq!(named[..2], ["64KiB", "256KiB"]);
        assert_eq!(named[7..], ["1GiB", "4GiB"]);
        assert!(SIZES.windows(2).all(|pair| pair[1] == 4 * pair[0]));
    }
}
