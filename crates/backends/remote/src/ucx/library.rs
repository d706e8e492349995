//! Finds UCX, and loads it without handlers of signals and without hooks on memory.

use std::env;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::thread;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

use super::error::UcxError;
use super::raw::Functions;

/// The environment variable that names another library of UCX. An empty value counts as unset.
pub const LIBRARY_VARIABLE: &str = "TRANSLOAD_UCX";

/// The oldest version that works: the first one that has all functions with these arguments.
pub const OLDEST: Version = Version(1, 12, 0);

const UCP: &str = "libucp.so.0";
/// The part of UCX that patches functions of memory.
const UCM: &str = "libucm.so.0";

/// A version of UCX: major, minor, release.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// UCX, loaded once for the process. It is never unloaded, because it has threads of its own.
pub struct Ucx {
    pub(super) functions: Functions,
    library: PathBuf,
    version: Version,
    was_present: bool,
}

impl fmt::Debug for Ucx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UCX {} of {}", self.version, self.library.display())
    }
}

static LOADED: Mutex<Option<&'static Ucx>> = Mutex::new(None);

impl Ucx {
    /// Loads UCX: from `library` if it is given, else from the path in [`TRANSLOAD_UCX`](LIBRARY_VARIABLE), else
    /// `libucp.so.0` from the system's folders, else from the PyPI wheel `libucx-cu12` or `libucx-cu13` in the
    /// environment that `VIRTUAL_ENV` names. Later calls return the same UCX. Blocks on the disk.
    ///
    /// Afterwards no handlers of signals and no hooks on memory are UCX's. Do not change handlers of signals in other threads
    /// meanwhile. If other code of the process loaded UCX before, the
    /// settings of that code stay as they are; see [`Ucx::was_present`].
    ///
    /// # Errors
    /// If there is no library, if it is older than [`OLDEST`] or lacks a function, if another UCX is in the process,
    /// or if its hooks cannot be turned off.
    pub fn load(library: Option<&Path>) -> Result<&'static Ucx, UcxError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let variable = env::var_os(LIBRARY_VARIABLE).filter(|name| !name.is_empty());
        let named = library
            .map(Path::to_path_buf)
            .or(variable.map(PathBuf::from));
        if let Some(ucx) = *loaded {
            return match named {
                Some(wanted) if !is_same(&wanted, &ucx.library) => {
                    let present = ucx.library.clone();
                    Err(UcxError::Second { present, wanted })
                }
                _ => Ok(ucx),
            };
        }
        let candidates = match named {
            // Loading begins with a library beside it, which the loader would name in its place.
            Some(named) if named.components().nth(1).is_some() && !named.exists() => {
                let reason =
                    format!("there is no such file; {LIBRARY_VARIABLE} or the caller names it");
                let tried = vec![(named, reason)];
                return Err(UcxError::NotFound { tried });
            }
            Some(named) => vec![named],
            None => [PathBuf::from(UCP)].into_iter().chain(wheel()).collect(),
        };
        let mut tried = Vec::new();
        for candidate in candidates {
            // On a thread of its own, because some builds of UCX replace the loading thread's stack for signals.
            let opened = thread::Builder::new()
                .name("transload-ucx-load".into())
                .spawn(move || open(&candidate))?
                .join();
            match opened.expect("the loader does not panic") {
                Ok(ucx) => {
                    let ucx: &'static Ucx = Box::leak(Box::new(ucx));
                    *loaded = Some(ucx);
                    return Ok(ucx);
                }
                Err(UcxError::NotFound { tried: here }) => tried.extend(here),
                Err(error) => return Err(error),
            }
        }
        Err(UcxError::NotFound { tried })
    }

    /// Returns the version that the library reports.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the name or path of the library.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Returns whether other code of the process had loaded UCX before. Handlers and hooks of UCX may then exist.
    pub fn was_present(&self) -> bool {
        self.was_present
    }
}

/// The library in the wheel, if there is one.
fn wheel() -> Option<PathBuf> {
    let lib = PathBuf::from(env::var_os("VIRTUAL_ENV")?).join("lib");
    let pythons = fs::read_dir(lib).ok()?;
    pythons
        .flatten()
        .map(|python| python.path().join("site-packages/libucx/lib").join(UCP))
        .find(|library| library.is_file())
}

fn is_same(wanted: &Path, present: &Path) -> bool {
    wanted == present
        || matches!((wanted.canonicalize(), present.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The library of UCX that the process has, if it has one: of this soname, or under a name that a wheel made unique.
fn present() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("libucp"))
        })
}

fn open(library: &Path) -> Result<Ucx, UcxError> {
    let has_folder = library.components().nth(1).is_some();
    let present = present();
    if let Some(present) = &present {
        // The loader returns the present library for the name, but for a path it would mix the two.
        let soname = present
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(UCP));
        if !(if has_folder {
            is_same(library, present)
        } else {
            soname
        }) {
            let (present, wanted) = (present.clone(), library.to_path_buf());
            return Err(UcxError::Second { present, wanted });
        }
    }
    let hooks = match present {
        Some(_) => None,
        None => Some(Hooks::turn_off_before_load(library, has_folder)?),
    };
    let opened = open_library(library, RTLD_NOW)?;
    let symbol = |name: &'static str| find(&opened, name);
    // SAFETY: a library of this name, or one that the user names as UCX, has UCX's functions. It is never unloaded.
    let functions = match unsafe { Functions::find(symbol) } {
        Ok(functions) => functions,
        Err(symbol) => {
            let library = library.to_path_buf();
            return Err(UcxError::Missing { library, symbol });
        }
    };
    if let Some(hooks) = hooks {
        hooks.turn_off_after_load(library, &opened)?;
        // SAFETY: the function takes nothing. It restores the handlers that were there before UCX was loaded.
        unsafe { (functions.ucs_debug_disable_signals)() };
        set_globals(&functions);
    }
    mem::forget(opened);
    let (mut major, mut minor, mut release): (c_uint, c_uint, c_uint) = (0, 0, 0);
    // SAFETY: the pointers are to integers of this frame.
    unsafe { (functions.ucp_get_version)(&raw mut major, &raw mut minor, &raw mut release) };
    let version = Version(major, minor, release);
    let library = library.to_path_buf();
    if version < OLDEST {
        return Err(UcxError::TooOld { library, version });
    }
    let was_present = present.is_some();
    Ok(Ucx {
        functions,
        library,
        version,
        was_present,
    })
}

/// The settings that UCX keeps for the whole process.
fn set_globals(functions: &Functions) {
    let mut settings = vec![
        // UCX's answer to its own fatal errors stays a plain abort: no debugger, no wait.
        (c"HANDLE_ERRORS", c"none"),
        // The cache needs hooks on the memory of devices.
        (c"MEMTYPE_CACHE", c"n"),
        (c"WARN_UNUSED_ENV_VARS", c"n"),
    ];
    if env::var_os("UCX_LOG_LEVEL").is_none() {
        // UCX prints to the standard output, which belongs to the program.
        settings.push((c"LOG_LEVEL", c"fatal"));
    }
    for (name, value) in settings {
        // SAFETY: both strings end with a zero, and UCX copies them. No other thread uses this UCX yet.
        // A version without the option refuses it, and then has nothing to turn off.
        let _ = unsafe { (functions.ucs_global_opts_set_value)(name.as_ptr(), value.as_ptr()) };
    }
}

fn open_library(library: &Path, binding: c_int) -> Result<Library, UcxError> {
    // SAFETY: opening runs the library's initialisers. Those of UCX may run in any process; of another library the
    // user said that it is UCX.
    unsafe { Library::open(Some(library), binding | RTLD_LOCAL) }.map_err(|error| {
        let inner = std::error::Error::source(&error);
        let reason = inner.map_or_else(|| error.to_string(), ToString::to_string);
        let tried = vec![(library.to_path_buf(), reason)];
        UcxError::NotFound { tried }
    })
}

fn find(library: &Library, name: &str) -> Option<*mut c_void> {
    // SAFETY: the symbol is only taken for an address.
    let found = unsafe { library.get::<*mut c_void>(name) };
    Some(found.ok()?.into_raw()).filter(|found| !found.is_null())
}

/// UCX patches `mmap` and its relatives once, when the loader runs the initialiser of libucs, which reads the mode from
/// the environment. A change of the environment is unsound while other threads run. The patching is done by
/// libucm, on which libucs depends and which patches nothing by itself: it is loaded first here, and its
/// one initialisation is spent while its mode is "none".
struct Hooks {
    options: *mut c_int,
}

/// The first fields of `ucm_global_config_t`, the same in UCX 1.12 to 1.22: log level, enable events, mode of hooks.
const ENABLE_EVENTS: usize = 1;
const HOOK_MODE: usize = 2;
/// `UCM_MMAP_HOOK_BISTRO`, the largest mode.
const LARGEST_MODE: c_int = 2;

impl Hooks {
    fn turn_off_before_load(library: &Path, has_folder: bool) -> Result<Hooks, UcxError> {
        let path = if has_folder {
            library
                .canonicalize()
                .unwrap_or_else(|_| library.to_path_buf())
                .with_file_name(UCM)
        } else {
            PathBuf::from(UCM)
        };
        let failed = |reason| UcxError::Hooks {
            library: library.to_path_buf(),
            reason,
        };
        // Lazily, because libucm uses functions of libucs without naming it, and calls none of them here.
        let opened = open_library(&path, RTLD_LAZY)?;
        let Some(options) = find(&opened, "ucm_global_opts") else {
            return Err(failed("libucm has no ucm_global_opts"));
        };
        let hooks = Hooks {
            options: options.cast(),
        };
        let Some(initialise) = find(&opened, "ucm_library_init") else {
            return Err(failed("libucm has no ucm_library_init"));
        };
        if hooks.read(ENABLE_EVENTS) != 1 || !(0..=LARGEST_MODE).contains(&hooks.read(HOOK_MODE)) {
            return Err(failed("the options of libucm have another layout"));
        }
        hooks.turn_off();
        // SAFETY: libucm has this function under this name. It takes a pointer to options in UCX 1.12, where null means
        // the present ones, and nothing in newer ones, where the C calling convention ignores the argument.
        let initialise = unsafe {
            mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_void)>(initialise)
        };
        // SAFETY: as above. The initialisers of libucm have run, and no other thread uses it yet.
        unsafe { initialise(ptr::null()) };
        mem::forget(opened);
        Ok(hooks)
    }

    /// The initialiser of libucs has overwritten the options; hooks that it did not install come only with requests
    /// for events, which it refuses from now on.
    fn turn_off_after_load(&self, library: &Path, opened: &Library) -> Result<(), UcxError> {
        if find(opened, "ucm_global_opts") != Some(self.options.cast()) {
            let library = library.to_path_buf();
            let reason = "it uses another libucm than the one that lies beside it";
            return Err(UcxError::Hooks { library, reason });
        }
        self.turn_off();
        Ok(())
    }

    fn turn_off(&self) {
        for field in [ENABLE_EVENTS, HOOK_MODE] {
            // SAFETY: the address is within the structure. No other thread uses libucm yet.
            unsafe { self.options.wrapping_add(field).write(0) };
        }
    }

    fn read(&self, field: usize) -> c_int {
        // SAFETY: as above.
        unsafe { self.options.wrapping_add(field).read() }
    }
}
