//! The text of an expression, and its errors.
//! In: the text and offsets in it. Out: messages that show the line and mark the column, as
//! kube-apiserver prints them.
//! Guarantees: offsets count code points; messages are sorted by offset.

use std::fmt;

/// Lines longer than this are not repeated in a message.
const SNIPPET_MAX: usize = 16_384;
/// Further problems are only counted.
const ISSUES_MAX: usize = 100;

/// A place in the text, in code points from its beginning.
pub(crate) type Offset = u32;

/// One problem of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Issue {
    /// None when the problem is of the expression as a whole.
    at: Option<Offset>,
    message: String,
}

/// The errors of an expression. Prints as kube-apiserver does: every problem with its line and a
/// mark below the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issues {
    source: Source,
    found: Vec<Issue>,
    left_out: usize,
}

impl Issues {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            found: Vec::new(),
            left_out: 0,
        }
    }

    pub(crate) fn report(&mut self, at: Option<Offset>, message: impl Into<String>) {
        if self.found.len() < ISSUES_MAX {
            self.found.push(Issue {
                at,
                message: message.into(),
            });
        } else {
            self.left_out += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut found: Vec<&Issue> = self.found.iter().collect();
        // Issues of the whole expression are first.
        found.sort_by_key(|issue| {
            issue
                .at
                .map_or((0, 0), |at| self.source.line_and_column(at))
        });
        for (i, issue) in found.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            self.source.show(issue, f)?;
        }
        if self.left_out > 0 {
            write!(f, "\n{} more errors were truncated", self.left_out)?;
        }
        Ok(())
    }
}

impl std::error::Error for Issues {}

/// The text of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    text: String,
}

impl Source {
    pub(crate) fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
        }
    }

    /// The line, counted from one, and the column, counted from zero.
    fn line_and_column(&self, at: Offset) -> (usize, usize) {
        let mut place = (1, 0);
        for c in self.text.chars().take(at as usize) {
            place = if c == '\n' {
                (place.0 + 1, 0)
            } else {
                (place.0, place.1 + 1)
            };
        }
        place
    }

    fn show(&self, issue: &Issue, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(at) = issue.at else {
            return write!(f, "ERROR: <input>:-1:0: {}", issue.message);
        };
        let (line, column) = self.line_and_column(at);
        write!(f, "ERROR: <input>:{line}:{}: {}", column + 1, issue.message)?;
        let text = self.text.split('\n').nth(line - 1).unwrap_or_default();
        if text.len() > SNIPPET_MAX {
            return Ok(());
        }
        write!(f, "\n | {}\n | ", text.replace('\t', " "))?;
        let is_wide = |c: char| c.len_utf8() > 1;
        for c in text.chars().take(column) {
            f.write_str(if is_wide(c) { "．" } else { "." })?;
        }
        f.write_str(if text.chars().nth(column).is_some_and(is_wide) {
            "＾"
        } else {
            "^"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_shown_in_order_with_their_line() {
        let mut issues = Issues::new(Source::new("a +\n\tüb"));
        issues.report(Some(6), "second");
        issues.report(Some(2), "first");
        issues.report(None, "whole");
        assert_eq!(
            issues.to_string(),
            "ERROR: <input>:-1:0: whole\nERROR: <input>:1:3: first\n | a +\n | ..^\nERROR: <input>:2:3: second\n |  üb\n | .．^"
        );
    }

    #[test]
    fn only_the_first_hundred_problems_are_shown() {
        let mut issues = Issues::new(Source::new("x"));
        (0..150).for_each(|_| issues.report(Some(0), "bad"));
        assert!(
            issues
                .to_string()
                .ends_with("\n50 more errors were truncated")
        );
    }
}
