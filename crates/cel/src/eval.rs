//! Failures of an evaluation, and the meter of its cost and memory.
//! In: charges for every step. Out: failures, among them the one that ends the evaluation.
//! Guarantees: an evaluation never costs more than its limit and never allocates more than
//! [`BYTES_MAX`].

use std::borrow::Cow;

/// How much memory the values made by one evaluation may take; its data is borrowed and does not
/// count.
const BYTES_MAX: usize = 64 << 20;
/// The size of a value without its text.
pub(crate) const VALUE_BYTES: usize = 48;

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    message: Cow<'static, str>,
    /// Whether it ends the evaluation: the limit is reached.
    is_final: bool,
}

impl Failure {
    /// A conversion between these types that the value does not allow.
    pub(crate) fn conversion(from: &str, to: &str) -> Self {
        Self::new(format!("type conversion error from '{from}' to '{to}'"))
    }

    /// A failure that `||` and `&&` may make up for.
    #[must_use]
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            message: message.into(),
            is_final: false,
        }
    }

    pub(crate) fn no_such_overload() -> Self {
        Self::new("no such overload")
    }

    pub(crate) fn limit() -> Self {
        Self {
            message: "operation cancelled: actual cost limit exceeded".into(),
            is_final: true,
        }
    }

    /// Whether the evaluation was stopped because it reached its limit.
    #[must_use]
    pub fn is_limit(&self) -> bool {
        self.is_final
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The cost and memory that an evaluation has used so far.
#[derive(Debug)]
pub struct Meter {
    cost: u64,
    limit: u64,
    bytes: usize,
}

impl Meter {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            cost: 0,
            limit,
            bytes: 0,
        }
    }

    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    /// Counts a cost.
    pub(crate) fn charge(&mut self, cost: u64) -> Result<(), Failure> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit {
            Err(Failure::limit())
        } else {
            Ok(())
        }
    }

    /// Fails if the cost would exceed the limit; otherwise it is charged when the work is done.
    pub(crate) fn afford(&mut self, cost: u64) -> Result<(), Failure> {
        if self.cost.saturating_add(cost) > self.limit {
            self.charge(cost)
        } else {
            Ok(())
        }
    }

    /// Charges memory before it is allocated.
    ///
    /// # Errors
    /// It would exceed the limit of an evaluation. Kubernetes has no such limit, but no useful
    /// expression reaches it.
    pub fn allocate(&mut self, bytes: usize) -> Result<(), Failure> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > BYTES_MAX {
            Err(Failure::limit())
        } else {
            Ok(())
        }
    }

    /// Counts the memory of this many values that are about to be made.
    pub(crate) fn allocate_values(&mut self, count: usize) -> Result<(), Failure> {
        self.allocate(count.saturating_mul(VALUE_BYTES))
    }
}
