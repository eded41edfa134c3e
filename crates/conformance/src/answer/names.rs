//! Values that differ between runs get names in order of appearance: `<rv1>`, `<uid2>`, `<time>`.
//! Input: a response. Output: the same response, with names. Guarantees: equal values have equal names within one scenario.

use std::sync::LazyLock;

use indexmap::IndexMap;
use regex::{Captures, Regex};

use crate::json::Json;

macro_rules! pattern {
    ($name:ident, $text:literal) => {
        static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($text).expect("the pattern is sound"));
    };
}

pattern!(
    UID,
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
);
pattern!(
    TIME,
    r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"
);
pattern!(JWT, r"\beyJ[\w-]+\.[\w-]+\.[\w-]+");
pattern!(VOLUME, r"kube-api-access-[a-z0-9]{5}\b");
pattern!(AGE, r"\A(\d+[smhdy])+\z");
pattern!(ADDRESS, r"\d+\.\d+\.\d+\.\d+");
pattern!(NODE_PORT, r":(3\d{4})/");
// In the text of an object, whose quotes are escaped once for each text that it is part of.
pattern!(OBJECT_VERSION, r#"(esourceVersion\\*":\\*")(\d+)"#);

/// The length of what a server puts behind `generateName`.
const GENERATED_CHARS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sort {
    Version,
    Uid,
    Token,
    Address,
    Port,
    Generated,
    Volume,
}

impl Sort {
    const fn word(self) -> &'static str {
        match self {
            Self::Version => "rv",
            Self::Uid => "uid",
            Self::Token => "token",
            Self::Address => "ip",
            Self::Port => "port",
            Self::Generated => "gen",
            Self::Volume => "volume",
        }
    }
}

/// The names given so far within one scenario.
pub(crate) struct Names {
    namespace: String,
    id: String,
    /// Every value with its name, in order of appearance.
    seen: IndexMap<(Sort, String), String>,
}

impl Names {
    pub(crate) fn new(namespace: &str, id: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            id: id.to_owned(),
            seen: IndexMap::new(),
        }
    }

    fn name(&mut self, sort: Sort, value: &str) -> String {
        let number = 1 + self.seen.keys().filter(|(other, _)| *other == sort).count();
        self.seen
            .entry((sort, value.to_owned()))
            .or_insert_with(|| format!("<{}{number}>", sort.word()))
            .clone()
    }

    /// A text with everything run-dependent in it named.
    pub(crate) fn text(&mut self, text: &str) -> String {
        let text = text
            .replace(&self.namespace, "{ns}")
            .replace(&self.id, "{id}");
        let text = UID
            .replace_all(&text, |found: &Captures<'_>| {
                self.name(Sort::Uid, &found[0])
            })
            .into_owned();
        let text = TIME.replace_all(&text, "<time>");
        let text = JWT.replace_all(&text, "<jwt>").into_owned();
        let mut text = VOLUME
            .replace_all(&text, |found: &Captures<'_>| {
                self.name(Sort::Volume, &found[0])
            })
            .into_owned();
        // A number of an object is a revision only in the field of that name, a number of a sentence
        // only if it is about revisions.
        let has_object = OBJECT_VERSION.is_match(&text);
        if has_object {
            let named = OBJECT_VERSION.replace_all(&text, |found: &Captures<'_>| {
                let name = self.seen.get(&(Sort::Version, found[2].to_owned()));
                format!("{}{}", &found[1], name.map_or(&found[2], String::as_str))
            });
            text = named.into_owned();
        }
        let versions =
            !has_object && (text.contains("esource version") || text.contains("esourceVersion"));
        for ((sort, value), name) in &self.seen {
            if matches!(sort, Sort::Generated | Sort::Address)
                || (*sort == Sort::Version && versions)
            {
                text = replace_word(&text, value, name);
            }
        }
        text
    }

    /// A value found under `key` with everything run-dependent in it named.
    pub(crate) fn value(&mut self, value: Json, key: &str) -> Json {
        match value {
            Json::Map(map) => self.map(map),
            Json::List(list) => {
                let mut named: Vec<Json> = list
                    .into_iter()
                    .map(|value| self.value(value, key))
                    .collect();
                if key == "managedFields" {
                    named.sort_by_cached_key(|entry| entry.sorted().to_string());
                }
                Json::List(named)
            }
            Json::Text(text) => Json::Text(self.text_at(text, key)),
            Json::Number(number)
                if matches!(key, "nodePort" | "healthCheckNodePort") && !number.is_f64() =>
            {
                Json::Text(self.name(Sort::Port, &number.to_string()))
            }
            value => value,
        }
    }

    fn map(&mut self, mut map: IndexMap<String, Json>) -> Json {
        if let Some(generated) = map.get("metadata").and_then(generated_name) {
            self.name(Sort::Generated, &generated);
        }
        let is_list = matches!(map.get("items"), Some(Json::List(_)))
            || map.get("kind").and_then(Json::as_text) == Some("Table");
        if let (true, Some(Json::Map(metadata))) = (is_list, map.get_mut("metadata")) {
            hide_version(metadata);
        }
        let mut named = IndexMap::with_capacity(map.len());
        for (key, value) in map {
            let name = self.text(&key);
            let value = self.value(value, &key);
            named.insert(name, value);
        }
        Json::Map(named)
    }

    fn text_at(&mut self, text: String, key: &str) -> String {
        match key {
            "cells" if AGE.is_match(&text) => "<age>".to_owned(),
            "cells" => {
                let text = self.addresses(&text);
                let text = NODE_PORT
                    .replace_all(&text, |found: &Captures<'_>| {
                        format!(":{}/", self.name(Sort::Port, &found[1]))
                    })
                    .into_owned();
                self.text(&text)
            }
            "resourceVersion" if text != "0" && is_number(&text) => self.name(Sort::Version, &text),
            "continue" if !text.is_empty() => self.name(Sort::Token, &text),
            "clusterIP" | "clusterIPs" if matches!(text.as_str(), "" | "None") => text,
            "clusterIP" | "clusterIPs" => self.name(Sort::Address, &text),
            _ => self.text(&text),
        }
    }

    /// Names addresses that stand alone, not as part of a longer row of numbers.
    fn addresses(&mut self, text: &str) -> String {
        let joins = |c: char| c.is_numeric() || c == '.';
        let name = |found: &Captures<'_>| {
            let whole = found.get(0).expect("a match has a whole");
            let alone =
                !text[..whole.start()].ends_with(joins) && !text[whole.end()..].starts_with(joins);
            if alone {
                self.name(Sort::Address, whole.as_str())
            } else {
                whole.as_str().to_owned()
            }
        };
        ADDRESS.replace_all(text, name).into_owned()
    }
}

/// The name that a server made from `generateName`.
fn generated_name(metadata: &Json) -> Option<String> {
    let base = metadata.get("generateName")?.as_text()?;
    let name = metadata.get("name")?.as_text()?;
    let suffix = name.strip_prefix(base)?;
    (suffix.chars().count() == GENERATED_CHARS).then(|| name.to_owned())
}

/// The revision of a list is that of the whole store, which others move.
fn hide_version(metadata: &mut IndexMap<String, Json>) {
    if let Some(version) = metadata
        .get_mut("resourceVersion")
        .filter(|version| !matches!(version, Json::Null) && version.as_text() != Some(""))
    {
        *version = Json::text("<list>");
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

/// Replaces `value` where it is not part of a longer word or number.
fn replace_word(text: &str, value: &str, name: &str) -> String {
    let joins = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = None;
    while let Some(c) = rest.chars().next() {
        let after = rest
            .strip_prefix(value)
            .filter(|after| !after.starts_with(joins));
        match after.filter(|_| !before.is_some_and(joins) && !value.is_empty()) {
            Some(after) => {
                replaced.push_str(name);
                before = value.chars().next_back();
                rest = after;
            }
            None => {
                replaced.push(c);
                before = Some(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names one answer after another within one scenario.
    fn check(cases: &[(&str, &str)]) {
        let mut names = Names::new("v12q3q4", "12q3q4");
        for (got, named) in cases {
            let json = |text: &str| Json::parse(text.as_bytes()).expect("the test wrote JSON");
            assert_eq!(
                names.value(json(got), "").to_string(),
                json(named).to_string(),
                "{got}"
            );
        }
    }

    #[test]
    fn equal_values_keep_their_name() {
        check(&[
            (
                r#"{"metadata":{"uid":"0a1b2c3d-0000-4000-8000-00000000000a","resourceVersion":"17"}}"#,
                r#"{"metadata":{"uid":"<uid1>","resourceVersion":"<rv1>"}}"#,
            ),
            (
                r#"{"metadata":{"uid":"0a1b2c3d-0000-4000-8000-00000000000b","resourceVersion":"18"}}"#,
                r#"{"metadata":{"uid":"<uid2>","resourceVersion":"<rv2>"}}"#,
            ),
            (
                r#"{"metadata":{"uid":"0a1b2c3d-0000-4000-8000-00000000000a","resourceVersion":"0"}}"#,
                r#"{"metadata":{"uid":"<uid1>","resourceVersion":"0"}}"#,
            ),
            (
                r#"{"message":"resource version 17 of 17x and 18.5: 18"}"#,
                r#"{"message":"resource version <rv1> of 17x and 18.5: <rv2>"}"#,
            ),
            (r#"{"message":"17 apples"}"#, r#"{"message":"17 apples"}"#),
        ]);
    }

    #[test]
    fn own_names_times_and_tokens_are_named() {
        check(&[
            (
                r#"{"v12q3q4":"x-12q3q4 in v12q3q4"}"#,
                r#"{"{ns}":"x-{id} in {ns}"}"#,
            ),
            (
                r#"{"t":"2026-01-02T03:04:05Z","u":"at 2026-01-02T03:04:05.000123+01:00"}"#,
                r#"{"t":"<time>","u":"at <time>"}"#,
            ),
            (
                r#"{"token":"eyJhbGc.eyJz-dWI.s_ig"}"#,
                r#"{"token":"<jwt>"}"#,
            ),
            (
                r#"{"name":"kube-api-access-x7k2p"}"#,
                r#"{"name":"<volume1>"}"#,
            ),
            (
                r#"{"metadata":{"continue":"abc"}}"#,
                r#"{"metadata":{"continue":"<token1>"}}"#,
            ),
        ]);
    }

    /// `progressDeadlineSeconds` had the name of a revision when that was 600.
    #[test]
    fn numbers_of_an_object_in_a_text_are_no_revisions() {
        check(&[
            (
                r#"{"metadata":{"resourceVersion":"600"}}"#,
                r#"{"metadata":{"resourceVersion":"<rv1>"}}"#,
            ),
            (
                r#"{"message":"invalid: {\"resourceVersion\":\"600\",\"progressDeadlineSeconds\":600}"}"#,
                r#"{"message":"invalid: {\"resourceVersion\":\"<rv1>\",\"progressDeadlineSeconds\":600}"}"#,
            ),
            (
                r#"{"message":"Too large resource version: 9000, current: 600"}"#,
                r#"{"message":"Too large resource version: 9000, current: <rv1>"}"#,
            ),
        ]);
    }

    #[test]
    fn generated_names_are_named_wherever_they_appear() {
        check(&[
            (
                r#"{"metadata":{"name":"job-ab1cd","generateName":"job-"}}"#,
                r#"{"metadata":{"name":"<gen1>","generateName":"job-"}}"#,
            ),
            (
                r#"{"message":"jobs \"job-ab1cd\" and job-ab1cde"}"#,
                r#"{"message":"jobs \"<gen1>\" and job-ab1cde"}"#,
            ),
            (
                r#"{"metadata":{"name":"given","generateName":"job-"}}"#,
                r#"{"metadata":{"name":"given","generateName":"job-"}}"#,
            ),
        ]);
    }

    #[test]
    fn addresses_and_ports_are_named() {
        check(&[
            (
                r#"{"clusterIP":"10.0.0.7","clusterIPs":["10.0.0.7"],"nodePort":30123}"#,
                r#"{"clusterIP":"<ip1>","clusterIPs":["<ip1>"],"nodePort":"<port1>"}"#,
            ),
            (
                r#"{"clusterIP":"None","clusterIPs":["None"]}"#,
                r#"{"clusterIP":"None","clusterIPs":["None"]}"#,
            ),
            (
                r#"{"cells":["svc","10.0.0.7","80:30123/TCP","3h12m","1.2.3.4.5"]}"#,
                r#"{"cells":["svc","<ip1>","80:<port1>/TCP","<age>","1.2.3.4.5"]}"#,
            ),
        ]);
    }

    #[test]
    fn revisions_of_lists_are_hidden() {
        check(&[
            (
                r#"{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"resourceVersion":"8"}}]}"#,
                r#"{"metadata":{"resourceVersion":"<list>"},"items":[{"metadata":{"resourceVersion":"<rv1>"}}]}"#,
            ),
            (
                r#"{"kind":"Table","metadata":{"resourceVersion":"9"}}"#,
                r#"{"kind":"Table","metadata":{"resourceVersion":"<list>"}}"#,
            ),
            (
                r#"{"metadata":{"resourceVersion":""},"items":[]}"#,
                r#"{"metadata":{"resourceVersion":""},"items":[]}"#,
            ),
        ]);
    }

    #[test]
    fn field_owners_are_sorted() {
        check(&[(
            r#"{"managedFields":[{"manager":"b"},{"time":"x","manager":"a"}]}"#,
            r#"{"managedFields":[{"time":"x","manager":"a"},{"manager":"b"}]}"#,
        )]);
    }
}
