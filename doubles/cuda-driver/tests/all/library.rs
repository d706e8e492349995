//! The double as a loaded library, in several copies, of several versions.

use crate::common;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, ptr};

use common::{control, machine, machine_in_context, refused};
use libloading::Library;
use transload_cuda::raw::{
    CUdriverProcAddress_flags, CUdriverProcAddressQueryResult as Found, CUresult, Driver, Table,
    Version,
};

/// The library, which cargo puts next to the tests that are linked with it.
fn library() -> PathBuf {
    let beside = env::current_exe().unwrap();
    beside.parent().unwrap().join("libcuda.so")
}

/// A folder that goes when the test does.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = env::temp_dir().join(format!("transload-double-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A file that is left in a temporary folder does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Has one copy of the library carry out a command.
fn tell(library: &Path, command: &str) {
    type Control = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> c_int;
    // SAFETY: the library is the double.
    let library = unsafe { Library::new(library) }.unwrap();
    // SAFETY: that is the signature of its control function.
    let control = unsafe { library.get::<Control>(b"transload_double_control\0") }.unwrap();
    let command = CString::new(command).unwrap();
    // SAFETY: the text ends with a zero, and there is no room for an answer.
    let length = unsafe { control(command.as_ptr(), ptr::null_mut(), 0) };
    assert!(length >= 0, "{command:?}");
}

fn devices(driver: &Driver) -> c_int {
    let mut count = -1;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }.unwrap();
    count
}

#[test]
fn every_function_is_exported_under_its_name() {
    let driver = Driver::load_from(library()).unwrap();
    assert_eq!(driver.missing().count(), 0);
    assert_eq!(driver.version(), Version::new(13, 5));
}

#[test]
fn two_copies_of_the_library_are_two_machines() {
    let folder = Folder::new("copies");
    let drivers = [2, 8].map(|count| {
        let copy = folder.join(&format!("{count}.so"));
        fs::copy(library(), &copy).unwrap();
        tell(&copy, &format!("set TRANSLOAD_DOUBLE_DEVICES={count}"));
        let driver = Driver::load_from(&copy).unwrap();
        // SAFETY: flags are zero.
        unsafe { driver.cuInit(0) }.unwrap();
        driver
    });
    assert_eq!(drivers.each_ref().map(devices), [2, 8]);
}

#[test]
fn a_copy_of_another_version_lacks_what_came_later() {
    let folder = Folder::new("versions");
    for version in [
        Version::new(11, 4),
        Version::new(12, 2),
        Version::new(13, 0),
    ] {
        let mut bytes = fs::read(library()).unwrap();
        let hidden = ["cuMemAdvise"];
        let spoilt = cuda::downgrade(&mut bytes, version, &hidden).unwrap();
        let copy = folder.join(&format!("{version}.so"));
        fs::write(&copy, bytes).unwrap();
        let driver = Driver::load_from(&copy).unwrap();
        assert_eq!(driver.version(), version);
        let missing: Vec<_> = driver.missing().map(|function| function.name).collect();
        assert_eq!(missing, spoilt);
        let later = Table::FUNCTIONS.iter();
        let later = later.filter(|of| of.since > version || of.name == "cuMemAdvise");
        let later: Vec<_> = later.map(|of| of.name).collect();
        assert_eq!(missing, later);
        let batch = missing.contains(&"cuMemcpyBatchAsync_v2");
        assert_eq!(batch, version < Version::new(13, 0));
        // SAFETY: flags are zero.
        unsafe { driver.cuInit(0) }.unwrap();
        assert_eq!(devices(&driver), 1);
    }
    let error = cuda::downgrade(&mut [0; 4096], Version::new(12, 2), &[]).unwrap_err();
    assert_eq!(error.to_string(), "this is no driver double");
}

#[test]
fn a_downgraded_copy_is_not_downgraded_again() {
    let mut bytes = fs::read(library()).unwrap();
    let mut told = |version, hidden: &[&str]| {
        let error = cuda::downgrade(&mut bytes, version, hidden).map_err(|error| error.to_string());
        error.map(|spoilt| spoilt.len())
    };
    let newest = Version::new(13, 5);
    let unknown = Err("`cuMemAlloc` is the name of no function".to_owned());
    assert_eq!(told(newest, &["cuMemAlloc"]), unknown);
    assert_eq!(told(newest, &["cuMemAlloc_v2"]), Ok(1));
    let again = told(newest, &[]).unwrap_err();
    assert!(
        again.starts_with("it lacks cuMemAlloc_v2 already; "),
        "{again}"
    );
}

/// The result of `cuGetProcAddress`: whether there is a function, or why not.
fn found(driver: &Driver, name: &CStr, version: c_int) -> Result<(*mut c_void, Found), CUresult> {
    found_with(driver, name, version, CUdriverProcAddress_flags::default())
}

fn found_with(
    driver: &Driver,
    name: &CStr,
    version: c_int,
    flags: CUdriverProcAddress_flags,
) -> Result<(*mut c_void, Found), CUresult> {
    let mut function = ptr::without_provenance_mut(1);
    let mut status = Found(77);
    // SAFETY: the places are ours, and the text ends with a zero.
    let answer = unsafe {
        let (function, status) = (&raw mut function, &raw mut status);
        driver.cuGetProcAddress_v2(name.as_ptr(), function, version, flags.0, status)
    };
    match answer {
        Ok(()) => Ok((function, status)),
        Err(error) => Err(error.result().unwrap()),
    }
}

#[test]
fn a_function_is_found_by_its_name_and_the_version_asked_for() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_HIDE", "cuMemGetInfo_v2")]);
    let table = driver.table();
    let address = |name, version| found(&driver, name, version).unwrap().0.addr();
    let prefetch = [
        table.cuMemPrefetchAsync.unwrap() as usize,
        table.cuMemPrefetchAsync_v2.unwrap() as usize,
    ];
    assert_eq!(address(c"cuMemPrefetchAsync", 8000), prefetch[0]);
    assert_eq!(address(c"cuMemPrefetchAsync", 12010), prefetch[0]);
    assert_eq!(address(c"cuMemPrefetchAsync", 12020), prefetch[1]);
    assert_eq!(address(c"cuMemPrefetchAsync", 13050), prefetch[1]);
    let none = ptr::null_mut();
    let cases = [
        (
            c"cuMemPrefetchAsync",
            7050,
            Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
        ),
        (
            c"cuMemGetInfo",
            13000,
            Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        ),
        (
            c"cuMemAlloc_v2",
            13000,
            Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        ),
        (
            c"cuNothing",
            13000,
            Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        ),
    ];
    for (name, version, status) in cases {
        assert_eq!(
            found(&driver, name, version),
            Ok((none, status)),
            "{name:?}"
        );
    }
    // NVIDIA's driver has newer signatures of these, which take other arguments and are not modelled.
    for (name, last) in [
        (c"cuCtxCreate", 11030),
        (c"cuCtxGetDevice", 12090),
        (c"cuLaunchHostFunc", 13000),
    ] {
        assert_eq!(
            found(&driver, name, last).unwrap().1,
            Found::CU_GET_PROC_ADDRESS_SUCCESS
        );
        let newer = (none, Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        assert_eq!(found(&driver, name, 13050), Ok(newer), "{name:?}");
    }
    let newer = found(&driver, c"cuInit", 13060);
    assert_eq!(newer, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn a_function_of_the_threads_default_stream_is_not_replaced_by_another() {
    let driver = machine(&[]);
    let per_thread = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    let legacy = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    for name in [c"cuMemcpyHtoD", c"cuStreamSynchronize", c"cuMemsetD8"] {
        let refused = found_with(&driver, name, 13000, per_thread);
        assert_eq!(refused, Err(CUresult::CUDA_ERROR_NOT_SUPPORTED), "{name:?}");
        let usual = found(&driver, name, 13000).unwrap();
        assert_eq!(found_with(&driver, name, 13000, legacy), Ok(usual));
    }
    // One that has no default stream is the same for all.
    let usual = found(&driver, c"cuMemAlloc", 13000).unwrap();
    assert_eq!(
        found_with(&driver, c"cuMemAlloc", 13000, per_thread),
        Ok(usual)
    );
}

#[test]
fn an_older_driver_hides_what_came_later() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_VERSION", "12.0")]);
    assert_eq!(driver.version(), Version::new(12, 0));
    let batch = found(&driver, c"cuMemcpyBatchAsync", 12000).unwrap();
    assert_eq!(batch.1, Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    let newer = found(&driver, c"cuInit", 12020);
    assert_eq!(newer, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
}

/// Runs in a process of its own, and checks its report at the end.
#[test]
fn the_report_at_the_end_tells_counters_leaks_and_calls() {
    if env::var_os("END_WITH_A_LEAK").is_some() {
        let driver = machine_in_context(&[]);
        let mut address = 0;
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuMemAlloc_v2(&raw mut address, 12_345) }.unwrap();
        return;
    }
    let folder = Folder::new("report");
    let report = folder.join("report.txt");
    let test = "library::the_report_at_the_end_tells_counters_leaks_and_calls";
    let output = Command::new(env::current_exe().unwrap())
        .args([test, "--exact"])
        .env("END_WITH_A_LEAK", "1")
        .env("TRANSLOAD_DOUBLE_REPORT", &report)
        .env("TRANSLOAD_DOUBLE_CALLS", &folder.0)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report_text = fs::read_to_string(&report).unwrap();
    assert!(
        report_text.starts_with("CUDA driver double, process "),
        "{report_text}"
    );
    assert!(report_text.contains("\nallocations 1\n"), "{report_text}");
    assert!(
        report_text.contains("leak: Device memory 0x"),
        "{report_text}"
    );
    assert!(report_text.contains(", 12345 bytes\n"), "{report_text}");
    assert!(report_text.ends_with("\nleaks 2\n"), "{report_text}");
    let files = fs::read_dir(&folder.0)
        .unwrap()
        .map(|file| file.unwrap().path());
    let calls: Vec<_> = files.filter(|path| *path != report).collect();
    let names = fs::read_to_string(&calls[0]).unwrap();
    let names: Vec<_> = names.lines().collect();
    for name in ["cuInit", "cuMemAlloc_v2", "cuDevicePrimaryCtxRetain"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.contains(&"cuMemFree_v2"), "{names:?}");
}

/// Runs in a process of its own, with its own environment.
#[test]
fn machine_and_faults_come_from_the_environment() {
    if env::var_os("TRANSLOAD_DOUBLE_FAULTS").is_some() {
        let driver = machine_in_context(&[]);
        assert_eq!(devices(&driver), 3);
        let mut address = 0;
        // SAFETY: the out-pointer is a local variable.
        let mut allocate = || unsafe { driver.cuMemAlloc_v2(&raw mut address, 1) };
        assert_eq!(allocate(), Ok(()));
        assert_eq!(refused(allocate()), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(allocate(), Ok(()));
        return;
    }
    let inside = |faults: &str, setting: &str| {
        Command::new(env::current_exe().unwrap())
            .args([
                "library::machine_and_faults_come_from_the_environment",
                "--exact",
            ])
            .env("TRANSLOAD_DOUBLE_DEVICES", "3")
            .env("TRANSLOAD_DOUBLE_FAULTS", faults)
            .env(format!("TRANSLOAD_DOUBLE_{setting}"), "real")
            .output()
            .unwrap()
    };
    let output = inside("oom@2", "CLOCK");
    assert!(output.status.success(), "{output:?}");
    for (faults, setting, why) in [
        (
            "fire",
            "CLOCK",
            "TRANSLOAD_DOUBLE_FAULTS: `fire` is no fault",
        ),
        ("oom@2", "CLOCKS", "`TRANSLOAD_DOUBLE_CLOCKS` is no setting"),
        ("oom@2", "TOPOLOGY", "TRANSLOAD_DOUBLE_TOPOLOGY: real: "),
    ] {
        let output = inside(faults, setting);
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            told.contains(&format!("CUDA driver double: {why}")),
            "{told}"
        );
    }
}

#[test]
fn what_is_no_command_is_told() {
    let driver = machine(&[]);
    assert_eq!(devices(&driver), 1);
    let told = |command: &str| control(command).unwrap_err();
    assert!(told("dance").starts_with("`dance` is no command; there are set, fault, "));
    assert!(told("step").starts_with("real time passes by itself"));
    assert!(told("advance soon").starts_with("advance wants nanoseconds"));
    assert!(told("fault fire").starts_with("`fire` is no fault"));
    assert!(control("calls").unwrap().contains("cuDeviceGetCount 1\n"));
}
