//! The time of the smallest copy: the raw asynchronous call and its wait, which every other contender contains.

use std::sync::Arc;

use anyhow::Result;

use crate::case::{Case, Field, Needs, Session};
use crate::contest::Way;
use crate::raw::memory::{Kind, Memory};
use crate::raw::work::Stream;

const LEN: usize = 4 << 10;

pub(super) fn cases() -> Vec<Case> {
    [("latency-up", true), ("latency-down", false)]
        .map(|(group, up)| Case {
            name: format!("{group}/4KiB"),
            group,
            bytes: LEN as u64,
            needs: Needs::default(),
            make: Box::new(move |session| field(session, up)),
        })
        .into()
}

fn field(session: &Session, up: bool) -> Result<Field> {
    let gpu = &session.gpu;
    let mut field = Field::default();
    let like = Arc::new(Memory::filled(gpu, Kind::Pageable, LEN)?);
    field.transload(session, |party| party.prepared(up, &like));
    for (name, kind) in [
        ("raw call and wait, pinned", Kind::Pinned),
        ("raw call and wait, pinned, again", Kind::Pinned),
        ("raw call and wait, pageable", Kind::Pageable),
    ] {
        let here = Arc::new(Memory::filled(gpu, kind, LEN)?);
        let there = Arc::new(Memory::new(gpu, Kind::Device, LEN)?);
        let like = Arc::clone(&like);
        gpu.up_blocking(&there, &like, LEN)?;
        let stream = Stream::new(gpu)?;
        let (host, device) = (Arc::clone(&here), Arc::clone(&there));
        let turn = move || {
            let (host, device) = ((&*host, 0), (&*device, 0));
            Ok(stream.finish(|orders| match up {
                true => orders.up(device, host, LEN),
                false => orders.down(host, device, LEN),
            })?)
        };
        let dst = if up { there } else { here };
        let spoilt = Arc::clone(&dst);
        let check = move || dst.holds(0, &like, 0, LEN);
        field.enter(
            name,
            Ok(Way::boxed(name, turn, move || spoilt.poison(), check)),
        );
    }
    Ok(field)
}
