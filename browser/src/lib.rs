//! Nothing: this package is its tests, which run in a browser. `cargo xtask test --only browser` runs them.
