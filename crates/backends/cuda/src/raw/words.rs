//! Numbers with names.

/// Makes a transparent number with named values. A value without a name is shown as its number.
macro_rules! words {
    (
        $(#[$doc:meta])*
        $type:ident: $number:ty {
            $( $(#[$value_doc:meta])* $name:ident = $value:expr, )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        #[allow(non_camel_case_types, reason = "types have the names of the header")]
        pub struct $type(pub $number);

        impl $type {
            $( $(#[$value_doc])* pub const $name: $type = $type($value); )*

            /// NVIDIA's name of the value, if it has one here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some(stringify!($name)), )*
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}({})", stringify!($type), self.0),
                }
            }
        }
    };
}

pub(crate) use words;

/// Flags of `cuMemHostAlloc`.
#[allow(non_snake_case, reason = "they have the names of the header")]
pub mod CU_MEMHOSTALLOC {
    /// Pinned for every context, not only the current one.
    pub const PORTABLE: u32 = 1;
    /// Mapped into the device's addresses.
    pub const DEVICEMAP: u32 = 2;
    /// Write-combined: fast for the device to read over PCIe, very slow for the host to read.
    pub const WRITECOMBINED: u32 = 4;
}

/// Flags of `cuMemHostRegister_v2`.
#[allow(non_snake_case, reason = "they have the names of the header")]
pub mod CU_MEMHOSTREGISTER {
    /// Pinned for every context, not only the current one.
    pub const PORTABLE: u32 = 1;
    /// Mapped into the device's addresses.
    pub const DEVICEMAP: u32 = 2;
    /// Memory of another device, mapped into this process.
    pub const IOMEMORY: u32 = 4;
    /// The device only reads it.
    pub const READ_ONLY: u32 = 8;
}
