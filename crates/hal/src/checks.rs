//! The first checks of a backend's calls, which are the same in each.

use alloc::format;

use transload_core::{BackendId, Inventory, Link, LinkId, MemoryId};

use crate::{ConnectError, ErrorClass, Fault, Fence, Op, SubmitError};

/// Returns the link of an inventory between two memories, for `Backend::connect`: the one that the backend serves if another
/// backend serves one too.
///
/// # Errors
/// [`ConnectError::NoAccess`] if there is none.
pub fn link_between(
    inventory: &Inventory,
    src: MemoryId,
    dst: MemoryId,
) -> Result<&Link, ConnectError> {
    let between = |link: &&Link| link.id.src == src && link.id.dst == dst;
    let mut links = inventory.links.iter().filter(between);
    let own = links.clone().find(|link| link.backend == inventory.backend);
    own.or_else(|| links.next())
        .ok_or_else(|| ConnectError::NoAccess {
            src,
            dst,
            reason: format!("no engine of {} reaches both", inventory.backend).into(),
        })
}

/// Checks that the fences in `after` of `Backend::submit` are the backend's own.
///
/// # Errors
/// A fault of the class [`ErrorClass::Caller`] that names the first other one.
pub fn check_fences(backend: BackendId, after: &[Fence]) -> Result<(), SubmitError> {
    match after.iter().find(|fence| fence.backend() != backend) {
        None => Ok(()),
        Some(fence) => Err(SubmitError::mistake(format!(
            "{fence:?} is a fence of another backend"
        ))),
    }
}

/// Checks that operation `index` of a submission, if it has ends, goes from the source to the destination of `via`.
///
/// # Errors
/// [`SubmitError::Unsupported`] if it does not.
pub fn check_ends(via: Option<LinkId>, index: usize, op: &Op<'_>) -> Result<(), SubmitError> {
    match (via, op.ends()) {
        (Some(link), Some(ends)) if ends != (link.src, link.dst) => Err(SubmitError::Unsupported {
            index,
            reason: format!("it does not go from {} to {}", link.src, link.dst).into(),
        }),
        _ => Ok(()),
    }
}

impl SubmitError {
    /// Refuses a submission for a mistake of the caller.
    #[must_use]
    pub fn mistake(message: alloc::string::String) -> SubmitError {
        SubmitError::Refused(Fault::new(ErrorClass::Caller, message))
    }

    /// Refuses a submission after `fence`, for which the backend could only block: the caller awaits the fence and submits
    /// again.
    #[must_use]
    pub fn unawaited(fence: &Fence) -> SubmitError {
        let message = format!("{fence:?} must be awaited first: these operations go another way");
        SubmitError::Refused(Fault::new(ErrorClass::Unsupported, message))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use transload_core::{Access, DeviceId, MemoryKind};

    use super::*;
    use crate::{HOST, HostReach, host_links};

    #[test]
    fn a_backend_connects_by_its_own_link_where_it_has_one() {
        let memory = |kind| DeviceId::CPU0.memory(kind);
        let (from, to) = (memory(MemoryKind::Pageable), memory(MemoryKind::Pinned));
        let mut links = host_links(
            &[HostReach::both_ways(to, Access::Native)],
            &[MemoryKind::Pageable],
        );
        let backend = BackendId(transload_core::Name::constant("cuda"));
        let mut own = links[0].clone();
        own.backend = backend;
        own.id.access = Access::Managed;
        links.push(own);
        let inventory = |backend| Inventory {
            backend,
            devices: Vec::new(),
            memories: Vec::new(),
            links: links.clone(),
            lacks: Vec::new(),
            transform: None,
        };
        let access = |backend, src, dst| {
            let inventory = inventory(backend);
            link_between(&inventory, src, dst).map(|link| link.id.access)
        };
        assert_eq!(access(backend, from, to), Ok(Access::Managed));
        assert_eq!(access(HOST, from, to), Ok(Access::Native));
        assert_eq!(access(backend, to, from), Ok(Access::Native));
        assert!(access(backend, from, from).is_err());
    }

    #[test]
    fn fences_of_another_backend_are_the_callers_mistake() {
        let other = BackendId(transload_core::Name::constant("other"));
        let fences = [Fence::new(HOST, 1), Fence::new(other, 2)];
        assert_eq!(check_fences(HOST, &fences[..1]), Ok(()));
        let error = check_fences(HOST, &fences).unwrap_err().into_fault();
        assert_eq!(error.class, ErrorClass::Caller);
        assert!(error.message.contains("other!2"), "{error}");
    }
}
