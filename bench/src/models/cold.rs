//! Readers of files that the system does not have in its cache.

use std::fs::File;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, ensure};
use transload::host::HostFile;
use transload::{Advice, TransferManager};

use super::Files;
use crate::contest::Contender;

/// Contenders for which each turn begins without a byte of the files in the cache.
pub(super) fn all(
    contenders: Vec<Box<dyn Contender>>,
    files: &Rc<Files>,
    manager: &TransferManager,
) -> Vec<Box<dyn Contender>> {
    let cold = contenders.into_iter().map(|inner| -> Box<dyn Contender> {
        Box::new(Cold {
            inner,
            files: Rc::clone(files),
            manager: manager.clone(),
        })
    });
    cold.collect()
}

struct Cold {
    inner: Box<dyn Contender>,
    files: Rc<Files>,
    manager: TransferManager,
}

impl Cold {
    /// Drives the files out of the cache, and checks that they are.
    fn chill(&self) -> Result<()> {
        for path in &self.files.paths {
            // Pages that the disk does not have yet stay.
            File::open(path)?.sync_all()?;
            let file = self.manager.open_file(path)?;
            self.manager.advise(&file, Advice::DontNeed)?;
            let share = HostFile::open(path)?.cached_share();
            ensure!(
                share.is_some_and(|share| share < 0.05),
                "{} is still in the cache: {share:?}",
                path.display()
            );
        }
        Ok(())
    }
}

impl Contender for Cold {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let mut took = Duration::ZERO;
        for _ in 0..turns {
            self.chill()?;
            took += self.inner.sample(1)?;
        }
        Ok(took)
    }

    fn verify(&mut self) -> Result<bool> {
        self.chill()?;
        self.inner.verify()
    }
}

/// Whole files past the cache, by four threads with reads of 4 MiB into huge pages: no tensors, the limit of the disk.
#[cfg(target_os = "linux")]
pub(super) fn direct(files: &Rc<Files>) -> Box<dyn Contender> {
    use std::cell::RefCell;
    use std::fs::OpenOptions;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::sync::atomic::{AtomicU64, Ordering};

    use memmap2::{Advice, MmapMut};

    use crate::contest::POISON;
    use crate::way::Way;

    const PIECE: u64 = 4 << 20;
    const THREADS: usize = 4;

    let buffers = Rc::new(RefCell::new(Vec::<Vec<(u64, MmapMut)>>::new()));
    let turn = {
        let (files, buffers) = (Rc::clone(files), Rc::clone(&buffers));
        move || {
            let mut all = buffers.borrow_mut();
            for (number, path) in files.paths.iter().enumerate() {
                let file: File = OpenOptions::new()
                    .read(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(path)?;
                let len = file.metadata()?.len();
                if all.len() == number {
                    let pieces = (0..len).step_by(PIECE as usize).map(|at| {
                        let memory = MmapMut::map_anon(PIECE as usize)?;
                        memory.advise(Advice::HugePage)?;
                        Ok((at, memory))
                    });
                    all.push(pieces.collect::<Result<_>>()?);
                }
                let pieces = std::sync::Mutex::new(all[number].iter_mut());
                let read = AtomicU64::new(0);
                std::thread::scope(|scope| {
                    let reader = || -> Result<()> {
                        loop {
                            let next = pieces.lock().ok().and_then(|mut pieces| pieces.next());
                            let Some((at, memory)) = next else {
                                return Ok(());
                            };
                            let got = file.read_at(memory, *at)?;
                            read.fetch_add(got as u64, Ordering::Relaxed);
                        }
                    };
                    let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(reader)).collect();
                    threads
                        .into_iter()
                        .try_for_each(|thread| match thread.join() {
                            Ok(read) => read,
                            Err(_) => anyhow::bail!("a reader panicked"),
                        })
                })?;
                ensure!(read.into_inner() == len, "a read was short");
            }
            Ok(())
        }
    };
    let poison = {
        let buffers = Rc::clone(&buffers);
        move || {
            let mut buffers = buffers.borrow_mut();
            let pieces = buffers.iter_mut().flatten();
            pieces.for_each(|(_, memory)| memory.fill(POISON));
            Ok(())
        }
    };
    let files = Rc::clone(files);
    let check = move || {
        let buffers = buffers.borrow();
        let mut pairs = files.paths.iter().zip(&*buffers);
        pairs.try_fold(true, |all, (path, pieces)| {
            let file = std::fs::read(path)?;
            let parts = file.chunks(PIECE as usize).zip(pieces);
            let mut parts = parts.map(|(part, (_, memory))| *part == memory[..part.len()]);
            Ok(all & parts.all(|same| same))
        })
    };
    Way::boxed("read past the cache, 4 threads", turn, poison, check)
}
