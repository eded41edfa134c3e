//! The keys ready to be handed out: one list per priority, linked through the slots.
//!
//! In: slots. Out: the next slot.
//! Holds: first come first served within a priority; a higher priority goes first, but after
//! [`OVERTAKES_MAX`] of its keys the waiting lower one has its turn, so nothing starves.

/// How many keys of higher priorities may overtake a waiting class before its oldest key has its turn.
pub(super) const OVERTAKES_MAX: u32 = 8;

const NONE: u32 = u32::MAX;

/// How urgent a key is. Within one priority, first come first served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Nothing happened to it: initial list, resync.
    Low,
    /// Something changed.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl Priority {
    /// All of them, the most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The number controller-runtime gives it: -100, 0, 100.
    pub fn as_number(self) -> i32 {
        match self {
            Self::Low => -100,
            Self::Normal => 0,
            Self::High => 100,
        }
    }
}

/// The neighbours of a slot in its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    previous: u32,
    next: u32,
    class: Priority,
}

impl Default for Links {
    fn default() -> Self {
        Self { previous: NONE, next: NONE, class: Priority::Low }
    }
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    len: usize,
    /// Keys of higher priorities handed out while this list was waiting.
    overtaken: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0, overtaken: 0 }
    }
}

/// The lists, indexed by priority.
#[derive(Debug, Default)]
pub(super) struct Ready {
    lists: [List; 3],
    len: usize,
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn len_of(&self, priority: Priority) -> usize {
        self.lists[priority as usize].len
    }

    /// Appends a slot that is in no list.
    pub(super) fn push<S: AsMut<Links>>(&mut self, slot: u32, class: Priority, slots: &mut [S]) {
        let list = &mut self.lists[class as usize];
        *slots[slot as usize].as_mut() = Links { previous: list.last, next: NONE, class };
        match list.last {
            NONE => list.first = slot,
            last => slots[last as usize].as_mut().next = slot,
        }
        list.last = slot;
        list.len += 1;
        self.len += 1;
    }

    /// Takes a slot out of the middle of its list.
    pub(super) fn unlink<S: AsMut<Links>>(&mut self, slot: u32, slots: &mut [S]) {
        let links = *slots[slot as usize].as_mut();
        let list = &mut self.lists[links.class as usize];
        match links.previous {
            NONE => list.first = links.next,
            previous => slots[previous as usize].as_mut().next = links.next,
        }
        match links.next {
            NONE => list.last = links.previous,
            next => slots[next as usize].as_mut().previous = links.previous,
        }
        list.len -= 1;
        self.len -= 1;
        if list.len == 0 {
            list.overtaken = 0;
        }
    }

    /// Takes the slot whose turn it is.
    pub(super) fn pop<S: AsMut<Links>>(&mut self, slots: &mut [S]) -> Option<u32> {
        let class = self.turn()?;
        let slot = self.lists[class].first;
        self.unlink(slot, slots);
        Some(slot)
    }

    fn turn(&mut self) -> Option<usize> {
        let highest = self.lists.iter().rposition(|list| list.len > 0)?;
        let waiting = &mut self.lists[..highest];
        if let Some(class) = waiting.iter().position(|list| list.len > 0 && list.overtaken >= OVERTAKES_MAX) {
            waiting[class].overtaken = 0;
            return Some(class);
        }
        waiting.iter_mut().filter(|list| list.len > 0).for_each(|list| list.overtaken += 1);
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

    #[test]
    fn low_priority_has_its_turn_after_eight() {
        let mut nodes: Vec<_> = (0..40).map(|_| Node(Links::default())).collect();
        let mut ready = Ready::default();
        for slot in 0..40 {
            let class = if slot < 20 { Priority::Low } else { Priority::Normal };
            ready.push(slot, class, &mut nodes);
        }
        let order: Vec<_> = std::iter::from_fn(|| ready.pop(&mut nodes)).collect();
        assert_eq!(order[..8], (20..28).collect::<Vec<_>>()[..]);
        assert_eq!(order[8..10], [0, 28]);
        assert_eq!(order[17], 1, "every ninth turn belongs to the waiting class");
        assert_eq!(order.len(), 40);
    }

    #[test]
    fn unlinking_keeps_the_others_in_order() {
        for gone in 0..3 {
            let mut nodes: Vec<_> = (0..3).map(|_| Node(Links::default())).collect();
            let mut ready = Ready::default();
            (0..3).for_each(|slot| ready.push(slot, Priority::Normal, &mut nodes));
            ready.unlink(gone, &mut nodes);
            let left: Vec<_> = std::iter::from_fn(|| ready.pop(&mut nodes)).collect();
            assert_eq!(left, (0..3).filter(|slot| *slot != gone).collect::<Vec<_>>());
        }
    }
}
