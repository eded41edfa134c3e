//! Completion indexes of an indexed Job, as in `status.completedIndexes`: `0-2,5,7-9`.
//!
//! Input: indexes or text. Output: a set; its text.
//! Guarantees: memory is proportional to the number of ranges; malformed entries are ignored.

use std::collections::BTreeMap;
use std::fmt;

/// A set of completion indexes. Upstream: orderedIntervals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CompletionIndexes {
    /// First and last index of each range. Invariant: ranges neither touch nor overlap.
    ranges: BTreeMap<i32, i32>,
}

impl CompletionIndexes {
    /// Parses the text; indexes from `completions` on are ignored. Mirrors parseIndexesFromString.
    pub(super) fn parse(text: &str, completions: i32) -> Self {
        let mut indexes = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
                indexes.insert_range(first.max(0), last.min(completions - 1));
            }
        }
        indexes
    }

    pub(super) fn insert(&mut self, index: i32) {
        self.insert_range(index, index);
    }

    fn insert_range(&mut self, mut first: i32, mut last: i32) {
        if first > last {
            return;
        }
        // Adjacent ranges are merged as well (`0-2` and `3` are `0-3`): the text is compared with
        // that of the stored status.
        let touching: Vec<_> = self
            .ranges
            .range(..=last.saturating_add(1))
            .rev()
            .take_while(|(_, other_last)| other_last.saturating_add(1) >= first)
            .map(|(first, last)| (*first, *last))
            .collect();
        for (other_first, other_last) in touching {
            self.ranges.remove(&other_first);
            first = first.min(other_first);
            last = last.max(other_last);
        }
        self.ranges.insert(first, last);
    }

    pub(super) fn contains(&self, index: i32) -> bool {
        self.ranges
            .range(..=index)
            .next_back()
            .is_some_and(|(_, last)| *last >= index)
    }

    /// Number of indexes.
    pub(super) fn len(&self) -> i32 {
        self.ranges
            .iter()
            .map(|(first, last)| last - first + 1)
            .sum()
    }

    /// Adds all indexes of another set.
    pub(super) fn merge(&mut self, other: &Self) {
        other
            .ranges
            .iter()
            .for_each(|(first, last)| self.insert_range(*first, *last));
    }

    /// Number of indexes in both sets.
    pub(super) fn intersection_len(&self, other: &Self) -> i32 {
        let overlap = |(first, last): (&i32, &i32)| -> i32 {
            let before = other.ranges.range(..*first).next_back();
            let within = before.into_iter().chain(other.ranges.range(*first..=*last));
            within
                .map(|(other_first, other_last)| {
                    (last.min(other_last) - first.max(other_first) + 1).max(0)
                })
                .sum()
        };
        self.ranges.iter().map(overlap).sum()
    }

    /// The first `count` indexes below `completions` that are not in the set. Mirrors
    /// firstPendingIndexes.
    pub(super) fn first_pending(&self, completions: i32, count: usize) -> Vec<i32> {
        let mut pending = Vec::new();
        let mut candidate = 0;
        for (first, last) in self.ranges.iter().chain([(&completions, &completions)]) {
            let gap = candidate..(*first).min(completions);
            pending.extend(gap.take(count - pending.len()));
            if pending.len() == count {
                break;
            }
            candidate = last + 1;
        }
        pending
    }
}

impl fmt::Display for CompletionIndexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_parsed_and_formatted_as_upstream() {
        for (text, completions, written, count) in [
            ("", 10, "", 0),
            ("3", 10, "3", 1),
            ("0-2,4", 10, "0-2,4", 4),
            ("0,1", 10, "0,1", 2),
            ("0,1,2", 10, "0-2", 3),
            ("5-20", 10, "5-9", 5),
            ("12", 10, "", 0),
            ("what,4,x-y", 10, "4", 1),
            ("4,0-3,9", 10, "0-4,9", 6),
        ] {
            let indexes = CompletionIndexes::parse(text, completions);
            assert_eq!(indexes.to_string().as_str(), written, "{text:?}");
            assert_eq!(indexes.len(), count, "{text:?}");
        }
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut indexes = CompletionIndexes::default();
        for index in [5, 7, 6, 0, 6, 1] {
            indexes.insert(index);
        }
        assert_eq!(indexes.to_string(), "0,1,5-7");
        assert!(indexes.contains(6));
        assert!(!indexes.contains(4));
        assert!(!indexes.contains(8));
    }

    #[test]
    fn first_pending_indexes_are_in_order() {
        let indexes = CompletionIndexes::parse("0,1,4-6,9", 10);
        assert_eq!(indexes.first_pending(10, 3), [2, 3, 7]);
        assert_eq!(indexes.first_pending(10, 99), [2, 3, 7, 8]);
        assert_eq!(indexes.first_pending(3, 99), [2]);
        assert_eq!(CompletionIndexes::default().first_pending(2, 5), [0, 1]);
        assert_eq!(indexes.first_pending(10, 0), Vec::<i32>::new());
    }

    #[test]
    fn intersection_is_symmetric() {
        let indexes = CompletionIndexes::parse("0-4,8,10-20", 100);
        for (other, count) in [
            ("0-100", 17),
            ("3-9", 3),
            ("5-7", 0),
            ("20", 1),
            ("4,8,10,15-16", 5),
        ] {
            assert_eq!(
                indexes.intersection_len(&CompletionIndexes::parse(other, 100)),
                count,
                "{other}"
            );
            assert_eq!(
                CompletionIndexes::parse(other, 100).intersection_len(&indexes),
                count,
                "{other}"
            );
        }
    }
}
