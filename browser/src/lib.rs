//! This package is empty apart from its tests, which run in a browser: `cargo xtask test --only browser` runs them.
