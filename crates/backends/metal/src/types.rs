//! The backend's name, and the types that all its parts share.

use std::sync::{Arc, OnceLock};

use transload_hal::{BackendId, CompletionSink, Fault, Name};

/// The name of this backend.
pub const BACKEND: BackendId = BackendId(Name::constant("metal"));

/// On macOS buffers are copied by words.
pub(crate) const WORD: u64 = 4;

/// Where outcomes go, once the engine has set it.
pub(crate) type Sink = Arc<OnceLock<Arc<dyn CompletionSink>>>;

/// Why a device is lost, once it is.
pub(crate) type Lost = Arc<OnceLock<Fault>>;
