//! The names that clients give their objects.

use std::sync::{Mutex, PoisonError};

use super::string::Text;
use crate::runtime::{Id, Ref};

/// `label` and `setLabel:`
#[derive(Debug, Default)]
pub(crate) struct Label(Mutex<Option<Ref<Text>>>);

impl Label {
    pub(crate) fn set(&self, text: Id) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text.retained();
    }

    pub(crate) fn get(&self) -> Id {
        let text = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        text.map_or(Id::NIL, Ref::autoreleased)
    }
}
