//! The cases that a backend may fail, and the reasons.

/// The list of an exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// The memory system rules it out; it can never hold.
    Never,
    /// The case fails because of a bug that is to be fixed.
    KnownBug,
}

/// A case that may fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exception {
    pub(super) list: List,
    pub(super) case: String,
    pub(super) subject: Option<String>,
    pub(super) reason: String,
}

/// The two lists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exceptions {
    pub(super) all: Vec<Exception>,
}

impl Exceptions {
    /// No exceptions.
    pub fn none() -> Exceptions {
        Exceptions::default()
    }

    /// `case` can never hold. A trailing `*` stands for any rest of a name.
    pub fn never(self, case: &str, reason: &str) -> Exceptions {
        self.with(List::Never, case, reason)
    }

    /// `case` does not hold so far. A trailing `*` stands for any rest of a name.
    pub fn known_bug(self, case: &str, reason: &str) -> Exceptions {
        self.with(List::KnownBug, case, reason)
    }

    /// Narrows the exception given last to subjects that contain `text`.
    pub fn on(mut self, text: &str) -> Exceptions {
        if let Some(last) = self.all.last_mut() {
            last.subject = Some(text.into());
        }
        self
    }

    fn with(mut self, list: List, case: &str, reason: &str) -> Exceptions {
        self.all.push(Exception {
            list,
            case: case.into(),
            subject: None,
            reason: reason.into(),
        });
        self
    }
}

impl Exception {
    pub(super) fn covers(&self, case: &str, subject: &str) -> bool {
        let named = match self.case.strip_suffix('*') {
            Some(start) => case.starts_with(start),
            None => case == self.case,
        };
        named
            && self
                .subject
                .as_ref()
                .is_none_or(|text| subject.contains(text))
    }
}
