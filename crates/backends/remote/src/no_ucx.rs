//! What stands for the messages over UCX in a build without it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use transload_hal::HostSpan;

use crate::pipe::Event;
use crate::session::SessionHandle;
use crate::wire::Reach;

pub(crate) fn version() -> Result<String, String> {
    let system = cfg!(all(target_os = "linux", target_pointer_width = "64"));
    Err(match system {
        true => "this build lacks the feature `ucx`".into(),
        false => "only Linux with 64 bits has it".into(),
    })
}

/// The messages of one session, of which there are none.
pub(crate) enum Channel {}

pub(crate) const FIRST_TAG: u32 = 1;

impl Channel {
    pub(crate) fn open(
        _: SocketAddr,
        _: SessionHandle,
        _: crate::Options,
    ) -> Result<Channel, String> {
        Err(version().unwrap_or_else(|reason| reason))
    }

    pub(crate) fn reach(&self) -> Reach {
        match *self {}
    }

    pub(crate) fn connect(&mut self, _: &[u8], _: bool) -> bool {
        match *self {}
    }

    pub(crate) fn fault(&self) -> Option<&str> {
        match *self {}
    }

    /// # Safety
    /// None is needed: there is no channel.
    pub(crate) unsafe fn start(
        &mut self,
        _: (u64, u64),
        _: u32,
        _: HostSpan,
        _: bool,
    ) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn poll(&mut self, _: &mut VecDeque<Event>) {
        match *self {}
    }

    pub(crate) fn abandon(&mut self, _: String) {
        match *self {}
    }

    pub(crate) fn poll_word(&mut self) -> Option<Reach> {
        match *self {}
    }

    pub(crate) fn next_time(&self) -> Option<Instant> {
        match *self {}
    }

    pub(crate) fn handle_time(&mut self, _: Instant) {
        match *self {}
    }
}
