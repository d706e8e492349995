//! The parts of a submission, with Metal's buffers instead of the hal's.

use std::borrow::Cow;
use std::ptr::NonNull;
use std::sync::Arc;

use transload_hal::{HostSpan, MemoryKind, Run, Shape, Span};

use super::Way;
use crate::memory::Coherence;
use crate::raw::{Image, Raw, page_bytes};

/// One action.
pub(crate) enum Move {
    /// Copy the runs of bytes that a span of two layouts consists of.
    Copy {
        from: End,
        to: End,
        /// The shapes of a copy that is not contiguous.
        shapes: Option<(Shape, Shape)>,
        span: Span,
        /// Both ends are one storage, so that they may overlap.
        is_within: bool,
    },
    /// Wait for the device, and bring the host's copy up to date if there is one.
    Show { gpu: usize, managed: Option<Own> },
    /// The host may write its copy from now on.
    Taken { of: Own },
    /// The host has written its copy.
    Modified { of: Own, at: u64, len: u64 },
}

/// One end of a copy.
pub(crate) enum End {
    /// Host memory.
    Host(HostOperand),
    /// A buffer, from a byte on.
    Own {
        gpu: usize,
        kind: MemoryKind,
        of: Own,
        at: u64,
    },
    /// The texels of a texture, from a byte on.
    Texels { gpu: usize, of: Image, at: u64 },
}

/// Host memory that takes part in a submission.
#[derive(Clone, Copy)]
pub(crate) struct HostOperand {
    pub(crate) span: HostSpan,
    /// The distance in bytes from the start of its page.
    pub(crate) lead: u64,
    /// Whether the page's bytes before it belong to the same storage.
    is_own_page: bool,
}

/// A buffer, and the coherence of its copies.
pub(crate) struct Own {
    pub(crate) raw: Raw,
    pub(crate) coherence: Option<Arc<Coherence>>,
}

/// Why an operation cannot be executed here.
pub(crate) type Reason = Cow<'static, str>;

impl Move {
    /// Checks that the ends fit together.
    pub(crate) fn check(&self) -> Result<(), Reason> {
        let Move::Copy {
            from, to, shapes, ..
        } = self
        else {
            return Ok(());
        };
        match (from, to) {
            (End::Host(_), End::Host(_)) => Err("neither end is a device's".into()),
            _ if from.gpu().zip(to.gpu()).is_some_and(|(a, b)| a != b) => {
                Err("they are buffers of two devices".into())
            }
            _ if from.gpu().is_some() && to.gpu().is_some() => Ok(()),
            (End::Host(_), End::Own { kind, .. }) if *kind == MemoryKind::Managed => Ok(()),
            (End::Host(operand), _) | (_, End::Host(operand)) if shapes.is_none() => {
                operand.check()
            }
            _ => Err("rows of host memory have no pages of their own".into()),
        }
    }

    /// The device, by its position, and the lane that executes the move; no lane if the host executes it.
    pub(crate) fn place(&self) -> (usize, Option<Way>) {
        match self {
            Move::Show { gpu, .. } => (*gpu, Some(Way::Visible)),
            Move::Taken { .. } | Move::Modified { .. } => (0, None),
            Move::Copy { from, to, .. } => match (from, to) {
                (End::Host(_), End::Own { gpu, kind, .. }) if *kind == MemoryKind::Managed => {
                    (*gpu, None)
                }
                // `check` refuses two host ends.
                (from, to) => (
                    from.gpu().or(to.gpu()).unwrap_or(0),
                    Some(Way::between(from.kind(), to.kind())),
                ),
            },
        }
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Move::Copy { span, .. } if span.len == 0)
    }

    /// The runs of a copy, from the ends' first bytes on.
    pub(crate) fn runs(shapes: Option<&(Shape, Shape)>, span: Span) -> impl Iterator<Item = Run> {
        let one = Run {
            offset: span.offset,
            other_offset: span.offset,
            len_bytes: span.len,
        };
        let contiguous = shapes.is_none().then_some(one);
        let rows = shapes.map(|(from, to)| from.runs(0, to, 0, span));
        contiguous.into_iter().chain(rows.into_iter().flatten())
    }
}

impl End {
    fn kind(&self) -> MemoryKind {
        match self {
            End::Host(_) => MemoryKind::Pageable,
            End::Own { kind, .. } => *kind,
            End::Texels { .. } => MemoryKind::Device,
        }
    }

    fn gpu(&self) -> Option<usize> {
        match self {
            End::Host(_) => None,
            End::Own { gpu, .. } | End::Texels { gpu, .. } => Some(*gpu),
        }
    }
}

impl HostOperand {
    /// Some bytes of a storage that begins at an address.
    pub(crate) fn new(span: HostSpan, storage: u64) -> HostOperand {
        let lead = span.addr() % page_bytes();
        HostOperand {
            span,
            lead,
            is_own_page: span.addr() - lead >= storage,
        }
    }

    /// Checks that it can be wrapped. Metal takes whole pages: the bytes before it in its first page must belong
    /// to the same storage. The last page belongs to the process as a whole, and no command touches other memory
    /// in it.
    fn check(&self) -> Result<(), Reason> {
        if self.is_own_page {
            return Ok(());
        }
        let (address, page) = (self.span.addr(), page_bytes());
        Err(format!(
            "host memory at {address:#x} does not begin with a page of {page} bytes, and only whole pages can be \
             reached in place"
        )
        .into())
    }

    /// The whole pages that hold it.
    pub(crate) fn pages(&self) -> Option<HostSpan> {
        let held = self.lead + self.span.len() as u64;
        let len = usize::try_from(held.next_multiple_of(page_bytes())).ok()?;
        let start = self.span.as_ptr().wrapping_sub(self.lead as usize);
        NonNull::new(start).map(|start| HostSpan::new(start, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_wrapped_that_begin_in_the_same_storage() {
        let page = page_bytes();
        let memory = vec![0u8; 8 * page as usize];
        let all = HostSpan::of(&memory);
        let base = all.addr().next_multiple_of(page);
        let at = |offset: u64, len: u64| {
            let span = all.slice(base + offset - all.addr(), len).unwrap();
            HostOperand::new(span, base)
        };
        let whole = at(0, page);
        assert!(whole.check().is_ok() && whole.lead == 0);
        assert_eq!(whole.pages().map(HostSpan::len), Some(page as usize));
        let inner = at(page + 3, page);
        assert!(inner.check().is_ok());
        assert_eq!(inner.lead, 3);
        assert_eq!(inner.pages().map(HostSpan::len), Some(2 * page as usize));
        let odd = HostOperand::new(inner.span, base + page + 1);
        assert!(
            odd.check()
                .unwrap_err()
                .contains("does not begin with a page")
        );
    }
}
