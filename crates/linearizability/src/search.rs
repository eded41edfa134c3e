//! Wing and Gong's search for a linearization, with Lowe's cache of states.
//!
//! In: the calls on one key with their times. Out: whether an order exists in which each completed
//! call has its outcome.
//! Guarantees: an order that contradicts real time is never accepted. Calls without an end may be
//! left out. The search ends after a given number of steps.

use std::collections::HashSet;

use crate::{
    history::{Operation, Time},
    register::{Call, Register},
};

/// An operation and its call.
pub(crate) type Item<'a> = (&'a Operation, Interval);

/// A call and its times.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) call: Call,
    pub(crate) start: Time,
    /// None if the call may take effect at any later time, or never.
    pub(crate) end: Option<Time>,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Order,
    NoOrder,
    /// The step limit was reached.
    Limit,
}

/// Searches for a linearization in at most `steps_max` steps. Adds the steps to `steps`.
pub(crate) fn search(intervals: &[Interval], steps_max: u64, steps: &mut u64) -> Found {
    let mut list = EntryList::new(intervals);
    let mut linearized = Bitset::new(intervals.len());
    let mut cache = HashSet::new();
    let mut stack: Vec<(usize, Register)> = Vec::new();
    let mut state = Register::new();
    let mut entry = list.first();
    let mut used = 0;
    loop {
        let advance = match entry {
            // Only calls without an end are left.
            None => return Found::Order,
            Some(Entry::Start(call)) => {
                used += 1;
                *steps += 1;
                if used > steps_max {
                    return Found::Limit;
                }
                let next = state.step(&intervals[call].call).filter(|next| {
                    linearized.insert(call);
                    let is_new = cache.insert((linearized.window(), next.clone()));
                    if !is_new {
                        linearized.remove(call);
                    }
                    is_new
                });
                match next {
                    Some(next) => {
                        stack.push((call, std::mem::replace(&mut state, next)));
                        list.remove(call);
                        entry = list.first();
                        continue;
                    }
                    None => call,
                }
            }
            // A completed call has no place before its end: revise the last choice.
            Some(Entry::End) => match stack.pop() {
                None => return Found::NoOrder,
                Some((call, previous)) => {
                    state = previous;
                    linearized.remove(call);
                    list.restore(call);
                    call
                }
            },
        };
        entry = list.after_start(advance);
    }
}

/// The position of a call in the list.
enum Entry {
    Start(usize),
    End,
}

/// Starts and ends in order of time, as a doubly linked list. Node 0 is its head.
struct EntryList {
    next: Vec<usize>,
    previous: Vec<usize>,
    /// The call that starts at a node; none for an end.
    starts: Vec<Option<usize>>,
    /// The nodes of start and end of a call.
    nodes: Vec<(usize, Option<usize>)>,
}

/// The end of the list.
const NONE: usize = usize::MAX;

impl EntryList {
    fn new(intervals: &[Interval]) -> Self {
        // At equal times, starts come first: such calls are concurrent.
        let mut times: Vec<(Time, bool, usize)> = Vec::with_capacity(2 * intervals.len());
        for (call, interval) in intervals.iter().enumerate() {
            times.push((interval.start, false, call));
            times.extend(interval.end.map(|end| (end, true, call)));
        }
        times.sort_unstable();
        let count = times.len() + 1;
        let mut list = Self {
            next: (1..count).chain([NONE]).collect(),
            previous: [NONE].into_iter().chain(0..count - 1).collect(),
            starts: vec![None; count],
            nodes: vec![(NONE, None); intervals.len()],
        };
        for (index, (_, is_end, call)) in times.into_iter().enumerate() {
            let node = index + 1;
            if is_end {
                list.nodes[call].1 = Some(node);
            } else {
                list.nodes[call].0 = node;
                list.starts[node] = Some(call);
            }
        }
        list
    }

    fn first(&self) -> Option<Entry> {
        self.entry(self.next[0])
    }

    fn after_start(&self, call: usize) -> Option<Entry> {
        self.entry(self.next[self.nodes[call].0])
    }

    fn entry(&self, node: usize) -> Option<Entry> {
        (node != NONE).then(|| self.starts[node].map_or(Entry::End, Entry::Start))
    }

    fn remove(&mut self, call: usize) {
        let (start, end) = self.nodes[call];
        self.unlink(start);
        if let Some(end) = end {
            self.unlink(end);
        }
    }

    /// Undoes the last removal.
    fn restore(&mut self, call: usize) {
        let (start, end) = self.nodes[call];
        if let Some(end) = end {
            self.link(end);
        }
        self.link(start);
    }

    fn unlink(&mut self, node: usize) {
        let next = self.next[node];
        let previous = self.previous[node];
        self.next[previous] = next;
        if next != NONE {
            self.previous[next] = previous;
        }
    }

    fn link(&mut self, node: usize) {
        let next = self.next[node];
        let previous = self.previous[node];
        self.next[previous] = node;
        if next != NONE {
            self.previous[next] = node;
        }
    }
}

/// The calls that are linearized.
struct Bitset {
    words: Vec<u64>,
}

/// A set without its full words at the beginning and its empty words at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Window {
    first: usize,
    words: Box<[u64]>,
}

impl Bitset {
    fn new(length: usize) -> Self {
        Self {
            words: vec![0; length.div_ceil(64)],
        }
    }

    fn insert(&mut self, index: usize) {
        self.words[index / 64] |= 1 << (index % 64);
    }

    fn remove(&mut self, index: usize) {
        self.words[index / 64] &= !(1 << (index % 64));
    }

    /// The set as a key of the cache: short, since calls are linearized roughly in order.
    fn window(&self) -> Window {
        let first = self
            .words
            .iter()
            .take_while(|word| **word == u64::MAX)
            .count();
        let last = self.words.iter().rposition(|word| *word != 0);
        let end = last.map_or(first, |last| (last + 1).max(first));
        Window {
            first,
            words: self.words[first..end].into(),
        }
    }
}
