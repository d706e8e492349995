//! Managed memory that the other side needs: prefetched, or fetched page by page on access. The device accesses it by a
//! copy within the device, and the host by reading a byte of each page.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Result, ensure};
use transload_cuda::raw::CUdevice_attribute;

use crate::case::{Case, Field, Needs, Session, size};
use crate::contest::Way;
use crate::contest::reason;
use crate::raw::memory::{Kind, Memory};
use crate::raw::work::{Place, Stream, wants};

pub(super) fn cases(len: usize) -> Vec<Case> {
    let case = |group, make| Case {
        name: format!("{group}/{}", size(len)),
        group,
        bytes: len as u64,
        // Twice its size on the device: managed memory that does not fit there can hang the device.
        needs: Needs {
            host: 6 * len as u64,
            device: 14 * len as u64,
            rival: 0,
        },
        make,
    };
    vec![
        case("managed-up", Box::new(move |session| up(session, len))),
        case("managed-down", Box::new(move |session| down(session, len))),
    ]
}

const WITH: &str = "prefetch";
const WITHOUT: &str = "no prefetch";
const PINNED: &str = "a pinned copy instead";

/// A field for the ways that the device has, with their names; none where it has no managed memory.
fn ways(session: &Session) -> Result<(Field, Vec<&'static str>)> {
    use CUdevice_attribute as A;
    let mut field = Field::default();
    let gpu = &session.gpu;
    if gpu.attribute(A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)? == 0 {
        field.skipped = Some("the device has no managed memory".into());
        return Ok((field, Vec::new()));
    }
    let prefetches = || {
        let concurrent = gpu.attribute(A::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?;
        ensure!(
            concurrent != 0,
            "the device has no concurrent access to managed memory"
        );
        wants(gpu, &["cuMemPrefetchAsync", "cuMemPrefetchAsync_v2"])
    };
    let mut ways = vec![WITHOUT, PINNED];
    match prefetches() {
        Ok(()) => ways.insert(1, WITH),
        Err(error) => drop(field.absent.insert(WITH.into(), reason(&error))),
    }
    Ok((field, ways))
}

/// The host has written it, and the device copies it.
fn up(session: &Session, len: usize) -> Result<Field> {
    let gpu = &session.gpu;
    let (mut field, ways) = ways(session)?;
    if ways.is_empty() {
        return Ok(field);
    }
    let can = ways.contains(&WITH);
    let src = Arc::new(Memory::filled(gpu, Kind::Managed, len)?);
    let dst = Arc::new(Memory::new(gpu, Kind::Device, len)?);
    let there = Arc::new(Memory::new(gpu, Kind::Device, len)?);
    let pinned = Arc::new(Memory::filled(gpu, Kind::Pinned, len)?);
    field.transload(session, |party| party.managed(true, &pinned));
    for name in ways {
        let stream = Stream::new(gpu)?;
        let home = Stream::new(gpu)?;
        let back = Arc::clone(&src);
        let prepare = move || {
            if can && name != PINNED {
                home.finish(|orders| orders.prefetch(&back, Place::Host))?;
                black_box(back.touch());
            }
            Ok(())
        };
        let (to, from) = (Arc::clone(&dst), Arc::clone(&src));
        let (there, pinned) = (Arc::clone(&there), Arc::clone(&pinned));
        let turn = move || {
            Ok(stream.finish(|orders| match name {
                WITH => {
                    orders.prefetch(&from, Place::Device)?;
                    orders.across(&to, &from, len)
                }
                WITHOUT => orders.across(&to, &from, len),
                _ => {
                    orders.up((&there, 0), (&pinned, 0), len)?;
                    orders.across(&to, &there, len)
                }
            })?)
        };
        let (spoilt, found, like) = (Arc::clone(&dst), Arc::clone(&dst), Arc::clone(&src));
        let check = move || found.holds(0, &like, 0, len);
        let way = Way::prepared(name, prepare, turn, move || spoilt.poison(), check);
        field.enter(name, Ok(way));
    }
    Ok(field)
}

/// The device has written it, and the host reads it.
fn down(session: &Session, len: usize) -> Result<Field> {
    let gpu = &session.gpu;
    let (mut field, ways) = ways(session)?;
    if ways.is_empty() {
        return Ok(field);
    }
    let can = ways.contains(&WITH);
    let like = Arc::new(Memory::filled(gpu, Kind::Pageable, len)?);
    let there = Arc::new(Memory::new(gpu, Kind::Device, len)?);
    gpu.up_blocking(&there, &like, len)?;
    field.transload(session, |party| party.managed(false, &like));
    let managed = Arc::new(Memory::new(gpu, Kind::Managed, len)?);
    let pinned = Arc::new(Memory::new(gpu, Kind::Pinned, len)?);
    for name in ways {
        let dst = if name == PINNED { &pinned } else { &managed };
        let away = Stream::new(gpu)?;
        let (from, to) = (Arc::clone(&there), Arc::clone(dst));
        let prepare = move || {
            if name != PINNED {
                away.finish(|orders| {
                    if can {
                        orders.prefetch(&to, Place::Device)?;
                    }
                    orders.across(&to, &from, len)
                })?;
            }
            Ok(())
        };
        let stream = Stream::new(gpu)?;
        let (from, to) = (Arc::clone(&there), Arc::clone(dst));
        let turn = move || {
            stream.finish(|orders| match name {
                WITH => orders.prefetch(&to, Place::Host),
                WITHOUT => Ok(()),
                _ => orders.down((&to, 0), (&from, 0), len),
            })?;
            black_box(to.touch());
            Ok(())
        };
        let (spoilt, found, like) = (Arc::clone(dst), Arc::clone(dst), Arc::clone(&like));
        let check = move || found.holds(0, &like, 0, len);
        let way = Way::prepared(name, prepare, turn, move || spoilt.poison(), check);
        field.enter(name, Ok(way));
    }
    Ok(field)
}
