//! Reads memory that was freed: AddressSanitizer must report that.

fn main() {
    let number = Box::into_raw(Box::new(42_u64));
    // SAFETY: the pointer came from `into_raw` and is owned here alone.
    drop(unsafe { Box::from_raw(number) });
    // SAFETY: broken on purpose: nothing lives there any more.
    let gone = unsafe { number.read_volatile() };
    println!("no sanitizer noticed: {gone}");
}
