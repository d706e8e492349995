//! Saves over an older model: at every step, killed there or refused there, a reader finds the older model or the new one.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use safetensors::SafeTensors;
use transload_tensors::transload::host::partial::steps::{Step, watched};
use transload_tensors::transload::{AllocSpec, DeviceId, TransferManager};
use transload_tensors::{DType, Model, ModelError, Save, SaveError, Tensor};

use crate::files::{Folder, safetensors};

const TENSORS: usize = 4;
const BYTES: u64 = 16;

fn manager() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

/// A model whose bytes are all `fill`, in so many files.
fn save(manager: &TransferManager, files: usize, fill: u8) -> Save {
    let spec = AllocSpec::bytes(BYTES);
    let buffer = manager.allocate(DeviceId::CPU0.into(), spec).unwrap();
    manager
        .copy_from_slice(&[fill; BYTES as usize], &buffer)
        .unwrap();
    let tensor = Tensor::new(&buffer, DType::U8, &[BYTES]).unwrap();
    let save = Save::new(manager).most_shard_bytes(BYTES * (TENSORS / files) as u64);
    (0..TENSORS).fold(save, |save, number| {
        save.tensor(format!("t{number}"), &tensor)
    })
}

fn save_to(
    manager: &TransferManager,
    files: usize,
    fill: u8,
    path: &Path,
) -> Result<Vec<PathBuf>, SaveError> {
    save(manager, files, fill).start(path)?.wait()
}

/// As another program saves it: under the usual names, and without a mark.
fn theirs(folder: &Path, stem: &str, files: usize, fill: u8, list: bool) {
    let mut map = Vec::new();
    for file in 0..files {
        let name = match files {
            1 => format!("{stem}.safetensors"),
            _ => format!("{stem}-{:05}-of-{files:05}.safetensors", file + 1),
        };
        let mine: Vec<usize> = (0..TENSORS).filter(|of| of % files == file).collect();
        let entries = mine.iter().enumerate().map(|(at, number)| {
            let at = at as u64 * BYTES;
            format!(
                r#""t{number}":{{"dtype":"U8","shape":[{BYTES}],"data_offsets":[{at},{}]}}"#,
                at + BYTES
            )
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        let mut bytes = safetensors(&header, 0);
        bytes.resize(bytes.len() + mine.len() * BYTES as usize, fill);
        fs::write(folder.join(&name), bytes).unwrap();
        map.extend(mine.iter().map(|number| format!(r#""t{number}":"{name}""#)));
    }
    if list {
        let map = map.join(",");
        let list = format!(r#"{{"metadata":[],"weight_map":{{{map}}}}}"#);
        fs::write(folder.join(format!("{stem}.safetensors.index.json")), list).unwrap();
    }
}

/// Returns the bytes of which all tensors of the folder's model are, as this library opens it.
fn ours(folder: &Path) -> Result<u8, String> {
    let model = Model::open(folder).map_err(|error| error.to_string())?;
    let mut fills = BTreeSet::new();
    for tensor in model.tensors() {
        let file = fs::read(model.files()[tensor.file].path()).unwrap();
        let at = tensor.offset as usize;
        fills.extend(&file[at..at + tensor.len_bytes as usize]);
    }
    one_of(fills, model.tensors().len())
}

/// The same as `transformers` does: one file first, else the list. `None` where it finds neither.
fn transformers(folder: &Path, stem: &str) -> Option<Result<u8, String>> {
    let single = folder.join(format!("{stem}.safetensors"));
    let list = folder.join(format!("{stem}.safetensors.index.json"));
    let files: BTreeSet<PathBuf> = match (single.exists(), fs::read(list)) {
        (true, _) => [single].into(),
        (false, Ok(list)) => {
            let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
            let map = list["weight_map"].as_object().unwrap().values();
            map.map(|name| folder.join(name.as_str().unwrap()))
                .collect()
        }
        (false, Err(_)) => return None,
    };
    let (mut fills, mut tensors) = (BTreeSet::new(), 0);
    for file in files {
        let Ok(bytes) = fs::read(&file) else {
            return Some(Err(format!("{} is missing", file.display())));
        };
        for (_, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            fills.extend(view.data());
            tensors += 1;
        }
    }
    Some(one_of(fills, tensors))
}

fn one_of(fills: BTreeSet<u8>, tensors: usize) -> Result<u8, String> {
    match (fills.len(), tensors) {
        (1, TENSORS) => Ok(*fills.first().unwrap()),
        _ => Err(format!("a mixture of {fills:?} in {tensors} tensors")),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// What is in the folder before.
#[derive(Clone, Copy, Debug)]
enum Older {
    Nothing,
    /// So many files of this library.
    Ours(usize),
    /// The same, over older ones of so many files.
    OursOver(usize, &'static [usize]),
    Theirs(usize),
    TheirsWithoutList(usize),
}

const OLD: u8 = 1;
const NEW: u8 = 2;

/// All pairs of an older model and the number of files of the new one, and the name of both.
fn pairs() -> Vec<(Older, usize, &'static str)> {
    let mut pairs = Vec::new();
    for stem in ["model", "other"] {
        for new in [1, 2, 4] {
            pairs.extend([1, 2, 4].map(|old| (Older::Ours(old), new, stem)));
        }
    }
    for new in [1, 2] {
        for older in [
            Older::Nothing,
            Older::OursOver(2, &[2]),
            Older::OursOver(1, &[2]),
            Older::OursOver(2, &[2, 1]),
            Older::Theirs(2),
            Older::TheirsWithoutList(2),
        ] {
            pairs.push((older, new, "model"));
        }
    }
    pairs
}

impl Older {
    fn make(self, manager: &TransferManager, folder: &Path, stem: &str) {
        let path = folder.join(format!("{stem}.safetensors"));
        let save = |files, fill| _ = save_to(manager, files, fill, &path).unwrap();
        match self {
            Older::Nothing => {}
            Older::Ours(files) => save(files, OLD),
            Older::OursOver(files, older) => {
                older.iter().for_each(|files| save(*files, 0));
                save(files, OLD);
            }
            Older::Theirs(files) => theirs(folder, stem, files, OLD, true),
            Older::TheirsWithoutList(files) => theirs(folder, stem, files, OLD, false),
        }
    }

    /// Checks that readers find the older model, or one of the others.
    fn check(self, folder: &Path, stem: &str, others: &[u8], told: &str) {
        let is_right = |found: &Result<u8, String>| {
            { found.as_ref() }.is_ok_and(|fill| *fill == OLD || others.contains(fill))
        };
        let ours = ours(folder);
        let is_nothing = matches!(self, Older::Nothing);
        // Of a first save, all files or some may be there without their list.
        let is_part = |told: &String| told.contains("has no model") || told.contains("lacks");
        let right = is_right(&ours) || is_nothing && ours.as_ref().is_err_and(is_part);
        assert!(right, "{told}: {ours:?} of {:?}", names(folder));
        match transformers(folder, stem) {
            Some(found) => assert!(is_right(&found), "{told}: {found:?} of {:?}", names(folder)),
            None => assert!(
                matches!(self, Older::Nothing | Older::TheirsWithoutList(_)),
                "{told}: {:?}",
                names(folder)
            ),
        }
    }
}

/// Makes folders that have what a first one has.
struct Template(Folder);

impl Template {
    fn new(manager: &TransferManager, older: Older, stem: &str) -> Template {
        let folder = Folder::in_memory();
        older.make(manager, &folder.path(""), stem);
        Template(folder)
    }

    fn folder(&self) -> Folder {
        let folder = Folder::in_memory();
        for name in names(&self.0.path("")) {
            fs::copy(self.0.path(&name), folder.path(&name)).unwrap();
        }
        folder
    }
}

/// Returns the steps of a save over the older model.
fn steps(
    manager: &TransferManager,
    template: &Template,
    files: usize,
    stem: &str,
) -> Vec<(Step, PathBuf)> {
    let folder = template.folder();
    let path = folder.path(&format!("{stem}.safetensors"));
    let steps = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&steps);
    let watcher = move |step, path: &Path| {
        seen.borrow_mut().push((step, path.to_owned()));
        Ok(())
    };
    watched(watcher, || save_to(manager, files, NEW, &path)).unwrap();
    assert_eq!(ours(&folder.path("")), Ok(NEW));
    let left = names(&folder.path(""));
    assert!(
        left.iter().all(|name| !name.ends_with(".partial")),
        "{left:?}"
    );
    steps.take()
}

const CELL: &str = "TRANSLOAD_TEST_CELL";

/// Saves, and ends the process before the step.
fn killed(cell: &str) {
    let mut parts = cell.splitn(3, ' ');
    let files = parts.next().unwrap().parse().unwrap();
    let last: usize = parts.next().unwrap().parse().unwrap();
    let mut taken = 0;
    let watcher = move |_, _: &Path| {
        if taken == last {
            std::process::abort();
        }
        taken += 1;
        Ok(())
    };
    let path = Path::new(parts.next().unwrap());
    let _ = watched(watcher, || save_to(&manager(), files, NEW, path));
}

#[test]
fn a_save_that_is_killed_at_any_step_leaves_the_older_model_or_the_new_one() {
    if let Ok(cell) = std::env::var(CELL) {
        return killed(&cell);
    }
    let manager = manager();
    let mut cells = 0;
    for (older, files, stem) in pairs() {
        let template = Template::new(&manager, older, stem);
        for (number, step) in steps(&manager, &template, files, stem).iter().enumerate() {
            let folder = template.folder();
            let path = folder.path(&format!("{stem}.safetensors"));
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args([
                "resaves::a_save_that_is_killed_at_any_step_leaves_the_older_model_or_the_new_one",
                "--exact",
            ]);
            child.env(CELL, format!("{files} {number} {}", path.display()));
            let output = child.output().unwrap();
            assert!(!output.status.success(), "{output:?}");
            let told = format!("{files} over {older:?} of {stem}, killed at {number}: {step:?}");
            older.check(&folder.path(""), stem, &[NEW], &told);
            // And the next save goes on from there, and removes what this one left.
            let saved = save_to(&manager, files, 3, &path).unwrap();
            assert_eq!(ours(&folder.path("")), Ok(3), "{told}");
            let left = others(&folder, &saved).into_iter();
            // Files of another program's, which say nothing of a save, stay once their list is gone.
            let before = names(&template.0.path(""));
            let is_theirs = matches!(older, Older::Theirs(_) | Older::TheirsWithoutList(_));
            let left: Vec<String> = left
                .filter(|name| !(is_theirs && before.contains(name)))
                .collect();
            assert!(left.is_empty() || !REMOVES, "{told}: {left:?}");
            cells += 1;
        }
    }
    println!("{cells} cells of {} pairs", pairs().len());
}

/// Whether this system tells which processes have ended.
const REMOVES: bool = cfg!(target_os = "linux");

/// Returns the names in the folder that are not of the save.
fn others(folder: &Folder, saved: &[PathBuf]) -> Vec<String> {
    let mut names = names(&folder.path(""));
    names.retain(|name| !saved.contains(&folder.path(name)));
    names
}

#[test]
fn saves_that_are_killed_one_after_the_other_leave_nothing_after_the_next_one_of_their_name() {
    if let Ok(cell) = std::env::var(CELL) {
        return killed(&cell);
    }
    let manager = manager();
    let folder = Folder::in_memory();
    let kill = |stem: &str, files, number| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "resaves::saves_that_are_killed_one_after_the_other_leave_nothing_after_the_next_one_of_their_name",
            "--exact",
        ]);
        let path = folder.path(&format!("{stem}.safetensors"));
        child.env(CELL, format!("{files} {number} {}", path.display()));
        !child.output().unwrap().status.success()
    };
    // Whole, but for its list: it opens until a save takes its place.
    let steps = steps(
        &manager,
        &Template::new(&manager, Older::Nothing, "other"),
        2,
        "other",
    );
    let list = steps.iter().position(|(step, path)| {
        *step == Step::Rename && path.ends_with("other.safetensors.index.json")
    });
    assert!(kill("other", 2, list.unwrap()));
    let whole = names(&folder.path(""));
    assert_eq!(ours(&folder.path("")), Ok(NEW));
    for files in [2, 1, 4] {
        let killed = (0..100).take_while(|number| kill("model", files, *number));
        let steps = killed.count();
        assert!(steps > files && steps < 100, "{steps}");
    }
    let saved = save_to(&manager, 2, 3, &folder.path("model.safetensors")).unwrap();
    assert!(others(&folder, &saved) == whole || !REMOVES);
    let also = save_to(&manager, 1, 3, &folder.path("other.safetensors")).unwrap();
    let all = [saved, also].concat();
    let left = others(&folder, &all);
    assert!(left.is_empty() || !REMOVES, "{left:?}");
}

/// Puts a list aside as a process that has ended leaves it: none has this number (`PID_MAX_LIMIT` is 2^22).
#[cfg(target_os = "linux")]
fn leave(folder: &Folder, list: &Path) -> PathBuf {
    use transload_tensors::transload::host::partial;
    let aside = partial::aside(list);
    let aside = aside.file_name().unwrap().to_str().unwrap();
    let number = format!("-{:x}-", std::process::id());
    assert!(aside.contains(&number), "{aside}");
    let aside = folder.path(&aside.replacen(&number, "-800000-", 1));
    fs::rename(list, &aside).unwrap();
    aside
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_saves_list_that_is_there_under_another_name_keeps_its_shards() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    save_to(&manager, 2, OLD, &path).unwrap();
    let aside = leave(&folder, &folder.path("model.safetensors.index.json"));
    let moved = folder.path("old.json");
    fs::hard_link(&aside, &moved).unwrap();
    let new = save_to(&manager, 4, NEW, &path).unwrap();
    assert!(!aside.exists());
    assert_eq!(others(&folder, &new).len(), 3);
    assert_eq!(Model::open(moved).unwrap().tensors().len(), TENSORS);
}

#[cfg(target_os = "linux")]
#[test]
fn only_shards_that_a_killed_saves_list_and_their_own_header_name_are_removed() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    let saved = save_to(&manager, 4, OLD, &path).unwrap();
    let list = folder.path("model.safetensors.index.json");
    let shards: Vec<&PathBuf> = saved.iter().filter(|path| **path != list).collect();
    leave(&folder, &list);
    // A copy under another name, one that a list names, one whose content is another save's, and a link.
    fs::copy(shards[0], folder.path("copy.safetensors")).unwrap();
    let other = r#"{"weight_map":{"t1":"model-00002-of-00004.safetensors"}}"#;
    fs::write(folder.path("other.safetensors.index.json"), other).unwrap();
    let elsewhere = Folder::of(&[]);
    save_to(&manager, 4, 3, &elsewhere.path("model.safetensors")).unwrap();
    fs::copy(
        elsewhere.path("model-00003-of-00004.safetensors"),
        shards[2],
    )
    .unwrap();
    fs::remove_file(shards[3]).unwrap();
    std::os::unix::fs::symlink(folder.path("copy.safetensors"), shards[3]).unwrap();
    let new = save_to(&manager, 2, NEW, &path).unwrap();
    assert_eq!(
        others(&folder, &new),
        [
            "copy.safetensors",
            "model-00002-of-00004.safetensors",
            "model-00003-of-00004.safetensors",
            "model-00004-of-00004.safetensors",
            "other.safetensors.index.json",
        ]
    );
}

/// Errors that a disk gives: no room, a fault, a file in use, and a file system that has become read-only; and after how
/// many further steps, which take back the ones before, all others fail too.
#[cfg(unix)]
const ERRORS: [(i32, usize); 8] = [
    (28, usize::MAX),
    (5, usize::MAX),
    (16, usize::MAX),
    (30, usize::MAX),
    (30, 0),
    (16, 1),
    (16, 2),
    (16, 3),
];

#[cfg(unix)]
#[test]
fn a_save_that_is_refused_at_any_step_leaves_one_model_whole_and_says_which() {
    use transload_tensors::Left;
    let manager = manager();
    let mut cells = 0;
    let mut found = BTreeSet::new();
    for (older, files, stem) in pairs() {
        let template = Template::new(&manager, older, stem);
        let before = names(&template.0.path(""));
        let steps = steps(&manager, &template, files, stem);
        for (number, (step, at)) in steps.iter().enumerate() {
            let kinds = ERRORS.map(|(error, more)| [(error, more, true), (error, more, false)]);
            for (error, more, has_links) in kinds.concat() {
                let folder = template.folder();
                let path = folder.path(&format!("{stem}.safetensors"));
                let mut taken = 0;
                let watcher = move |step, _: &Path| {
                    taken += 1;
                    match taken == number + 1 || taken > (number + 1).saturating_add(more) {
                        true => Err(io::Error::from_raw_os_error(error)),
                        false if step == Step::Link && !has_links => {
                            Err(io::ErrorKind::Unsupported.into())
                        }
                        false => Ok(()),
                    }
                };
                let saved = watched(watcher, || save_to(&manager, files, NEW, &path));
                let told = format!(
                    "{files} over {older:?} of {stem}, error {error} at {number} and after {more}, links {has_links}: {step:?} \
                     {at:?}, {saved:?}, {:?}",
                    names(&folder.path(""))
                );
                cells += 1;
                let Err(refused) = saved else {
                    // Only what no reader finds any more is left.
                    assert_eq!(*step, Step::Remove, "{told}");
                    assert_eq!(ours(&folder.path("")), Ok(NEW), "{told}");
                    older.check(&folder.path(""), stem, &[NEW], &told);
                    continue;
                };
                let text = refused.to_string();
                let system = io::Error::from_raw_os_error(error).to_string();
                assert!(text.contains(&step.to_string()), "{told}: {text}");
                assert!(text.contains(&system), "{told}: {text}");
                let left = match &refused {
                    SaveError::Step { left, .. } => *left,
                    _ => Left::Older,
                };
                let is_step = matches!(refused, SaveError::Step { .. });
                assert!(
                    !is_step || text.contains(&left.to_string()),
                    "{told}: {text}"
                );
                let can_undo = has_links && more == usize::MAX;
                assert!(left == Left::Older || !can_undo, "{told}");
                found.insert(left.to_string());
                match left {
                    Left::Older => {
                        older.check(&folder.path(""), stem, &[], &told);
                        assert_eq!(names(&folder.path("")), before, "{told}");
                    }
                    // Without an older model, files without a list may be one.
                    Left::OlderAndFiles if matches!(older, Older::Nothing) => {
                        older.check(&folder.path(""), stem, &[NEW], &told);
                    }
                    Left::OlderAndFiles => older.check(&folder.path(""), stem, &[], &told),
                    Left::New => {
                        assert_eq!(ours(&folder.path("")), Ok(NEW), "{told}");
                        let theirs = transformers(&folder.path(""), stem);
                        assert_eq!(theirs, Some(Ok(NEW)), "{told}");
                    }
                    _ => older.check(&folder.path(""), stem, &[NEW], &told),
                }
            }
        }
    }
    assert_eq!(found.len(), 4, "{found:?}");
    println!("{cells} cells of {} pairs", pairs().len());
}

#[test]
fn files_of_two_saves_are_refused_with_the_names_of_both() {
    let manager = manager();
    let folder = || {
        let folder = Folder::of(&[]);
        save_to(&manager, 2, OLD, &folder.path("model.safetensors")).unwrap();
        folder
    };
    const LIST: &str = "model.safetensors.index.json";
    const SECOND: &str = "model-00002-of-00002.safetensors";
    let mixed = |folder: &Folder, named: [&str; 2]| {
        let error = Model::open(folder.path("")).unwrap_err();
        assert!(matches!(error, ModelError::Mixed { .. }), "{error}");
        for name in named {
            assert!(error.to_string().contains(name), "{error}");
        }
    };
    let (one, other) = (folder(), folder());
    fs::copy(other.path(SECOND), one.path(SECOND)).unwrap();
    mixed(&one, ["model-00001-of-00002.safetensors", SECOND]);
    fs::remove_file(one.path(LIST)).unwrap();
    mixed(&one, ["model-00001-of-00002.safetensors", SECOND]);
    // The list of another save.
    let one = folder();
    fs::copy(other.path(LIST), one.path(LIST)).unwrap();
    mixed(&one, [LIST, "model-00001-of-00002.safetensors"]);
    // Files of another program under the same names.
    theirs(&one.path(""), "model", 2, NEW, false);
    mixed(&one, [LIST, "names no save"]);
}

#[test]
fn files_without_a_list_are_taken_where_their_count_is_whole_and_one_of_a_kind() {
    let manager = manager();
    let folder = Folder::of(&[]);
    save_to(&manager, 4, OLD, &folder.path("model.safetensors")).unwrap();
    fs::remove_file(folder.path("model.safetensors.index.json")).unwrap();
    assert_eq!(ours(&folder.path("")), Ok(OLD));
    // Two of four, renamed.
    for number in [1, 2] {
        let from = format!("model-{number:05}-of-00004.safetensors");
        let to = format!("model-{number:05}-of-00002.safetensors");
        fs::rename(folder.path(&from), folder.path(&to)).unwrap();
    }
    for number in [3, 4] {
        let name = format!("model-{number:05}-of-00004.safetensors");
        fs::remove_file(folder.path(&name)).unwrap();
    }
    let error = Model::open(folder.path("")).unwrap_err();
    assert!(
        matches!(
            error,
            ModelError::Parts {
                files: 4,
                files_here: 2,
                ..
            }
        ),
        "{error}"
    );
    // Those of another program, of which there are two kinds.
    let folder = Folder::of(&[]);
    theirs(&folder.path(""), "model", 2, OLD, false);
    assert_eq!(ours(&folder.path("")), Ok(OLD));
    theirs(&folder.path(""), "model", 4, NEW, false);
    let error = Model::open(folder.path("")).unwrap_err();
    assert!(matches!(error, ModelError::Several { .. }), "{error}");
}

#[test]
fn a_save_removes_only_what_its_older_list_alone_names() {
    let manager = manager();
    let folder = Folder::of(&[("config.json", b"{}"), ("notes.safetensors", b"mine")]);
    theirs(&folder.path(""), "model", 4, OLD, true);
    let list = folder.path("model.safetensors.index.json");
    let told = fs::read_to_string(&list).unwrap();
    let more = r#""a":"config.json","b":"../c.safetensors","t0""#;
    fs::write(&list, told.replace(r#""t0""#, more)).unwrap();
    // Another list of some of the files.
    let copy = r#"{"weight_map":{"t3":"model-00004-of-00004.safetensors"}}"#;
    fs::write(folder.path("last.safetensors.index.json"), copy).unwrap();
    let saved = save_to(&manager, 2, NEW, &folder.path("model.safetensors")).unwrap();
    assert_eq!(ours(&folder.path("")), Ok(NEW));
    let left = names(&folder.path("")).into_iter();
    let left = left.filter(|name| !saved.contains(&folder.path(name)));
    assert_eq!(
        left.collect::<Vec<_>>(),
        [
            "config.json",
            "last.safetensors.index.json",
            "model-00004-of-00004.safetensors",
            "notes.safetensors",
        ]
    );
}

/// A list that cannot be read may name any file.
#[cfg(target_os = "linux")]
#[test]
fn a_save_beside_a_list_that_cannot_be_read_changes_nothing() {
    let manager = manager();
    for (files, list) in [
        (1, "last.safetensors.index.json"),
        (2, "last.safetensors.index.json"),
        (2, "model.safetensors.index.json"),
    ] {
        let folder = Folder::of(&[]);
        save_to(&manager, 2, OLD, &folder.path("model.safetensors")).unwrap();
        let list = folder.path(list);
        let _ = fs::remove_file(&list);
        // A read of what has no address gives EIO.
        std::os::unix::fs::symlink("/proc/self/mem", &list).unwrap();
        let before = names(&folder.path(""));
        let error = save_to(&manager, files, NEW, &folder.path("model.safetensors")).unwrap_err();
        let told = error.to_string();
        let start = format!("cannot read {}: ", list.display());
        assert!(
            told.starts_with(&start) && told.ends_with("; nothing has changed there"),
            "{told}"
        );
        assert_eq!(names(&folder.path("")), before);
    }
}

#[test]
fn a_file_that_an_older_list_names_is_never_shown_as_the_older_model() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    save_to(&manager, 1, OLD, &path).unwrap();
    let list = |names: [&str; 2]| {
        let [first, second] = names;
        let list = format!(r#"{{"weight_map":{{"t0":"{first}","t1":"{second}"}}}}"#);
        fs::write(folder.path("model.safetensors.index.json"), list).unwrap();
    };
    list(["model.safetensors"; 2]);
    save_to(&manager, 1, NEW, &path).unwrap();
    assert_eq!(names(&folder.path("")), ["model.safetensors"]);
    assert_eq!(ours(&folder.path("")), Ok(NEW));
    list(["model.safetensors", "second.safetensors"]);
    let error = save_to(&manager, 1, 3, &path).unwrap_err();
    assert!(matches!(error, SaveError::Hidden { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn a_private_model_stays_private_under_its_new_names() {
    use std::os::unix::fs::PermissionsExt;
    let manager = manager();
    for (old, new) in [(1, 2), (2, 2), (2, 1)] {
        let folder = Folder::of(&[]);
        let path = folder.path("model.safetensors");
        for path in save_to(&manager, old, OLD, &path).unwrap() {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        for path in save_to(&manager, new, NEW, &path).unwrap() {
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{} {old} {new}", path.display());
        }
    }
}

#[test]
fn a_name_that_another_save_takes_meanwhile_stays_its_own() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    let first = save(&manager, 2, OLD).start(&path).unwrap();
    let second = save(&manager, 2, NEW).start(&path).unwrap();
    first.wait().unwrap();
    assert_eq!(ours(&folder.path("")), Ok(OLD));
    second.wait().unwrap();
    assert_eq!(ours(&folder.path("")), Ok(NEW));
}

#[test]
fn a_list_that_another_save_brings_back_meanwhile_keeps_its_files() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    save_to(&manager, 4, OLD, &path).unwrap();
    let list = folder.path("model.safetensors.index.json");
    let (told, other) = (fs::read_to_string(&list).unwrap(), folder.path("other"));
    let new = path.clone();
    let brings_back = move |step, to: &Path| {
        if step == Step::Rename && to == new {
            fs::write(&other, format!("{told}\n"))?;
            fs::rename(&other, &list)?;
        }
        Ok(())
    };
    watched(brings_back, || save_to(&manager, 1, NEW, &path)).unwrap();
    assert_eq!(ours(&folder.path("")), Ok(OLD));
}

#[cfg(unix)]
#[test]
fn a_list_that_is_a_link_is_replaced_itself_and_the_other_folder_keeps_its_model() {
    let manager = manager();
    for files in [1, 2] {
        let (other, folder) = (Folder::of(&[]), Folder::of(&[]));
        save_to(&manager, 2, OLD, &other.path("model.safetensors")).unwrap();
        let before = names(&other.path(""));
        for name in &before {
            std::os::unix::fs::symlink(other.path(name), folder.path(name)).unwrap();
        }
        assert_eq!(ours(&folder.path("")), Ok(OLD));
        save_to(&manager, files, NEW, &folder.path("model.safetensors")).unwrap();
        assert_eq!(ours(&folder.path("")), Ok(NEW));
        assert_eq!(ours(&other.path("")), Ok(OLD));
        assert_eq!(names(&other.path("")), before);
        let here = names(&folder.path(""));
        assert!(!here.iter().any(|name| folder.path(name).is_symlink()));
    }
}

#[test]
fn a_list_that_a_reader_keeps_over_two_saves_names_no_file_of_another_save() {
    let manager = manager();
    for between in [1, 2, 4] {
        let folder = Folder::of(&[]);
        let path = folder.path("model.safetensors");
        let kept = save_to(&manager, 2, OLD, &path).unwrap();
        assert!(kept[0].ends_with("model-00001-of-00002.safetensors"));
        save_to(&manager, between, 3, &path).unwrap();
        let last = save_to(&manager, 2, NEW, &path).unwrap();
        let list = folder.path("model.safetensors.index.json");
        let shards = kept.iter().filter(|path| **path != list);
        assert!(
            shards
                .clone()
                .all(|path| !last.contains(path) && !path.exists())
        );
    }
}

#[test]
fn a_save_to_the_name_of_another_models_file_is_refused() {
    let manager = manager();
    let folder = Folder::of(&[]);
    for files in [1, 2] {
        let error = save_to(
            &manager,
            files,
            NEW,
            &folder.path("x-00001-of-00003.safetensors"),
        );
        let error = error.unwrap_err().to_string();
        assert!(error.contains("one of 3 files of a model"), "{error}");
        assert!(names(&folder.path("")).is_empty());
    }
    // The only part of a model is the model.
    let only = folder.path("y-00001-of-00001.safetensors");
    save_to(&manager, 1, NEW, &only).unwrap();
    assert_eq!(Model::open(&only).unwrap().tensors().len(), TENSORS);
    let folder = Folder::of(&[]);
    theirs(&folder.path(""), "part", 1, OLD, false);
    let list = r#"{"weight_map":{"t0":"part.safetensors"}}"#;
    fs::write(folder.path("model.safetensors.index.json"), list).unwrap();
    for files in [1, 2] {
        let error = save_to(&manager, files, NEW, &folder.path("part.safetensors")).unwrap_err();
        assert!(
            matches!(&error, SaveError::Hidden { older } if older.ends_with("model.safetensors.index.json")),
            "{error}"
        );
    }
}

/// Counts the steps of a save from 0 on. Before one of them another save begins and ends.
fn interrupted(before: usize, other: Save, path: &Path) -> impl FnMut() -> usize + use<> {
    let (mut other, mut steps) = (Some((other, path.to_owned())), 0..);
    move || {
        let step = steps.next().unwrap();
        if let Some((other, path)) = other.take_if(|_| step == before) {
            // Watchers are a thread's own.
            let saved = std::thread::spawn(move || other.start(path).unwrap().wait());
            saved.join().unwrap().unwrap();
        }
        step
    }
}

#[test]
fn a_save_that_ends_during_any_step_of_another_one_leaves_a_whole_model() {
    let manager = manager();
    let is_place = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".json") || name.ends_with(".partial")
    };
    let mut cells = 0;
    for older in [Older::Ours(1), Older::Ours(2)] {
        let template = Template::new(&manager, older, "model");
        for (files, other_files) in [(1, 2), (2, 1), (1, 1), (2, 4)] {
            let steps = steps(&manager, &template, files, "model");
            for (number, step) in steps.iter().enumerate() {
                let folder = template.folder();
                let path = folder.path("model.safetensors");
                let mut step_of = interrupted(number, save(&manager, other_files, 3), &path);
                let watcher = move |_, _: &Path| {
                    step_of();
                    Ok(())
                };
                let saved = watched(watcher, || save_to(&manager, files, NEW, &path));
                let found = ours(&folder.path(""));
                let told = format!(
                    "{other_files} during {files} over {older:?}, at {number}: {step:?}, {saved:?}, {found:?} of {:?}",
                    names(&folder.path(""))
                );
                assert!(matches!(found, Ok(NEW | 3)), "{told}");
                // Nothing is left of the one that lost, but where it ended between the last look and the rename.
                let list = folder.path("model.safetensors.index.json");
                let mut left = names(&folder.path(""));
                let read = fs::read_to_string(&list).unwrap_or_default();
                left.retain(|name| !read.contains(name) && list != folder.path(name));
                left.retain(|name| name != "model.safetensors");
                let is_last = [Step::Link, Step::Rename].contains(&step.0) && is_place(&step.1);
                assert!(left.is_empty() || is_last, "{told}: {left:?}");
                cells += 1;
            }
        }
    }
    println!("{cells} cells");
}

#[test]
fn a_name_that_is_too_long_for_the_files_of_a_save_is_refused_before_anything_is_written() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let name = |len: usize| format!("{}.safetensors", "n".repeat(len - ".safetensors".len()));
    for (files, len) in [(1, 255), (2, 255 - "-12345678-00001-of-00002".len())] {
        let saved = save_to(&manager, files, OLD, &folder.path(&name(len))).unwrap();
        assert_eq!(saved.len(), files + usize::from(files > 1));
        saved.iter().for_each(|path| fs::remove_file(path).unwrap());
        let refused = save(&manager, files, OLD).start(folder.path(&name(len + 1)));
        let error = refused.unwrap_err().to_string();
        assert!(names(&folder.path("")).is_empty(), "{error}");
        for told in ["255", "256 bytes", "save under a shorter name"] {
            assert!(files == 1 || error.contains(told), "{error}");
        }
    }
}

#[cfg(unix)]
#[test]
fn an_older_name_of_the_new_file_itself_is_not_removed() {
    let manager = manager();
    let folder = Folder::of(&[]);
    let path = folder.path("model.safetensors");
    save_to(&manager, 1, OLD, &path).unwrap();
    // On a file system that knows no cases both names are one, which a second name of the file is here.
    let list = r#"{"weight_map":{"t0":"MODEL.safetensors"}}"#;
    fs::write(folder.path("model.safetensors.index.json"), list).unwrap();
    let (from, to) = (path.clone(), folder.path("MODEL.safetensors"));
    let watcher = move |step, _: &Path| match step {
        Step::SyncFolder => fs::hard_link(&from, &to).or(Ok(())),
        _ => Ok(()),
    };
    watched(watcher, || save_to(&manager, 1, NEW, &path)).unwrap();
    assert_eq!(
        names(&folder.path("")),
        ["MODEL.safetensors", "model.safetensors"]
    );
}

#[cfg(unix)]
#[test]
fn a_save_that_fails_after_another_one_ended_leaves_that_one_whole() {
    let manager = manager();
    let mut cells = 0;
    for older in [Older::Ours(1), Older::Ours(2)] {
        let template = Template::new(&manager, older, "model");
        for (files, other_files) in [(1, 2), (2, 1), (1, 1), (2, 2)] {
            let steps = steps(&manager, &template, files, "model");
            for (ends, (step, at)) in steps.iter().enumerate() {
                // Nothing tells of one that ended between the look at the place and the rename to it.
                let places = ["model.safetensors", "model.safetensors.index.json"];
                if *step == Step::Rename && places.iter().any(|name| at.ends_with(name)) {
                    continue;
                }
                for (fails, failed) in steps.iter().enumerate().skip(ends) {
                    let folder = template.folder();
                    let path = folder.path("model.safetensors");
                    let mut step_of = interrupted(ends, save(&manager, other_files, 3), &path);
                    let watcher = move |_, _: &Path| match step_of() == fails {
                        true => Err(io::Error::from_raw_os_error(5)),
                        false => Ok(()),
                    };
                    let saved = watched(watcher, || save_to(&manager, files, NEW, &path));
                    let found = ours(&folder.path(""));
                    let told = format!(
                        "{other_files} during {files} over {older:?}, at {ends}, fails at {fails}: {:?}, {saved:?}, {found:?} of {:?}",
                        failed,
                        names(&folder.path(""))
                    );
                    let is_right = matches!((&saved, &found), (Ok(_), Ok(NEW)) | (_, Ok(3)));
                    assert!(is_right, "{told}");
                    cells += 1;
                }
            }
        }
    }
    println!("{cells} cells");
}

#[test]
fn what_a_hostile_file_says_of_its_save_is_told_shortly_and_escaped() {
    for (save, is_told) in [
        ("\\u001b[2J".to_owned(), true),
        ("s".repeat(1 << 20), false),
    ] {
        let header = format!(
            r#"{{"__metadata__":{{"transload.save":"{save}","transload.save.files":"2","transload.save.bytes":"2"}},"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#
        );
        let file = safetensors(&header, 1);
        let folder = Folder::of(&[("x-00001-of-00001.safetensors", &file)]);
        let opened = Model::open(folder.path("x-00001-of-00001.safetensors"));
        let told = opened.err().map(|error| error.to_string());
        assert_eq!(told.is_some(), is_told);
        assert!(told.is_none_or(|told| told.len() < 1000 && !told.contains('\u{1b}')));
    }
}
