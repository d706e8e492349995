//! `Send` and `Sync` where there are threads.

/// `Send`, except in builds where nothing has a second thread: the browser without shared memory,
/// and `--cfg transload_local`, which lets tests run single-threaded backends anywhere.
#[cfg(not(any(
    transload_local,
    all(target_family = "wasm", not(target_feature = "atomics"))
)))]
pub trait MaybeSend: Send {}
#[cfg(not(any(
    transload_local,
    all(target_family = "wasm", not(target_feature = "atomics"))
)))]
impl<T: Send + ?Sized> MaybeSend for T {}

/// `Sync`, with the same exception as [`MaybeSend`].
#[cfg(not(any(
    transload_local,
    all(target_family = "wasm", not(target_feature = "atomics"))
)))]
pub trait MaybeSync: Sync {}
#[cfg(not(any(
    transload_local,
    all(target_family = "wasm", not(target_feature = "atomics"))
)))]
impl<T: Sync + ?Sized> MaybeSync for T {}

/// Anything: this build is single-threaded.
#[cfg(any(
    transload_local,
    all(target_family = "wasm", not(target_feature = "atomics"))
))]
pub trait MaybeSend {}
#[cfg(any(
    transload_local,
    all(target_family = "wasm", not(target_feature = "atomics"))
))]
impl<T: ?Sized> MaybeSend for T {}

/// Anything: this build is single-threaded.
#[cfg(any(
    transload_local,
    all(target_family = "wasm", not(target_feature = "atomics"))
))]
pub trait MaybeSync {}
#[cfg(any(
    transload_local,
    all(target_family = "wasm", not(target_feature = "atomics"))
))]
impl<T: ?Sized> MaybeSync for T {}
