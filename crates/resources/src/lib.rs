//! The built-in resources: the strategy of each kind, and how `kubectl get` shows its objects.
//! Guarantees: strategies and printers are pure functions of objects; nothing here reads storage,
//! the clock or a request.

pub mod kinds; // strategies: defaults, preparation, validation
pub mod print; // tables and metadata-only forms
