//! Drivers of other versions.

use transload_cuda::raw::{Driver, Table, Version};

use super::control;

/// Driver versions; every two neighbours differ in a function that this backend calls: the oldest supported version;
/// UUIDs and pools; hints that name a place (12.2); batches (12.8); batches in their second signature (13.0); copies
/// with attributes (13.2).
pub(crate) const AGES: [Version; 6] = [
    Version::new(11, 0),
    Version::new(11, 4),
    Version::new(12, 4),
    Version::new(12, 9),
    Version::new(13, 0),
    Version::new(13, 5),
];

/// The double as a driver of that version, with settings for this process: it lacks later functions, and reports that
/// version.
pub(crate) fn driver_of(age: Version, settings: &[(&str, &str)]) -> Driver {
    let age_told = ("VERSION", &age.to_string()[..]);
    for (name, value) in settings.iter().chain([&age_told]) {
        control(&format!("set TRANSLOAD_DOUBLE_{name}={value}")).expect("it is not in use yet");
    }
    // SAFETY: the functions are the double's, which stay loaded.
    unsafe { Driver::from_table(table_of(age), "the double of another age") }
}

/// The functions of that version.
pub(crate) fn table_of(age: Version) -> Table {
    let all = cuda::table();
    macro_rules! by_then {
        ($( $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $since:literal; )*) => {
            Table { $( $name: all.$name.filter(|_| Version($since) <= age), )* }
        };
    }
    transload_cuda::for_each_cuda_function!(by_then)
}
