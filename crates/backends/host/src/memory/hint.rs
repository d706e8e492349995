//! Hints to the system about memory and files. They change no byte, and nothing depends on them: the
//! backend ignores refusals.

use transload_hal::{Advice, HostSpan};

use super::file::HostFile;

/// Touches pages now rather than in the middle of a copy: the first touch of fresh pages costs several
/// times what copying into them does. `writable` says whether stores may be prepared too.
///
/// Blocks for as long as the system takes, some 40 µs per MiB of fresh memory. Linux only.
pub(crate) fn populate(span: HostSpan, writable: bool) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::mm::{Advice, madvise};
        let advice = if writable {
            Advice::LinuxPopulateWrite
        } else {
            Advice::LinuxPopulateRead
        };
        let (start, len) = pages_around(span);
        if len > 0 {
            // SAFETY: populating changes no byte of the pages, which the operand's contract keeps
            // mapped; neighbours in the first and last page are at worst made resident.
            let _ = unsafe { madvise(start.cast(), len, advice) };
        }
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (span, writable);
}

/// Passes on how memory will be used. Linux only.
pub(crate) fn advise_memory(span: HostSpan, advice: Advice) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::mm::{Advice as System, madvise};
        let advice = match advice {
            Advice::Sequential => System::Sequential,
            Advice::Random => System::Random,
            Advice::WillNeed => System::WillNeed,
            // Not MADV_DONTNEED, which throws private bytes away: this one only lets them be paged
            // out first.
            Advice::DontNeed => System::LinuxCold,
            _ => return,
        };
        let (start, len) = pages_within(span);
        if len > 0 {
            // SAFETY: none of these changes a byte; the operand's contract keeps the pages mapped.
            let _ = unsafe { madvise(start.cast(), len, advice) };
        }
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (span, advice);
}

/// Passes on how a file's bytes will be used. Linux only.
pub(crate) fn advise_file(file: &HostFile, offset: u64, len_bytes: u64, advice: Advice) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::fs::{Advice as System, fadvise};
        let advice = match advice {
            Advice::Sequential => System::Sequential,
            Advice::Random => System::Random,
            Advice::WillNeed => System::WillNeed,
            Advice::DontNeed => System::DontNeed,
            _ => return,
        };
        // A length of 0 would mean the rest of the file.
        if let Some(len_bytes) = std::num::NonZeroU64::new(len_bytes) {
            let _ = fadvise(file.raw(), offset, Some(len_bytes), advice);
        }
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (file, offset, len_bytes, advice);
}

/// The whole pages that the span touches.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn pages_around(span: HostSpan) -> (*mut u8, usize) {
    let page = rustix::param::page_size();
    let lead = span.as_ptr() as usize % page;
    let len = if span.is_empty() {
        0
    } else {
        (span.len() + lead).next_multiple_of(page)
    };
    (span.as_ptr().wrapping_sub(lead), len)
}

/// The whole pages that lie within the span.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn pages_within(span: HostSpan) -> (*mut u8, usize) {
    let page = rustix::param::page_size();
    let lead = (span.as_ptr() as usize).next_multiple_of(page) - span.as_ptr() as usize;
    (
        span.as_ptr().wrapping_add(lead),
        span.len().saturating_sub(lead) / page * page,
    )
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn pages_around_cover_the_span_and_pages_within_leave_neighbours_alone() {
        let page = rustix::param::page_size();
        let bytes = vec![5u8; 4 * page];
        let base = bytes.as_ptr() as usize;
        for (from, len) in [(0, 0), (0, 1), (1, page), (page - 1, 2), (7, 3 * page)] {
            let span = HostSpan::of(&bytes[from..from + len]);
            let (start, around) = pages_around(span);
            assert!(
                around == 0
                    || (start as usize <= base + from
                        && start as usize + around >= base + from + len)
            );
            let (start, within) = pages_within(span);
            assert!(
                within == 0
                    || (start as usize >= base + from
                        && start as usize + within <= base + from + len)
            );
            for advice in [
                Advice::Sequential,
                Advice::Random,
                Advice::WillNeed,
                Advice::DontNeed,
            ] {
                advise_memory(span, advice);
            }
            populate(span, true);
        }
        assert!(bytes.iter().all(|byte| *byte == 5));
    }
}
