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
use crate::{Model, Tensor, TensorInfo};

/// A tensor of a model, or a part of one, in memory. It derefs to its [`Tensor`].
///
/// It is dense. The memory around its buffer holds other tensors of the load, and stays allocated as long as one of them lives.
#[derive(Clone)]
#[non_exhaustive]
pub struct Loaded {
    infos: Arc<Vec<TensorInfo>>,
    number: usize,
    part: Option<Arc<Part>>,
    /// The tensor itself.
    pub tensor: Tensor,
}

impl Loaded {
    /// A tensor, or a part of one, of which a buffer holds all bytes.
    pub(super) fn new(
        model: &Model,
        number: usize,
        part: Option<Arc<Part>>,
        buffer: Buffer,
    ) -> Loaded {
        let infos = Arc::clone(model.shared_tensors());
        let (dtype, shape) = match &part {
            Some(part) => (part.dtype, Sizes::Own(part.shape.clone())),
            None => (
                infos[number].dtype,
                Sizes::Model(Arc::clone(&infos), number),
            ),
        };
        Loaded {
            infos,
            number,
            tensor: Tensor::dense(buffer, dtype, shape),
            part,
        }
    }

    /// Returns what its file says of the whole tensor.
    pub fn info(&self) -> &TensorInfo {
        &self.infos[self.number]
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// Returns which elements of the whole tensor these are along each dimension. `None`: all.
    pub fn ranges(&self) -> Option<&[Range<u64>]> {
        let part = self.part.as_ref()?;
        let is_slice = part.shape != self.info().shape;
        is_slice.then_some(&part.ranges)
    }
}

impl Deref for Loaded {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded")
            .field("name", &self.name())
            .field("ranges", &self.ranges())
            .field("tensor", &self.tensor)
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
    /// The runs that have not arrived, by the order of their transfers.
    runs: VecDeque<Pending>,
    arrived: VecDeque<Loaded>,
    manager: TransferManager,
    canceller: Canceller,
    /// The bytes of the runs that have arrived.
    done_bytes: u64,
    all_bytes: u64,
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

/// What is known of a run when it has arrived.
#[derive(Debug)]
struct Arrived {
    tensors: Vec<Loaded>,
    /// What to read once more and compare with the target.
    again: Option<(Again, Buffer)>,
    path: PathBuf,
    len_bytes: u64,
}

/// Where bytes of a file are, and how they are converted.
pub(super) type Again = (Region, Option<Conversion>);

/// Transfers end roughly in the order of their start, so that no later ones are looked at.
const LOOKED_AT: usize = 64;

impl Loading {
    pub(super) fn new(
        load: Load<'_>,
        items: &[Item],
        parts: Vec<(&Run, Buffer, Option<Again>)>,
        batch: Batch,
    ) -> Loading {
        let model = load.model;
        let canceller = batch.canceller();
        let transfers = batch.into_transfers().into_iter();
        let pending = parts
            .into_iter()
            .zip(transfers)
            .map(|((run, target, again), transfer)| {
                let tensors = run.items.iter().map(|(item, at)| {
                    let Item {
                        number,
                        part,
                        len_bytes,
                        ..
                    } = &items[*item];
                    let Ok(buffer) = target.slice(*at..*at + len_bytes) else {
                        unreachable!("the run holds its tensors");
                    };
                    Loaded::new(model, *number, part.clone(), buffer)
                });
                let tensors: Vec<Loaded> = tensors.collect();
                let run = Arrived {
                    len_bytes: tensors.iter().map(|of| of.len_bytes()).sum(),
                    tensors,
                    again: again.map(|again| (again, target)),
                    path: model.files()[run.file].path().to_owned(),
                };
                Pending { run, transfer }
            });
        let runs: VecDeque<Pending> = pending.collect();
        Loading {
            all_bytes: runs.iter().map(|of| of.run.len_bytes).sum(),
            runs,
            arrived: VecDeque::new(),
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
        let Arrived {
            tensors,
            again,
            path,
            len_bytes,
        } = run;
        let names = |tensors: &[Loaded]| {
            let names = tensors.iter().map(|of| of.name().to_owned());
            names.collect()
        };
        let found = match (result, again) {
            (Err(source), _) => Err(source),
            (Ok(_), None) => Ok(Ok(true)),
            (Ok(_), Some((again, target))) => Ok(self.is_same(again, &target)),
        };
        if let Ok(Ok(true)) = found {
            self.done_bytes += len_bytes;
            self.arrived = tensors.into();
            return Ok(());
        }
        self.canceller.cancel();
        let rest = self.runs.drain(..).filter_map(|run| {
            let (run, transfer) = run.parts();
            Some((run.path, run.tensors, transfer.wait().err()?))
        });
        let rest: Vec<_> = rest.collect();
        let all = match found {
            Ok(Ok(_)) => {
                let tensors = names(&tensors);
                return Err(LoadError::Differs { path, tensors });
            }
            Ok(Err(transload::Error::Transfer(source))) => {
                return Err(LoadError::Transfer {
                    path,
                    tensors: names(&tensors),
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
                tensors: names(&tensors),
                source: Box::new(source),
            })
        })
    }

    /// As [`next`](Iterator::next), and blocks for that long at most, but for a second reading ([`Load::verify`]) and, after an
    /// error, for what is under way. Returns `None` when no tensor has arrived by then; it waits for the first run of tensors
    /// that is under way, and one that ends out of turn comes with the next call.
    pub fn next_timeout(&mut self, limit: Duration) -> Option<Option<Result<Loaded, LoadError>>> {
        loop {
            if let Some(tensor) = self.arrived.pop_front() {
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
        let waiting = self.runs.iter().map(|of| of.run.tensors.len());
        let most = self.arrived.len() + waiting.sum::<usize>();
        (usize::from(most > 0), Some(most))
    }

    fn next(&mut self) -> Option<Result<Loaded, LoadError>> {
        loop {
            if let Some(tensor) = self.arrived.pop_front() {
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
            if let Some(tensor) = self.arrived.pop_front() {
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
