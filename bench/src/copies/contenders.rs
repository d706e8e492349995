//! The contenders that copy within this process, all between the same two buffers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use rayon::ThreadPool;
use rayon::prelude::*;
use transload::{Buffer, TransferManager};

use crate::contest::{Contender, POISON};

/// The buffers, as their manager lends them.
#[derive(Clone)]
pub(crate) struct Bytes {
    pub(crate) src: Buffer,
    pub(crate) dst: Buffer,
}

impl Bytes {
    fn poison(&self) -> Result<()> {
        self.dst.write()?.fill(POISON);
        Ok(())
    }

    /// Compares by loads of this thread, after the copy has ended.
    fn are_equal(&self) -> Result<bool> {
        Ok(*self.dst.read()? == *self.src.read()?)
    }
}

/// Transload, called as its users call it.
pub(crate) struct Engine {
    pub(crate) manager: TransferManager,
    pub(crate) src: Buffer,
    pub(crate) dst: Buffer,
}

impl Contender for Engine {
    fn name(&self) -> &str {
        "transload"
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..turns {
            self.manager.copy(&self.src, &self.dst).wait()?;
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        let bytes = Bytes {
            src: self.src.clone(),
            dst: self.dst.clone(),
        };
        bytes.poison()?;
        let report = self.manager.copy(&self.src, &self.dst).wait()?;
        Ok(report.bytes() == self.src.len() && bytes.are_equal()?)
    }
}

/// Copies its second argument to its first, which is as long.
pub(crate) type SliceCopy = Box<dyn FnMut(&mut [u8], &[u8])>;

/// A function of two slices.
pub(crate) struct Safe {
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
    pub(crate) copy: SliceCopy,
}

impl Contender for Safe {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let src = self.bytes.src.read()?;
        let mut dst = self.bytes.dst.write()?;
        let begin = Instant::now();
        for _ in 0..turns {
            // The compiler cannot see the use of the bytes in between, so it must make each copy.
            (self.copy)(std::hint::black_box(&mut dst), std::hint::black_box(&src));
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        self.bytes.poison()?;
        {
            let src = self.bytes.src.read()?;
            let mut dst = self.bytes.dst.write()?;
            (self.copy)(&mut dst, &src);
        }
        self.bytes.are_equal()
    }
}

/// The usual code with rayon: chunks in parallel, on its global pool.
pub(crate) fn rayon_chunks(dst: &mut [u8], src: &[u8]) {
    let chunk = piece(dst.len(), rayon::current_num_threads());
    dst.par_chunks_mut(chunk)
        .zip(src.par_chunks(chunk))
        .for_each(|(dst, src)| dst.copy_from_slice(src));
}

/// All cores on one copy: the calling thread, and one other for each further core, take pieces until none is left. A
/// late thread delays no other by more than a piece.
#[derive(Clone)]
pub(crate) struct Team {
    others: Option<Arc<ThreadPool>>,
    threads: usize,
}

impl Team {
    pub(crate) fn new() -> Result<Team> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let pool = |count| rayon::ThreadPoolBuilder::new().num_threads(count).build();
        let others = if threads > 1 {
            Some(Arc::new(pool(threads - 1)?))
        } else {
            None
        };
        Ok(Team { others, threads })
    }

    pub(crate) fn copy(&self, dst: &mut [u8], src: &[u8], copy: impl Fn(&mut [u8], &[u8]) + Sync) {
        let Some(others) = &self.others else {
            return copy(dst, src);
        };
        let piece = piece(dst.len(), self.threads);
        let pieces = Mutex::new(dst.chunks_mut(piece).zip(src.chunks(piece)));
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((dst, src)) = next() {
                copy(dst, src);
            }
        };
        others.in_place_scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(|_| work());
            }
            work();
        });
    }
}

/// Eight pieces for each thread, and no piece below 64 KiB, where the cost of taking it would show.
fn piece(len: usize, threads: usize) -> usize {
    len.div_ceil(threads * 8).max(64 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::Random;

    #[test]
    fn every_way_copies_every_byte() -> Result<()> {
        let team = Team::new()?;
        for len in [0, 1, (64 << 10) - 1, (3 << 20) + 7] {
            let mut src = vec![0u8; len];
            Random(3).fill(&mut src);
            let mut dst = vec![POISON; len];
            rayon_chunks(&mut dst, &src);
            assert!(dst == src);
            dst.fill(POISON);
            team.copy(&mut dst, &src, |dst, src| dst.copy_from_slice(src));
            assert!(dst == src);
        }
        Ok(())
    }
}
