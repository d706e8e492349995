//! `MTLEvent` and `MTLSharedEvent`.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::label::Label;
use super::listener::Listener;
use crate::gpu::{WORLD, call_back};
use crate::ledger::{COUNTS, Misuse, report};
use crate::machine::{DeviceState, made};
use crate::runtime::{Block, BlockArgument, Bool, Class, Id, Method, Receiver, Ref};

/// A number that grows.
#[derive(Debug)]
pub(crate) struct Event {
    /// The only device that may use it; any may where it is shared.
    pub(crate) device: Option<usize>,
    made_by: usize,
    state: Mutex<State>,
    changed: Condvar,
    label: Label,
}

class!(c"MTLSharedEvent" "_OBJC_CLASS_MTLSharedEvent", Event, shared_methods);

pub(crate) static LOCAL: Class =
    Class::of::<Event>(c"MTLEvent", &META, Some(&super::root::CLASS), methods);

#[derive(Debug, Default)]
struct State {
    value: u64,
    listeners: Vec<Listening>,
}

#[derive(Debug)]
struct Listening {
    value: u64,
    block: Block,
    /// Kept until the block was called.
    _listener: Ref<Listener>,
}

impl Event {
    pub(crate) fn new(device: &DeviceState, class: &'static Class) -> Option<Ref<Self>> {
        if device.is_removed() {
            return None;
        }
        COUNTS.events.one();
        let shared = std::ptr::eq(class, &CLASS);
        Some(Ref::of_class(
            class,
            Self {
                device: (!shared).then_some(device.index),
                made_by: device.index,
                state: Mutex::default(),
                changed: Condvar::new(),
                label: Label::default(),
            },
        ))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn value(&self) -> u64 {
        self.state().value
    }

    /// Raises the value, and wakes the threads that wait for it.
    pub(crate) fn signal(this: &Ref<Self>, value: u64) {
        let mut state = this.state();
        if value < state.value {
            let told = format!("an event at {} was signalled with {value}", state.value);
            drop(state);
            report(Misuse::EventBackwards, told);
            return;
        }
        state.value = value;
        let (reached, waiting) = std::mem::take(&mut state.listeners)
            .into_iter()
            .partition(|listening: &Listening| listening.value <= value);
        state.listeners = waiting;
        drop(state);
        this.changed.notify_all();
        WORLD.poke();
        let reached: Vec<Listening> = reached;
        for listening in reached {
            Self::notify(this, listening);
        }
    }

    fn notify(this: &Ref<Self>, listening: Listening) {
        let event = this.clone();
        let value = this.value();
        call_back(move || {
            // SAFETY: `MTLSharedEventNotificationBlock` is a block of an event and a value that answers nothing.
            unsafe { listening.block.call_object_value(event.id(), value) };
        });
    }

    fn listen(this: &Ref<Self>, listener: Id, value: u64, block: BlockArgument) {
        let (Some(listener), Some(block)) = (listener.retained::<Listener>(), block.copy()) else {
            report(
                Misuse::BadArgument,
                "notifyListener: wants a listener and a block".into(),
            );
            return;
        };
        let listening = Listening {
            value,
            block,
            _listener: listener,
        };
        let mut state = this.state();
        if state.value >= value {
            drop(state);
            Self::notify(this, listening);
        } else {
            state.listeners.push(listening);
        }
    }

    /// Whether the value was reached in time.
    fn wait(&self, value: u64, limit: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, |state| state.value < value);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.value >= value
    }
}

fn methods() -> Vec<Method> {
    methods![Receiver<Event>;
        c"device" => fn(this) -> Id {
            made().devices[this.made_by].autoreleased()
        }
        c"label" => fn(this) -> Id {
            this.label.get()
        }
        c"setLabel:" => fn(this, label: Id) {
            this.label.set(label);
        }
    ]
}

fn shared_methods() -> Vec<Method> {
    let mut methods = methods();
    methods.extend(methods![Receiver<Event>;
        c"signaledValue" => fn(this) -> u64 {
            this.value()
        }
        c"setSignaledValue:" => fn(this, value: u64) {
            Event::signal(&this.retained(), value);
        }
        c"notifyListener:atValue:block:" => fn(this, listener: Id, value: u64, block: BlockArgument) {
            Event::listen(&this.retained(), listener, value, block);
        }
        c"waitUntilSignaledValue:timeoutMS:" => fn(this, value: u64, milliseconds: u64) -> Bool {
            Bool::from(this.wait(value, Duration::from_millis(milliseconds)))
        }
    ]);
    methods
}
