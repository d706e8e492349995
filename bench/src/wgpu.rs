//! Adapters through wgpu, compared with the usual code of a wgpu user.
//!
//! An operation is over when its bytes have arrived: the thread that submits waits for that.

mod across;
mod down;
pub(crate) mod gpu;
mod idle;
mod many;
mod results;
mod stream;
mod texture;
mod up;

use anyhow::Result;

use crate::case::{Case, Effort, Outcome};

/// From a page to far past any cache.
const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20, 512 << 20];
const QUICK_SIZES: [usize; 3] = [4 << 10, 1 << 20, 128 << 20];

pub(crate) fn cases(effort: Effort) -> Vec<Case> {
    let sizes = if effort.quick {
        &QUICK_SIZES[..]
    } else {
        &SIZES
    };
    let mut cases = Vec::new();
    for len in sizes.iter().copied() {
        let name = name("host-wgpu", len);
        cases.push(case(name, move |name, effort| up::run(name, len, effort)));
    }
    for len in sizes.iter().copied() {
        let name = name("wgpu-host", len);
        cases.push(case(name, move |name, effort| down::run(name, len, effort)));
    }
    let across = if effort.quick { 16 << 20 } else { 128 << 20 };
    let name = name("wgpu-wgpu", across);
    cases.push(case(name, move |name, effort| {
        across::run(name, across, effort)
    }));
    for (name, cold) in [("warm", false), ("cold", true)] {
        if cold && cfg!(not(target_os = "linux")) {
            continue;
        }
        let len = if effort.quick { 64 << 20 } else { 256 << 20 };
        let name = format!("file-wgpu/{}MiB/{name}", len >> 20);
        cases.push(case(name, move |name, effort| {
            stream::run(name, len, cold, effort)
        }));
    }
    cases.push(case("wgpu-many/32x1MiB".into(), many::run));
    cases.push(case("texture/1920x1080".into(), texture::run));
    cases.push(case("wgpu-idle".into(), |name, _| idle::run(name)));
    cases
}

/// A case that reports where the adapters are absent.
fn case(
    name: String,
    run: impl Fn(&str, Effort) -> Result<Option<Vec<Outcome>>> + 'static,
) -> Case {
    Case::where_possible(name, move |name, effort| {
        Ok(run(name, effort)?.unwrap_or_default())
    })
}

fn name(route: &str, len: usize) -> String {
    match len {
        len if len >= 1 << 20 => format!("{route}/{}MiB", len >> 20),
        len => format!("{route}/{}KiB", len >> 10),
    }
}
