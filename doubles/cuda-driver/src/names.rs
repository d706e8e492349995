//! The names of all functions.

use transload_cuda::raw::Table;

/// Functions that the binding does not use and other clients do, with the version that introduced each.
macro_rules! for_each_other_function {
    ($callback:ident) => {
        $callback! {
            cuMemAllocHost_v2 3020;
        }
    };
}

pub(crate) use for_each_other_function;

/// The name of a function, if there is one of that name.
pub(crate) fn name_of(name: &str) -> Option<&'static str> {
    macro_rules! names {
        ($($name:ident $since:literal;)*) => { [$(stringify!($name)),*] };
    }
    let of_binding = Table::FUNCTIONS.iter().map(|function| function.name);
    let mut all = of_binding.chain(for_each_other_function!(names));
    all.find(|known| *known == name)
}
