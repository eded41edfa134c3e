//! The vocabulary of the repository: terms that are replaced by the established ones.
//!
//! Input: one file. Output: every banned term with its replacement.
//!
//! Identifiers are split at `_` and at CamelCase boundaries, and matched without case. A term of
//! several words also matches across a line break in a comment. Terms must be unambiguous: a word
//! that has a legitimate use, such as `part` or `note`, is not in the table.

use super::{File, Finding};

/// Paths that are not checked yet, as prefixes. Remove an entry once its files use the vocabulary.
const EXCLUDED: &[&str] = &[
    // Descriptions of Kubernetes.
    "crates/resources/src/print/descriptions.rs",
    // Names a type of libtest-mimic.
    "crates/cli/tests/clients/client.rs",
    // Names SCM_RIGHTS.
    "crates/process-runtime/src/frame.rs",
    // Lists the replaced terms.
    "docs/decisions/0001-vocabulary-of-the-api-server.md",
    // The table of types is generated for the API server.
    "xtask/src/types.rs",
];

/// This file, which has all terms.
const SELF: &str = "xtask/src/tidy/vocabulary.rs";

/// File types that are checked.
const EXTENSIONS: &[&str] = &[".rs", ".md", ".toml", ".yaml", ".yml"];

/// Where a term is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// In all text, without case.
    Text,
    /// In Rust files, as a word of a CamelCase identifier: the lower-case word is legitimate.
    Type,
}

/// A banned term and what to write instead.
struct Term {
    /// One or more lower-case words, separated by spaces.
    words: &'static str,
    scope: Scope,
    instead: &'static str,
}

const fn text(words: &'static str, instead: &'static str) -> Term {
    Term {
        words,
        scope: Scope::Text,
        instead,
    }
}

const fn type_name(words: &'static str, instead: &'static str) -> Term {
    Term {
        words,
        scope: Scope::Type,
        instead,
    }
}

const TERMS: &[Term] = &[
    text("afresh", "write again, reset or recreate"),
    text("anew", "write again, reset or recreate"),
    text("are asked", "write are requested"),
    text("are told", "write receive, or name the mechanism"),
    text("asker", "write request attributes or user"),
    text("asks for", "write requests or specifies"),
    text(
        "at once",
        "write immediately, concurrently, or at most N at a time",
    ),
    text("became of", "write result or outcome"),
    text("bell", "write notifier"),
    text("blames", "write reports"),
    text("booked", "write tracked, or managed by a field manager"),
    text("came of", "write result or outcome"),
    text("came true", "write reconciled"),
    text("choreography", "write timeline or reconcile trace"),
    text("come true", "write reconciled"),
    text("comes true", "write reconciled"),
    text("everybody", "write all users, or name the group"),
    text("facets", "write selectable fields, labels or attributes"),
    text("forgive", "write tolerate"),
    text("forgiven", "write tolerated"),
    text("forgives", "write tolerates"),
    text("glance", "write decode without caching"),
    text("goes away", "write disconnects, ends or is deleted"),
    text("goes on", "write continues"),
    text("hear", "write receive"),
    text("heard", "write received"),
    text("hears", "write receives"),
    text("in its words", "write with its message"),
    text("in vain", "name the timeout or error"),
    text("is going", "write is terminating"),
    text("is told", "write receives, or name the mechanism"),
    text("lead nowhere", "write is not served, or cannot be resolved"),
    text(
        "leads nowhere",
        "write is not served, or cannot be resolved",
    ),
    text("made true", "write reconciled"),
    text("mould", "write template"),
    text(
        "not there yet",
        "write does not exist yet, or is in the future",
    ),
    text("of no use", "write unspecified, or cannot be used"),
    text("of ours", "name the owner"),
    text("orphanage", "write orphan index"),
    text("patience", "write timeout"),
    text("rights", "write permissions or RBAC rules"),
    text("rung", "write notified"),
    text("said", "write reported, returned, logged or specified"),
    text("shelf", "write collection or ResourceStore"),
    text("shelves", "write collections"),
    text("so many", "write N, several or many"),
    text("somebody", "name the client, user or component"),
    text("stand for", "write represent, match or are"),
    text("stands", "write is"),
    text("suffer", "write inject"),
    text("suffers", "write inject"),
    text("survives any", "write converges after or under"),
    text("tell of", "write log, record or notify"),
    text("tells", "write notifies, records, logs, reports or returns"),
    text("to the letter", "write exactly, or byte for byte"),
    text(
        "told",
        "write notified, recorded, logged, reported or returned",
    ),
    text("unless said", "write default: X"),
    text("wakes", "write enqueues"),
    text("was asked", "write was requested"),
    text("weather", "write faults or fault injector"),
    text("were asked", "write were requested"),
    text("whoever", "name the client, user or component"),
    text("woken", "write enqueued"),
    type_name("deed", "write node update or action"),
    type_name("fate", "write result"),
    type_name("figures", "write metrics"),
    type_name("notes", "write annotations or events"),
    type_name("people", "write commands"),
    type_name("standing", "write phase"),
    type_name("story", "write timeline or reconcile trace"),
    type_name("trial", "write scenario, case or filter"),
    type_name("watchman", "write reconciler"),
    type_name("world", "write test cluster"),
];

/// Every banned term in a file.
pub(super) fn banned_terms(file: &File) -> Vec<Finding> {
    let is_checked = EXTENSIONS.iter().any(|end| file.path.ends_with(end))
        && file.path != SELF
        && !EXCLUDED.iter().any(|prefix| file.path.starts_with(prefix));
    if !is_checked {
        return Vec::new();
    }
    let words = words(&file.text);
    let is_rust = file.path.ends_with(".rs");
    let mut findings = Vec::new();
    for start in 0..words.len() {
        for term in TERMS {
            if (is_rust || term.scope == Scope::Text) && matches(&words[start..], term) {
                findings.push(Finding {
                    file: file.path.clone(),
                    line: words[start].line,
                    problem: format!("uses the term {:?}", term.words),
                    fix: term.instead,
                });
            }
        }
    }
    findings
}

/// A word of a text, or a part of an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word<'a> {
    text: &'a str,
    /// Counted from 1.
    line: usize,
    /// Whether only white space, comment markers, `_` or a CamelCase boundary separate it from the
    /// previous word.
    is_adjacent: bool,
}

/// Whether the first words are those of a term.
fn matches(words: &[Word<'_>], term: &Term) -> bool {
    let mut expected = term.words.split(' ');
    let mut actual = words.iter();
    let Some(first) = expected.next().zip(actual.next()) else {
        return false;
    };
    let (first, word) = first;
    let has_case = term.scope == Scope::Text || word.text.starts_with(char::is_uppercase);
    has_case
        && word.text.eq_ignore_ascii_case(first)
        && expected.all(|expected| {
            actual
                .next()
                .is_some_and(|word| word.is_adjacent && word.text.eq_ignore_ascii_case(expected))
        })
}

/// The words of a text, with identifiers split at `_` and CamelCase boundaries.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut line = 1;
    let mut is_adjacent = false;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_alphanumeric() {
            let length = word_length(rest);
            words.push(Word {
                text: &rest[..length],
                line,
                is_adjacent,
            });
            is_adjacent = true;
            rest = &rest[length..];
        } else {
            line += usize::from(first == '\n');
            is_adjacent &= first.is_whitespace() || "_/!#*".contains(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    words
}

/// The length of the word at the start of a text: `parse` of `parse_all`, `Test` of `TestCluster`,
/// `HTTP` of `HTTPServer`.
fn word_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut end = 1;
    while end < bytes.len() && bytes[end].is_ascii_alphanumeric() {
        let is_upper = bytes[end].is_ascii_uppercase();
        let after_lower = !bytes[end - 1].is_ascii_uppercase();
        let before_lower = bytes.get(end + 1).is_some_and(u8::is_ascii_lowercase);
        if is_upper && (after_lower || before_lower) {
            break;
        }
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines and terms that are found in a text.
    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        banned_terms(&File {
            path: path.to_owned(),
            text: text.to_owned(),
        })
        .into_iter()
        .map(|finding| (finding.line, finding.problem))
        .collect()
    }

    fn check(text: &str, expected: &[(usize, &str)]) {
        let expected: Vec<(usize, String)> = expected
            .iter()
            .map(|(line, term)| (*line, format!("uses the term {term:?}")))
            .collect();
        assert_eq!(found("crates/a/src/lib.rs", text), expected, "{text}");
    }

    #[test]
    fn terms_are_found_in_prose_without_case() {
        check("// Keys are added at once.", &[(1, "at once")]);
        check("// AT ONCE", &[(1, "at once")]);
        check("a\n// The server tells it.", &[(2, "tells")]);
    }

    #[test]
    fn terms_are_found_in_identifiers() {
        check("fn is_going() {}", &[(1, "is going")]);
        check("struct OldShelf;", &[(1, "shelf")]);
        check("let tell_of = 1;", &[(1, "tell of")]);
        check("struct AtOnce;", &[(1, "at once")]);
        check("const SHELF: u8 = 1;", &[(1, "shelf")]);
    }

    #[test]
    fn terms_are_found_across_lines_of_a_comment() {
        check("/// Keys are added at\n/// once.", &[(1, "at once")]);
        check("# at\n# once", &[(1, "at once")]);
    }

    #[test]
    fn words_match_as_a_whole() {
        check("use bellerophon::Manager;", &[]);
        check("// foretold, at most once, bellows", &[]);
        check("// Look at it. Once more.", &[]);
        check("at(once)", &[]);
    }

    #[test]
    fn type_terms_match_camel_case_only() {
        check("struct World;", &[(1, "world")]);
        check("struct WorldView;", &[(1, "world")]);
        check("// hello world; a standing order; two people", &[]);
        assert_eq!(found("a.md", "Hello, World"), []);
    }

    #[test]
    fn excluded_paths_and_other_file_types_are_skipped() {
        assert_eq!(found("xtask/src/types.rs", "shelf"), []);
        assert_eq!(found("docs/nodes.md", "shelf").len(), 1);
        assert_eq!(found("a.html", "shelf"), []);
        assert_eq!(found("docs/operators/reboot.md", "shelf").len(), 1);
    }

    #[test]
    fn identifiers_are_split_into_words() {
        let split = |text| -> Vec<String> {
            let words = words(text);
            words.iter().map(|word| word.text.to_owned()).collect()
        };
        assert_eq!(split("parse_all"), ["parse", "all"]);
        assert_eq!(split("TestCluster"), ["Test", "Cluster"]);
        assert_eq!(split("HTTPServer2"), ["HTTP", "Server2"]);
        assert_eq!(split("MAX_AGE"), ["MAX", "AGE"]);
    }

    #[test]
    fn terms_are_lower_case_and_sorted_in_each_scope() {
        for scope in [Scope::Text, Scope::Type] {
            let words: Vec<&str> = TERMS
                .iter()
                .filter(|term| term.scope == scope)
                .map(|term| term.words)
                .collect();
            assert!(words.is_sorted(), "{words:?}");
            for word in words {
                assert_eq!(word, word.to_lowercase());
            }
        }
    }
}
