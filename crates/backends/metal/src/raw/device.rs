//! Devices and their facts.

use objc2::Message as _;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLCopyAllDevices, MTLDevice, MTLEvent, MTLSharedEvent, MTLSharedEventListener};

use super::EventBlock;

/// A device, which any thread may use ("MTLDevice ... Send + Sync" of the bindings, after Apple's Metal Programming
/// Guide, Command Organization and Execution Model).
#[derive(Clone)]
pub(crate) struct Device(pub(crate) Retained<ProtocolObject<dyn MTLDevice>>);

/// The facts that a device reports.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) name: String,
    /// Identifies the device on this machine until the machine restarts.
    pub(crate) registry_id: u64,
    /// The device and the host share one memory.
    pub(crate) is_unified: bool,
    /// The largest buffer, in bytes.
    pub(crate) max_buffer_bytes: u64,
}

/// Every device of this machine; on iOS the one that it has.
pub(crate) fn all_devices() -> Vec<Device> {
    let listed = MTLCopyAllDevices();
    let numbers = 0..listed.count();
    numbers
        .map(|number| Device(listed.objectAtIndex(number)))
        .collect()
}

/// Reads the facts of a device.
pub(crate) fn facts(device: &Device) -> Facts {
    Facts {
        name: device.0.name().to_string(),
        registry_id: device.0.registryID(),
        is_unified: device.0.hasUnifiedMemory(),
        max_buffer_bytes: device.0.maxBufferLength() as u64,
    }
}

impl Device {
    pub(crate) fn event(&self) -> Option<Event> {
        self.0.newSharedEvent().map(Event)
    }
}

/// A number that only grows, and that host and devices wait for.
#[derive(Clone)]
pub(crate) struct Event(pub(crate) Retained<ProtocolObject<dyn MTLSharedEvent>>);

impl Event {
    pub(crate) fn of(event: &ProtocolObject<dyn MTLSharedEvent>) -> Event {
        Event(event.retain())
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.signaledValue()
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.setSignaledValue(value);
    }

    pub(crate) fn as_event(&self) -> &ProtocolObject<dyn MTLEvent> {
        ProtocolObject::from_ref(&*self.0)
    }
}

/// Calls back when events reach a value.
#[derive(Clone)]
pub(crate) struct Listener(Retained<MTLSharedEventListener>);

impl Listener {
    pub(crate) fn new() -> Listener {
        Listener(MTLSharedEventListener::new())
    }

    pub(crate) fn listen(&self, event: &Event, value: u64, block: &EventBlock) {
        // SAFETY: what the block holds may be sent to another thread, as `EventBlock` demands.
        unsafe {
            event
                .0
                .notifyListener_atValue_block(&self.0, value, block.as_ptr());
        }
    }
}
