//! Verdicts of proofs that outlast the process.
//!
//! The engine knows neither files nor drivers. `State::recall` tells it what earlier processes found out, and
//! `After::verdicts` reports what it finds out itself; both are read and written outside its lock. A link that was
//! proven before sends no pattern ([`super::proofs`]). A link that was condemned stays so.
//!
//! Only links between two devices ([`Access::Peer`]) have verdicts. An import depends on memory of this process, which
//! the next one does not have, and proving it costs next to nothing.

use alloc::string::String;

use transload_core::{Access, DeviceInfo, LinkId, MemoryId, Topology};

/// The result of a proof.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    /// A pattern came back as it went.
    Proven,
    /// The link moved wrong bytes: a sentence tells how that showed.
    Condemned(String),
}

/// A judgement with the devices at both ends, for the writer of verdicts. Without a judgement, the kept one does not
/// hold any more.
#[cfg_attr(
    not(feature = "std"),
    expect(dead_code, reason = "it is kept with an operating system alone")
)]
pub(crate) struct Verdict {
    pub(crate) link: LinkId,
    pub(crate) devices: [DeviceInfo; 2],
    pub(crate) judgement: Option<Judgement>,
}

/// Returns the devices at the ends of a link whose verdicts can be kept: devices with a UUID, under a driver that names
/// itself.
pub(crate) fn ends(topology: &Topology, link: LinkId) -> Option<[&DeviceInfo; 2]> {
    let told_apart = |device: &&DeviceInfo| {
        let twins = topology.devices().iter();
        let twins = twins.filter(|twin| (twin.id.kind, twin.uuid) == (device.id.kind, device.uuid));
        device.uuid.is_some() && device.driver.is_some() && twins.count() == 1
    };
    let device = |end: MemoryId| topology.device(end.device).filter(told_apart);
    if link.access != Access::Peer {
        return None;
    }
    Some([device(link.src)?, device(link.dst)?])
}
