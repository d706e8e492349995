//! The time to pin the process's memory and to unpin it.

use std::sync::Arc;

use anyhow::{Result, anyhow};

use crate::case::{Case, Field, Needs, Session, size};
use crate::contest::Way;
use crate::raw::memory::{Kind, Memory};

pub(super) fn case(len: usize) -> Case {
    Case {
        name: format!("registration/{}", size(len)),
        group: "registration",
        bytes: len as u64,
        needs: Needs {
            host: 3 * len as u64,
            ..Needs::default()
        },
        make: Box::new(move |session| field(session, len)),
    }
}

fn field(session: &Session, len: usize) -> Result<Field> {
    let gpu = &session.gpu;
    let like = Arc::new(Memory::filled(gpu, Kind::Pageable, len)?);
    let mut field = Field::default();
    for (name, kind) in [("small pages", Kind::Small), ("huge pages", Kind::Huge)] {
        let memory = Arc::new(Memory::filled(gpu, kind, len)?);
        let huge = memory.huge_bytes()?;
        field
            .facts
            .insert(format!("{name}, bytes in huge pages"), huge.to_string());
        if kind == Kind::Huge && huge < len as u64 {
            let reason = anyhow!("the kernel put {huge} of {len} bytes into huge pages");
            field.enter(name, Err(reason));
            continue;
        }
        let (by, pinned) = (Arc::clone(gpu), Arc::clone(&memory));
        let turn = move || Ok(by.register_once(&pinned)?);
        let like = Arc::clone(&like);
        // Pinning may move pages; the bytes must stay.
        let check = move || memory.holds(0, &like, 0, len);
        field.enter(name, Ok(Way::boxed(name, turn, || Ok(()), check)));
    }
    Ok(field)
}
