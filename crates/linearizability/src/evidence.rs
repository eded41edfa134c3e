//! The smallest illegal history of a key that is found by leaving operations out.
//!
//! In: an illegal history. Out: fewer operations without a legal order.
//! Guarantees: operations are left out only if that cannot make a legal history illegal: all after
//! the first response that has no explanation, and operations that change nothing.

use crate::{
    history::{Operation, Outcome, Time},
    register::Call,
    search::{Found, Interval, Item, search},
};

/// The operations of the smallest illegal history.
pub(crate) fn minimize(items: &[Item<'_>], steps_max: u64) -> Vec<Operation> {
    let prefix = shortest_prefix(items, steps_max);
    let needed = without_observers(prefix, steps_max);
    needed
        .into_iter()
        .map(|(operation, interval)| shown(operation, &interval))
        .collect()
}

/// A write that may happen or not is shown as such, whatever its later outcome was.
fn shown(operation: &Operation, interval: &Interval) -> Operation {
    let outcome = match interval.end {
        Some(_) => operation.outcome.clone(),
        None => Outcome::Unknown,
    };
    Operation {
        outcome,
        ..operation.clone()
    }
}

fn is_illegal(items: &[Item<'_>], steps_max: u64) -> bool {
    let intervals: Vec<Interval> = items.iter().map(|(_, interval)| interval.clone()).collect();
    search(&intervals, steps_max, &mut 0) == Found::NoOrder
}

/// What was known at the first time at which the history is illegal.
fn shortest_prefix<'a>(items: &[Item<'a>], steps_max: u64) -> Vec<Item<'a>> {
    let mut ends: Vec<Time> = items
        .iter()
        .filter_map(|(_, interval)| interval.end)
        .collect();
    ends.sort_unstable();
    let first = ends.partition_point(|end| !is_illegal(&prefix(items, *end), steps_max));
    match ends.get(first) {
        Some(end) => prefix(items, *end),
        None => items.to_vec(),
    }
}

/// The history at a time. A write that has not finished yet may happen or not.
fn prefix<'a>(items: &[Item<'a>], time: Time) -> Vec<Item<'a>> {
    let started = items.iter().filter(|(_, interval)| interval.start <= time);
    started
        .filter_map(|(operation, interval)| {
            let is_finished = interval.end.is_some_and(|end| end <= time);
            let interval = if is_finished {
                interval.clone()
            } else {
                opened(interval)?
            };
            Some((*operation, interval))
        })
        .collect()
}

/// The interval without an end; none for a call that changes nothing.
fn opened(interval: &Interval) -> Option<Interval> {
    let call = match interval.call {
        Call::Put {
            value, condition, ..
        } => Call::Put {
            value,
            condition,
            revision: None,
        },
        Call::Delete { condition, .. } => Call::Delete {
            condition,
            revision: None,
        },
        _ => return None,
    };
    Some(Interval {
        call,
        start: interval.start,
        end: None,
    })
}

/// Leaves out operations that change nothing, half of them first, then smaller groups.
fn without_observers(mut items: Vec<Item<'_>>, steps_max: u64) -> Vec<Item<'_>> {
    let mut size = items.len() / 2;
    while size > 0 {
        let mut start = 0;
        while start < items.len() {
            let group = start..(start + size).min(items.len());
            let rest: Vec<Item<'_>> = items
                .iter()
                .enumerate()
                .filter(|(index, (_, interval))| {
                    !group.contains(index) || opened(interval).is_some()
                })
                .map(|(_, item)| item.clone())
                .collect();
            if rest.len() < items.len() && is_illegal(&rest, steps_max) {
                items = rest;
            } else {
                start += size;
            }
        }
        size /= 2;
    }
    items
}
