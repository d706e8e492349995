//! A load under way.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use transload::{
    AllocSpec, Batch, Buffer, Canceller, Conversion, DeviceId, Region, Request, Transfer,
    TransferManager,
};

use super::part::Part;
use super::plan::Item;
use super::run::Run;
use super::{Load, LoadError};
use crate::save::is_consequence;
use crate::{DType, TensorInfo};

/// A tensor in the memory of a device, or a part of one.
#[derive(Clone)]
#[non_exhaustive]
pub struct Tensor {
    infos: Arc<Vec<TensorInfo>>,
    number: usize,
    part: Option<Arc<Part>>,
    /// Its bytes: the elements lie densely, those of the last dimension next to each other. The memory around them holds other
    /// tensors of the load, and is there as long as one of them is.
    pub buffer: Buffer,
}

impl Tensor {
    /// Returns what its file says of the whole tensor.
    pub fn info(&self) -> &TensorInfo {
        &self.infos[self.number]
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// Returns the type of its elements in memory.
    pub fn dtype(&self) -> DType {
        self.part
            .as_ref()
            .map_or(self.info().dtype, |part| part.dtype)
    }

    /// Returns the sizes of its dimensions in memory, the outermost first.
    pub fn shape(&self) -> &[u64] {
        self.part
            .as_ref()
            .map_or(&self.info().shape, |part| &part.shape)
    }

    /// Returns which elements of the whole tensor these are along each dimension. `None`: all.
    pub fn ranges(&self) -> Option<&[Range<u64>]> {
        let part = self.part.as_ref()?;
        let is_slice = part.shape != self.info().shape;
        is_slice.then_some(&part.ranges)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("name", &self.name())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .field("ranges", &self.ranges())
            .field("buffer", &self.buffer)
            .finish()
    }
}

/// A load under way: an iterator of the tensors in the order of their arrival. [`next`](Iterator::next) blocks until the
/// next one has arrived.
///
/// After an error the rest of the load is cancelled, and there are no more tensors. A load that is dropped is cancelled.
#[derive(Debug)]
pub struct Loading {
    /// The runs that have not arrived, by the order of their transfers.
    runs: VecDeque<Pending>,
    arrived: VecDeque<Tensor>,
    manager: TransferManager,
    canceller: Canceller,
    /// The bytes of the runs that have arrived.
    done_bytes: u64,
    all_bytes: u64,
}

#[derive(Debug)]
struct Pending {
    tensors: Vec<Tensor>,
    /// What to read once more and compare with the target.
    again: Option<(Again, Buffer)>,
    path: PathBuf,
    len_bytes: u64,
    transfer: Transfer,
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
                    } = &items[*item];
                    let Ok(buffer) = target.slice(*at..*at + len_bytes) else {
                        unreachable!("the run holds its tensors");
                    };
                    Tensor {
                        infos: Arc::clone(model.shared_tensors()),
                        number: *number,
                        part: part.clone(),
                        buffer,
                    }
                });
                let tensors: Vec<Tensor> = tensors.collect();
                Pending {
                    len_bytes: tensors.iter().map(|tensor| tensor.buffer.len()).sum(),
                    tensors,
                    again: again.map(|again| (again, target)),
                    path: model.files()[run.file].file.path().to_owned(),
                    transfer,
                }
            });
        let runs: VecDeque<Pending> = pending.collect();
        Loading {
            all_bytes: runs.iter().map(|run| run.len_bytes).sum(),
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
            under_way.filter_map(|run| Some(run.transfer.progress()?.0.min(run.len_bytes)));
        (self.done_bytes + under_way.sum::<u64>(), self.all_bytes)
    }

    /// Reads bytes of a file once more, converts them if they are converted, and compares them with those that arrived.
    fn is_same(
        &self,
        (source, conversion): Again,
        target: &Buffer,
    ) -> Result<bool, transload::Error> {
        let read = |target: &Buffer| self.manager.read_to_vec(target);
        let arrived = read(target)?;
        let heap = DeviceId::CPU0.into();
        let second = self
            .manager
            .allocate(heap, AllocSpec::bytes(target.len()))?;
        let mut request = Request::new(source, &second);
        if let Some(conversion) = conversion {
            request = request.convert(conversion);
        }
        self.manager.submit(&request).wait()?;
        Ok(read(&second)? == arrived)
    }

    /// Returns a handle that cancels the rest of the load, from any thread. [`next`](Iterator::next) returns
    /// an error then.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
}

impl Iterator for Loading {
    type Item = Result<Tensor, LoadError>;

    /// Returns at most the number of tensors that have not been taken: an error may come in place of the rest.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let waiting = self.runs.iter().map(|run| run.tensors.len());
        let most = self.arrived.len() + waiting.sum::<usize>();
        (usize::from(most > 0), Some(most))
    }

    fn next(&mut self) -> Option<Result<Tensor, LoadError>> {
        loop {
            if let Some(tensor) = self.arrived.pop_front() {
                return Some(Ok(tensor));
            }
            let mut looked_at = self.runs.iter().take(LOOKED_AT);
            let over = looked_at.position(|run| run.transfer.is_over());
            let run = self.runs.remove(over.unwrap_or(0))?;
            let Pending {
                tensors,
                again,
                path,
                len_bytes,
                transfer,
            } = run;
            if let Err(source) = transfer.wait() {
                self.canceller.cancel();
                let names = |tensors: &[Tensor]| {
                    let names = tensors.iter().map(|of| of.name().to_owned());
                    names.collect()
                };
                let rest = self.runs.drain(..).filter_map(|run| {
                    let source = run.transfer.wait().err()?;
                    Some((run.path, run.tensors, source))
                });
                let all = std::iter::once((path, tensors, source)).chain(rest);
                // Copies that end for this reason tell less.
                let first = all.min_by_key(|(.., source)| is_consequence(source));
                return first.map(|(path, tensors, source)| {
                    Err(LoadError::Transfer {
                        path,
                        tensors: names(&tensors),
                        source: Box::new(source),
                    })
                });
            }
            match again.map(|(again, target)| self.is_same(again, &target)) {
                None | Some(Ok(true)) => {}
                Some(found) => {
                    self.canceller.cancel();
                    self.runs.clear();
                    let tensors = tensors.iter().map(|of| of.name().to_owned()).collect();
                    return Some(Err(match found {
                        Ok(_) => LoadError::Differs { path, tensors },
                        Err(source) => LoadError::Library(source),
                    }));
                }
            }
            self.done_bytes += len_bytes;
            self.arrived = tensors.into();
        }
    }
}

impl std::iter::FusedIterator for Loading {}
