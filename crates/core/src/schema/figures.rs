//! Figures and words, checked against what a machine can have.

use alloc::string::String;

use super::error::SchemaError;
use crate::{Access, Cost, LinkClass};

/// A kilobyte per second, a serial line.
const MIN_RATE: i64 = 1_000;
/// 100 TB/s: ten times the fastest on-package memory there is, so that a slip of a unit is seen.
const MAX_RATE: i64 = 100_000_000_000_000;
/// A minute; no copy waits longer for its first byte.
const MAX_LATENCY_NS: i64 = 60_000_000_000;
/// An exbibyte, above any memory or disk of one machine.
const MAX_BYTES: i64 = 1 << 60;
/// A gibibyte, the largest page of any processor.
const MAX_ALIGNMENT: i64 = 1 << 30;

/// One entry of the file, and how to call it when something is wrong with it.
pub(super) struct Checked<'a> {
    pub(super) thing: &'a dyn Fn() -> String,
}

impl Checked<'_> {
    pub(super) fn rate(&self, value: i64) -> Result<u64, SchemaError> {
        self.within("bytes_per_second", value, MIN_RATE, MAX_RATE)
    }

    pub(super) fn latency(&self, value: i64) -> Result<u64, SchemaError> {
        self.within("latency_ns", value, 0, MAX_LATENCY_NS)
    }

    pub(super) fn bytes(&self, field: &'static str, value: i64) -> Result<u64, SchemaError> {
        self.within(field, value, 1, MAX_BYTES)
    }

    pub(super) fn piece_start(&self, value: i64) -> Result<u64, SchemaError> {
        self.within("from_bytes", value, 0, MAX_BYTES)
    }

    pub(super) fn alignment(&self, value: i64) -> Result<u64, SchemaError> {
        self.within("alignment", value, 1, MAX_ALIGNMENT)
    }

    /// Returns a latency and a rate, each the class's default where it is not given.
    pub(super) fn cost(
        &self,
        class: LinkClass,
        latency_ns: Option<i64>,
        bytes_per_second: Option<i64>,
    ) -> Result<Cost, SchemaError> {
        let default = crate::defaults::link_cost(class);
        let fixed_ns = match latency_ns {
            Some(value) => self.latency(value)?,
            None => default.fixed_ns,
        };
        Ok(match bytes_per_second {
            Some(value) => Cost::from_rate(fixed_ns, self.rate(value)?),
            None => Cost::new(fixed_ns, default.fs_per_byte),
        })
    }

    pub(super) fn class(&self, text: &str) -> Result<LinkClass, SchemaError> {
        LinkClass::ALL
            .into_iter()
            .find(|class| class.as_str() == text)
            .ok_or_else(|| self.word("class", text, "local, fabric, pcie, storage, network"))
    }

    pub(super) fn access(
        &self,
        text: Option<&str>,
        default: Access,
    ) -> Result<Access, SchemaError> {
        let Some(text) = text else {
            return Ok(default);
        };
        [
            Access::Native,
            Access::Import,
            Access::Peer,
            Access::Managed,
        ]
        .into_iter()
        .find(|access| access.as_str() == text)
        .ok_or_else(|| self.word("access", text, "native, import, peer, managed"))
    }

    fn word(&self, field: &'static str, text: &str, allowed: &'static str) -> SchemaError {
        SchemaError::Word {
            thing: (self.thing)(),
            field,
            text: text.into(),
            allowed,
        }
    }

    fn within(
        &self,
        field: &'static str,
        value: i64,
        min: i64,
        max: i64,
    ) -> Result<u64, SchemaError> {
        u64::try_from(value)
            .ok()
            .filter(|_| (min..=max).contains(&value))
            .ok_or_else(|| SchemaError::Figure {
                thing: (self.thing)(),
                field,
                value,
                min,
                max,
            })
    }
}
