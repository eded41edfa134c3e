//! What every cluster does, with or without workloads.

mod garbage; // what belongs to an object goes with it
mod kinds; // what the server serves

use crate::context::{Context, Loop};

/// The loops of this level, in the order in which they start.
pub(crate) fn loops(ctx: &Context) -> Vec<Loop> {
    vec![garbage::collector(ctx)]
}
