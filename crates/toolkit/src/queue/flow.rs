//! Fairness between keys of one priority.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;

use crate::ObjectKey;

/// The number of flows of a priority: one bit of a word for each.
pub(super) const FLOWS: u32 = u64::BITS;

/// The flow that a key belongs to. The flows of one priority are served round-robin, one key at a
/// time; within a flow, first in, first out.
///
/// By default all keys belong to one flow, so the whole queue is first in, first out, as
/// client-go's is. That is fair between objects: a key is in the queue at most once, so an object
/// that changes often does not delay the others. It is not fair between tenants: a tenant with
/// 10,000 changed objects delays the single key of another by 10,000 reconciles. With a flow for
/// each tenant, that key waits for at most one key of each other flow.
///
/// There are 64 flows, so that round-robin has constant cost; tenants whose names have the same
/// hash share one. The hash depends on the name only and is equal in every process.
///
/// ```
/// use bellerophon::queue::{AddOpts, Flow, WorkQueue};
///
/// let queue = WorkQueue::<&str>::default();
/// let opts = AddOpts { flow: Flow::of("team-a"), ..AddOpts::default() };
/// queue.add_with_opts("web", opts);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow(pub(super) u8);

impl Flow {
    /// The flow of a tenant, such as a namespace.
    pub fn of(tenant: impl Hash) -> Self {
        // foldhash mixes its highest bits best.
        let hash = FixedState::default().hash_one(tenant);
        Self((hash >> (u64::BITS - FLOWS.ilog2())) as u8)
    }
}

/// How keys of one priority are ordered. [`Flow`] explains the difference.
///
/// ```
/// use bellerophon::ObjectKey;
/// use bellerophon::queue::{Fairness, Flow};
///
/// let key = ObjectKey::namespaced("team-a", "web");
/// assert_eq!(Fairness::Fifo.flow(&key), Flow::default());
/// assert_eq!(
///     Fairness::ByNamespace.flow(&key),
///     Fairness::ByNamespace.flow(&ObjectKey::namespaced("team-a", "db")),
/// );
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fairness {
    /// First in, first out over all keys, as in client-go: fair between objects.
    #[default]
    Fifo,
    /// Namespaces are served round-robin, so one with many changes does not delay the others; first
    /// in, first out within a namespace. Cluster-scoped objects count as one namespace.
    ByNamespace,
}

impl Fairness {
    /// The flow of a key.
    pub fn flow(self, key: &ObjectKey) -> Flow {
        match self {
            Self::Fifo => Flow::default(),
            Self::ByNamespace => Flow::of(key.namespace()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn tenants_spread_over_all_flows_in_the_same_way_everywhere() {
        let flows: BTreeSet<_> = (0..1000)
            .map(|tenant| Flow::of(format!("team-{tenant}")).0)
            .collect();
        assert_eq!(flows.len(), FLOWS as usize);
        assert_eq!(Flow::of("team-a"), Flow::of(String::from("team-a")));
    }
}
