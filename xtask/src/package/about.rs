//! What a package says of itself to those who look for it on crates.io and docs.rs.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// These parts of a manifest, with what it takes from the workspace put in.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct About {
    description: Option<String>,
    license: Option<String>,
    repository: Option<String>,
    documentation: Option<String>,
    readme: Option<PathBuf>,
    #[serde(default)]
    keywords: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
    /// The registries that may have it; `None` is all of them.
    publish: Option<Vec<String>>,
    #[serde(default)]
    metadata: Value,
}

impl About {
    /// Whether a registry may have it.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|to| !to.is_empty())
    }

    /// What the package `name` in `folder`, which is for publishing, does not say.
    pub(super) fn complaints(&self, name: &str, folder: &Path) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut demand = |is_so: bool, what: &str| {
            if !is_so {
                complaints.push(format!("`{name}` {what}"));
            }
        };
        let says = |field: &Option<String>| field.as_ref().is_some_and(|text| !text.is_empty());
        demand(says(&self.description), "has no description");
        demand(says(&self.license), "names no licence");
        demand(says(&self.repository), "names no repository");
        let documentation = format!("https://docs.rs/{name}");
        demand(
            self.documentation.as_ref() == Some(&documentation),
            "does not say where its documentation is",
        );
        // Of its own: one that lies elsewhere has links that lead nowhere from there.
        demand(
            self.readme.as_deref() == Some(Path::new(README)) && folder.join(README).is_file(),
            "has no README.md of its own",
        );
        demand(
            (1..=MOST_WORDS).contains(&self.keywords.len()),
            "has no keywords, or more than crates.io takes",
        );
        demand(
            (1..=MOST_WORDS).contains(&self.categories.len()),
            "is in no category, or in more than crates.io takes",
        );
        let docs = &self.metadata["docs"]["rs"];
        demand(
            docs["all-features"] == true,
            "does not have docs.rs document all its features",
        );
        let targets: Vec<&str> = docs["targets"]
            .as_array()
            .map(|targets| targets.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        // One for a single system names that first.
        let own = docs["default-target"].as_str();
        let expected = own.as_slice();
        let expected = if own.is_some() { expected } else { &TARGETS };
        for target in expected {
            demand(
                targets.contains(target),
                &format!("does not have docs.rs document it for {target}"),
            );
        }
        complaints
    }
}

pub(super) const README: &str = "README.md";

/// Of keywords, and of categories: crates.io refuses more.
const MOST_WORDS: usize = 5;

/// What programs are built for, where the libraries differ.
const TARGETS: [&str; 4] = [
    "x86_64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
    "wasm32-unknown-unknown",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn about(change: impl FnOnce(&mut Value)) -> About {
        let mut manifest = serde_json::json!({
            "description": "moves",
            "license": "MIT OR Apache-2.0",
            "repository": "https://example.org/a",
            "documentation": "https://docs.rs/a",
            "readme": "README.md",
            "keywords": ["copy"],
            "categories": ["science"],
            "publish": null,
            "metadata": {"docs": {"rs": {"all-features": true, "targets": TARGETS}}},
        });
        change(&mut manifest);
        serde_json::from_value(manifest).unwrap()
    }

    fn complaints(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        about(change).complaints("a", folder)
    }

    #[test]
    fn a_package_that_says_everything_is_complete() {
        assert!(complaints(|_| ()).is_empty());
    }

    #[test]
    fn each_thing_that_is_missing_is_told() {
        for (field, told) in [
            ("description", "`a` has no description"),
            ("license", "`a` names no licence"),
            ("repository", "`a` names no repository"),
            (
                "documentation",
                "`a` does not say where its documentation is",
            ),
            ("readme", "`a` has no README.md of its own"),
        ] {
            assert_eq!(complaints(|it| it[field] = Value::Null), [told]);
        }
        for field in ["keywords", "categories"] {
            assert_eq!(complaints(|it| it[field] = serde_json::json!([])).len(), 1);
            let many = ["a", "b", "c", "d", "e", "f"];
            assert_eq!(complaints(|it| it[field] = many.into()).len(), 1);
        }
        let elsewhere = |it: &mut Value| it["readme"] = "../README.md".into();
        assert_eq!(complaints(elsewhere), ["`a` has no README.md of its own"]);
        assert_eq!(complaints(|it| it["metadata"] = Value::Null).len(), 5);
        let one = |it: &mut Value| it["metadata"]["docs"]["rs"]["targets"][1] = "another".into();
        assert_eq!(
            complaints(one),
            ["`a` does not have docs.rs document it for aarch64-apple-darwin"]
        );
    }

    #[test]
    fn what_is_for_one_system_is_documented_for_that() {
        let apple = |targets: Value| {
            move |it: &mut Value| {
                it["metadata"]["docs"]["rs"]["targets"] = targets;
                it["metadata"]["docs"]["rs"]["default-target"] = "aarch64-apple-darwin".into();
            }
        };
        assert!(complaints(apple(vec!["aarch64-apple-darwin"].into())).is_empty());
        assert_eq!(
            complaints(apple(vec!["x86_64-apple-darwin"].into())),
            ["`a` does not have docs.rs document it for aarch64-apple-darwin"]
        );
    }

    #[test]
    fn no_registry_is_no_publication() {
        assert!(about(|_| ()).is_published());
        assert!(!about(|it| it["publish"] = serde_json::json!([])).is_published());
    }
}
