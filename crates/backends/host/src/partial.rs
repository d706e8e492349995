//! Files that appear whole or not at all.
//!
//! Such a file is written as `.transload-WRITER-RANDOM.partial` in the folder of its place. The name says which machine,
//! boot and process write it. Creating a partial file removes those in the folder whose process has ended: killed processes
//! left them. Files of other machines and of processes that may be alive stay, and lists of files ([`left_lists`]).

pub mod steps;
mod writer;

use std::ffi::OsStr;
#[cfg(unix)]
use std::fs::Permissions;
use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use transload_hal::{NotRegular, longest_file};

use crate::memory::file::{unnamed_file, write_at};
use steps::StepError;
use writer::Writer;

/// A file beside its place, moved there when it is whole. Dropping it before that removes it.
#[derive(Debug)]
pub struct Partial {
    /// The file to replace or create; of a link, the file behind it. The link stays.
    target: PathBuf,
    file: NamedTempFile,
    /// The file that it replaces. Until it takes that file's place, only its owner reads it.
    replaced: Option<(PathBuf, Metadata)>,
    /// Has the bytes until [`Partial::fill`], where the file system takes bytes only one after the other.
    collected: Option<File>,
}

impl Partial {
    /// Makes an empty file in the folder of `path`, or of the file that a link at `path` leads to, missing or not.
    ///
    /// # Errors
    /// If `path` leads to something other than a regular file ([`NotRegular`]), if links form a cycle, if the file system
    /// does not rename files, or if the system refuses.
    pub fn beside(path: &Path) -> io::Result<Partial> {
        Partial::instead_of(path, None)
    }

    /// As [`Partial::beside`]. Where nothing is at `path`, the file takes over the owner, the group and the permission bits
    /// of `older`, whose content it replaces under another name.
    ///
    /// # Errors
    /// As [`Partial::beside`].
    pub fn instead_of(path: &Path, older: Option<&Path>) -> io::Result<Partial> {
        Partial::make(path, older, END)
    }

    fn make(path: &Path, older: Option<&Path>, end: &str) -> io::Result<Partial> {
        // The system looks first. It refuses circles, and links that it protects users from (`protected_symlinks`).
        let (target, replaced) = match fs::metadata(path) {
            Ok(found) => {
                NotRegular::check(&found)?;
                let target = fs::canonicalize(path)?;
                (target.clone(), Some((target, found)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let older = older.and_then(|older| Some((older.into(), fs::metadata(older).ok()?)));
                (behind_links(path)?, older)
            }
            Err(error) => return Err(error),
        };
        let writer = Writer::this();
        for path in stale(folder(&target), writer).filter(|path| !is_list(path)) {
            let _ = fs::remove_file(path);
        }
        let private = replaced.is_some().then_some(0o600);
        let mut file = create_in(folder(&target), writer, private, end)?;
        if let Some((_, replaced)) = &replaced
            && let Some(mode) = mode_for_ever(file.as_file(), replaced)?
        {
            file = create_in(folder(&target), writer, Some(mode), end)?;
        }
        Ok(Partial {
            file,
            target,
            replaced,
            collected: None,
        })
    }

    /// Makes an empty file in the folder of `path`, to replace what has that name, a link itself and not the file behind it.
    /// It takes over the owner, the group and the permission bits of `older`. It is for a list of other files, and is one of
    /// the [`left_lists`] where the process ends early.
    ///
    /// # Errors
    /// As [`Partial::beside`].
    pub fn over(path: &Path, older: Option<&Path>) -> io::Result<Partial> {
        if let Ok(found) = fs::metadata(path) {
            NotRegular::check(&found)?;
        }
        // Nothing has this name.
        let mut partial = Partial::make(&aside(path), older, LIST_END)?;
        partial.target = path.to_owned();
        Ok(partial)
    }

    /// Makes a file of these bytes, and the folders that lead to `path`. The folder that a link at `path` leads to
    /// must be there.
    ///
    /// # Errors
    /// As [`Partial::beside`].
    pub fn write(path: &Path, bytes: &[u8]) -> io::Result<Partial> {
        fs::create_dir_all(folder(path))?;
        let mut partial = Partial::beside(path)?;
        partial.file.write_all(bytes)?;
        Ok(partial)
    }

    /// Makes the empty file `len_bytes` long, for writes in any order.
    ///
    /// On a file system without `ftruncate`, it writes the last byte. On one that takes bytes only one after the other, the
    /// bytes are collected in the folder for temporary files, and [`Partial::fill`] writes them.
    ///
    /// # Errors
    /// When the disk is full, when the process or the file system has no files of that length, or the system refuses.
    pub fn set_len(&mut self, len_bytes: u64) -> io::Result<()> {
        let Some(last) = len_bytes.checked_sub(1) else {
            return Ok(());
        };
        if let Some(limit) = longest_file().filter(|limit| len_bytes > limit.0) {
            return Err(limit.into());
        }
        let file = self.file.as_file();
        let mut done = file.set_len(len_bytes);
        if done.as_ref().is_err_and(may_do_without) {
            done = write_at(file, &[0], last).map(drop);
        }
        if done.as_ref().is_err_and(may_do_without) {
            let folder = std::env::temp_dir();
            let collected = unnamed_file(&folder).and_then(|file| {
                file.set_len(len_bytes)?;
                match has_room(&file, len_bytes) {
                    true => Ok(file),
                    false => Err(ErrorKind::StorageFull.into()),
                }
            });
            self.collected = Some(collected.map_err(|error| {
                let told = format!(
                    "its file system takes bytes only one after the other, and {} does not hold them until they are \
                     all there: {error}; set TMPDIR to a directory with room for {len_bytes} bytes",
                    folder.display()
                );
                io::Error::new(error.kind(), told)
            })?);
            done = Ok(());
        }
        done
    }

    /// The file to write.
    pub fn file(&self) -> &File {
        match &self.collected {
            Some(file) => file,
            None => self.file.as_file(),
        }
    }

    /// The path of the file until it is placed.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The place: `path`, or the file behind the link there.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Brings all bytes to the disk.
    ///
    /// # Errors
    /// When the disk fails or is full.
    pub fn sync(&mut self) -> Result<(), StepError> {
        self.fill().map_err(|source| StepError {
            step: steps::Step::Sync,
            path: self.target.clone(),
            source,
        })?;
        steps::sync(self.file.as_file(), &self.target)
    }

    /// Moves the file to its place. After a crash of the machine, the place may have a part of it.
    ///
    /// It takes over the owner, the group and the permission bits of the file that it replaces, without set-user-ID and
    /// set-group-ID. Where the system refuses the owner, the group or the bits, it gets fewer bits: no user may do more than
    /// before.
    ///
    /// # Errors
    /// If the system refuses. The place is then unchanged, and the file is removed.
    pub fn place(mut self) -> Result<(), StepError> {
        let target = self.target.clone();
        let failed = |source| StepError {
            step: steps::Step::Rename,
            path: target.clone(),
            source,
        };
        self.finish().map_err(failed)?;
        // On Windows, `NamedTempFile::persist` cannot replace a file that another process reads.
        steps::rename(self.file.path(), &target)?;
        self.file.disable_cleanup(true);
        Ok(())
    }

    /// Moves the file to `path` in the folder of its place, if nothing has that name. Returns the file otherwise.
    ///
    /// # Errors
    /// As [`Partial::place`].
    pub fn place_free(mut self, path: &Path) -> Result<Option<Partial>, StepError> {
        let failed = |source| StepError {
            step: steps::Step::Rename,
            path: path.into(),
            source,
        };
        self.finish().map_err(failed)?;
        if !steps::rename_to_free(self.file.path(), path, true)? {
            return Ok(Some(self));
        }
        self.file.disable_cleanup(true);
        Ok(None)
    }

    /// Syncs the file to disk, then moves it to its place. After any failure the place has either the whole file or what
    /// was there before.
    ///
    /// # Errors
    /// As [`Partial::place`].
    pub fn place_for_good(mut self) -> io::Result<()> {
        self.sync()?;
        let target = self.target.clone();
        self.place()?;
        // The name is on the disk when its folder is. The file is in its place already.
        let _ = steps::sync_folder(folder(&target));
        Ok(())
    }

    /// Writes what was collected, one byte after the other.
    fn fill(&mut self) -> io::Result<()> {
        let Some(mut collected) = self.collected.take() else {
            return Ok(());
        };
        collected.rewind()?;
        io::copy(&mut collected, self.file.as_file_mut()).map(drop)
    }

    /// Gives the file all that it has in its place.
    fn finish(&mut self) -> io::Result<()> {
        self.fill()?;
        match &self.replaced {
            Some((path, replaced)) => take_over(self.file.as_file(), replaced, path),
            None => Ok(()),
        }
    }
}

/// Whether the file system may lack a call, rather than room.
fn may_do_without(error: &io::Error) -> bool {
    use ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    !matches!(
        error.kind(),
        FileTooLarge | QuotaExceeded | ReadOnlyFilesystem | StorageFull
    )
}

/// Whether the file system of a file has so many bytes left, as far as the system tells.
fn has_room(file: &File, len_bytes: u64) -> bool {
    #[cfg(unix)]
    if let Ok(found) = rustix::fs::fstatvfs(file) {
        return found.f_bavail.saturating_mul(found.f_frsize) >= len_bytes;
    }
    let _ = (file, len_bytes);
    true
}

/// Returns a path beside a file where it is put aside, named as this process's partial files are. A `.json` is a list of other
/// files, and is one of the [`left_lists`] where the process ends early.
pub fn aside(path: &Path) -> PathBuf {
    let random = RandomState::new().build_hasher().finish();
    let end = match path.extension().is_some_and(|of| of == "json") {
        true => LIST_END,
        false => END,
    };
    folder(path).join(format!("{}{random:016x}{end}", prefix(Writer::this())))
}

/// Returns the lists of files that processes left in a folder when they ended early: [`Partial::over`] and [`aside`] made
/// them. They tell the writer's successor which other files are left; it removes these, and then the list.
pub fn left_lists(folder: &Path) -> impl Iterator<Item = PathBuf> {
    stale(folder, Writer::this()).filter(|path| is_list(path))
}

/// The folder of the file that a path leads to.
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Follows links that end at no file, to the place that the last one names. A relative link starts at its own folder.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_owned();
    for _ in 0..=MOST_LINKS {
        match fs::symlink_metadata(&place) {
            Ok(found) if found.is_symlink() => {
                place = folder(&place).join(fs::read_link(&place)?);
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => return Ok(place),
        }
    }
    let path = path.display();
    Err(io::Error::other(format!(
        "more than {MOST_LINKS} links lead from {path}"
    )))
}

/// How many links are followed one after the other: as many as Linux follows.
const MOST_LINKS: usize = 40;

/// Gives a file the owner, the group and the permission bits of another one, as far as the system allows. Until the
/// bits are set, only the owner can read the file.
#[cfg(unix)]
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    expect(
        unused_variables,
        unused_mut,
        reason = "only there lists are looked at"
    )
)]
fn take_over(file: &File, replaced: &Metadata, target: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let same = |found: &Metadata| (found.uid() == replaced.uid(), found.gid() == replaced.gid());
    let (mut owner, mut group) = same(&file.metadata()?);
    if !(owner && group) {
        let (uid, gid) = (Some(replaced.uid()), Some(replaced.gid()));
        // Without privileges, a user cannot give a file away, but can choose among the user's own groups.
        let _ = fchown(file, uid, gid).or_else(|_| fchown(file, None, gid));
        // Some file systems report success and change nothing.
        (owner, group) = same(&file.metadata()?);
    }
    let mut mode = kept_bits(replaced.mode(), owner, group);
    // With an access control list, the group's bits are those that any entry may grant, and not what the group has.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Some(list) = access_control_list(target)
        && !(owner && group && give_list(file, &list).is_ok())
    {
        mode &= 0o700;
    }
    match file.set_permissions(Permissions::from_mode(mode)) {
        Err(error) if is_without_modes(&error) && file.metadata()?.mode() & 0o7777 & !mode == 0 => {
            Ok(())
        }
        set => set,
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const LIST: &str = "system.posix_acl_access";

/// Returns the access control list of a file, as the system stores it; `None` where the mode says everything.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn access_control_list(path: &Path) -> Option<Vec<u8>> {
    // The system has no longer ones.
    let mut list = vec![0; 64 << 10];
    let len = rustix::fs::getxattr(path, LIST, &mut list[..]).ok()?;
    list.truncate(len);
    Some(list)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn give_list(file: &File, list: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::fsetxattr(file, LIST, list, rustix::fs::XattrFlags::empty())
}

/// Returns the permission bits of a file that replaces one with `mode`. Set-user-ID and set-group-ID are left out: they
/// were given to the old content. With another owner or group, a user may fall into another class than before, so a
/// class loses the bits that its users did not have in the old file.
#[cfg(unix)]
fn kept_bits(mode: u32, same_owner: bool, same_group: bool) -> u32 {
    let (owner, mut group, mut other) = (mode & 0o700, mode >> 3 & 7, mode & 7);
    if !same_group {
        (group, other) = (group & other, group & other);
    }
    if !same_owner {
        (group, other) = (group & owner >> 6, other & owner >> 6);
    }
    owner | group << 3 | other
}

/// Returns the permission bits that a file must be created with to take over those of the file that it replaces: `None`
/// where the file system changes them later. Some have no `chmod`, or the same bits for all files.
#[cfg(unix)]
fn mode_for_ever(file: &File, replaced: &Metadata) -> io::Result<Option<u32>> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    match file.set_permissions(Permissions::from_mode(0o600)) {
        Err(error) if is_without_modes(&error) => {
            let found = file.metadata()?;
            let same_owner = found.uid() == replaced.uid();
            let same_group = found.gid() == replaced.gid();
            Ok(Some(kept_bits(replaced.mode(), same_owner, same_group)))
        }
        set => set.map(|()| None),
    }
}

#[cfg(not(unix))]
fn mode_for_ever(_: &File, _: &Metadata) -> io::Result<Option<u32>> {
    Ok(None)
}

#[cfg(unix)]
fn is_without_modes(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::Unsupported
    )
}

/// Where files have no modes, they can be read-only.
#[cfg(not(unix))]
fn take_over(file: &File, replaced: &Metadata, _: &Path) -> io::Result<()> {
    file.set_permissions(replaced.permissions())
}

#[cfg_attr(
    not(unix),
    expect(unused_variables, reason = "only there files have modes")
)]
fn create_in(
    folder: &Path,
    writer: Option<Writer>,
    mode: Option<u32>,
    end: &str,
) -> io::Result<NamedTempFile> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A new file has the bits of every new file, less what the process masks.
        options.mode(mode.unwrap_or(0o666));
    }
    let prefix = prefix(writer);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(end);
    // The errors of `tempfile_in` name the temporary file, which the user does not know.
    builder.make_in(folder, |path| {
        // Under another name first: where the file system does not rename files, that is known before any work is done.
        let first = path.with_extension(format!("0{END}"));
        let file = options.open(&first)?;
        // A forked process may draw the same name: the file of another one stays.
        let done = steps::rename_to_free(&first, path, false);
        if matches!(done, Ok(true)) {
            return Ok(file);
        }
        // Closed first: some file systems rename an open file to remove it.
        {
            let _file = file;
        }
        let _ = fs::remove_file(&first);
        Err(match done {
            // Another name is drawn.
            Ok(_) => ErrorKind::AlreadyExists.into(),
            Err(error) if steps::lacks(&error.source) => {
                io::Error::new(ErrorKind::Unsupported, NO_RENAME)
            }
            Err(error) => io::Error::new(
                error.source.kind(),
                format!("{} another name there: {}", error.step, error.source),
            ),
        })
    })
}

const NO_RENAME: &str = "its file system does not rename files, and a file that is written in place would be there half when \
                         the process ends; write the file to another file system, and copy it from there";

/// Returns the files and links that ended processes left in a folder. What cannot be looked at is left out: it takes room and
/// does no other harm.
fn stale(folder: &Path, this: Option<Writer>) -> impl Iterator<Item = PathBuf> {
    let entries = this.and_then(|this| Some((this, fs::read_dir(folder).ok()?)));
    entries.into_iter().flat_map(|(this, entries)| {
        entries.flatten().filter_map(move |entry| {
            let writer = writer_of(&entry.file_name())?;
            let found = entry.metadata().ok().filter(|found| !found.is_dir())?;
            let has_ended = writer.has_ended(&this, found.modified().ok());
            has_ended.then(|| entry.path())
        })
    })
}

fn is_list(path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    path.ends_with(LIST_END.as_bytes())
}

/// Returns the process that the name of a partial file says.
fn writer_of(name: &OsStr) -> Option<Writer> {
    let middle = name.to_str()?.strip_prefix(BEGIN)?.strip_suffix(END)?;
    let (writer, random) = middle.rsplit_once('-')?;
    let is_random = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
    random.bytes().all(is_random).then_some(())?;
    Writer::parse(writer)
}

/// Without a writer it has the process's number alone, which keeps forked processes apart, and from which none has ended.
fn prefix(writer: Option<Writer>) -> String {
    match writer {
        Some(writer) => format!("{BEGIN}{writer}-"),
        None => format!("{BEGIN}{:x}-", std::process::id()),
    }
}

const BEGIN: &str = ".transload-";
const END: &str = ".partial";
/// Of a list of other files.
const LIST_END: &str = ".list.partial";

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_only_when_it_is_placed_and_what_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/on/the/way/file");
        Partial::write(&path, b"before").unwrap().place().unwrap();
        let partial = Partial::write(&path, b"after").unwrap();
        assert_eq!(fs::read(partial.path()).unwrap(), b"after");
        drop(Partial::write(&path, b"half of").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"before");
        partial.place_for_good().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(names(path.parent().unwrap()), ["file"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_ended_processes_left_is_removed_and_what_may_be_anothers_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let live = Partial::write(&path, b"live").unwrap();
        let this = Writer::this().unwrap().to_string();
        let mut parts: Vec<&str> = this.split('-').collect();
        // No process has this number (`PID_MAX_LIMIT` is 2^22).
        parts[2] = "800000";
        let ended = parts.join("-");
        let another = parts[1..].join("-");
        let others = [
            // Of a version whose names say nothing.
            ".transload-abcdef.partial".to_owned(),
            format!(".transload-{ended}.partial"),
            format!(".transload-{ended}-abc-f.partial"),
            format!(".transload-{ended}-abcdef"),
            format!("transload-{ended}-abcdef.partial"),
            // Of another machine; locks of this one say nothing of it.
            format!(".transload-0123456789abcdef-{another}-abcdef.partial"),
            format!(".transload-0123456789abcdef-{another}-abcdef.list.partial"),
            // It tells what else is left.
            format!(".transload-{ended}-abcdef.list.partial"),
        ];
        for end in ["abcdef.partial", "abcdef.0.partial"] {
            let name = format!(".transload-{ended}-{end}");
            fs::write(folder.path().join(name), b"half of").unwrap();
        }
        for name in &others {
            fs::write(folder.path().join(name), b"half of").unwrap();
        }
        Partial::write(&path, b"whole").unwrap().place().unwrap();
        live.place().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"live");
        let lists: Vec<PathBuf> = left_lists(folder.path()).collect();
        assert_eq!(lists, [folder.path().join(others.last().unwrap())]);
        let mut left = others.to_vec();
        left.push("file".into());
        left.sort_unstable();
        assert_eq!(names(folder.path()), left);
    }

    #[test]
    fn a_file_that_takes_bytes_in_order_gets_them_when_all_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut partial = Partial::beside(&path).unwrap();
        partial.set_len(0).unwrap();
        partial.collected = Some(unnamed_file(&std::env::temp_dir()).unwrap());
        write_at(partial.file(), b"last", 3).unwrap();
        write_at(partial.file(), b"one", 0).unwrap();
        assert_eq!(fs::read(partial.path()).unwrap(), b"");
        partial.sync().unwrap();
        assert_eq!(fs::read(partial.path()).unwrap(), b"onelast");
        partial.place().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"onelast");
    }

    #[test]
    fn a_file_system_that_does_not_rename_is_named_before_any_work() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let refuses = |step, _: &Path| match step {
            steps::Step::Rename => Err(ErrorKind::Unsupported.into()),
            _ => Ok(()),
        };
        let error = steps::watched(refuses, || Partial::beside(&path)).unwrap_err();
        assert_eq!(error.to_string(), NO_RENAME);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_another_process_draws_too_is_left_to_its_file() {
        let base = tempfile::tempdir().unwrap();
        let mut taken = false;
        let takes = move |_, path: &Path| match std::mem::replace(&mut taken, true) {
            false => fs::write(path, b"another's"),
            true => Ok(()),
        };
        let file = steps::watched(takes, || create_in(base.path(), None, None, END)).unwrap();
        let names = names(base.path());
        let own = file.path().file_name().unwrap().to_str().unwrap();
        let others: Vec<_> = names.iter().filter(|name| *name != own).collect();
        assert_eq!(others.len(), 1, "{names:?}");
        assert_eq!(fs::read(base.path().join(others[0])).unwrap(), b"another's");
        assert_eq!(fs::read(file.path()).unwrap(), b"");
        // The name has the process's number, and is never one that a later process removes.
        assert!(own.starts_with(&format!("{BEGIN}{:x}-", std::process::id())));
        assert_eq!(writer_of(own.as_ref()), None);
    }

    #[test]
    fn a_name_that_is_taken_meanwhile_is_left_to_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let partial = Partial::write(&path("taken"), b"new").unwrap();
        fs::write(path("taken"), b"another's").unwrap();
        let back = partial.place_free(&path("taken")).unwrap().unwrap();
        assert_eq!(fs::read(path("taken")).unwrap(), b"another's");
        assert!(back.place_free(&path("free")).unwrap().is_none());
        assert_eq!(fs::read(path("free")).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["free", "taken"]);
    }

    #[test]
    fn a_name_may_be_as_long_as_a_name_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(255));
        Partial::write(&path, b"long").unwrap().place().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"long");
    }

    #[test]
    fn an_error_names_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing").join("file");
        let error = Partial::beside(&path).unwrap_err();
        let wanted = File::create(&path).unwrap_err().to_string();
        assert_eq!(error.to_string(), wanted);
    }

    #[test]
    fn what_is_no_regular_file_keeps_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let error = Partial::write(folder.path(), b"a folder's").unwrap_err();
        assert_eq!(
            NotRegular::find(&error),
            Some(NotRegular::Directory),
            "{error}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn the_file_behind_a_link_is_replaced_and_its_mode_holds_at_every_moment() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, b"secret").unwrap();
        let usual = mode(&file);
        symlink(&file, &link).unwrap();
        for private in [0o600, 0o640, 0o400] {
            fs::set_permissions(&file, Permissions::from_mode(private)).unwrap();
            let partial = Partial::write(&link, b"another").unwrap();
            assert_eq!(mode(partial.path()), 0o600);
            partial.place().unwrap();
            assert_eq!(mode(&file), private);
        }
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"another");
        // A new one has the mode of every new file.
        let new = folder.path().join("new");
        Partial::write(&new, b"new").unwrap().place().unwrap();
        assert_eq!(mode(&new), usual);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_missing_file_stays_and_the_file_is_created_behind_it() {
        use std::os::unix::fs::symlink;
        let base = tempfile::tempdir().unwrap();
        let (here, there) = (base.path().join("here"), base.path().join("there"));
        fs::create_dir(&here).unwrap();
        fs::create_dir(&there).unwrap();
        symlink("../there/second", here.join("relative")).unwrap();
        symlink("file", there.join("second")).unwrap();
        symlink(there.join("other"), here.join("absolute")).unwrap();
        for (link, made) in [("relative", "file"), ("absolute", "other")] {
            let partial = Partial::write(&here.join(link), b"new").unwrap();
            assert_eq!(partial.path().parent().unwrap(), folder(&partial.target));
            partial.place().unwrap();
            assert!(here.join(link).is_symlink());
            assert_eq!(fs::read(there.join(made)).unwrap(), b"new");
        }
        assert!(there.join("second").is_symlink());
        assert_eq!(names(&there), ["file", "other", "second"]);
        assert_eq!(names(&here), ["absolute", "relative"]);
        // The folder behind a link is the user's to make.
        symlink(base.path().join("no/file"), here.join("away")).unwrap();
        let error = Partial::write(&here.join("away"), b"new").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_in_a_circle_or_on_and_on_are_refused() {
        use std::os::unix::fs::symlink;
        let base = tempfile::tempdir().unwrap();
        let at = |name: String| base.path().join(name);
        for link in 0..=MOST_LINKS {
            symlink(format!("{}", link + 1), at(link.to_string())).unwrap();
        }
        symlink("circle", at("circle".into())).unwrap();
        let before = names(base.path());
        for name in ["circle", "0"] {
            let path = at(name.into());
            let error = Partial::write(&path, b"new").unwrap_err();
            assert_ne!(error.kind(), ErrorKind::NotFound, "{error}");
            let error = behind_links(&path).unwrap_err().to_string();
            let told = ["more than 40 links", path.to_str().unwrap()];
            assert!(told.iter().all(|part| error.contains(part)), "{error}");
        }
        assert_eq!(names(base.path()), before);
        let end = behind_links(&at("1".into())).unwrap();
        assert_eq!(end, at((MOST_LINKS + 1).to_string()));
    }

    #[cfg(unix)]
    #[test]
    fn no_class_of_users_gains_bits_from_another_owner_or_group() {
        for (mode, same_owner, same_group, kept) in [
            (0o106_755, true, true, 0o755),
            (0o101_644, true, true, 0o644),
            (0o640, true, false, 0o600),
            (0o664, true, false, 0o644),
            (0o644, false, false, 0o644),
            // The group was kept out of what all others read.
            (0o604, true, false, 0o600),
            (0o640, false, true, 0o640),
            // So was the owner, which falls into another class now.
            (0o066, false, true, 0),
        ] {
            let told = kept_bits(mode, same_owner, same_group);
            assert_eq!(told, kept, "{mode:o} {same_owner} {same_group}");
        }
        // For every mode and every user, the new file grants only what the old one granted.
        let class = |owner: bool, group: bool| match (owner, group) {
            (true, _) => 6,
            (_, true) => 3,
            _ => 0,
        };
        for mode in 0..=0o777_u32 {
            for case in 0..64_u32 {
                let [
                    same_owner,
                    same_group,
                    was_owner,
                    was_group,
                    is_owner,
                    is_group,
                ] = [0, 1, 2, 3, 4, 5].map(|bit| case >> bit & 1 == 1);
                let impossible = same_owner && was_owner != is_owner
                    || same_group && was_group != is_group
                    || !same_owner && was_owner && is_owner;
                // The new owner wrote the content.
                if impossible || is_owner {
                    continue;
                }
                let granted = kept_bits(mode, same_owner, same_group) >> class(false, is_group) & 7;
                let before = mode >> class(was_owner, was_group) & 7;
                assert_eq!(granted & !before, 0, "{mode:o} {case:b}");
            }
        }
    }

    /// Runs `act` on a thread that has the rights of user and group 1001 on files. False where the process may not.
    #[cfg(target_os = "linux")]
    fn as_another_user(act: impl FnOnce() + Send + 'static) -> bool {
        if !rustix::process::geteuid().is_root() {
            return false;
        }
        let thread = std::thread::spawn(|| {
            // SAFETY: the call takes a number, and changes this thread alone.
            unsafe { libc::setfsgid(1001) };
            // SAFETY: as above.
            unsafe { libc::setfsuid(1001) };
            act();
        });
        thread.join().unwrap();
        true
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_replaced_file_keeps_owner_and_group_and_loses_set_user_id() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        let look = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            (found.uid(), found.gid(), found.mode() & 0o7777)
        };
        fs::write(&file, b"before").unwrap();
        let (uid, gid) = match chown(&file, Some(1000), Some(1000)) {
            Ok(()) => (1000, 1000),
            Err(_) => (look(&file).0, look(&file).1),
        };
        for (mode, kept) in [(0o6755, 0o755), (0o640, 0o640), (0o1600, 0o600)] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let partial = Partial::write(&file, b"after").unwrap();
            assert_eq!(look(partial.path()).2, 0o600);
            partial.place().unwrap();
            assert_eq!(look(&file), (uid, gid, kept));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_access_control_list_is_kept_or_only_the_owner_has_the_file() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), Permissions::from_mode(0o777)).unwrap();
        let path = base.path().join("file");
        fs::write(&path, b"before").unwrap();
        // The owner rw, user 1002 rw, the group nothing, the mask rw, others nothing (`linux/posix_acl_xattr.h`).
        let mut list = 2_u32.to_le_bytes().to_vec();
        let all = u32::MAX;
        let entries: [(u16, u16, u32); 5] = [
            (1, 6, all),
            (2, 6, 1002),
            (4, 0, all),
            (16, 6, all),
            (32, 0, all),
        ];
        for (tag, bits, id) in entries {
            list.extend(tag.to_le_bytes().into_iter().chain(bits.to_le_bytes()));
            list.extend(id.to_le_bytes());
        }
        if give_list(&File::open(&path).unwrap(), &list).is_err() {
            return;
        }
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o660);
        Partial::write(&path, b"after").unwrap().place().unwrap();
        assert_eq!(access_control_list(&path).unwrap(), list);
        assert_eq!(mode(), 0o660);
        let save = {
            let path = path.clone();
            move || Partial::write(&path, b"after").unwrap().place().unwrap()
        };
        if as_another_user(save) {
            assert_eq!((access_control_list(&path), mode()), (None, 0o600));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_whose_owner_and_group_cannot_be_kept_opens_to_no_further_user() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), Permissions::from_mode(0o777)).unwrap();
        for (name, group, mode, expected) in [
            ("both", 1000, 0o6640, (1001, 1001, 0o600)),
            ("open", 1000, 0o644, (1001, 1001, 0o644)),
            // The user's own group is kept.
            ("owner", 1001, 0o2640, (1001, 1001, 0o640)),
        ] {
            let path = base.path().join(name);
            fs::write(&path, b"before").unwrap();
            let save = {
                let path = path.clone();
                move || Partial::write(&path, b"after").unwrap().place().unwrap()
            };
            let owned = chown(&path, Some(1000), Some(group));
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            if owned.is_err() || !as_another_user(save) {
                return;
            }
            let found = fs::metadata(&path).unwrap();
            let told = (found.uid(), found.gid(), found.mode() & 0o7777);
            assert_eq!(told, expected, "{name}");
            assert_eq!(fs::read(&path).unwrap(), b"after");
        }
    }
}
