//! Linearizability checker for histories of a key-value store.
