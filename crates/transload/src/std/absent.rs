//! What discovery did not find.

use transload_core::DeviceKind;

/// Why discovery added no devices of a kind, or left one of them out.
#[derive(Debug)]
pub(crate) struct Absent {
    pub(super) kind: DeviceKind,
    pub(super) reason: String,
}
