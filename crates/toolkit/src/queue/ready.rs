//! Whose turn it is: the keys ready to be handed out, in lists linked through the slots.
//!
//! In: slots. Out: the next slot.
//! Holds: first come first served within a line; the lines of a priority take turns; a higher priority goes first, but
//! after [`OVERTAKES_MAX`] of its keys the waiting lower one has its turn, so nothing starves.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;

/// How many keys of higher priorities may overtake a waiting class before its oldest key has its turn.
pub(super) const OVERTAKES_MAX: u32 = 8;

/// How many lines a priority has.
const LINES: u32 = u64::BITS;

pub(super) const NONE: u32 = u32::MAX;

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

/// The line a key stands in. The lines of one priority take turns, a key each; within a line, first come first served.
///
/// Keys stand in one common line unless somebody says otherwise, which makes a queue first come first served as a whole,
/// as client-go's is. That is fair between objects: a key has one place in the queue however often it is added, so a hot
/// object cannot crowd out the others. It is not fair between tenants: one with 10,000 objects puts 10,000 keys before
/// the single key of another. With a line for each tenant that single key waits for one key of each other tenant.
///
/// There are 64 lines, so that turns cost the same however many tenants there are; tenants whose names fall on the same
/// line share it. The choice depends on the name alone and is the same in every process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line(u8);

impl Line {
    /// The line of a tenant, such as a namespace.
    pub fn of(tenant: impl Hash) -> Self {
        // The highest bits are the best mixed ones.
        Self((FixedState::default().hash_one(tenant) >> (u64::BITS - LINES.ilog2())) as u8)
    }
}

/// Where a slot is linked: its neighbours, and the list they make up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    previous: u32,
    next: u32,
    class: Priority,
    line: Line,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            previous: NONE,
            next: NONE,
            class: Priority::Low,
            line: Line::default(),
        }
    }
}

/// Slots linked one after another; both ends are `NONE` or none is.
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
        (links.previous, links.next) = (self.last, NONE);
        match self.last {
            NONE => self.first = slot,
            last => slots[last as usize].as_mut().next = slot,
        }
        self.last = slot;
    }

    /// Takes out a slot, wherever it is in this list.
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

#[derive(Debug)]
struct Class {
    lines: [List; LINES as usize],
    /// One bit for each line that is not empty.
    waiting: u64,
    /// The line that is looked at first when the class has its turn.
    next: u32,
    len: usize,
    /// Keys of higher priorities handed out while this class was waiting.
    overtaken: u32,
}

impl Default for Class {
    fn default() -> Self {
        Self {
            lines: [List::EMPTY; LINES as usize],
            waiting: 0,
            next: 0,
            len: 0,
            overtaken: 0,
        }
    }
}

impl Class {
    /// The line whose turn it is.
    fn line(&mut self) -> usize {
        let line = (self.next + self.waiting.rotate_right(self.next).trailing_zeros()) % LINES;
        self.next = (line + 1) % LINES;
        line as usize
    }
}

/// The keys ready to be handed out, by priority and line.
#[derive(Debug, Default)]
pub(super) struct Ready {
    classes: [Class; 3],
    len: usize,
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn len_of(&self, priority: Priority) -> usize {
        self.classes[priority as usize].len
    }

    /// Appends a slot that is in no list.
    pub(super) fn push<S: AsMut<Links>>(
        &mut self,
        slot: u32,
        class: Priority,
        line: Line,
        slots: &mut [S],
    ) {
        let waiting = &mut self.classes[class as usize];
        let links = slots[slot as usize].as_mut();
        (links.class, links.line) = (class, line);
        waiting.lines[usize::from(line.0)].append(slot, slots);
        waiting.waiting |= 1 << line.0;
        waiting.len += 1;
        self.len += 1;
    }

    /// Takes a slot out of the middle of its list.
    pub(super) fn unlink<S: AsMut<Links>>(&mut self, slot: u32, slots: &mut [S]) {
        let links = *slots[slot as usize].as_mut();
        let class = &mut self.classes[links.class as usize];
        let list = &mut class.lines[usize::from(links.line.0)];
        list.unlink(slot, slots);
        if list.first == NONE {
            class.waiting &= !(1 << links.line.0);
        }
        class.len -= 1;
        self.len -= 1;
        if class.len == 0 {
            class.overtaken = 0;
        }
    }

    /// Takes the slot whose turn it is.
    pub(super) fn pop<S: AsMut<Links>>(&mut self, slots: &mut [S]) -> Option<u32> {
        let class = self.turn()?;
        let line = self.classes[class].line();
        let slot = self.classes[class].lines[line].first;
        self.unlink(slot, slots);
        Some(slot)
    }

    fn turn(&mut self) -> Option<usize> {
        let highest = self.classes.iter().rposition(|class| class.len > 0)?;
        let waiting = &mut self.classes[..highest];
        if let Some(class) = waiting
            .iter()
            .position(|class| class.len > 0 && class.overtaken >= OVERTAKES_MAX)
        {
            waiting[class].overtaken = 0;
            return Some(class);
        }
        waiting
            .iter_mut()
            .filter(|class| class.len > 0)
            .for_each(|class| class.overtaken += 1);
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
    fn low_priority_has_its_turn_after_eight() {
        let (mut nodes, mut ready) = (nodes(40), Ready::default());
        for slot in 0..40 {
            let class = if slot < 20 {
                Priority::Low
            } else {
                Priority::Normal
            };
            ready.push(slot, class, Line::default(), &mut nodes);
        }
        let order: Vec<_> = std::iter::from_fn(|| ready.pop(&mut nodes)).collect();
        assert_eq!(order[..8], (20..28).collect::<Vec<_>>()[..]);
        assert_eq!(order[8..10], [0, 28]);
        assert_eq!(
            order[17], 1,
            "every ninth turn belongs to the waiting class"
        );
        assert_eq!(order.len(), 40);
    }

    #[test]
    fn unlinking_keeps_the_others_in_order() {
        for gone in 0..3 {
            let (mut nodes, mut ready) = (nodes(3), Ready::default());
            (0..3).for_each(|slot| ready.push(slot, Priority::Normal, Line::default(), &mut nodes));
            ready.unlink(gone, &mut nodes);
            let left: Vec<_> = std::iter::from_fn(|| ready.pop(&mut nodes)).collect();
            assert_eq!(
                left,
                (0..3).filter(|slot| *slot != gone).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn lines_take_turns_and_each_keeps_its_order() {
        for (pushed, popped) in [
            // Slots by the line they stand in.
            (
                vec![(5, 0), (5, 1), (5, 2), (63, 3), (0, 4)],
                vec![4, 0, 3, 1, 2],
            ),
            (vec![(63, 0), (63, 1), (62, 2)], vec![2, 0, 1]),
            (vec![(7, 0), (7, 1), (7, 2)], vec![0, 1, 2]),
        ] {
            let (mut nodes, mut ready) = (nodes(5), Ready::default());
            for (line, slot) in &pushed {
                ready.push(*slot, Priority::Normal, Line(*line), &mut nodes);
            }
            assert_eq!(
                std::iter::from_fn(|| ready.pop(&mut nodes)).collect::<Vec<_>>(),
                popped,
                "{pushed:?}"
            );
        }
    }

    #[test]
    fn tenants_spread_over_the_lines_the_same_way_everywhere() {
        let lines: std::collections::BTreeSet<_> = (0..1000)
            .map(|tenant| Line::of(format!("team-{tenant}")).0)
            .collect();
        assert_eq!(lines.len(), LINES as usize);
        assert_eq!(Line::of("team-a"), Line::of(String::from("team-a")));
    }
}
