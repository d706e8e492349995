//! A load under way.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use transload::{
    AllocSpec, Batch, Buffer, Canceller, Conversion, DeviceId, Region, Report, Request, Transfer,
    TransferError, TransferManager,
};

use super::part::Part;
use super::plan::Item;
use super::run::{MOST_RUN_BYTES, Run};
use super::{Load, LoadError};
use crate::save::is_consequence;
use crate::tensor::Sizes;
use crate::{Tensor, TensorInfo};

/// A tensor of a model, or a part of one, in memory. It derefs to its [`Tensor`], and becomes it.
///
/// It is dense. The memory around its buffer holds other tensors of the load, and stays allocated as long as one of them lives.
#[derive(Clone)]
pub struct Loaded(Tensor);

impl Loaded {
    /// A tensor, or a part of one, of which a buffer holds all bytes.
    pub(super) fn new(
        infos: &Arc<Vec<TensorInfo>>,
        number: usize,
        part: Option<Arc<Part>>,
        buffer: Buffer,
    ) -> Loaded {
        let dtype = part.as_ref().map_or(infos[number].dtype, |part| part.dtype);
        let shape = Sizes::Model {
            infos: Arc::clone(infos),
            number,
            part,
        };
        Loaded(Tensor::dense(buffer, dtype, shape))
    }

    fn of(&self) -> (&TensorInfo, Option<&Part>) {
        match self.sizes() {
            Sizes::Model {
                infos,
                number,
                part,
            } => (&infos[*number], part.as_deref()),
            Sizes::Own(_) => unreachable!("what was loaded has the sizes of its model"),
        }
    }

    /// Returns what its file says of the whole tensor.
    pub fn info(&self) -> &TensorInfo {
        self.of().0
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// Returns which elements of the whole tensor these are along each dimension. `None`: all.
    pub fn ranges(&self) -> Option<&[Range<u64>]> {
        let (info, part) = self.of();
        let part = part.filter(|part| part.shape != info.shape)?;
        Some(&part.ranges)
    }
}

impl Deref for Loaded {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl From<Loaded> for Tensor {
    fn from(loaded: Loaded) -> Tensor {
        loaded.0
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded")
            .field("name", &self.name())
            .field("ranges", &self.ranges())
            .field("tensor", &self.0)
            .finish()
    }
}

/// A load under way: an iterator of the tensors in the order of their arrival, whose [`next`](Iterator::next) blocks until
/// the next one has arrived; and a `Stream` of them, which does not block, but for a second reading
/// ([`Load::verify`]) and, after an error, for what is under way.
///
/// After an error the rest of the load is cancelled, and there are no more tensors. A load that is dropped is cancelled.
#[derive(Debug)]
pub struct Loading {
    all: All,
    /// The runs that have not arrived, by the order of their transfers.
    runs: VecDeque<Pending>,
    /// The run that has arrived, and how many of its tensors were taken.
    arrived: Option<(Arrived, usize)>,
    manager: TransferManager,
    canceller: Canceller,
    /// The bytes of the runs that have arrived.
    done_bytes: u64,
    all_bytes: u64,
}

/// All that arrives.
#[derive(Debug)]
struct All {
    infos: Arc<Vec<TensorInfo>>,
    items: Vec<Item>,
    runs: Vec<Run>,
}

impl All {
    /// The tensors of a run. They are made when they are taken: they are more bytes than many of them have.
    fn of(&self, run: &Arrived) -> &[(usize, u64)] {
        &self.runs[run.run].items
    }

    fn tensor(&self, run: &Arrived, at: usize) -> Option<Loaded> {
        let (item, begin) = *self.of(run).get(at)?;
        let item = &self.items[item];
        let Ok(buffer) = run.target.slice(begin..begin + item.len_bytes) else {
            unreachable!("the run holds its tensors");
        };
        let part = item.part.clone();
        Some(Loaded::new(&self.infos, item.number, part, buffer))
    }

    fn names(&self, run: &Arrived) -> Vec<String> {
        let numbers = self
            .of(run)
            .iter()
            .map(|(item, _)| self.items[*item].number);
        numbers
            .map(|number| self.infos[number].name.clone())
            .collect()
    }
}

#[derive(Debug)]
struct Pending {
    run: Arrived,
    transfer: Transfer,
}

impl Pending {
    fn parts(self) -> (Arrived, Transfer) {
        (self.run, self.transfer)
    }
}

/// A run in one memory.
#[derive(Debug)]
struct Arrived {
    /// Its number.
    run: usize,
    target: Buffer,
    /// What to read once more and compare with the target.
    again: Option<Again>,
    path: PathBuf,
    /// The bytes of its tensors.
    len_bytes: u64,
}

/// Where bytes of a file are, and how they are converted.
pub(super) type Again = (Region, Option<Conversion>);

/// Transfers end roughly in the order of their start, so that no later ones are looked at.
const LOOKED_AT: usize = 64;

impl Loading {
    pub(super) fn new(
        load: Load<'_>,
        items: Vec<Item>,
        runs: Vec<Run>,
        parts: Vec<(usize, Buffer, Option<Again>)>,
        batch: Batch,
    ) -> Loading {
        let model = load.model;
        let canceller = batch.canceller();
        let transfers = batch.into_transfers().into_iter();
        let pending = parts
            .into_iter()
            .zip(transfers)
            .map(|((run, target, again), transfer)| {
                let lens = runs[run]
                    .items
                    .iter()
                    .map(|(item, _)| items[*item].len_bytes);
                let run = Arrived {
                    run,
                    target,
                    again,
                    path: model.files()[runs[run].file].path().to_owned(),
                    len_bytes: lens.sum(),
                };
                Pending { run, transfer }
            });
        let pending: VecDeque<Pending> = pending.collect();
        Loading {
            all_bytes: pending.iter().map(|of| of.run.len_bytes).sum(),
            all: All {
                infos: Arc::clone(model.shared_tensors()),
                items,
                runs,
            },
            runs: pending,
            arrived: None,
            manager: load.loader.manager.clone(),
            canceller,
            done_bytes: 0,
        }
    }

    /// Returns how many bytes of tensors have arrived, and how many there are. Does not block. It asks some transfers how
    /// far they are, which takes microseconds: call it as often as a bar is drawn, not for each tensor.
    pub fn progress(&self) -> (u64, u64) {
        let under_way = self.runs.iter().take(LOOKED_AT);
        let under_way =
            under_way.filter_map(|of| Some(of.transfer.progress()?.0.min(of.run.len_bytes)));
        (self.done_bytes + under_way.sum::<u64>(), self.all_bytes)
    }

    /// Reads bytes of a file once more, converts them if they are converted, and compares them with those that arrived.
    fn is_same(
        &self,
        (source, conversion): Again,
        target: &Buffer,
    ) -> Result<bool, transload::Error> {
        // One tensor's bytes, end to end, are compared in parts.
        let is_one = source.buffer().len() == source.shape().payload_bytes();
        let part = if is_one { MOST_RUN_BYTES } else { target.len() };
        let heap = DeviceId::CPU0.into();
        let mut at = 0;
        while at < target.len() {
            let target = target.slice(at..(at + part).min(target.len()))?;
            let source = match is_one {
                true => {
                    let read = |bytes| conversion.map_or(bytes, |of| of.source_bytes(bytes));
                    Region::from(source.buffer().slice(read(at)..read(at + target.len()))?)
                }
                false => source.clone(),
            };
            let second = self
                .manager
                .allocate(heap, AllocSpec::bytes(target.len()))?;
            let mut request = Request::new(source, &second);
            if let Some(conversion) = conversion {
                request = request.convert(conversion);
            }
            self.manager.submit(&request).wait()?;
            if self.manager.read_to_vec(&target)? != self.manager.read_to_vec(&second)? {
                return Ok(false);
            }
            at += target.len();
        }
        Ok(true)
    }

    /// Takes in a run that is over. After an error the rest is cancelled and quiet.
    fn settle(
        &mut self,
        run: Arrived,
        result: Result<Report, TransferError>,
    ) -> Result<(), LoadError> {
        let found = match (result, run.again.clone()) {
            (Err(source), _) => Err(source),
            (Ok(_), None) => Ok(Ok(true)),
            (Ok(_), Some(again)) => Ok(self.is_same(again, &run.target)),
        };
        if let Ok(Ok(true)) = found {
            self.done_bytes += run.len_bytes;
            self.arrived = Some((run, 0));
            return Ok(());
        }
        let tensors = self.all.names(&run);
        let path = run.path;
        self.canceller.cancel();
        let rest = self.runs.drain(..).filter_map(|run| {
            let (run, transfer) = run.parts();
            let tensors = self.all.names(&run);
            Some((run.path, tensors, transfer.wait().err()?))
        });
        let rest: Vec<_> = rest.collect();
        let all = match found {
            Ok(Ok(_)) => return Err(LoadError::Differs { path, tensors }),
            Ok(Err(transload::Error::Transfer(source))) => {
                return Err(LoadError::Transfer {
                    path,
                    tensors,
                    source: Box::new(source),
                });
            }
            Ok(Err(source)) => return Err(LoadError::Library(source)),
            Err(source) => std::iter::once((path, tensors, source)).chain(rest),
        };
        // Copies that end for this reason tell less.
        let first = all.min_by_key(|(.., source)| is_consequence(source));
        first.map_or(Ok(()), |(path, tensors, source)| {
            Err(LoadError::Transfer {
                path,
                tensors,
                source: Box::new(source),
            })
        })
    }

    /// Takes the next tensor that has arrived.
    fn taken(&mut self) -> Option<Loaded> {
        let (run, taken) = self.arrived.as_mut()?;
        let tensor = self.all.tensor(run, *taken);
        *taken += 1;
        if *taken >= self.all.of(run).len() {
            // The memory is used again when no tensor lies in it.
            self.arrived = None;
        }
        tensor
    }

    /// As [`next`](Iterator::next), and blocks for that long at most, but for a second reading ([`Load::verify`]) and, after an
    /// error, for what is under way. Returns `None` when no tensor has arrived by then; it waits for the first run of tensors
    /// that is under way, and one that ends out of turn comes with the next call.
    pub fn next_timeout(&mut self, limit: Duration) -> Option<Option<Result<Loaded, LoadError>>> {
        loop {
            if let Some(tensor) = self.taken() {
                return Some(Some(Ok(tensor)));
            }
            let next = self.first_over();
            let Some(run) = self.runs.get_mut(next) else {
                return Some(None);
            };
            let result = run.transfer.wait_timeout(limit)?;
            let run = self.runs.remove(next)?.run;
            if let Err(error) = self.settle(run, result) {
                return Some(Some(Err(error)));
            }
        }
    }

    /// The run whose transfer is over, or else the first one.
    fn first_over(&self) -> usize {
        let mut looked_at = self.runs.iter().take(LOOKED_AT);
        let over = looked_at.position(|run| run.transfer.is_over());
        over.unwrap_or(0)
    }

    /// Returns a handle that cancels the rest of the load, from any thread. [`next`](Iterator::next) returns
    /// an error then.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
}

impl Iterator for Loading {
    type Item = Result<Loaded, LoadError>;

    /// Returns at most the number of tensors that have not been taken: an error may come in place of the rest.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let waiting = self.runs.iter().map(|of| self.all.of(&of.run).len());
        let arrived = self.arrived.as_ref();
        let left = arrived.map_or(0, |(run, taken)| {
            self.all.of(run).len().saturating_sub(*taken)
        });
        let most = left + waiting.sum::<usize>();
        (usize::from(most > 0), Some(most))
    }

    fn next(&mut self) -> Option<Result<Loaded, LoadError>> {
        loop {
            if let Some(tensor) = self.taken() {
                return Some(Ok(tensor));
            }
            let next = self.first_over();
            let (run, transfer) = self.runs.remove(next)?.parts();
            if let Err(error) = self.settle(run, transfer.wait()) {
                return Some(Err(error));
            }
        }
    }
}

impl Stream for Loading {
    type Item = Result<Loaded, LoadError>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Loaded, LoadError>>> {
        loop {
            if let Some(tensor) = self.taken() {
                return Poll::Ready(Some(Ok(tensor)));
            }
            if self.runs.is_empty() {
                return Poll::Ready(None);
            }
            let looked_at = self.runs.iter_mut().take(LOOKED_AT).enumerate();
            let mut polled =
                looked_at.filter_map(
                    |(at, run)| match Pin::new(&mut run.transfer).poll(context) {
                        Poll::Ready(result) => Some((at, result)),
                        Poll::Pending => None,
                    },
                );
            let Some((at, result)) = polled.next() else {
                return Poll::Pending;
            };
            let Some(run) = self.runs.remove(at) else {
                continue;
            };
            if let Err(error) = self.settle(run.parts().0, result) {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        Iterator::size_hint(self)
    }
}

impl std::iter::FusedIterator for Loading {}
