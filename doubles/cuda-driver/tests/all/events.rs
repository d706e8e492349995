//! Events: the work that they stand for, and the time between them.

use crate::common;

use common::work::{
    destroy_stream, event, event_query, event_synchronize, point, query, record, result, stop,
    stream, synchronize, wait_event,
};
use common::{control, enter, machine, machine_in_context};
use transload_cuda::raw::{CUevent, CUevent_flags, CUresult, CUstream, Driver};

const TIMELESS: u32 = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
const INTERPROCESS: u32 = CUevent_flags::CU_EVENT_INTERPROCESS.0;
const NOT_READY: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_NOT_READY);
const INVALID_HANDLE: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);

fn between(driver: &Driver, start: CUevent, end: CUevent) -> Result<f32, CUresult> {
    let mut ms = 0.0;
    // SAFETY: the out-pointers here and below are local variables.
    let answer = result(unsafe { driver.cuEventElapsedTime(&raw mut ms, start, end) });
    let mut again = 0.0;
    // SAFETY: as above.
    let newer = result(unsafe { driver.cuEventElapsedTime_v2(&raw mut again, start, end) });
    assert_eq!((answer, ms), (newer, again));
    answer.map(|()| ms)
}

fn destroy(driver: &Driver, event: CUevent) -> Result<(), CUresult> {
    // SAFETY: no argument is a pointer that is looked into.
    result(unsafe { driver.cuEventDestroy_v2(event) })
}

#[test]
fn an_event_that_was_never_recorded_is_no_work() {
    let driver = machine_in_context(&[]);
    let never = event(&driver, 0);
    assert_eq!(event_query(&driver, never), Ok(()));
    assert_eq!(event_synchronize(&driver, never), Ok(()));
    assert_eq!(wait_event(&driver, CUstream::NULL, never), Ok(()));
    assert_eq!(query(&driver, CUstream::NULL), Ok(()));
    let recorded = point(&driver, CUstream::NULL);
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(between(&driver, never, recorded), invalid);
    assert_eq!(between(&driver, recorded, never), invalid);
}

#[test]
fn an_event_is_done_with_what_it_was_recorded_after() {
    let driver = machine_in_context(&[]);
    let made = stream(&driver, 0);
    let before = point(&driver, made);
    let go = stop(&driver, made);
    let after = point(&driver, made);
    assert_eq!(event_synchronize(&driver, before), Ok(()));
    assert_eq!(event_query(&driver, after), NOT_READY);
    let unfinished = Err(CUresult::CUDA_ERROR_NOT_READY);
    assert_eq!(between(&driver, before, after), unfinished);
    drop(go);
    assert_eq!(event_synchronize(&driver, after), Ok(()));
    assert_eq!(event_query(&driver, after), Ok(()));
    assert!(between(&driver, before, after).unwrap() >= 0.0);
}

#[test]
fn waiting_is_for_what_was_recorded_then() {
    let driver = machine_in_context(&[]);
    let [first, second, waiting] = [0; 3].map(|flags| stream(&driver, flags));
    let twice = point(&driver, first);
    wait_event(&driver, waiting, twice).unwrap();
    let go = stop(&driver, second);
    record(&driver, twice, second).unwrap();
    assert_eq!(synchronize(&driver, waiting), Ok(()), "the first time");
    assert_eq!(event_query(&driver, twice), NOT_READY, "the second time");
    wait_event(&driver, waiting, twice).unwrap();
    assert_eq!(destroy(&driver, twice), Ok(()));
    assert_eq!(destroy_stream(&driver, second), Ok(()));
    assert_eq!(query(&driver, waiting), NOT_READY, "it waits all the same");
    drop(go);
    assert_eq!(synchronize(&driver, waiting), Ok(()));
}

#[test]
fn an_event_and_its_stream_are_of_one_context() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    enter(&driver, 1);
    let far = stream(&driver, 0);
    let of_far = point(&driver, far);
    enter(&driver, 0);
    let near = event(&driver, 0);
    assert_eq!(record(&driver, near, far), INVALID_HANDLE);
    assert_eq!(record(&driver, of_far, CUstream::NULL), INVALID_HANDLE);
    assert_eq!(record(&driver, near, CUstream::NULL), Ok(()));
    assert_eq!(event_synchronize(&driver, near), Ok(()));
    assert_eq!(event_synchronize(&driver, of_far), Ok(()));
    let mixed = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(between(&driver, near, of_far), mixed);
}

#[test]
fn a_destroyed_event_is_none_and_null_is_none() {
    let driver = machine_in_context(&[]);
    let gone = event(&driver, 0);
    assert_eq!(destroy(&driver, gone), Ok(()));
    for none in [gone, CUevent::NULL] {
        assert_eq!(destroy(&driver, none), INVALID_HANDLE);
        assert_eq!(record(&driver, none, CUstream::NULL), INVALID_HANDLE);
        assert_eq!(event_query(&driver, none), INVALID_HANDLE);
        assert_eq!(event_synchronize(&driver, none), INVALID_HANDLE);
        assert_eq!(wait_event(&driver, CUstream::NULL, none), INVALID_HANDLE);
    }
    let made = stream(&driver, 0);
    assert_eq!(destroy_stream(&driver, made), Ok(()));
    let event = event(&driver, 0);
    assert_eq!(record(&driver, event, made), INVALID_HANDLE);
}

#[test]
fn events_without_times_have_none_between_them() {
    let driver = machine_in_context(&[]);
    let timed = point(&driver, CUstream::NULL);
    let shared = event(&driver, INTERPROCESS | TIMELESS);
    record(&driver, shared, CUstream::NULL).unwrap();
    synchronize(&driver, CUstream::NULL).unwrap();
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(between(&driver, timed, shared), invalid);
    assert_eq!(between(&driver, shared, timed), invalid);
    let mut made = CUevent::NULL;
    for flags in [INTERPROCESS, 8] {
        // SAFETY: the out-pointer is a local variable.
        let answer = result(unsafe { driver.cuEventCreate(&raw mut made, flags) });
        assert_eq!(answer, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    }
}

#[test]
fn in_virtual_time_the_time_between_events_is_exact() {
    let driver = machine_in_context(&[("TRANSLOAD_DOUBLE_CLOCK", "virtual")]);
    let start = point(&driver, CUstream::NULL);
    assert_eq!(event_query(&driver, start), Ok(()));
    control("advance 1500000").unwrap();
    let end = point(&driver, CUstream::NULL);
    assert_eq!(between(&driver, start, end), Ok(1.5));
    assert_eq!(between(&driver, end, start), Ok(-1.5));
    assert_eq!(between(&driver, end, end), Ok(0.0));
}
