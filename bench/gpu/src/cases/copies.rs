//! One copy at a time, and one each way: pageable memory, pinned memory, and the device.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use transload_cuda::raw::CallError;

use crate::case::{Case, Field, Needs, Session, size};
use crate::contest::reason;
use crate::contest::{Contender, Way};
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Kind, Memory};
use crate::raw::work::Stream;
use crate::rivals;

/// The ceiling takes part twice: the difference between the two is the noise of the run.
const CEILING: [&str; 2] = ["pinned", "pinned, again"];

/// Names a group, states how many times it holds its bytes at once, and makes its field.
struct Group {
    name: &'static str,
    /// The number of copies of one operation.
    moved: usize,
    host: usize,
    device: usize,
    rival: usize,
    make: fn(&Session, usize) -> Result<Field>,
}

#[rustfmt::skip]
const GROUPS: [Group; 4] = [
    Group { name: "up", moved: 1, host: 5, device: 4, rival: 3, make: up },
    Group { name: "down", moved: 1, host: 6, device: 4, rival: 3, make: down },
    Group { name: "both", moved: 2, host: 10, device: 7, rival: 0, make: both },
    Group { name: "device", moved: 1, host: 2, device: 7, rival: 0, make: device },
];

pub(super) fn cases(len: usize) -> impl Iterator<Item = Case> {
    let times = move |count: usize| (count * len) as u64;
    GROUPS.iter().map(move |group| Case {
        name: format!("{}/{}", group.name, size(len)),
        group: group.name,
        bytes: times(group.moved),
        needs: Needs {
            host: times(group.host),
            device: times(group.device),
            rival: times(group.rival),
        },
        make: Box::new(move |session| (group.make)(session, len)),
    })
}

fn up(session: &Session, len: usize) -> Result<Field> {
    let gpu = &session.gpu;
    let dst = Arc::new(Memory::new(gpu, Kind::Device, len)?);
    let mut field = Field::default();
    let src = Arc::new(Memory::filled(gpu, Kind::Pageable, len)?);
    field.transload(session, |party| party.copy(true, &src));
    let (to, from, by) = (Arc::clone(&dst), Arc::clone(&src), Arc::clone(gpu));
    let turn = move || Ok(by.up_blocking(&to, &from, len)?);
    field.enter(
        "cuMemcpyHtoD",
        Ok(checked("cuMemcpyHtoD", turn, &dst, &src)),
    );

    let src = Arc::new(Memory::filled(gpu, Kind::Pinned, len)?);
    for name in CEILING {
        let (to, from, stream) = (Arc::clone(&dst), Arc::clone(&src), Stream::new(gpu)?);
        let turn = move || Ok(stream.finish(|orders| orders.up((&to, 0), (&from, 0), len))?);
        field.enter(name, Ok(checked(name, turn, &dst, &src)));
    }
    others(session, &mut field, "up", len);
    Ok(field)
}

fn down(session: &Session, len: usize) -> Result<Field> {
    let gpu = &session.gpu;
    let (like, src) = on_device(gpu, len)?;
    let mut field = Field::default();
    field.transload(session, |party| party.copy(false, &like));

    let dst = Arc::new(Memory::new(gpu, Kind::Pageable, len)?);
    let (to, from, by) = (Arc::clone(&dst), Arc::clone(&src), Arc::clone(gpu));
    let turn = move || Ok(by.down_blocking(&to, 0, &from, 0, len)?);
    field.enter(
        "cuMemcpyDtoH",
        Ok(checked("cuMemcpyDtoH", turn, &dst, &like)),
    );

    let dst = Arc::new(Memory::new(gpu, Kind::Pinned, len)?);
    for name in CEILING {
        let (to, from, stream) = (Arc::clone(&dst), Arc::clone(&src), Stream::new(gpu)?);
        let turn = move || Ok(stream.finish(|orders| orders.down((&to, 0), (&from, 0), len))?);
        field.enter(name, Ok(checked(name, turn, &dst, &like)));
    }
    others(session, &mut field, "down", len);
    Ok(field)
}

fn others(session: &Session, field: &mut Field, direction: &str, len: usize) {
    let absent = session.roll.absent.clone();
    field.absent.extend(absent);
    let Some(rivals) = &session.rivals else {
        return;
    };
    match rivals::contenders(rivals, direction, len) {
        Ok(contenders) => field.contenders.extend(contenders),
        Err(error) => {
            let names = session.roll.present.keys().cloned();
            let told = names.map(|name| (name, reason(&error)));
            field.absent.extend(told);
        }
    }
}

/// Bytes on the device, and the same on the host.
pub(super) fn on_device(gpu: &Arc<Gpu>, len: usize) -> Result<(Arc<Memory>, Arc<Memory>)> {
    let like = Memory::filled(gpu, Kind::Pageable, len)?;
    let there = Memory::new(gpu, Kind::Device, len)?;
    gpu.up_blocking(&there, &like, len)?;
    Ok((Arc::new(like), Arc::new(there)))
}

/// A way that leaves the bytes of `like` in `dst`.
pub(super) fn checked(
    name: &str,
    turn: impl FnMut() -> Result<()> + 'static,
    dst: &Arc<Memory>,
    like: &Arc<Memory>,
) -> Box<dyn Contender> {
    let (spoilt, found, like) = (Arc::clone(dst), Arc::clone(dst), Arc::clone(like));
    let check = move || found.holds(0, &like, 0, like.len());
    Way::boxed(name, turn, move || spoilt.poison(), check)
}

fn device(session: &Session, len: usize) -> Result<Field> {
    let gpu = &session.gpu;
    let (like, src) = on_device(gpu, len)?;
    let dst = Arc::new(Memory::new(gpu, Kind::Device, len)?);
    let mut field = Field::default();
    field.transload(session, |party| party.within(&like));
    let (to, from, stream) = (Arc::clone(&dst), src, Stream::new(gpu)?);
    let turn = move || Ok(stream.finish(|orders| orders.across(&to, &from, len))?);
    let name = "cuMemcpyDtoDAsync";
    field.enter(name, Ok(checked(name, turn, &dst, &like)));
    Ok(field)
}

fn both(session: &Session, len: usize) -> Result<Field> {
    let gpu = &session.gpu;
    let (like, there) = on_device(gpu, len)?;
    let empty = Arc::new(Memory::new(gpu, Kind::Device, len)?);
    let mut field = Field::default();
    field.transload(session, |party| party.both(&like));
    let mut enter = |name: &str, kind, pageable| -> Result<()> {
        let pair = Pair {
            name: name.to_owned(),
            gpu: Arc::clone(gpu),
            streams: [Stream::new(gpu)?, Stream::new(gpu)?],
            full: Memory::filled(gpu, kind, len)?,
            back: Memory::new(gpu, kind, len)?,
            empty: Arc::clone(&empty),
            there: Arc::clone(&there),
            like: Arc::clone(&like),
            pageable,
        };
        field.enter(name, Ok(Box::new(pair)));
        Ok(())
    };
    enter("pinned, two streams", Kind::Pinned, false)?;
    enter("pageable, two threads", Kind::Pageable, true)?;
    Ok(field)
}

/// A copy each way at once: `full` to `empty`, and `there` to `back`.
struct Pair {
    name: String,
    gpu: Arc<Gpu>,
    streams: [Stream; 2],
    full: Memory,
    back: Memory,
    empty: Arc<Memory>,
    there: Arc<Memory>,
    /// The bytes of `there`.
    like: Arc<Memory>,
    /// Whether the host's memory is pageable, so that each call occupies a thread until it is over.
    pageable: bool,
}

impl Pair {
    fn in_streams(&self) -> Result<(), CallError> {
        let [up, down] = &self.streams;
        let len = self.full.len();
        down.finish(|down| {
            down.down((&self.back, 0), (&self.there, 0), len)?;
            up.finish(|up| up.up((&self.empty, 0), (&self.full, 0), len))
        })
    }

    /// Times both threads from when both are ready to when both are done.
    fn in_threads(&self, turns: u32) -> Result<Duration> {
        let Pair {
            gpu,
            full,
            back,
            empty,
            there,
            ..
        } = self;
        let len = full.len();
        let ready = Barrier::new(2);
        thread::scope(|scope| {
            let down = scope.spawn(|| -> Result<(), CallError> {
                let entered = gpu.enter();
                ready.wait();
                entered?;
                (0..turns).try_for_each(|_| gpu.down_blocking(back, 0, there, 0, len))
            });
            ready.wait();
            let begin = Instant::now();
            let up = (0..turns).try_for_each(|_| gpu.up_blocking(empty, full, len));
            let down = down
                .join()
                .map_err(|_| anyhow!("the other thread panicked"))?;
            let took = begin.elapsed();
            up.and(down)?;
            Ok(took)
        })
    }
}

impl Contender for Pair {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        if self.pageable {
            return self.in_threads(turns);
        }
        let begin = Instant::now();
        for _ in 0..turns {
            self.in_streams()?;
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        let len = self.full.len();
        self.empty.poison()?;
        self.back.poison()?;
        self.sample(1)?;
        Ok(self.empty.holds(0, &self.full, 0, len)? && self.back.holds(0, &self.like, 0, len)?)
    }
}
