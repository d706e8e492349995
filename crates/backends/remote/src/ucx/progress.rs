//! The thread of a worker: every call of UCX, from the first to the last.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use transload_hal::HostSpan;

use super::context::Handles;
use super::error::{Status, UcxError};
use super::exit::{self, Inside};
use super::library::Ucx;
use super::raw::*;
use super::worker::{Command, EndpointId, Event, Options, Shared, Started};

/// How long a worker that ends gives its peers to agree.
const DRAIN: Duration = Duration::from_secs(2);

/// How long a worker that ends at once leaves its connections open. A peer that learns meanwhile by other means ends its own
/// worker: one of UCX 1.13 that makes progress may abort its process when a connection breaks in the middle of its message.
const STILL: Duration = Duration::from_secs(1);

/// What a callback tells. UCX calls back only from calls that the worker's thread makes.
enum Arrival {
    Ended {
        key: u64,
        status: ucs_status_t,
        len: usize,
    },
    Lost {
        endpoint: EndpointId,
        status: ucs_status_t,
    },
}

thread_local! {
    static ARRIVALS: RefCell<Vec<Arrival>> = const { RefCell::new(Vec::new()) };
}

fn arrive(arrival: Arrival) {
    ARRIVALS.with_borrow_mut(|arrivals| arrivals.push(arrival));
}

extern "C" fn on_end(_request: *mut c_void, status: ucs_status_t, user_data: *mut c_void) {
    let key = user_data.addr() as u64;
    arrive(Arrival::Ended {
        key,
        status,
        len: 0,
    });
}

unsafe extern "C" fn on_receive(
    _request: *mut c_void,
    status: ucs_status_t,
    info: *const ucp_tag_recv_info,
    user_data: *mut c_void,
) {
    let len = match status {
        // SAFETY: UCX passes the message's description with success.
        UCS_OK => unsafe { (*info).length },
        _ => 0,
    };
    let key = user_data.addr() as u64;
    arrive(Arrival::Ended { key, status, len });
}

extern "C" fn on_loss(arg: *mut c_void, _ep: ucp_ep_h, status: ucs_status_t) {
    let endpoint = EndpointId(arg.addr() as u64);
    arrive(Arrival::Lost { endpoint, status });
}

#[derive(Clone, Copy)]
enum Kind {
    Send { endpoint: EndpointId },
    Receive,
    Close { endpoint: EndpointId },
}

struct Request {
    kind: Kind,
    /// The caller's number; none for a close.
    id: u64,
    len: usize,
    /// UCX's request; null until UCX has returned it.
    pointer: *mut c_void,
}

struct Endpoint {
    ep: ucp_ep_h,
    sends: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Closes when its sends have ended.
    Ending,
    /// UCX has the request to close, and `ep` must not be used.
    Closing,
    /// As `Closing`, after a loss that was told.
    Lost,
}

struct Thread {
    handles: Handles,
    shared: Arc<Shared>,
    sink: Box<dyn FnMut(Event) + Send>,
    requests: HashMap<u64, Request>,
    endpoints: HashMap<EndpointId, Endpoint>,
    next_key: u64,
    spins: u32,
    efd: c_int,
    /// Present but where the thread waits.
    inside: Option<Inside>,
}

pub(super) fn run(
    ucx: &'static Ucx,
    options: &Options,
    shared: Arc<Shared>,
    sink: Box<dyn FnMut(Event) + Send>,
    tell: &SyncSender<Result<Started, UcxError>>,
) {
    exit::watch();
    let inside = Inside::enter();
    let started = Handles::start(ucx, options).and_then(|(handles, skipped)| {
        let address = handles.address()?;
        let efd = handles.efd()?;
        Ok((handles, efd, Started { address, skipped }))
    });
    let (handles, efd, started) = match started {
        Ok(started) => started,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    let spins = options.spins.max(1);
    let (requests, endpoints) = (HashMap::new(), HashMap::new());
    let mut thread = Thread {
        handles,
        shared,
        sink,
        requests,
        endpoints,
        next_key: 0,
        spins,
        efd,
        inside: Some(inside),
    };
    let _ = tell.send(Ok(started));
    match thread.serve() {
        true => std::thread::park_timeout(STILL),
        false => thread.drain(),
    }
    thread.release();
    let Thread {
        handles,
        requests,
        mut sink,
        inside: _inside,
        ..
    } = thread;
    let f = handles.f;
    drop(handles);
    // UCX is gone, and with it every request: their memory is quiet.
    for request in requests.into_values() {
        if !matches!(request.kind, Kind::Close { .. }) {
            let (id, status) = (request.id, Status::of(&f, UCS_ERR_CANCELED));
            sink(Event::Failed { id, status });
        }
    }
}

impl Thread {
    /// Serves commands and messages until the command to stop. Returns whether that is at once.
    fn serve(&mut self) -> bool {
        let mut commands = Vec::new();
        loop {
            self.shared.take(&mut commands);
            let mut is_busy = !commands.is_empty();
            let mut stop = None;
            for command in commands.drain(..) {
                match command {
                    Command::Stop { at_once } => stop = Some(at_once || stop == Some(true)),
                    command => self.execute(command),
                }
            }
            if stop == Some(true) {
                return true;
            }
            for _ in 0..self.spins {
                if self.progress() {
                    is_busy = true;
                    break;
                }
            }
            is_busy |= self.settle();
            if stop.is_some() {
                return false;
            }
            if !is_busy {
                self.wait(None);
            }
        }
    }

    /// Ends what is under way by agreement, until the time is over.
    fn drain(&mut self) {
        let receives: Vec<u64> = self.keys(|request| matches!(request.kind, Kind::Receive));
        for key in receives {
            self.cancel(key);
        }
        let endpoints: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        for endpoint in endpoints {
            self.close(endpoint, false);
        }
        let end = Instant::now() + DRAIN;
        while !(self.requests.is_empty() && self.endpoints.is_empty()) {
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                break;
            };
            if !self.progress() & !self.settle() {
                self.wait(Some(left));
            }
        }
    }

    /// Closes by force what has not ended. UCX makes no progress afterwards, because then UCX 1.13 and 1.22 use freed memory of the
    /// connections of endpoints that were closed in the middle of a message.
    fn release(&mut self) {
        let endpoints: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        for endpoint in endpoints {
            self.close(endpoint, true);
        }
        self.settle();
        for request in self
            .requests
            .values_mut()
            .filter(|request| !request.pointer.is_null())
        {
            // UCX ends the rest when the worker is destroyed, if nothing waits for it any more; builds with assertions
            // check that.
            // SAFETY: the request is the worker's, and its pointer is not used again.
            unsafe { (self.handles.f.ucp_request_free)(request.pointer) };
            request.pointer = ptr::null_mut();
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Connect { endpoint, address } => self.connect(endpoint, address),
            Command::Close { endpoint, by_force } => self.close(endpoint, by_force),
            Command::Send {
                id,
                endpoint,
                tag,
                span,
            } => self.send(id, endpoint, tag, span),
            Command::Receive {
                id,
                tag,
                mask,
                span,
            } => self.receive(id, tag, mask, span),
            Command::Cancel { id } => {
                for key in
                    self.keys(|request| request.id == id && matches!(request.kind, Kind::Receive))
                {
                    self.cancel(key);
                }
            }
            Command::Stop { .. } => {}
        }
    }

    fn keys(&self, which: impl Fn(&Request) -> bool) -> Vec<u64> {
        let found = self.requests.iter().filter(|(_, request)| which(request));
        found.map(|(&key, _)| key).collect()
    }

    fn connect(&mut self, endpoint: EndpointId, mut address: Vec<u8>) {
        // UCX reads past the end of an address that is cut short.
        address.resize(address.len() + 4096, 0);
        // SAFETY: for all fields of this structure zero is a value, null or none.
        let mut params: ucp_ep_params = unsafe { std::mem::zeroed() };
        params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
            | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
            | UCP_EP_PARAM_FIELD_ERR_HANDLER;
        params.address = address.as_ptr().cast();
        params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
        params.err_handler.cb = Some(on_loss);
        params.err_handler.arg = ptr::without_provenance_mut(endpoint.0 as usize);
        let mut ep = ptr::null_mut();
        let f = &self.handles.f;
        // SAFETY: the worker is of this thread; the caller of `Worker::connect` vouches for the address.
        let status =
            unsafe { (f.ucp_ep_create)(self.handles.worker, &raw const params, &raw mut ep) };
        if status == UCS_OK {
            let state = State::Open;
            self.endpoints.insert(
                endpoint,
                Endpoint {
                    ep,
                    sends: 0,
                    state,
                },
            );
        } else {
            let status = Status::of(f, status);
            (self.sink)(Event::EndpointLost { endpoint, status });
        }
    }

    fn send(&mut self, id: u64, endpoint: EndpointId, tag: u64, span: HostSpan) {
        let ep = match self.endpoints.get_mut(&endpoint) {
            Some(found) if found.state == State::Open => {
                found.sends += 1;
                found.ep
            }
            _ => {
                let status = Status::of(&self.handles.f, UCS_ERR_NOT_CONNECTED);
                return (self.sink)(Event::Failed { id, status });
            }
        };
        let key = self.enter(Kind::Send { endpoint }, id, span.len());
        let param = Self::param(key, ucp_request_callback { send: on_end }, 0, 0);
        let buffer = span.as_ptr().cast();
        // SAFETY: the endpoint is open, and the caller of `Worker::send` vouches for the span until the outcome.
        let pointer = unsafe {
            (self.handles.f.ucp_tag_send_nbx)(ep, buffer, span.len(), tag, &raw const param)
        };
        self.entered(key, pointer);
    }

    fn receive(&mut self, id: u64, tag: u64, mask: u64, span: HostSpan) {
        let key = self.enter(Kind::Receive, id, span.len());
        let callback = ucp_request_callback { recv: on_receive };
        // Without the flag, the length of a message that has arrived before would come by another way.
        let param = Self::param(key, callback, UCP_OP_ATTR_FLAG_NO_IMM_CMPL, 0);
        let (buffer, count, worker) = (span.as_ptr().cast(), span.len(), self.handles.worker);
        // SAFETY: the worker is of this thread, and the caller of `Worker::receive` vouches for the span.
        let pointer = unsafe {
            (self.handles.f.ucp_tag_recv_nbx)(worker, buffer, count, tag, mask, &raw const param)
        };
        self.entered(key, pointer);
    }

    fn close(&mut self, endpoint: EndpointId, by_force: bool) {
        let Some(found) = self.endpoints.get_mut(&endpoint) else {
            return;
        };
        if matches!(found.state, State::Closing | State::Lost) {
            return;
        }
        if found.sends > 0 && !by_force {
            found.state = State::Ending;
        } else {
            found.state = State::Closing;
            self.close_now(endpoint, by_force);
        }
    }

    /// Hands the endpoint back to UCX. Its state is `Closing` or `Lost`.
    fn close_now(&mut self, endpoint: EndpointId, by_force: bool) {
        let ep = self.endpoints[&endpoint].ep;
        let flags = if by_force { UCP_EP_CLOSE_FLAG_FORCE } else { 0 };
        let key = self.enter(Kind::Close { endpoint }, 0, 0);
        let param = Self::param(key, ucp_request_callback { send: on_end }, 0, flags);
        // SAFETY: the endpoint is valid, by its state was not handed back before, and is not used again.
        let pointer = unsafe { (self.handles.f.ucp_ep_close_nbx)(ep, &raw const param) };
        self.entered(key, pointer);
    }

    fn cancel(&mut self, key: u64) {
        let pointer = self.requests[&key].pointer;
        if !pointer.is_null() {
            // SAFETY: the request is the worker's, and is freed only after it has left the table.
            unsafe { (self.handles.f.ucp_request_cancel)(self.handles.worker, pointer) };
        }
    }

    fn param(
        key: u64,
        cb: ucp_request_callback,
        attribute_flags: u32,
        flags: u32,
    ) -> ucp_request_param {
        ucp_request_param {
            op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK
                | UCP_OP_ATTR_FIELD_USER_DATA
                | UCP_OP_ATTR_FIELD_FLAGS
                // So that UCX does not ask the driver of each device about the pointer.
                | UCP_OP_ATTR_FIELD_MEMORY_TYPE
                | attribute_flags,
            flags,
            request: ptr::null_mut(),
            cb,
            datatype: 0,
            user_data: ptr::without_provenance_mut(key as usize),
            reply_buffer: ptr::null_mut(),
            memory_type: UCS_MEMORY_TYPE_HOST,
            recv_info: ptr::null_mut(),
            memh: ptr::null_mut(),
        }
    }

    fn enter(&mut self, kind: Kind, id: u64, len: usize) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        let pointer = ptr::null_mut();
        self.requests.insert(
            key,
            Request {
                kind,
                id,
                len,
                pointer,
            },
        );
        key
    }

    /// Takes what UCX returned for a request: null if it is done, a status, or its pointer.
    fn entered(&mut self, key: u64, pointer: *mut c_void) {
        if pointer.is_null() {
            self.end(key, UCS_OK, None);
        } else if pointer.addr() >= UCS_ERR_LAST as isize as usize {
            self.end(key, pointer.addr() as ucs_status_t, None);
        } else if let Some(request) = self.requests.get_mut(&key) {
            request.pointer = pointer;
        }
    }

    fn progress(&mut self) -> bool {
        // SAFETY: the worker is of this thread, and this is not a callback.
        let count: c_uint = unsafe { (self.handles.f.ucp_worker_progress)(self.handles.worker) };
        count > 0
    }

    /// Tells what callbacks have left. Returns whether there was something.
    fn settle(&mut self) -> bool {
        let mut is_busy = false;
        loop {
            let mut arrivals = ARRIVALS.take();
            if arrivals.is_empty() {
                return is_busy;
            }
            is_busy = true;
            for arrival in arrivals.drain(..) {
                match arrival {
                    Arrival::Ended { key, status, len } => self.end(key, status, Some(len)),
                    Arrival::Lost { endpoint, status } => self.lose(endpoint, status),
                }
            }
            // Keeps the room, unless closing an endpoint has left something new.
            ARRIVALS.with_borrow_mut(|next| {
                if next.is_empty() {
                    *next = arrivals;
                }
            });
        }
    }

    fn lose(&mut self, endpoint: EndpointId, status: ucs_status_t) {
        let Some(found) = self.endpoints.get_mut(&endpoint) else {
            return;
        };
        match found.state {
            State::Open => {
                found.state = State::Lost;
                let status = Status::of(&self.handles.f, status);
                (self.sink)(Event::EndpointLost { endpoint, status });
            }
            State::Ending => found.state = State::Closing,
            State::Closing | State::Lost => return,
        }
        self.close_now(endpoint, true);
    }

    fn end(&mut self, key: u64, status: ucs_status_t, len: Option<usize>) {
        let Some(request) = self.requests.remove(&key) else {
            return;
        };
        if !request.pointer.is_null() {
            // SAFETY: the request has called back, and it has just left the table.
            unsafe { (self.handles.f.ucp_request_free)(request.pointer) };
        }
        match request.kind {
            Kind::Close { endpoint } => {
                let found = self.endpoints.remove(&endpoint);
                if found.is_some_and(|found| found.state == State::Closing) {
                    (self.sink)(Event::EndpointClosed { endpoint });
                }
                return;
            }
            Kind::Send { endpoint } => {
                if let Some(found) = self.endpoints.get_mut(&endpoint) {
                    found.sends -= 1;
                    if found.sends == 0 && found.state == State::Ending {
                        found.state = State::Closing;
                        self.close_now(endpoint, false);
                    }
                }
            }
            Kind::Receive => {}
        }
        let id = request.id;
        let len = match (request.kind, len) {
            (Kind::Receive, Some(len)) => len,
            _ => request.len,
        };
        if status == UCS_OK && len <= request.len {
            return (self.sink)(Event::Done { id, len });
        }
        let status = Status::of(&self.handles.f, status);
        (self.sink)(Event::Failed { id, status });
    }

    /// Waits for UCX or for a command.
    fn wait(&mut self, limit: Option<Duration>) {
        self.shared.asleep.store(true, Ordering::SeqCst);
        if self.shared.is_idle() {
            // SAFETY: the worker is of this thread, and its context has the feature WAKEUP.
            let armed = unsafe { (self.handles.f.ucp_worker_arm)(self.handles.worker) };
            // Busy means that something has arrived. After another error the thread still wakes for commands.
            if armed != UCS_ERR_BUSY {
                // SAFETY: the descriptor is the worker's, which outlives this call.
                let efd = unsafe { BorrowedFd::borrow_raw(self.efd) };
                let mut fds = [
                    PollFd::new(&efd, PollFlags::IN),
                    PollFd::from_borrowed_fd(self.shared.wake.as_fd(), PollFlags::IN),
                ];
                let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
                self.inside = None;
                // An interruption is a wake-up for nothing, which does no harm.
                let _ = poll(&mut fds, limit.as_ref());
                self.inside = Some(Inside::enter());
                if !fds[1].revents().is_empty() {
                    let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
                }
            }
        }
        self.shared.asleep.store(false, Ordering::SeqCst);
    }
}
