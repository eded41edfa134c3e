//! Values in the requests of a scenario: `{ns}`, `{id}` and saved values.
//! Input: a text with names in braces. Output: the text with values; a name without a value is kept.

use std::sync::LazyLock;

use indexmap::IndexMap;
use regex::{Captures, Regex};

use crate::json::Json;

static NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{(\w+)\}").expect("the pattern is sound"));

/// The values of one scenario so far, by name.
pub(crate) struct Values(IndexMap<String, Json>);

impl Values {
    /// The values every scenario starts with.
    pub(crate) fn new(namespace: &str, id: &str) -> Self {
        Self(IndexMap::from([
            ("ns".to_owned(), Json::text(namespace)),
            ("id".to_owned(), Json::text(id)),
        ]))
    }

    /// Keeps a value for later steps; one that was not there is visibly missing.
    pub(crate) fn save(&mut self, name: &str, value: Option<Json>) {
        self.0.insert(
            name.to_owned(),
            value.unwrap_or_else(|| Json::text("<missing>")),
        );
    }

    pub(crate) fn fill(&self, text: &str) -> String {
        let value = |found: &Captures<'_>| {
            self.0
                .get(&found[1])
                .map_or_else(|| found[0].to_owned(), Json::unquoted)
        };
        NAME.replace_all(text, value).into_owned()
    }

    /// Fills every key and text of a body.
    pub(crate) fn fill_json(&self, json: &Json) -> Json {
        match json {
            Json::Text(text) => Json::Text(self.fill(text)),
            Json::List(list) => {
                Json::List(list.iter().map(|value| self.fill_json(value)).collect())
            }
            Json::Map(map) => Json::Map(
                map.iter()
                    .map(|(key, value)| (self.fill(key), self.fill_json(value)))
                    .collect(),
            ),
            value => value.clone(),
        }
    }

    /// Fills a path and makes it fit for a request line. `<` and `>` are escaped too: no URI may hold them.
    pub(crate) fn fill_path(&self, path: &str) -> String {
        let mut quoted = String::new();
        for byte in self.fill(path).bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => quoted.push(char::from(byte)),
                byte if b"/?&=%:,.!()+~*'@$-_".contains(&byte) => quoted.push(char::from(byte)),
                byte => quoted.push_str(&format!("%{byte:02X}")),
            }
        }
        quoted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_filled_and_others_stay() {
        let mut values = Values::new("v1", "w");
        values.save("rv", Some(Json::number(7)));
        values.save("gone", None);
        let cases = [
            ("/namespaces/{ns}/x-{id}", "/namespaces/v1/x-w"),
            ("?resourceVersion={rv}", "?resourceVersion=7"),
            ("{gone} {unknown} {}", "<missing> {unknown} {}"),
        ];
        for (text, filled) in cases {
            assert_eq!(values.fill(text), filled);
        }
        let body = Json::parse(br#"{"{id}":["{ns}",1]}"#).expect("the test wrote JSON");
        assert_eq!(values.fill_json(&body).to_string(), r#"{"w": ["v1", 1]}"#);
    }

    #[test]
    fn paths_are_quoted_once() {
        let values = Values::new("v1", "w");
        let cases = [
            ("/api?a=b%3Dc&d=(e,f)", "/api?a=b%3Dc&d=(e,f)"),
            ("/api/a b/\"c\"/é", "/api/a%20b/%22c%22/%C3%A9"),
            ("/api?x=<y>", "/api?x=%3Cy%3E"),
        ];
        for (path, quoted) in cases {
            assert_eq!(values.fill_path(path), quoted);
        }
    }
}
