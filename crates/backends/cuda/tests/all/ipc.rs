//! Memory of one process in another: handles, the memory that they name, and when they are closed.

use crate::common;
// Starts the other process of a test, as the double's own tests do.
#[path = "../../../../../doubles/cuda-driver/tests/all/common/process.rs"]
#[allow(dead_code, reason = "no test uses all of it")]
mod process;

use common::work::{Works, copy, device, pattern, pinned};
use common::{assert_clean, backend, calls, control, machine};
use process::{Other, hex, is_other, unhex};
use transload_cuda::Cuda;
use transload_hal::{
    AllocSpec, Backend, Buffer, ErrorClass, External, ExternalKind, ImportError, IpcHandle,
    MemoryId, MemoryKind, Outcome, Span, Uuid,
};

const KIND: ExternalKind = ExternalKind::CudaIpc;
const OPEN: &str = "cuIpcOpenMemHandle_v2";
const CLOSE: &str = "cuIpcCloseMemHandle";

fn works(settings: &[(&str, &str)]) -> Works {
    Works::new(backend(settings))
}

fn shareable(works: &Works, memory: MemoryId, len: u64) -> Buffer {
    let spec = AllocSpec::bytes(len).for_sharing();
    works.cuda.allocate(memory, &spec).unwrap()
}

fn export(cuda: &Cuda, buffer: &Buffer) -> IpcHandle {
    match try_export(cuda, buffer) {
        Ok(External::Ipc(handle)) => handle,
        other => panic!("{other:?}"),
    }
}

fn try_export(cuda: &Cuda, buffer: &Buffer) -> Result<External, ImportError> {
    // SAFETY: nothing writes the bytes meanwhile.
    unsafe { cuda.export(buffer, KIND) }
}

fn import(works: &Works, memory: MemoryId, handle: IpcHandle) -> Result<Buffer, ImportError> {
    // SAFETY: the two processes of a test take turns, and keep exported memory while the other one uses it.
    unsafe { works.cuda.import(memory, External::Ipc(handle)) }
}

fn reason(refused: Result<Buffer, ImportError>) -> String {
    match refused {
        Err(ImportError::Invalid { kind, reason, .. }) if kind == KIND => reason.into_owned(),
        other => panic!("{other:?}"),
    }
}

/// Reads a handle that the other process sent.
fn hear() -> IpcHandle {
    IpcHandle::from_bytes(&unhex::<{ IpcHandle::BYTES }>(&process::hear())).unwrap()
}

fn text(handle: IpcHandle) -> String {
    hex(&handle.to_bytes())
}

/// The same handle with other data around the driver's part of it.
fn forged(of: IpcHandle, device: Uuid, allocation_bytes: u64, span: Span) -> IpcHandle {
    IpcHandle::new(KIND, *of.token(), device, allocation_bytes, span, true).unwrap()
}

#[test]
fn bytes_of_a_view_go_both_ways_between_two_processes() {
    let (mine, yours) = (pattern(1, 3000), pattern(2, 3000));
    if is_other() {
        let works = works(&[]);
        let handle = hear();
        let view = import(&works, device(0), handle).unwrap();
        assert_eq!((view.len(), view.is_writable()), (3000, true));
        assert_eq!(works.download(&view), mine);
        works.upload(&view, &yours);
        // A part of the buffer is copied back to its origin.
        let part = view.slice(100, 50).unwrap();
        process::tell(&text(export(&works.cuda, &part)));
        assert_eq!(process::hear(), "seen");
        drop((part, view, works));
        assert_clean();
        return;
    }
    let works = works(&[]);
    let whole = shareable(&works, device(0), 5000);
    works.upload(&whole, &vec![7; 5000]);
    let view = whole.slice(1000, 3000).unwrap();
    works.upload(&view, &mine);
    let mut other = Other::start("ipc::bytes_of_a_view_go_both_ways_between_two_processes");
    other.tell(&text(export(&works.cuda, &view)));
    let back = IpcHandle::from_bytes(&unhex::<{ IpcHandle::BYTES }>(&other.hear())).unwrap();
    assert_eq!(works.download(&view), yours);
    let wanted = [vec![7; 1000], yours.clone(), vec![7; 1000]].concat();
    assert!(works.download(&whole) == wanted, "its neighbours");
    let part = import(&works, device(0), back).unwrap();
    assert!(part.same_storage(&whole));
    assert_eq!(part.position(), whole.position() + 1100);
    assert_eq!(works.download(&part), yours[100..150]);
    other.tell("seen");
    other.end();
    drop((whole, view, part, works));
    assert_clean();
}

#[test]
fn views_of_one_allocation_share_a_mapping_that_is_closed_once() {
    if is_other() {
        let works = works(&[]);
        let (first, second) = (hear(), hear());
        assert_eq!(first.token(), second.token());
        let views: Vec<Buffer> = [first, first, second]
            .map(|handle| import(&works, device(0), handle).unwrap())
            .into();
        assert_eq!(calls(OPEN), 1);
        assert_eq!(views[0].storage_id(), views[2].storage_id());
        assert_eq!(views[0].position(), views[1].position());
        assert_eq!(views[0].position() + 500, views[2].position());
        works.run(&[copy(
            &views[0].slice(0, 8).unwrap(),
            &views[2].slice(0, 8).unwrap(),
        )]);
        let [_, again, last] = <[Buffer; 3]>::try_from(views).unwrap();
        drop(again);
        assert_eq!(
            (calls(CLOSE), works.download(&last)[..8].to_vec()),
            (0, vec![1; 8])
        );
        drop(last);
        assert_eq!(calls(CLOSE), 1);
        // The handle was closed, so this opens it again.
        drop(import(&works, device(0), first).unwrap());
        assert_eq!((calls(OPEN), calls(CLOSE)), (2, 2));
        drop(works);
        assert_clean();
        return;
    }
    let works = works(&[]);
    let buffer = shareable(&works, device(0), 1000);
    works.upload(&buffer, &[vec![1; 500], vec![2; 500]].concat());
    let mut other =
        Other::start("ipc::views_of_one_allocation_share_a_mapping_that_is_closed_once");
    other.tell(&text(export(&works.cuda, &buffer)));
    other.tell(&text(export(&works.cuda, &buffer.slice(500, 500).unwrap())));
    other.end();
    assert_eq!(works.download(&buffer)[500..508], [1; 8]);
}

#[test]
fn who_opens_a_handle_while_the_last_view_goes_finds_it_open_or_opens_it() {
    if is_other() {
        let works = works(&[]);
        let handle = hear();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let view = import(&works, device(0), handle).unwrap();
                        assert_eq!(works.download(&view.slice(0, 4).unwrap()), [9; 4]);
                    }
                });
            }
        });
        assert_eq!(calls(OPEN), calls(CLOSE));
        drop(works);
        assert_clean();
        return;
    }
    let works = works(&[]);
    let buffer = shareable(&works, device(0), 1000);
    works.upload(&buffer, &[9; 1000]);
    let mut other =
        Other::start("ipc::who_opens_a_handle_while_the_last_view_goes_finds_it_open_or_opens_it");
    other.tell(&text(export(&works.cuda, &buffer)));
    other.end();
}

#[test]
fn a_view_goes_while_a_stream_never_answers() {
    if is_other() {
        let works = works(&[]);
        let view = import(&works, device(0), hear()).unwrap();
        let (src, dst) = (works.pinned(&[1; 64]), works.allocate(device(0), 64));
        control("fault stuck").unwrap();
        works.submit(&[copy(&src, &dst)]).unwrap();
        // The driver would wait for the copy before it closes the handle.
        drop(view);
        return;
    }
    let works = works(&[]);
    let buffer = shareable(&works, device(0), 1000);
    let mut other = Other::start("ipc::a_view_goes_while_a_stream_never_answers");
    other.tell(&text(export(&works.cuda, &buffer)));
    other.end();
}

#[test]
fn a_handle_of_this_process_shows_the_buffer_that_it_was_made_of() {
    let works = works(&[]);
    let buffer = shareable(&works, device(0), 4096);
    let view = buffer.slice(96, 1000).unwrap();
    let handle = export(&works.cuda, &view);
    let again = import(&works, device(0), handle).unwrap();
    assert!(again.same_storage(&buffer) && again.span() == view.span());
    assert_eq!(calls(OPEN), 0);
    drop((buffer, view));
    // The handle did not keep the memory alive; this view does.
    works.upload(&again, &pattern(3, 1000));
    let third = import(&works, device(0), handle).unwrap();
    assert_eq!(works.download(&third), pattern(3, 1000));
    drop((again, third));
    let text = reason(import(&works, device(0), handle));
    assert!(text.contains("of this process itself"), "{text}");
    // The refusal changed nothing.
    works.upload(&shareable(&works, device(0), 100), &[1; 100]);
    drop(works);
    assert_clean();
}

#[test]
fn another_managers_handle_of_this_process_is_refused_and_loses_nothing() {
    let works = works(&[]);
    let buffer = shareable(&works, device(0), 4096);
    let handle = export(&works.cuda, &buffer);
    let beside = Works::new(backend(&[]));
    let text = reason(import(&beside, device(0), handle));
    assert!(text.contains("another manager's"), "{text}");
    beside.upload(&shareable(&beside, device(0), 100), &[1; 100]);
}

#[test]
fn devices_are_found_by_uuid_whatever_their_number() {
    const FIRST: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";
    const SECOND: &str = "11121314-1516-1718-191a-1b1c1d1e1f20";
    let machine = |uuids: [&str; 2]| {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("transload-uuids-{}.toml", std::process::id()));
        let text = std::fs::read_to_string(machine("pcie-peer")).unwrap();
        let name = "name = \"NVIDIA GeForce RTX 4090\"";
        let text = uuids.iter().fold(text, |text, uuid| {
            text.replacen(
                &format!("{name}\nnuma"),
                &format!("{name}\nuuid = \"{uuid}\"\nnuma"),
                1,
            )
        });
        std::fs::write(&path, text).unwrap();
        let works = works(&[("TOPOLOGY", path.to_str().unwrap())]);
        std::fs::remove_file(&path).unwrap();
        works
    };
    if is_other() {
        let works = machine([SECOND, FIRST]);
        let handle = hear();
        assert_eq!(handle.device().to_string(), SECOND);
        let text = reason(import(&works, device(1), handle));
        assert_eq!(text, format!("it is of cuda:0/device, {SECOND}"));
        assert_eq!(calls(OPEN), 0);
        let view = import(&works, device(0), handle).unwrap();
        assert_eq!(works.download(&view), [5; 64]);
        return;
    }
    let works = machine([FIRST, SECOND]);
    let buffer = shareable(&works, device(1), 64);
    works.upload(&buffer, &[5; 64]);
    let handle = export(&works.cuda, &buffer);
    let absent = forged(handle, Uuid([9; 16]), 64, Span::new(0, 64));
    let text = reason(import(&works, device(1), absent));
    assert!(
        text.contains("09090909-") && text.contains("does not see"),
        "{text}"
    );
    let mut other = Other::start("ipc::devices_are_found_by_uuid_whatever_their_number");
    other.tell(&text_of(&works, &buffer));
    other.end();
}

fn text_of(works: &Works, buffer: &Buffer) -> String {
    text(export(&works.cuda, buffer))
}

#[test]
fn what_a_handle_says_is_held_against_what_the_driver_opens() {
    if is_other() {
        let works = works(&[]);
        let handle = hear();
        let longer = forged(handle, handle.device(), 5001, Span::new(5000, 1));
        let text = reason(import(&works, device(0), longer));
        assert!(
            text.contains("5001 bytes") && text.contains("opens 5000"),
            "{text}"
        );
        assert_eq!((calls(OPEN), calls(CLOSE)), (1, 1), "closed again");
        // The same check while the memory is open.
        let view = import(&works, device(0), handle).unwrap();
        assert_eq!(reason(import(&works, device(0), longer)), text);
        drop(view);
        let mut garbage = *handle.token();
        garbage[40] = 1;
        let (uuid, span) = (handle.device(), Span::new(0, 10));
        let garbage = IpcHandle::new(KIND, garbage, uuid, 5000, span, true).unwrap();
        let refused = reason(import(&works, device(0), garbage));
        assert!(refused.contains("no such memory"), "{refused}");
        process::tell("asked");
        assert_eq!(process::hear(), "freed");
        let refused = reason(import(&works, device(0), handle));
        assert!(refused.contains("it was freed"), "{refused}");
        works.upload(&shareable(&works, device(0), 100), &[1; 100]);
        drop(works);
        assert_clean();
        return;
    }
    let works = works(&[]);
    let buffer = shareable(&works, device(0), 5000);
    let mut other = Other::start("ipc::what_a_handle_says_is_held_against_what_the_driver_opens");
    other.tell(&text(export(&works.cuda, &buffer)));
    assert_eq!(other.hear(), "asked");
    drop(buffer);
    other.tell("freed");
    other.end();
}

#[test]
fn a_driver_that_refuses_to_open_says_why_and_may_be_asked_again() {
    if is_other() {
        let works = works(&[]);
        let handle = hear();
        for (result, class) in [
            (2, ErrorClass::Exhausted),
            (205, ErrorClass::Failed),
            (801, ErrorClass::Unsupported),
        ] {
            control(&format!("fault call={OPEN}:{result}")).unwrap();
            let error = import(&works, device(0), handle).unwrap_err();
            assert!(matches!(error, ImportError::Failed { .. }), "{error}");
            assert_eq!(error.class(), class, "{error}");
            assert!(error.to_string().contains(OPEN), "{error}");
        }
        let view = import(&works, device(0), handle).unwrap();
        assert_eq!(works.download(&view), [6; 100]);
        // The device is lost while the memory is open.
        control("fault ecc").unwrap();
        let landing = works.allocate(pinned(), 100);
        let is_lost = match works.submit(&[copy(&view, &landing)]) {
            Ok(fence) => matches!(works.outcome(fence), Outcome::Lost(_)),
            // The loss was found before the call returned.
            Err(error) => error.into_fault().class == ErrorClass::Lost,
        };
        assert!(is_lost);
        drop(view);
        let error = import(&works, device(0), handle).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost, "{error}");
        return;
    }
    let works = works(&[]);
    let buffer = shareable(&works, device(0), 100);
    works.upload(&buffer, &[6; 100]);
    let mut other =
        Other::start("ipc::a_driver_that_refuses_to_open_says_why_and_may_be_asked_again");
    other.tell(&text(export(&works.cuda, &buffer)));
    other.end();
    assert_eq!(
        works.download(&buffer),
        [6; 100],
        "the other process's loss"
    );
}

#[test]
fn what_has_no_handle_is_named() {
    let works = works(&[]);
    let from_pool = works.allocate(device(0), 100);
    let managed = works.allocate(device(0).device.memory(MemoryKind::Managed), 100);
    let host = works.allocate(pinned(), 100);
    for (buffer, what) in [
        (&from_pool, "not allocated in a way"),
        (&managed, "only memory of a device"),
        (&host, "only memory of a device"),
    ] {
        let error = try_export(&works.cuda, buffer).unwrap_err();
        let ImportError::Unsupported {
            memory,
            kind,
            reason,
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((*memory, *kind), (buffer.memory(), KIND));
        assert!(reason.contains(what), "{error}");
    }
    let shared = shareable(&works, device(0), 100);
    let handle = export(&works.cuda, &shared);
    for memory in [managed.memory(), pinned()] {
        let error = import(&works, memory, handle).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
    }
    control("fault call=cuIpcGetMemHandle:801").unwrap();
    let error = try_export(&works.cuda, &shared).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsupported, "{error}");
}
