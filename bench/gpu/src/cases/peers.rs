//! From one device to another.

use std::sync::Arc;

use anyhow::Result;

use super::copies::{checked, on_device};
use crate::case::{Case, Field, Needs, Session, size};
use crate::raw::memory::{Kind, Memory};
use crate::raw::work::Stream;

pub(super) fn case(len: usize) -> Case {
    let times = |count: u64| count * len as u64;
    Case {
        name: format!("peers/{}", size(len)),
        group: "peers",
        bytes: times(1),
        needs: Needs {
            host: times(2),
            device: times(4),
            rival: 0,
        },
        make: Box::new(move |session| field(session, len)),
    }
}

fn field(session: &Session, len: usize) -> Result<Field> {
    let Some(other) = &session.other else {
        let skipped = Some("there is one device".to_owned());
        return Ok(Field {
            skipped,
            ..Field::default()
        });
    };
    let gpu = &session.gpu;
    let mut field = Field::default();
    let reaches = [(gpu, other), (other, gpu)].map(|(of, to)| of.reaches(to));
    let [there, back] = reaches;
    let told = format!("there {}, back {}", there?, back?);
    field.facts.insert("peer access".into(), told);
    let (like, src) = on_device(gpu, len)?;
    // Transload comes first, and enables peer access if it exists, for this process and so for every contender here.
    field.transload(session, |party| party.to_other(other, &like));

    let dst = Arc::new(Memory::new(other, Kind::Device, len)?);
    let (to, from, stream) = (Arc::clone(&dst), Arc::clone(&src), Stream::new(gpu)?);
    let turn = move || Ok(stream.finish(|orders| orders.between(&to, &from, len))?);
    let name = "cuMemcpyPeerAsync";
    field.enter(name, Ok(checked(name, turn, &dst, &like)));

    let between = Memory::new(gpu, Kind::Pinned, len)?;
    let (to, stream) = (Arc::clone(&dst), Stream::new(gpu)?);
    let by = Arc::clone(other);
    let onward = {
        let _current = by.push()?;
        Stream::new(&by)?
    };
    let turn = move || {
        stream.finish(|orders| orders.down((&between, 0), (&src, 0), len))?;
        let _current = by.push()?;
        Ok(onward.finish(|orders| orders.up((&to, 0), (&between, 0), len))?)
    };
    let name = "pinned, one after the other";
    field.enter(name, Ok(checked(name, turn, &dst, &like)));
    Ok(field)
}
