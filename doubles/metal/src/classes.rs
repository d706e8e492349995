//! The classes: of Foundation what clients of Metal meet, of Metal what moves bytes.

/// A class, its metaclass, and the state of its instances.
macro_rules! class {
    ($name:literal $symbol:literal, $payload:ty, $methods:expr, $class_methods:expr) => {
        #[unsafe(export_name = $symbol)]
        pub(crate) static CLASS: $crate::runtime::Class = $crate::runtime::Class::of::<$payload>(
            $name,
            &META,
            Some(&$crate::classes::root::CLASS),
            $methods,
        );
        static META: $crate::runtime::Class =
            $crate::runtime::Class::meta($name, &$crate::classes::root::META, $class_methods);

        impl $crate::runtime::Instance for $payload {
            fn class() -> &'static $crate::runtime::Class {
                &CLASS
            }
        }
    };
    ($name:literal $symbol:literal, $payload:ty, $methods:expr) => {
        class!($name $symbol, $payload, $methods, Vec::new);
    };
}

mod array;
mod blit;
pub(crate) mod buffer;
pub(crate) mod command_buffer;
pub(crate) mod descriptor;
pub(crate) mod device;
pub(crate) mod error;
pub(crate) mod event;
mod label;
mod listener;
pub(crate) mod queue;
mod root;
mod string;
pub(crate) mod texture;
mod types;

use crate::runtime::Class;

/// All of them.
pub(crate) static ALL: &[&Class] = &[
    &root::CLASS,
    &string::CLASS,
    &array::CLASS,
    &error::CLASS,
    &device::CLASS,
    &buffer::methods::CLASS,
    &descriptor::CLASS,
    &texture::CLASS,
    &queue::methods::CLASS,
    &command_buffer::methods::CLASS,
    &blit::CLASS,
    &event::LOCAL,
    &event::CLASS,
    &listener::CLASS,
];
