//! A file that appears whole or not at all, and that a signal removes while it is being written.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use transload::hal::NotRegular;
use transload::host::HostFile;
use transload::host::partial::{Partial, folder};

use crate::failure::Failure;
use crate::interrupt::unfinished;

/// A file beside its final place, moved there when all bytes have arrived. Dropping it before that removes
/// it, and the place stays unchanged.
#[derive(Debug)]
pub(crate) struct OutputFile {
    /// The path as the user gave it.
    shown: PathBuf,
    /// `Some` until the file is placed.
    partial: Option<Partial>,
}

impl OutputFile {
    /// Makes an empty file, under a name that nothing else has.
    ///
    /// # Errors
    /// If the place is taken by something other than a writable file, or no file can be created in its
    /// folder.
    pub(crate) fn new(path: &Path) -> Result<OutputFile, Failure> {
        let failed = |source| Failure::Create {
            path: path.into(),
            source,
        };
        let target = match fs::canonicalize(path) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => path.into(),
            Err(error) => return Err(failed(error)),
        };
        check_replaceable(path, &target)?;
        let folder = folder(&target);
        if !folder.exists() {
            return Err(Failure::NoFolder {
                path: path.into(),
                folder: folder.into(),
            });
        }
        let partial = {
            let mut unfinished = unfinished();
            let partial = Partial::beside(&target).map_err(|source| match source.kind() {
                // The file system lacks something: its text says what to do.
                ErrorKind::Unsupported => failed(source),
                _ => Failure::Folder {
                    path: path.into(),
                    folder: folder.into(),
                    source,
                },
            })?;
            unfinished.add(path, partial.path());
            partial
        };
        Ok(OutputFile {
            shown: path.into(),
            partial: Some(partial),
        })
    }

    /// Makes it that long: a hole.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn resize(&mut self, len_bytes: u64) -> Result<(), Failure> {
        let partial = self.partial.as_mut().expect("it is not placed");
        let resized = partial.set_len(len_bytes);
        resized.map_err(|source| Failure::Create {
            path: self.shown.clone(),
            source,
        })
    }

    /// The file, for the library to write.
    ///
    /// # Errors
    /// When the process has no handle left.
    pub(crate) fn host_file(&self) -> Result<HostFile, Failure> {
        let partial = self.partial.as_ref().expect("it is not placed");
        let file = partial
            .file()
            .try_clone()
            .map_err(|source| Failure::Create {
                path: self.shown.clone(),
                source,
            })?;
        let file = HostFile::from_file(file, &self.shown, true);
        file.map_err(|error| Failure::Open(error.into()))
    }

    /// Makes an empty file for the text that an option writes.
    ///
    /// # Errors
    /// As [`OutputFile::new`], and for `-`.
    pub(crate) fn text(option: &'static str, path: &Path) -> Result<OutputFile, Failure> {
        names_a_file(option, path)?;
        OutputFile::new(path)
    }

    /// Writes the whole file and moves it to its place.
    ///
    /// # Errors
    /// As [`OutputFile::place`].
    pub(crate) fn fill(self, text: &str) -> Result<(), Failure> {
        let partial = self.partial.as_ref().expect("it is not placed");
        let written = partial.file().write_all(text.as_bytes());
        written.map_err(|source| Failure::Place {
            path: self.shown.clone(),
            source,
        })?;
        self.place()
    }

    /// Moves the file to its place, after its bytes are on the disk: even a crash leaves no partial file
    /// there.
    ///
    /// # Errors
    /// If the system refuses; the place is then unchanged.
    pub(crate) fn place(mut self) -> Result<(), Failure> {
        let synced = self.partial.as_mut().map_or(Ok(()), Partial::sync);
        let placed = synced.map_err(io::Error::from);
        let placed = placed.and_then(|()| self.end(|partial| Ok(partial.place()?)));
        placed.map_err(|source| Failure::Place {
            path: self.shown.clone(),
            source,
        })
    }

    /// Ends the making of the file; no signal ends the program meanwhile.
    fn end(&mut self, how: impl FnOnce(Partial) -> io::Result<()>) -> io::Result<()> {
        let Some(partial) = self.partial.take() else {
            return Ok(());
        };
        let mut unfinished = unfinished();
        unfinished.forget(partial.path());
        how(partial)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        let _ = self.end(|partial| {
            drop(partial);
            Ok(())
        });
    }
}

/// Checks that the value of an option does not ask for standard output.
///
/// # Errors
/// For `-`.
pub(crate) fn names_a_file(option: &'static str, path: &Path) -> Result<(), Failure> {
    match path == Path::new("-") {
        true => Err(Failure::StandardOutput { option }),
        false => Ok(()),
    }
}

/// Checks that the file of an option is in the place of no other file of the command.
pub(crate) fn spares<'a>(
    option: &'static str,
    output: Option<&Path>,
    others: impl IntoIterator<Item = (&'static str, Option<&'a Path>)>,
) -> Result<(), Failure> {
    let Some(path) = output else { return Ok(()) };
    let replaced = |other: Option<&Path>| other.is_some_and(|other| is_same_file(path, other));
    match others.into_iter().find(|(_, other)| replaced(*other)) {
        Some((what, _)) => Err(Failure::Replaces {
            option,
            path: path.into(),
            what,
        }),
        None => Ok(()),
    }
}

/// Returns whether both paths name one file, which need not be there. Its folder is.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        let inside = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
        path.canonicalize().ok().or_else(inside)
    };
    whole(one).is_some_and(|path| whole(other) == Some(path))
}

/// Checks that the place may be replaced: renaming a file over a device or a pipe would remove that.
fn check_replaceable(path: &Path, target: &Path) -> Result<(), Failure> {
    let path = PathBuf::from(path);
    let before = match fs::metadata(target) {
        Ok(before) => before,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return match names_a_directory(&path) {
                true => Err(Failure::NoDirectory { path }),
                false => Ok(()),
            };
        }
        Err(source) => return Err(Failure::Create { path, source }),
    };
    replaceable(&path, &before)?;
    match before.permissions().readonly() {
        true => Err(Failure::ReadOnly { path }),
        false => Ok(()),
    }
}

/// Checks that what is at a path may be replaced by a file.
///
/// # Errors
/// If it is no regular file.
pub(crate) fn replaceable(path: &Path, before: &fs::Metadata) -> Result<(), Failure> {
    NotRegular::check(before).map_err(|found| Failure::Occupied {
        path: path.into(),
        found,
    })
}

/// Whether a path ends like a directory's.
fn names_a_directory(path: &Path) -> bool {
    let ends_so = |last: char| path.to_string_lossy().ends_with(last);
    path.file_name().is_none() || ends_so('/') || ends_so(MAIN_SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = format!("transload-output-file-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(path);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_appears_only_when_it_is_placed() {
        let folder = Folder::new("placed");
        let path = folder.0.join("file");
        fs::write(&path, b"before").unwrap();
        let mut output_file = OutputFile::new(&path).unwrap();
        output_file.resize(5).unwrap();
        output_file
            .host_file()
            .unwrap()
            .file()
            .unwrap()
            .write_all(b"after")
            .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        output_file.place().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(folder.files(), 1);
    }

    #[test]
    fn what_is_given_up_leaves_nothing() {
        let folder = Folder::new("dropped");
        let path = folder.0.join("file");
        drop(OutputFile::new(&path).unwrap());
        assert_eq!(folder.files(), 0);
    }

    #[test]
    fn a_folder_and_a_missing_folder_are_refused_by_name() {
        let folder = Folder::new("refused");
        let error = OutputFile::new(&folder.0).unwrap_err();
        assert!(error.to_string().contains(folder.0.to_str().unwrap()));
        let error = OutputFile::new(&folder.0.join("no/file")).unwrap_err();
        assert!(error.to_string().contains("no/file"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_read_only_files_are_never_replaced() {
        let error = OutputFile::new(Path::new("/dev/null")).unwrap_err();
        assert!(error.to_string().contains("/dev/null"), "{error}");
        let folder = Folder::new("read-only");
        let path = folder.0.join("file");
        fs::write(&path, b"kept").unwrap();
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).unwrap();
        let error = OutputFile::new(&path).unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");
    }
}
