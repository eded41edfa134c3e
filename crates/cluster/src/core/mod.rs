//! What every cluster does, with or without workloads.

use crate::context::{Context, Loop};

/// The loops of this level, in the order in which they start.
pub(crate) fn loops(_ctx: &Context) -> Vec<Loop> {
    Vec::new()
}
