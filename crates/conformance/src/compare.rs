//! Compares expected and actual responses.
//! Input: two responses and what of them is compared. Output: every difference as a line:
//! `body.metadata.name: expected "a", got "b"`.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use crate::{json::Json, scenario::Comparison};

/// Texts in a difference are cut after this many characters.
const SHOWN_CHARS: usize = 300;

/// Characters of cut texts before their first difference.
const CONTEXT_CHARS: usize = 60;

/// The differences between the recorded answer and `got`, with keys of `without` left out everywhere.
pub(crate) fn compare(comparison: &Comparison, got: &Json, without: &[String]) -> Vec<String> {
    let counted = |answer: &Json| counted(comparison, answer.clone()).without(without);
    let mut found = Vec::new();
    differences(&counted(&comparison.expect), &counted(got), "", &mut found);
    found
}

/// What counts of an answer.
fn counted(comparison: &Comparison, mut answer: Json) -> Json {
    answer.leave_out("headers.vary");
    if let (Some(only), Json::Map(map)) = (&comparison.only, &mut answer)
        && let Some(body @ Json::Map(_)) = map.get_mut("body")
    {
        let kept: IndexMap<String, Json> = only
            .iter()
            .map(|path| (path.clone(), body.at(path).cloned().unwrap_or_else(absent)))
            .collect();
        *body = Json::Map(kept);
    }
    let mut ignored: Vec<&String> = comparison.ignore.iter().collect();
    // From the last place of a list to the first, so that leaving one out does not move the next.
    ignored.sort_by_cached_key(|path| {
        std::cmp::Reverse(path.split('.').map(place).collect::<Vec<_>>())
    });
    for path in ignored {
        answer.leave_out(path);
    }
    answer
}

fn place(part: &str) -> (bool, u64, &str) {
    match part.parse() {
        Ok(number) => (false, number, ""),
        Err(_) => (true, 0, part),
    }
}

fn absent() -> Json {
    Json::text("<absent>")
}

fn differences(want: &Json, got: &Json, path: &str, found: &mut Vec<String>) {
    match (want, got) {
        (Json::Map(a), Json::Map(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let a = a.get(key).cloned().unwrap_or_else(absent);
                let b = b.get(key).cloned().unwrap_or_else(absent);
                differences(&a, &b, &format!("{path}.{key}"), found);
            }
        }
        (Json::List(a), Json::List(b)) if a.len() == b.len() => {
            for (place, (a, b)) in a.iter().zip(b).enumerate() {
                differences(a, b, &format!("{path}.{place}"), found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => {
            let (a, b) = shown(&a.to_string(), &b.to_string());
            found.push(format!(
                "{}: expected {a}, got {b}",
                path.trim_start_matches('.')
            ));
        }
    }
}

/// The parts of two texts that show how they differ: the beginning, if the first difference is
/// there, otherwise what surrounds that difference.
fn shown(a: &str, b: &str) -> (String, String) {
    let equal = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    let skipped = match equal < SHOWN_CHARS {
        true => 0,
        false => equal - CONTEXT_CHARS,
    };
    let cut = |text: &str| {
        let part = text.chars().skip(skipped).take(SHOWN_CHARS);
        let omission = if skipped > 0 { "…" } else { "" };
        format!("{omission}{}", part.collect::<String>())
    };
    (cut(a), cut(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.as_bytes()).expect("the test wrote JSON")
    }

    fn check(want: &str, got: &str, only: Option<&[&str]>, ignore: &[&str], found: &[&str]) {
        let owned = |paths: &[&str]| {
            paths
                .iter()
                .map(|path| (*path).to_owned())
                .collect::<Vec<String>>()
        };
        let comparison = Comparison {
            expect: json(want),
            only: only.map(owned),
            ignore: owned(ignore),
        };
        assert_eq!(
            compare(&comparison, &json(got), &["skipped".to_owned()]),
            found,
            "{want} against {got}"
        );
    }

    #[test]
    fn differences_name_their_place() {
        check(
            r#"{"status":200,"body":{"a":[1,{"b":2}]}}"#,
            r#"{"status":200,"body":{"a":[1,{"b":2}]}}"#,
            None,
            &[],
            &[],
        );
        check(
            r#"{"status":200}"#,
            r#"{"status":404}"#,
            None,
            &[],
            &["status: expected 200, got 404"],
        );
        check(
            r#"{"body":{"a":[1,{"b":2}]}}"#,
            r#"{"body":{"a":[1,{"b":"x"}]}}"#,
            None,
            &[],
            &["body.a.1.b: expected 2, got \"x\""],
        );
        check(
            r#"{"body":{"a":[1]}}"#,
            r#"{"body":{"a":[1,2]}}"#,
            None,
            &[],
            &["body.a: expected [1], got [1, 2]"],
        );
        check(
            r#"{"body":{"a":1}}"#,
            r#"{"body":{"b":1}}"#,
            None,
            &[],
            &[
                "body.a: expected 1, got \"<absent>\"",
                "body.b: expected \"<absent>\", got 1",
            ],
        );
    }

    #[test]
    fn only_selected_fields_are_compared() {
        check(
            r#"{"headers":{"vary":"a"},"body":{"skipped":1}}"#,
            r#"{"headers":{"vary":"b"},"body":{"skipped":2}}"#,
            None,
            &[],
            &[],
        );
        check(
            r#"{"body":{"a":1,"b":2}}"#,
            r#"{"body":{"a":1,"b":3}}"#,
            Some(&["a"]),
            &[],
            &[],
        );
        check(
            r#"{"body":{"a":1}}"#,
            r#"{"body":{}}"#,
            Some(&["a"]),
            &[],
            &["body.a: expected 1, got \"<absent>\""],
        );
        check(
            r#"{"body":"text"}"#,
            r#"{"body":"other"}"#,
            Some(&["a"]),
            &[],
            &["body: expected \"text\", got \"other\""],
        );
        check(
            r#"{"body":{"l":[0,1,2,3]}}"#,
            r#"{"body":{"l":[9,1,8,3]}}"#,
            None,
            &["body.l.0", "body.l.2"],
            &[],
        );
        check(
            r#"{"events":[1,2,3,4,5,6,7,8,9,10,11]}"#,
            r#"{"events":[1,2,0,4,5,6,7,8,9,10,0]}"#,
            None,
            &["events.2", "events.10"],
            &[],
        );
    }

    #[test]
    fn long_texts_are_cut() {
        let long = format!(r#"{{"body":"{}"}}"#, "x".repeat(1000));
        let comparison = Comparison {
            expect: json(&long),
            only: None,
            ignore: Vec::new(),
        };
        let found = compare(&comparison, &json(r#"{"body":""}"#), &[]);
        assert_eq!(
            found[0].len(),
            "body: expected , got \"\"".len() + SHOWN_CHARS
        );
    }

    #[test]
    fn long_texts_are_shown_from_their_first_difference() {
        let long = "x".repeat(1000);
        let comparison = Comparison {
            expect: json(&format!(r#"{{"body":"{long}a"}}"#)),
            only: None,
            ignore: Vec::new(),
        };
        let found = compare(&comparison, &json(&format!(r#"{{"body":"{long}b"}}"#)), &[]);
        let context = "x".repeat(CONTEXT_CHARS);
        assert_eq!(
            found,
            [format!("body: expected …{context}a\", got …{context}b\"")]
        );
    }
}
