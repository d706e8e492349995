//! The parts of a submission, with addresses instead of buffers.

use std::borrow::Cow;

use transload_hal::{HostSpan, Shape, Span};

use super::Way;
use crate::raw::{CUcontext, CUdevice, CUdeviceptr, CUmem_advise};

/// One action of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    Copy {
        from: Endpoint,
        to: Endpoint,
        len: u64,
    },
    Pitched {
        from: Endpoint,
        from_shape: Shape,
        to: Endpoint,
        to_shape: Shape,
        span: Span,
    },
    Hint {
        gpu: usize,
        address: CUdeviceptr,
        len: u64,
        hint: Hint,
    },
    /// Wait for all work of the device.
    Visible { gpu: usize },
}

/// A hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hint {
    /// Bring the bytes there.
    Prefetch(CUdevice),
    /// How the bytes will be used. The device is ignored for advice that concerns no particular device.
    Advise(CUmem_advise, CUdevice),
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Endpoint {
    /// Host memory that the device reaches.
    Host(HostSpan),
    /// Memory of a device.
    Device {
        gpu: usize,
        context: CUcontext,
        address: CUdeviceptr,
    },
}

/// Why an operation cannot be executed here.
pub(crate) type Reason = Cow<'static, str>;

impl Move {
    /// The device, by its position, and the lane that does it.
    pub(crate) fn way(&self) -> Result<(usize, Way), Reason> {
        let (from, to) = match self {
            Move::Copy { from, to, .. } | Move::Pitched { from, to, .. } => (from, to),
            Move::Hint { gpu, .. } => return Ok((*gpu, Way::Within)),
            Move::Visible { gpu } => return Ok((*gpu, Way::Visible)),
        };
        match (from, to) {
            (Endpoint::Host(_), Endpoint::Device { gpu, .. }) => Ok((*gpu, Way::In)),
            (Endpoint::Device { gpu, .. }, Endpoint::Host(_)) => Ok((*gpu, Way::Out)),
            (Endpoint::Device { gpu: from, .. }, Endpoint::Device { gpu: to, .. })
                if from == to =>
            {
                Ok((*from, Way::Within))
            }
            (Endpoint::Device { gpu, .. }, Endpoint::Device { .. }) => Ok((*gpu, Way::Across)),
            (Endpoint::Host(_), Endpoint::Host(_)) => Err("neither end is a device's".into()),
        }
    }

    /// The devices, by their positions, of a copy from one to another.
    pub(crate) fn across(&self) -> Option<(usize, usize)> {
        let (Move::Copy { from, to, .. } | Move::Pitched { from, to, .. }) = self else {
            return None;
        };
        match (from, to) {
            (Endpoint::Device { gpu: from, .. }, Endpoint::Device { gpu: to, .. })
                if from != to =>
            {
                Some((*from, *to))
            }
            _ => None,
        }
    }

    /// Whether it is a copy of at most `bytes` bytes that does not overlap itself.
    pub(crate) fn is_at_most(&self, bytes: u64) -> bool {
        match self {
            Move::Copy { from, to, len } => *len <= bytes && !from.overlaps(*to, *len),
            _ => false,
        }
    }
}

impl Endpoint {
    /// Whether the other end is on another device.
    pub(crate) fn is_across(self, other: Endpoint) -> bool {
        matches!(
            (self, other),
            (Endpoint::Device { gpu, .. }, Endpoint::Device { gpu: other, .. }) if gpu != other
        )
    }

    /// Whether `len` bytes at both ends overlap.
    pub(crate) fn overlaps(self, other: Endpoint, len: u64) -> bool {
        let are_devices = matches!(
            (self, other),
            (Endpoint::Device { .. }, Endpoint::Device { .. })
        );
        are_devices && self.unified().abs_diff(other.unified()) < len
    }

    /// The address on devices, if devices use the host's addresses.
    pub(crate) fn unified(self) -> CUdeviceptr {
        match self {
            Endpoint::Host(span) => span.addr(),
            Endpoint::Device { address, .. } => address,
        }
    }

    /// The same end, `bytes` further on.
    pub(crate) fn after(self, bytes: u64) -> Endpoint {
        match self {
            Endpoint::Host(span) => {
                let left = (span.len() as u64).saturating_sub(bytes);
                Endpoint::Host(span.slice(bytes, left).unwrap_or(span))
            }
            Endpoint::Device {
                gpu,
                context,
                address,
            } => Endpoint::Device {
                gpu,
                context,
                address: address + bytes,
            },
        }
    }
}
