//! Many small blocks at once: from random places into one range of the device, and back.

use std::sync::Arc;

use anyhow::Result;

use crate::case::{Case, Field, Needs, Session, size};
use crate::contest::{Check, Contender, Step, Way};
use crate::raw::memory::{Kind, Memory, Random};
use crate::raw::work::{Batch, Stream, wants};

const COUNT: usize = 10_000;
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
const QUICK_COUNT: usize = 100;
const QUICK_SIZES: [usize; 2] = [4 << 10, 16 << 10];

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let (count, sizes) = if quick {
        (QUICK_COUNT, &QUICK_SIZES[..])
    } else {
        (COUNT, &SIZES[..])
    };
    let case = |(len, up): (usize, bool)| {
        let group = if up { "blocks-up" } else { "blocks-down" };
        let total = (count * len) as u64;
        Case {
            name: format!("{group}/{count}x{}", size(len)),
            group,
            bytes: total,
            needs: Needs {
                host: 6 * total,
                device: 4 * total,
                rival: 0,
            },
            make: Box::new(move |session| field(session, Blocks { up, len, count })),
        }
    };
    let ways = |len: &usize| [(*len, true), (*len, false)];
    sizes.iter().flat_map(ways).map(case).collect()
}

#[derive(Clone, Copy)]
struct Blocks {
    up: bool,
    len: usize,
    count: usize,
}

/// The blocks on the host, in random places. On the device, and in a copy for the comparison, they lie one after the
/// other.
struct Endpoints {
    host: Arc<Memory>,
    device: Arc<Memory>,
    like: Arc<Memory>,
    /// Offsets of each block: on the host, and on the device.
    places: Arc<[(usize, usize)]>,
}

fn field(session: &Session, blocks: Blocks) -> Result<Field> {
    let Blocks { up, len, count } = blocks;
    let gpu = &session.gpu;
    let total = len * count;
    let mut order: Vec<usize> = (0..count).collect();
    Random(len as u64).shuffle(&mut order);
    let places: Vec<_> = order
        .iter()
        .enumerate()
        .map(|(at, place)| (place * len, at * len))
        .collect();
    let endpoints = Endpoints {
        host: Arc::new(Memory::new(gpu, Kind::Pinned, total)?),
        device: Arc::new(Memory::new(gpu, Kind::Device, total)?),
        like: Arc::new(Memory::filled(gpu, Kind::Pageable, total)?),
        places: places.into(),
    };
    for (here, there) in endpoints.places.iter() {
        endpoints
            .host
            .copy_from(*here, &endpoints.like, *there, len);
    }
    gpu.up_blocking(&endpoints.device, &endpoints.like, total)?;
    let mut field = Field::default();
    field.facts.insert("blocks".into(), count.to_string());
    field
        .facts
        .insert("bytes of a block".into(), len.to_string());
    field.transload(session, |party| {
        party.blocks(up, &endpoints.like, &endpoints.places, len, false)
    });
    field.transload(session, |party| {
        party.blocks(up, &endpoints.like, &endpoints.places, len, true)
    });
    field.enter(BATCH, batch(session, blocks, &endpoints));
    field.enter(LOOP, one_by_one(session, blocks, &endpoints));
    field.enter(COALESCED, coalesced(session, blocks, &endpoints));
    Ok(field)
}

const BATCH: &str = "cuMemcpyBatchAsync";
const LOOP: &str = "a loop of asynchronous copies";
const COALESCED: &str = "coalesced through pinned memory";

fn batch(session: &Session, blocks: Blocks, endpoints: &Endpoints) -> Result<Box<dyn Contender>> {
    wants(
        &session.gpu,
        &["cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"],
    )?;
    let turned: Vec<_> = endpoints
        .places
        .iter()
        .map(|(here, there)| (*there, *here))
        .collect();
    let mut batch = if blocks.up {
        Batch::new(&endpoints.device, &endpoints.host, &turned, blocks.len)
    } else {
        Batch::new(
            &endpoints.host,
            &endpoints.device,
            &endpoints.places,
            blocks.len,
        )
    };
    let stream = Stream::new(&session.gpu)?;
    let turn = move || Ok(stream.finish(|orders| orders.batch(&mut batch))?);
    Ok(way(BATCH, Box::new(turn), blocks, endpoints))
}

fn one_by_one(
    session: &Session,
    blocks: Blocks,
    endpoints: &Endpoints,
) -> Result<Box<dyn Contender>> {
    let Blocks { up, len, .. } = blocks;
    let stream = Stream::new(&session.gpu)?;
    let (host, device) = (Arc::clone(&endpoints.host), Arc::clone(&endpoints.device));
    let places = Arc::clone(&endpoints.places);
    let turn = move || {
        Ok(stream.finish(|orders| {
            places.iter().try_for_each(|(here, there)| match up {
                true => orders.up((&device, *there), (&host, *here), len),
                false => orders.down((&host, *here), (&device, *there), len),
            })
        })?)
    };
    Ok(way(LOOP, Box::new(turn), blocks, endpoints))
}

fn coalesced(
    session: &Session,
    blocks: Blocks,
    endpoints: &Endpoints,
) -> Result<Box<dyn Contender>> {
    let Blocks { up, len, count } = blocks;
    let total = len * count;
    let staging = Memory::new(&session.gpu, Kind::Pinned, total)?;
    let stream = Stream::new(&session.gpu)?;
    let (host, device) = (Arc::clone(&endpoints.host), Arc::clone(&endpoints.device));
    let places = Arc::clone(&endpoints.places);
    let turn = move || {
        if up {
            for (here, there) in places.iter() {
                staging.copy_from(*there, &host, *here, len);
            }
            stream.finish(|orders| orders.up((&device, 0), (&staging, 0), total))?;
        } else {
            stream.finish(|orders| orders.down((&staging, 0), (&device, 0), total))?;
            for (here, there) in places.iter() {
                host.copy_from(*here, &staging, *there, len);
            }
        }
        Ok(())
    };
    Ok(way(COALESCED, Box::new(turn), blocks, endpoints))
}

fn way(name: &str, turn: Step, blocks: Blocks, endpoints: &Endpoints) -> Box<dyn Contender> {
    let Blocks { up, len, count } = blocks;
    let (host, device) = (Arc::clone(&endpoints.host), Arc::clone(&endpoints.device));
    let (like, places) = (Arc::clone(&endpoints.like), Arc::clone(&endpoints.places));
    let spoilt = Arc::clone(if up { &device } else { &host });
    let check: Check = if up {
        Box::new(move || device.holds(0, &like, 0, len * count))
    } else {
        Box::new(move || {
            let mut right = true;
            for (here, there) in places.iter() {
                right &= host.holds(*here, &like, *there, len)?;
            }
            Ok(right)
        })
    };
    Way::boxed(name, turn, move || spoilt.poison(), check)
}
