//! Lists what libraries show: rustdoc describes them, as JSON, and `public-api` puts that into lines.

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use public_api::Builder;

use crate::stage::{Outcome, Verdict};
use crate::workspace::Workspace;

/// The items of each of `packages`, with all features; `None` when they do not build, which `verdict` then says.
///
/// # Errors
/// When cargo cannot be started, or rustdoc writes what `public-api` cannot read.
pub(crate) fn list(
    workspace: &Workspace,
    packages: &[&str],
    verdict: &mut Verdict,
) -> Result<Option<Vec<Vec<String>>>> {
    // Of all packages, since with fewer cargo would build some dependencies again, with fewer features.
    let mut cargo = workspace.cargo();
    cargo
        .args(["doc", "--workspace", "--lib", "--no-deps", "--all-features"])
        .env("RUSTDOC", env::current_exe()?)
        .env(
            STANDING_IN,
            env::var_os("RUSTDOC").unwrap_or_else(|| "rustdoc".into()),
        )
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json")
        .env_remove("CARGO_BUILD_TARGET");
    verdict.run(&mut cargo)?;
    if verdict.outcome == Outcome::Failed {
        return Ok(None);
    }
    let mut lists = Vec::new();
    for package in packages {
        let name = package.replace('-', "_");
        let path = workspace.target.join("doc").join(format!("{name}.json"));
        let surface = Builder::from_rustdoc_json(&path)
            .omit_blanket_impls(true)
            .build()
            .with_context(|| format!("cannot read {}", path.display()))?;
        let items = surface.items().map(ToString::to_string);
        lists.push(telling(items));
    }
    Ok(Some(lists))
}

/// Leaves out of `items` what a reader knows without: the functions of traits of the standard library, whose
/// signatures those traits give, and the compiler's own traits but for `Send` and `Sync`, which nearly every type
/// has. That is half of all lines.
fn telling(items: impl Iterator<Item = String>) -> Vec<String> {
    // How the functions of the last implementation of such a trait begin.
    let mut known: Option<String> = None;
    let mut telling = Vec::new();
    for item in items {
        if let Some((implemented, by)) = implementation(&item) {
            let std = ["core::", "alloc::", "std::"];
            let is_known = std.iter().any(|name| implemented.starts_with(name));
            known = is_known.then(|| format!("fn {by}::"));
            if UNTOLD.contains(&implemented) {
                continue;
            }
        } else if known.as_ref().is_some_and(|start| item.contains(start)) {
            continue;
        }
        telling.push(item);
    }
    telling
}

/// The trait and the type of a line such as `impl<T> Trait for Type<T> where T: Send`.
fn implementation(item: &str) -> Option<(&str, &str)> {
    let item = item.strip_prefix("unsafe ").unwrap_or(item);
    let (implemented, by) = item.strip_prefix("impl")?.split_once(" for ")?;
    // The parameters end where the first space is outside of brackets.
    let (mut depth, mut last) = (0_u32, ' ');
    let end = implemented.find(|c| {
        match c {
            '<' => depth += 1,
            // Not the arrow before what a function gives.
            '>' if last != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        last = c;
        c == ' ' && depth == 0
    })?;
    let implemented = implemented[end..].trim_start();
    let by = by.split(" where ").next().unwrap_or(by);
    Some((implemented.trim_start_matches('!'), by))
}

/// Runs rustdoc with its unstable options, if this program was started in its place: `None` if it was not.
///
/// Setting the variable for all of cargo would have half of the dependencies built anew: their build scripts look
/// for it.
pub(crate) fn stand_in_for_rustdoc() -> Option<ExitCode> {
    let rustdoc = env::var_os(STANDING_IN)?;
    let status = Command::new(&rustdoc)
        .args(env::args_os().skip(1))
        .env("RUSTC_BOOTSTRAP", "1")
        .status();
    Some(match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot run {}: {error}", rustdoc.display());
            ExitCode::FAILURE
        }
    })
}

/// Names rustdoc to the one that stands in for it.
const STANDING_IN: &str = "TRANSLOAD_XTASK_RUSTDOC";

/// Traits that say nothing to who uses a type.
const UNTOLD: [&str; 6] = [
    "core::marker::Freeze",
    "core::marker::StructuralPartialEq",
    "core::marker::Unpin",
    "core::marker::UnsafeUnpin",
    "core::panic::unwind_safe::RefUnwindSafe",
    "core::panic::unwind_safe::UnwindSafe",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn told<'a>(items: &[&'a str]) -> Vec<&'a str> {
        let list = telling(items.iter().map(|&item| item.to_owned()));
        let mut items = items.iter().copied();
        list.iter()
            .map(|kept| items.by_ref().find(|item| item == kept).unwrap())
            .collect()
    }

    #[test]
    fn of_the_compilers_own_traits_send_and_sync_are_told() {
        let items = [
            "impl core::marker::Send for a::B",
            "impl<T> !core::marker::Sync for a::B<T>",
            "impl core::marker::Unpin for a::B",
            "impl<T> !core::panic::unwind_safe::UnwindSafe for a::B<T> where T: core::marker::Send",
            "pub fn a::b(impl core::marker::Unpin)",
        ];
        assert_eq!(told(&items), [items[0], items[1], items[4]]);
    }

    #[test]
    fn functions_of_known_traits_are_known() {
        let items = [
            "impl<T: core::ops::function::Fn(u8) -> u8> core::clone::Clone for a::B<T>",
            "pub fn a::B<T>::clone(&self) -> Self",
            "impl core::ops::deref::Deref for a::C",
            "pub type a::C::Target = u8",
            "pub fn a::C::deref(&self) -> &u8",
            "impl a::D for a::C",
            "pub fn a::C::d(&self)",
            "impl a::C",
            "pub fn a::C::new() -> Self",
            "pub fn a::f()",
        ];
        let kept = [0, 2, 3, 5, 6, 7, 8, 9].map(|index| items[index]);
        assert_eq!(told(&items), kept);
    }

    #[test]
    fn a_function_beside_the_type_is_not_of_its_trait() {
        let items = [
            "impl core::fmt::Debug for a::B",
            "pub fn a::B::fmt(&self, &mut core::fmt::Formatter<'_>) -> core::fmt::Result",
            "pub fn a::beside()",
            "pub fn a::B::of_no_trait()",
        ];
        // A type's own functions stand behind a line of their own, `impl a::B`; without it they are the trait's.
        assert_eq!(told(&items), [items[0], items[2]]);
    }
}
