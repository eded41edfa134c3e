//! Ready keys, by priority and flow, in lists linked through the slots.
//!
//! In: slots of keys that became ready. Out: the slot of the next key.
//! Guarantees: first in, first out within a flow; the flows of a priority are served round-robin; a
//! higher priority is served first, but after [`SKIPS_MAX`] of its keys a waiting lower priority is
//! served once, so no key starves.

use super::flow::{FLOWS, Flow};

/// The number of keys of higher priorities that are served before a waiting lower priority.
pub(super) const SKIPS_MAX: u32 = 8;

/// The index of no slot.
pub(super) const NONE: u32 = u32::MAX;

/// The priority of a key. Keys of one priority are ordered by [`Fairness`](super::Fairness).
///
/// A lower priority does not starve: after 8 keys of higher priorities, one of its keys is served.
///
/// ```
/// use bellerophon::queue::{AddOpts, Priority, WorkQueue};
///
/// let queue = WorkQueue::<&str>::default();
/// queue.add_with_opts("resync", AddOpts { priority: Priority::Low, ..AddOpts::default() });
/// queue.add("changed");
/// assert_eq!(queue.try_get().map(|item| *item.key()), Some("changed"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// For objects of the initial list and of a resync, which need not have changed.
    Low,
    /// For changed objects.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl Priority {
    /// All priorities, the highest first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The number in the `priority` label of the metrics: -100 (controller-runtime's LowPriority),
    /// 0 or 100.
    pub fn as_number(self) -> i32 {
        match self {
            Self::Low => -100,
            Self::Normal => 0,
            Self::High => 100,
        }
    }
}

/// The links of a slot: its neighbours in a list, and which list of [`Ready`] that is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    previous: u32,
    next: u32,
    priority: Priority,
    flow: Flow,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            previous: NONE,
            next: NONE,
            priority: Priority::Low,
            flow: Flow::default(),
        }
    }
}

/// A doubly linked list of slots. Invariant: `first` and `last` are both `NONE` or neither is.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    pub(super) last: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };

    /// Appends a slot that is in no list.
    pub(super) fn append<S: AsMut<Links>>(&mut self, slot: u32, slots: &mut [S]) {
        let links = slots[slot as usize].as_mut();
        links.previous = self.last;
        links.next = NONE;
        match self.last {
            NONE => self.first = slot,
            last => slots[last as usize].as_mut().next = slot,
        }
        self.last = slot;
    }

    /// Removes a slot from any position of this list.
    pub(super) fn unlink<S: AsMut<Links>>(&mut self, slot: u32, slots: &mut [S]) {
        let Links { previous, next, .. } = *slots[slot as usize].as_mut();
        match previous {
            NONE => self.first = next,
            previous => slots[previous as usize].as_mut().next = next,
        }
        match next {
            NONE => self.last = previous,
            next => slots[next as usize].as_mut().previous = previous,
        }
    }
}

/// The ready keys of one priority.
#[derive(Debug)]
struct PriorityLevel {
    flows: [List; FLOWS as usize],
    /// Bit `i` is set if flow `i` is not empty.
    non_empty: u64,
    /// The flow where round-robin continues.
    next_flow: u32,
    len: usize,
    /// Keys of higher priorities served while this level was not empty.
    skipped: u32,
}

impl Default for PriorityLevel {
    fn default() -> Self {
        Self {
            flows: [List::EMPTY; FLOWS as usize],
            non_empty: 0,
            next_flow: 0,
            len: 0,
            skipped: 0,
        }
    }
}

impl PriorityLevel {
    /// The next non-empty flow in round-robin order. The level must not be empty.
    fn advance_flow(&mut self) -> usize {
        // One rotation and one count find the next flow, however many are empty.
        let distance = self.non_empty.rotate_right(self.next_flow).trailing_zeros();
        let flow = (self.next_flow + distance) % FLOWS;
        self.next_flow = (flow + 1) % FLOWS;
        flow as usize
    }
}

/// Ready keys, by priority and flow.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// Indexed by [`Priority`].
    levels: [PriorityLevel; 3],
    /// The sum of the levels' lengths.
    len: usize,
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn len_of(&self, priority: Priority) -> usize {
        self.levels[priority as usize].len
    }

    /// Appends a slot that is in no list.
    pub(super) fn push<S: AsMut<Links>>(
        &mut self,
        slot: u32,
        priority: Priority,
        flow: Flow,
        slots: &mut [S],
    ) {
        let links = slots[slot as usize].as_mut();
        links.priority = priority;
        links.flow = flow;
        let level = &mut self.levels[priority as usize];
        level.flows[usize::from(flow.0)].append(slot, slots);
        level.non_empty |= 1 << flow.0;
        level.len += 1;
        self.len += 1;
    }

    /// Removes a slot from any position of its list.
    pub(super) fn unlink<S: AsMut<Links>>(&mut self, slot: u32, slots: &mut [S]) {
        let links = *slots[slot as usize].as_mut();
        let level = &mut self.levels[links.priority as usize];
        let list = &mut level.flows[usize::from(links.flow.0)];
        list.unlink(slot, slots);
        if list.first == NONE {
            level.non_empty &= !(1 << links.flow.0);
        }
        level.len -= 1;
        self.len -= 1;
        if level.len == 0 {
            // An empty level is not starved: counting starts with the next key that waits.
            level.skipped = 0;
        }
    }

    /// Removes and returns the next slot.
    pub(super) fn pop<S: AsMut<Links>>(&mut self, slots: &mut [S]) -> Option<u32> {
        let level = self.next_level()?;
        let flow = self.levels[level].advance_flow();
        let slot = self.levels[level].flows[flow].first;
        self.unlink(slot, slots);
        Some(slot)
    }

    /// The level to serve: the highest that is not empty, or a lower one that was skipped too
    /// often.
    fn next_level(&mut self) -> Option<usize> {
        let highest = self.levels.iter().rposition(|level| level.len > 0)?;
        let lower = &mut self.levels[..highest];
        let starving = lower
            .iter()
            .position(|level| level.len > 0 && level.skipped >= SKIPS_MAX);
        if let Some(starving) = starving {
            // The lowest level is served first of several that starve; the others follow with the
            // next keys.
            lower[starving].skipped = 0;
            return Some(starving);
        }
        for level in lower.iter_mut().filter(|level| level.len > 0) {
            level.skipped += 1;
        }
        Some(highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node(Links);
    impl AsMut<Links> for Node {
        fn as_mut(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    fn nodes(count: usize) -> Vec<Node> {
        (0..count).map(|_| Node(Links::default())).collect()
    }

    #[test]
    fn low_priority_is_served_after_eight_others() {
        let mut nodes = nodes(40);
        let mut ready = Ready::default();
        for slot in 0..40 {
            let priority = if slot < 20 {
                Priority::Low
            } else {
                Priority::Normal
            };
            ready.push(slot, priority, Flow::default(), &mut nodes);
        }
        let order: Vec<_> = std::iter::from_fn(|| ready.pop(&mut nodes)).collect();
        assert_eq!(order[..8], (20..28).collect::<Vec<_>>()[..]);
        assert_eq!(order[8..10], [0, 28]);
        assert_eq!(order[17], 1, "every ninth key is of the lower priority");
        assert_eq!(order.len(), 40);
    }

    #[test]
    fn unlinking_keeps_the_order_of_the_others() {
        for removed in 0..3 {
            let mut nodes = nodes(3);
            let mut ready = Ready::default();
            (0..3).for_each(|slot| ready.push(slot, Priority::Normal, Flow::default(), &mut nodes));
            ready.unlink(removed, &mut nodes);
            let left: Vec<_> = std::iter::from_fn(|| ready.pop(&mut nodes)).collect();
            let expected: Vec<_> = (0..3).filter(|slot| *slot != removed).collect();
            assert_eq!(left, expected);
        }
    }

    #[test]
    fn flows_are_served_round_robin_and_each_in_order() {
        for (pushed, popped) in [
            // Pairs of flow and slot.
            (
                vec![(5, 0), (5, 1), (5, 2), (63, 3), (0, 4)],
                vec![4, 0, 3, 1, 2],
            ),
            (vec![(63, 0), (63, 1), (62, 2)], vec![2, 0, 1]),
            (vec![(7, 0), (7, 1), (7, 2)], vec![0, 1, 2]),
        ] {
            let mut nodes = nodes(5);
            let mut ready = Ready::default();
            for (flow, slot) in &pushed {
                ready.push(*slot, Priority::Normal, Flow(*flow), &mut nodes);
            }
            let order: Vec<_> = std::iter::from_fn(|| ready.pop(&mut nodes)).collect();
            assert_eq!(order, popped, "{pushed:?}");
        }
    }
}
