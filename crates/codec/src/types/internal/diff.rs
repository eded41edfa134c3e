//! Unified diffs as Python's difflib prints them, whose Go port kube-apiserver uses.
//! In: two texts. Out: a unified diff without a head.
//! Guarantees: of all matching blocks the longest, then the first, is kept; in a long text a
//! popular line starts no block.

use std::{collections::HashMap, ops::Range};

/// Equal lines that are shown around a change.
const CONTEXT: usize = 3;
/// From this many lines on, a line that is more than a hundredth of the text starts no stretch.
const LONG: usize = 200;
/// Longer texts are not compared, because the cost may grow with the square of their length.
const LINES_MAX: usize = 5_000;

/// The unified diff of `old` and `new`; empty for equal texts, and for texts too long to compare.
pub(super) fn unified(old: &str, new: &str) -> String {
    let old: Vec<&str> = old.lines().collect();
    let new: Vec<&str> = new.lines().collect();
    if old.len().max(new.len()) > LINES_MAX {
        return String::new();
    }
    let mut out = String::new();
    for group in grouped(steps(&old, &new)) {
        let first = &group[0];
        let last = &group[group.len() - 1];
        let [before, after] =
            [first.old.start..last.old.end, first.new.start..last.new.end].map(numbers);
        out.push_str(&format!("@@ -{before} +{after} @@\n"));
        for step in group {
            let (gone, come) = if step.equal {
                (' ', None)
            } else {
                ('-', Some(step.new))
            };
            let lines = old[step.old].iter().map(|line| (gone, line));
            for (sign, line) in
                lines.chain(new[come.unwrap_or_default()].iter().map(|line| ('+', line)))
            {
                out.push(sign);
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// Lines of the old text, and the lines of the new one that replace them.
#[derive(Clone)]
struct Step {
    equal: bool,
    old: Range<usize>,
    new: Range<usize>,
}

/// From the first line to the last.
fn steps(old: &[&str], new: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut i = 0;
    let mut j = 0;
    for stretch in stretches(old, new).into_iter().chain([Stretch {
        old: old.len(),
        new: new.len(),
        length: 0,
    }]) {
        if i < stretch.old || j < stretch.new {
            steps.push(Step {
                equal: false,
                old: i..stretch.old,
                new: j..stretch.new,
            });
        }
        (i, j) = (stretch.old + stretch.length, stretch.new + stretch.length);
        match steps.last_mut() {
            Some(last) if last.equal => (last.old.end, last.new.end) = (i, j),
            _ if stretch.length > 0 => steps.push(Step {
                equal: true,
                old: stretch.old..i,
                new: stretch.new..j,
            }),
            _ => {}
        }
    }
    steps
}

/// A block of lines that both texts have.
struct Stretch {
    old: usize,
    new: usize,
    length: usize,
}

/// The equal stretches, in order: the longest one, and then those before and after it.
fn stretches(old: &[&str], new: &[&str]) -> Vec<Stretch> {
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (j, line) in new.iter().enumerate() {
        places.entry(line).or_default().push(j);
    }
    if new.len() >= LONG {
        places.retain(|_, at| at.len() <= new.len() / 100 + 1);
    }
    let mut found = Vec::new();
    let mut open = vec![(0..old.len(), 0..new.len())];
    while let Some((in_old, in_new)) = open.pop() {
        let Some(stretch) = longest(old, new, &places, in_old.clone(), in_new.clone()) else {
            continue;
        };
        open.push((in_old.start..stretch.old, in_new.start..stretch.new));
        open.push((
            stretch.old + stretch.length..in_old.end,
            stretch.new + stretch.length..in_new.end,
        ));
        found.push(stretch);
    }
    found.sort_unstable_by_key(|stretch| stretch.old);
    found
}

fn longest(
    old: &[&str],
    new: &[&str],
    places: &HashMap<&str, Vec<usize>>,
    in_old: Range<usize>,
    in_new: Range<usize>,
) -> Option<Stretch> {
    let mut best = Stretch {
        old: in_old.start,
        new: in_new.start,
        length: 0,
    };
    // How long the stretch is that ends with the line before and the key.
    let mut ends: HashMap<usize, usize> = HashMap::new();
    for i in in_old.clone() {
        let mut here = HashMap::new();
        for &j in places
            .get(old[i])
            .into_iter()
            .flatten()
            .filter(|j| in_new.contains(j))
        {
            let length = 1 + j
                .checked_sub(1)
                .and_then(|before| ends.get(&before))
                .unwrap_or(&0);
            here.insert(j, length);
            if length > best.length {
                best = Stretch {
                    old: i + 1 - length,
                    new: j + 1 - length,
                    length,
                };
            }
        }
        ends = here;
    }
    // Lines that are everywhere start no stretch, but belong to the one that they touch.
    while best.old > in_old.start
        && best.new > in_new.start
        && old[best.old - 1] == new[best.new - 1]
    {
        best = Stretch {
            old: best.old - 1,
            new: best.new - 1,
            length: best.length + 1,
        };
    }
    let rest = old[best.old + best.length..in_old.end]
        .iter()
        .zip(&new[best.new + best.length..in_new.end]);
    best.length += rest.take_while(|(old, new)| old == new).count();
    (best.length > 0).then_some(best)
}

/// The changes with their context, grouped in hunks.
fn grouped(mut steps: Vec<Step>) -> Vec<Vec<Step>> {
    if let Some(first) = steps.first_mut().filter(|step| step.equal) {
        *first = last_lines(first);
    }
    if let Some(last) = steps.last_mut().filter(|step| step.equal) {
        *last = first_lines(last);
    }
    let mut groups = vec![Vec::new()];
    for step in steps {
        if step.equal && step.old.len() > 2 * CONTEXT {
            groups
                .last_mut()
                .expect("there is a group from the start")
                .push(first_lines(&step));
            groups.push(vec![last_lines(&step)]);
        } else {
            groups
                .last_mut()
                .expect("there is a group from the start")
                .push(step);
        }
    }
    groups.retain(|group| group.iter().any(|step| !step.equal));
    groups
}

fn first_lines(step: &Step) -> Step {
    let cut = |lines: &Range<usize>| lines.start..lines.end.min(lines.start + CONTEXT);
    Step {
        equal: true,
        old: cut(&step.old),
        new: cut(&step.new),
    }
}

fn last_lines(step: &Step) -> Step {
    let cut = |lines: &Range<usize>| lines.start.max(lines.end.saturating_sub(CONTEXT))..lines.end;
    Step {
        equal: true,
        old: cut(&step.old),
        new: cut(&step.new),
    }
}

/// Lines as a diff numbers them: from one, and an empty range by the line before it.
fn numbers(lines: Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => (lines.start + 1).to_string(),
        length => format!("{},{length}", lines.start + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, new: &str, expected: &str) {
        let lines = |text: &str| text.split_whitespace().collect::<Vec<_>>().join("\n");
        assert_eq!(
            unified(&lines(old), &lines(new)).replace('\n', "|"),
            expected,
            "{old} to {new}"
        );
    }

    #[test]
    fn changes_are_grouped_with_their_surroundings() {
        check("a b c", "a b c", "");
        check("a b c", "a x c", "@@ -1,3 +1,3 @@| a|-b|+x| c|");
        check("", "a", "@@ -0,0 +1 @@|+a|");
        check("a b", "b", "@@ -1,2 +1 @@|-a| b|");
        check(
            "1 2 3 4 5 6 7 8 9",
            "1 2 3 4 x 6 7 8 9",
            "@@ -2,7 +2,7 @@| 2| 3| 4|-5|+x| 6| 7| 8|",
        );
        check(
            "a 1 2 3 4 5 6 b",
            "x 1 2 3 4 5 6 y",
            "@@ -1,8 +1,8 @@|-a|+x| 1| 2| 3| 4| 5| 6|-b|+y|",
        );
        check(
            "a 1 2 3 4 5 6 7 b",
            "x 1 2 3 4 5 6 7 y",
            "@@ -1,4 +1,4 @@|-a|+x| 1| 2| 3|@@ -6,4 +6,4 @@| 5| 6| 7|-b|+y|",
        );
        // The longest stretch is kept, though keeping more of shorter ones would change less.
        check("a b", "a c a b", "@@ -1,2 +1,4 @@|+a|+c| a| b|");
    }

    #[test]
    fn lines_that_are_everywhere_start_no_stretch_in_long_texts() {
        let long = |first: &str| format!("{first} {}", "x ".repeat(LONG));
        let tail = "-x|".repeat(LONG);
        check(
            &format!("{}a", long("")),
            &long("b"),
            &format!("@@ -1,201 +1,201 @@|{tail}-a|+b|{}", "+x|".repeat(LONG)),
        );
        assert_eq!(unified(&"y\n".repeat(LINES_MAX + 1), "x"), "");
    }
}
