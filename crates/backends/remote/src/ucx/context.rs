//! What a worker has of UCX: a context and a worker, with their options.

use std::env;
use std::ffi::{CString, c_int};
use std::ptr;

use super::error::{Status, UcxError};
use super::library::{OLDEST, Ucx, Version};
use super::raw::*;
use super::worker::Options;

/// The first version that has `TCP_USER_TIMEOUT`.
const LIMIT_SINCE: Version = Version(1, 22, 0);

/// The first version whose `ucp_config_modify` takes options of a transport under the names that the environment has. Older
/// ones take them without the transport's name, for every transport that has such an option.
const PREFIX_SINCE: Version = Version(1, 17, 0);

/// A context and a worker of UCX, which are destroyed in this order's reverse.
pub(super) struct Handles {
    pub(super) f: Functions,
    context: ucp_context_h,
    pub(super) worker: ucp_worker_h,
}

impl Handles {
    pub(super) fn start(ucx: &Ucx, options: &Options) -> Result<(Handles, Vec<String>), UcxError> {
        let f = ucx.functions;
        let mut handles = Handles {
            f,
            context: ptr::null_mut(),
            worker: ptr::null_mut(),
        };
        let mut config = ptr::null_mut();
        // SAFETY: null means UCX's own prefix and no file; the result goes to a pointer of this frame.
        let read = unsafe { (f.ucp_config_read)(ptr::null(), ptr::null(), &raw mut config) };
        UcxError::check(&f, "ucp_config_read", read)?;
        let configured = configure(ucx, config, options);
        let initialised = configured.and_then(|skipped| {
            // SAFETY: for all fields of this structure zero is a value, null or none.
            let mut params: ucp_params = unsafe { std::mem::zeroed() };
            params.field_mask = UCP_PARAM_FIELD_FEATURES;
            // Never RMA or AMO: with them UCX serves the peers' requests to write, also outside registered memory.
            params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
            let Version(major, minor, _) = OLDEST;
            // SAFETY: the structure and the configuration are valid during the call.
            let status = unsafe {
                (f.ucp_init_version)(
                    major,
                    minor,
                    &raw const params,
                    config,
                    &raw mut handles.context,
                )
            };
            UcxError::check(&f, "ucp_init_version", status).map(|()| skipped)
        });
        // SAFETY: the configuration is UCX's, and no longer used.
        unsafe { (f.ucp_config_release)(config) };
        let skipped = initialised?;
        // SAFETY: for all fields of this structure zero is a value, null or none.
        let mut params: ucp_worker_params = unsafe { std::mem::zeroed() };
        params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
        params.thread_mode = UCS_THREAD_MODE_SINGLE;
        // SAFETY: the context is valid, and the structure during the call.
        let status = unsafe {
            (f.ucp_worker_create)(handles.context, &raw const params, &raw mut handles.worker)
        };
        UcxError::check(&f, "ucp_worker_create", status)?;
        Ok((handles, skipped))
    }

    pub(super) fn address(&self) -> Result<Vec<u8>, UcxError> {
        let (mut address, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the worker is valid; the results go to this frame.
        let status =
            unsafe { (self.f.ucp_worker_get_address)(self.worker, &raw mut address, &raw mut len) };
        UcxError::check(&self.f, "ucp_worker_get_address", status)?;
        // SAFETY: UCX returned an address of that length, which it does not change.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) }.to_vec();
        // SAFETY: the address is the worker's, and no longer used.
        unsafe { (self.f.ucp_worker_release_address)(self.worker, address) };
        Ok(bytes)
    }

    pub(super) fn efd(&self) -> Result<c_int, UcxError> {
        let mut efd = -1;
        // SAFETY: the worker is valid, its context has the feature WAKEUP, and the result goes to this frame.
        let status = unsafe { (self.f.ucp_worker_get_efd)(self.worker, &raw mut efd) };
        UcxError::check(&self.f, "ucp_worker_get_efd", status).map(|()| efd)
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        if !self.worker.is_null() {
            // SAFETY: the worker is valid, of this thread, and not used again.
            unsafe { (self.f.ucp_worker_destroy)(self.worker) };
        }
        if !self.context.is_null() {
            // SAFETY: as above; the context has no worker any more.
            unsafe { (self.f.ucp_cleanup)(self.context) };
        }
    }
}

/// Sets the options. Returns those of the worker's own that this version does not have.
fn configure(ucx: &Ucx, config: ucp_config_h, options: &Options) -> Result<Vec<String>, UcxError> {
    let lost_s = options.lost_after.as_secs().max(3);
    // UCX asks a silent peer by a message. The kernel asks, too, but only on connections that this side began, and only if no
    // sent data waits for an answer, as that message does. So before 1.22, where no limit ends that wait, the kernel's way
    // works on one side if UCX does not ask, and otherwise neither works.
    let has_limit = ucx.version() >= LIMIT_SINCE;
    let is_tcp = options
        .transports
        .as_ref()
        .is_some_and(|names| names.split(',').any(|name| name == "tcp"));
    let interval = if is_tcp && !has_limit { "inf" } else { "500ms" };
    let own = [
        // How often UCX asks. With the limit a silent peer is lost after 3.2 s to 4.2 s (1.22.0); with 1 s, after 5.5 s.
        ("KEEPALIVE_INTERVAL", interval.to_string(), OLDEST),
        // The kernel asks after 1 s of silence, and then each second: the peer is lost after the last one.
        ("TCP_KEEPIDLE", "1s".to_string(), OLDEST),
        ("TCP_KEEPINTVL", "1s".to_string(), OLDEST),
        ("TCP_KEEPCNT", (lost_s - 1).to_string(), OLDEST),
        ("TCP_USER_TIMEOUT", format!("{lost_s}s"), LIMIT_SINCE),
        // Else the thread stands still for two minutes where a peer's port cannot be reached.
        ("TCP_CONN_NB", "y".to_string(), OLDEST),
    ];
    let mut skipped = Vec::new();
    for (name, value, since) in own {
        // Old versions accept any name and ignore it later.
        if ucx.version() < since {
            skipped.push(name.to_string());
        } else if env::var_os(format!("UCX_{name}")).is_none() {
            let known_as = if ucx.version() < PREFIX_SINCE {
                name.trim_start_matches("TCP_")
            } else {
                name
            };
            match set(ucx, config, known_as, &value) {
                Err(UcxError::Option { .. }) => skipped.push(name.to_string()),
                done => done?,
            }
        }
    }
    for (name, value) in [
        ("NET_DEVICES", &options.net_devices),
        ("TLS", &options.transports),
    ] {
        if let Some(value) = value {
            set(ucx, config, name, value)?;
        }
    }
    for (name, value) in &options.settings {
        set(ucx, config, name, value)?;
    }
    Ok(skipped)
}

fn set(ucx: &Ucx, config: ucp_config_h, name: &str, value: &str) -> Result<(), UcxError> {
    let refused = |status| UcxError::Option {
        name: name.to_string(),
        value: value.to_string(),
        status,
    };
    let (Ok(c_name), Ok(c_value)) = (CString::new(name), CString::new(value)) else {
        return Err(refused(Status::new(
            UCS_ERR_NO_ELEM,
            "there is a zero inside",
        )));
    };
    // SAFETY: the configuration is valid, and both strings end with a zero; UCX copies them.
    match unsafe { (ucx.functions.ucp_config_modify)(config, c_name.as_ptr(), c_value.as_ptr()) } {
        UCS_OK => Ok(()),
        status => Err(refused(Status::of(&ucx.functions, status))),
    }
}
