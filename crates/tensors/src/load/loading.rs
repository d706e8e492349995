//! A load under way.

use std::collections::VecDeque;
use std::path::PathBuf;

use transload::{Batch, Buffer, Canceller, Transfer};

use super::LoadError;
use super::run::Run;
use crate::save::is_consequence;
use crate::{Model, TensorInfo};

/// A tensor in the memory of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tensor {
    /// What its file says of it.
    pub info: TensorInfo,
    /// Its bytes. The memory around them holds other tensors of the load, and is there as long as one of them is.
    pub buffer: Buffer,
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
    canceller: Canceller,
    /// The bytes of the runs that have arrived.
    done_bytes: u64,
    all_bytes: u64,
}

#[derive(Debug)]
struct Pending {
    tensors: Vec<Tensor>,
    path: PathBuf,
    len_bytes: u64,
    transfer: Transfer,
}

/// Transfers end roughly in the order of their start, so that no later ones are looked at.
const LOOKED_AT: usize = 64;

impl Loading {
    pub(super) fn new(model: &Model, parts: Vec<(&Run, Buffer)>, batch: Batch) -> Loading {
        let canceller = batch.canceller();
        let transfers = batch.into_transfers().into_iter();
        let pending = parts
            .into_iter()
            .zip(transfers)
            .map(|((run, target), transfer)| {
                let tensors = run.tensors.iter().map(|(number, at)| {
                    let info = model.tensors()[*number].clone();
                    let Ok(buffer) = target.slice(*at..*at + info.len_bytes) else {
                        unreachable!("the run holds its tensors");
                    };
                    Tensor { info, buffer }
                });
                let tensors: Vec<Tensor> = tensors.collect();
                Pending {
                    len_bytes: tensors.iter().map(|tensor| tensor.info.len_bytes).sum(),
                    tensors,
                    path: model.files()[run.file].file.path().to_owned(),
                    transfer,
                }
            });
        let runs: VecDeque<Pending> = pending.collect();
        Loading {
            all_bytes: runs.iter().map(|run| run.len_bytes).sum(),
            runs,
            arrived: VecDeque::new(),
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
                path,
                len_bytes,
                transfer,
            } = run;
            if let Err(source) = transfer.wait() {
                self.canceller.cancel();
                let names = |tensors: Vec<Tensor>| tensors.into_iter().map(|of| of.info.name);
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
                        tensors: names(tensors).collect(),
                        source: Box::new(source),
                    })
                });
            }
            self.done_bytes += len_bytes;
            self.arrived = tensors.into();
        }
    }
}

impl std::iter::FusedIterator for Loading {}
