//! The part of UCX's C interface that this crate uses.
//!
//! Made with bindgen 0.73.2 from `ucp/api/ucp.h` of UCX 1.13.1 (Debian's libucx-dev), then cut to what is used; the
//! functions became fields of a table. Newer versions append fields to the structures and mark the known ones in a mask,
//! so these structures stay valid. Names are UCX's, so that its reference is the documentation of everything here.
#![allow(non_camel_case_types, reason = "types have the names of the header")]

use std::ffi::{c_char, c_int, c_schar, c_uint, c_ulong, c_ushort, c_void};

pub(super) type ucs_status_t = c_schar;
pub(super) const UCS_OK: ucs_status_t = 0;
pub(super) const UCS_ERR_NO_ELEM: ucs_status_t = -12;
pub(super) const UCS_ERR_BUSY: ucs_status_t = -15;
pub(super) const UCS_ERR_CANCELED: ucs_status_t = -16;
pub(super) const UCS_ERR_NOT_CONNECTED: ucs_status_t = -24;
/// A pointer at or above this one, taken for an address, is a status.
pub(super) const UCS_ERR_LAST: ucs_status_t = -100;

/// Null for "done", a status, or a request.
pub(super) type ucs_status_ptr_t = *mut c_void;
pub(super) type ucp_tag_t = u64;
pub(super) type ucp_datatype_t = u64;

macro_rules! opaque {
    ($($name:ident $handle:ident;)*) => { $(
        #[repr(C)]
        pub(super) struct $name {
            _unused: [u8; 0],
        }
        pub(super) type $handle = *mut $name;
    )* };
}
opaque! {
    ucp_context ucp_context_h;
    ucp_config ucp_config_h;
    ucp_ep ucp_ep_h;
    ucp_address ucp_address_h;
    ucp_worker ucp_worker_h;
    ucp_conn_request ucp_conn_request_h;
    ucp_mem ucp_mem_h;
}

pub(super) const UCP_PARAM_FIELD_FEATURES: u64 = 1;
pub(super) const UCP_FEATURE_TAG: u64 = 1;
pub(super) const UCP_FEATURE_WAKEUP: u64 = 16;

#[repr(C)]
pub(super) struct ucp_params {
    pub(super) field_mask: u64,
    pub(super) features: u64,
    pub(super) request_size: usize,
    pub(super) request_init: Option<unsafe extern "C" fn(request: *mut c_void)>,
    pub(super) request_cleanup: Option<unsafe extern "C" fn(request: *mut c_void)>,
    pub(super) tag_sender_mask: u64,
    pub(super) mt_workers_shared: c_int,
    pub(super) estimated_num_eps: usize,
    pub(super) estimated_num_ppn: usize,
    pub(super) name: *const c_char,
}

pub(super) const UCP_WORKER_PARAM_FIELD_THREAD_MODE: u64 = 1;
pub(super) const UCS_THREAD_MODE_SINGLE: c_uint = 0;

#[repr(C)]
pub(super) struct ucp_worker_params {
    pub(super) field_mask: u64,
    pub(super) thread_mode: c_uint,
    pub(super) cpu_mask: [c_ulong; 16],
    pub(super) events: c_uint,
    pub(super) user_data: *mut c_void,
    pub(super) event_fd: c_int,
    pub(super) flags: u64,
    pub(super) name: *const c_char,
    pub(super) am_alignment: usize,
    pub(super) client_id: u64,
}

pub(super) const UCP_EP_PARAM_FIELD_REMOTE_ADDRESS: u64 = 1;
pub(super) const UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE: u64 = 2;
pub(super) const UCP_EP_PARAM_FIELD_ERR_HANDLER: u64 = 4;
pub(super) const UCP_ERR_HANDLING_MODE_PEER: c_uint = 1;

#[repr(C)]
pub(super) struct ucp_err_handler {
    pub(super) cb:
        Option<unsafe extern "C" fn(arg: *mut c_void, ep: ucp_ep_h, status: ucs_status_t)>,
    pub(super) arg: *mut c_void,
}

#[repr(C)]
pub(super) struct sockaddr {
    pub(super) sa_family: c_ushort,
    pub(super) sa_data: [c_char; 14],
}

#[repr(C)]
pub(super) struct ucs_sock_addr {
    pub(super) addr: *const sockaddr,
    pub(super) addrlen: c_uint,
}

#[repr(C)]
pub(super) struct ucp_ep_params {
    pub(super) field_mask: u64,
    pub(super) address: *const ucp_address,
    pub(super) err_mode: c_uint,
    pub(super) err_handler: ucp_err_handler,
    pub(super) user_data: *mut c_void,
    pub(super) flags: c_uint,
    pub(super) sockaddr: ucs_sock_addr,
    pub(super) conn_request: ucp_conn_request_h,
    pub(super) name: *const c_char,
    pub(super) local_sockaddr: ucs_sock_addr,
}

#[repr(C)]
pub(super) struct ucp_tag_recv_info {
    pub(super) sender_tag: ucp_tag_t,
    pub(super) length: usize,
}

pub(super) const UCP_OP_ATTR_FIELD_CALLBACK: u32 = 1 << 1;
pub(super) const UCP_OP_ATTR_FIELD_USER_DATA: u32 = 1 << 2;
pub(super) const UCP_OP_ATTR_FIELD_FLAGS: u32 = 1 << 4;
pub(super) const UCP_OP_ATTR_FIELD_MEMORY_TYPE: u32 = 1 << 6;
pub(super) const UCP_OP_ATTR_FLAG_NO_IMM_CMPL: u32 = 1 << 16;
pub(super) const UCP_EP_CLOSE_FLAG_FORCE: u32 = 1;
pub(super) const UCS_MEMORY_TYPE_HOST: c_uint = 0;

pub(super) type ucp_send_nbx_callback_t =
    unsafe extern "C" fn(request: *mut c_void, status: ucs_status_t, user_data: *mut c_void);
pub(super) type ucp_tag_recv_nbx_callback_t = unsafe extern "C" fn(
    request: *mut c_void,
    status: ucs_status_t,
    tag_info: *const ucp_tag_recv_info,
    user_data: *mut c_void,
);

#[repr(C)]
pub(super) union ucp_request_callback {
    pub(super) send: ucp_send_nbx_callback_t,
    pub(super) recv: ucp_tag_recv_nbx_callback_t,
}

#[repr(C)]
pub(super) struct ucp_request_param {
    pub(super) op_attr_mask: u32,
    pub(super) flags: u32,
    pub(super) request: *mut c_void,
    pub(super) cb: ucp_request_callback,
    pub(super) datatype: ucp_datatype_t,
    pub(super) user_data: *mut c_void,
    pub(super) reply_buffer: *mut c_void,
    pub(super) memory_type: c_uint,
    pub(super) recv_info: *mut ucp_tag_recv_info,
    pub(super) memh: ucp_mem_h,
}

/// Calls a macro with every function that is used. All of them are in UCX 1.12 and newer.
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            ucp_get_version(major: *mut c_uint, minor: *mut c_uint, release: *mut c_uint);
            ucp_config_read(env_prefix: *const c_char, filename: *const c_char, config: *mut ucp_config_h) -> ucs_status_t;
            ucp_config_modify(config: ucp_config_h, name: *const c_char, value: *const c_char) -> ucs_status_t;
            ucp_config_release(config: ucp_config_h);
            ucp_init_version(major: c_uint, minor: c_uint, params: *const ucp_params, config: *const ucp_config, context: *mut ucp_context_h) -> ucs_status_t;
            ucp_cleanup(context: ucp_context_h);
            ucp_worker_create(context: ucp_context_h, params: *const ucp_worker_params, worker: *mut ucp_worker_h) -> ucs_status_t;
            ucp_worker_destroy(worker: ucp_worker_h);
            ucp_worker_get_address(worker: ucp_worker_h, address: *mut ucp_address_h, length: *mut usize) -> ucs_status_t;
            ucp_worker_release_address(worker: ucp_worker_h, address: ucp_address_h);
            ucp_worker_progress(worker: ucp_worker_h) -> c_uint;
            ucp_worker_get_efd(worker: ucp_worker_h, fd: *mut c_int) -> ucs_status_t;
            ucp_worker_arm(worker: ucp_worker_h) -> ucs_status_t;
            ucp_ep_create(worker: ucp_worker_h, params: *const ucp_ep_params, ep: *mut ucp_ep_h) -> ucs_status_t;
            ucp_ep_close_nbx(ep: ucp_ep_h, param: *const ucp_request_param) -> ucs_status_ptr_t;
            ucp_tag_send_nbx(ep: ucp_ep_h, buffer: *const c_void, count: usize, tag: ucp_tag_t, param: *const ucp_request_param) -> ucs_status_ptr_t;
            ucp_tag_recv_nbx(worker: ucp_worker_h, buffer: *mut c_void, count: usize, tag: ucp_tag_t, tag_mask: ucp_tag_t, param: *const ucp_request_param) -> ucs_status_ptr_t;
            ucp_request_cancel(worker: ucp_worker_h, request: *mut c_void);
            ucp_request_free(request: *mut c_void);
            ucs_status_string(status: ucs_status_t) -> *const c_char;
            ucs_global_opts_set_value(name: *const c_char, value: *const c_char) -> ucs_status_t;
            ucs_debug_disable_signals();
        }
    };
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, all of one library.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $( pub(super) $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?, )*
        }

        impl Functions {
            /// Asks for each function by its name. Returns the name of the first one that is missing.
            ///
            /// # Safety
            /// Each symbol that is found is UCX's function of that name, and stays valid.
            pub(super) unsafe fn find(symbol: impl Fn(&'static str) -> Option<*mut c_void>) -> Result<Functions, &'static str> {
                Ok(Functions { $(
                    $name: {
                        let found = symbol(stringify!($name)).ok_or(stringify!($name))?;
                        // SAFETY: the caller vouches that this is the function of that name, whose signature this is.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(found) }
                    },
                )* })
            }
        }
    };
}
for_each_function!(functions);
