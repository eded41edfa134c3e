//! Scan: finds members of an object's JSON without decoding it.
//! In: the bytes of one object. Out: the positions of its labels, its version and the rest of
//! [`Outline`].
//! Guarantees: nothing is copied or allocated. Malformed JSON is an error or leads to wrong
//! positions, but never to a panic: callers decode the same bytes as well.

use std::ops::Range;

/// Where members of an object's `metadata` are: their values, strings with their quotes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    pub(crate) uid: Option<Range<usize>>,
    pub(crate) resource_version: Option<Range<usize>>,
    pub(crate) labels: Option<Range<usize>>,
    /// The whole member, with the comma that is no longer needed without it.
    pub(crate) managed_fields: Option<Range<usize>>,
}

impl Outline {
    /// Reads up to the end of `metadata`.
    pub(crate) fn of(json: &[u8]) -> Result<Self, NotJson> {
        let mut members = Members::of(json, 0)?;
        while let Some(key) = members.key()? {
            if &json[key] == b"metadata" {
                // The scan ends here: `metadata` comes before `spec` and `status` in what servers
                // send, so most bytes are not read.
                return Self::of_metadata(json, Members::of(json, members.scanner.at)?);
            }
            members.value()?;
        }
        Ok(Self::default())
    }

    fn of_metadata(json: &[u8], mut members: Members<'_>) -> Result<Self, NotJson> {
        let mut outline = Self::default();
        while let Some(member) = members.next()? {
            let place = match &json[member.key.clone()] {
                b"uid" => &mut outline.uid,
                b"resourceVersion" => &mut outline.resource_version,
                b"labels" => &mut outline.labels,
                b"managedFields" => {
                    outline.managed_fields = Some(members.removal_of(&member));
                    continue;
                }
                _ => continue,
            };
            // A null is the same as a missing member for the decoder.
            *place = Some(member.value.clone()).filter(|value| &json[value.clone()] != b"null");
        }
        Ok(outline)
    }
}

/// The bytes are no JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotJson;

/// One member of a JSON object.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// Its name, without the quotes and as it is escaped.
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
    /// Where the value before it ends, if it is not the first.
    after: Option<usize>,
}

/// The members of one JSON object, in order.
pub(super) struct Members<'a> {
    scanner: Scanner<'a>,
    last_value_end: Option<usize>,
    ended: bool,
}

impl<'a> Members<'a> {
    /// Those of the object that begins at `start`.
    pub(super) fn of(json: &'a [u8], start: usize) -> Result<Self, NotJson> {
        let mut scanner = Scanner { json, at: start };
        scanner.take(b'{')?;
        let ended = scanner.peek()? == b'}';
        Ok(Self {
            scanner,
            last_value_end: None,
            ended,
        })
    }

    pub(super) fn next(&mut self) -> Result<Option<Member>, NotJson> {
        let after = self.last_value_end;
        let Some(key) = self.key()? else {
            return Ok(None);
        };
        Ok(Some(Member {
            key,
            value: self.value()?,
            after,
        }))
    }

    /// The name of the next member, if there is one; its value must be read next.
    fn key(&mut self) -> Result<Option<Range<usize>>, NotJson> {
        if self.ended {
            return Ok(None);
        }
        let quoted = self.scanner.string()?;
        self.scanner.take(b':')?;
        Ok(Some(quoted.start + 1..quoted.end - 1))
    }

    fn value(&mut self) -> Result<Range<usize>, NotJson> {
        let value = self.scanner.value()?;
        self.last_value_end = Some(value.end);
        match self.scanner.peek()? {
            b',' => self.scanner.at += 1,
            b'}' => self.ended = true,
            _ => return Err(NotJson),
        }
        Ok(value)
    }

    /// What to take out so that the object has all members but this one, which was read last.
    fn removal_of(&self, member: &Member) -> Range<usize> {
        match (self.ended, member.after) {
            // Its comma is behind it.
            (false, _) => member.key.start - 1..self.scanner.at,
            (true, Some(before)) => before..member.value.end,
            (true, None) => member.key.start - 1..member.value.end,
        }
    }
}

struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    /// The next byte that is not white space, which is where the scanner is then.
    fn peek(&mut self) -> Result<u8, NotJson> {
        loop {
            match self.here()? {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                byte => return Ok(byte),
            }
        }
    }

    fn here(&self) -> Result<u8, NotJson> {
        self.json.get(self.at).copied().ok_or(NotJson)
    }

    fn take(&mut self, expected: u8) -> Result<(), NotJson> {
        if self.peek()? != expected {
            return Err(NotJson);
        }
        self.at += 1;
        Ok(())
    }

    /// A string with its quotes.
    fn string(&mut self) -> Result<Range<usize>, NotJson> {
        self.take(b'"')?;
        let start = self.at - 1;
        loop {
            match self.here()? {
                b'"' => break,
                // The escaped byte may be a quote. A `\u` escape has only hexadecimal digits, which
                // need no care.
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Ok(start..self.at)
    }

    /// Any value.
    fn value(&mut self) -> Result<Range<usize>, NotJson> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' | b'[' => self.nested(),
            _ => {
                let start = self.at;
                while !matches!(
                    self.here()?,
                    b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n'
                ) {
                    self.at += 1;
                }
                if self.at == start {
                    Err(NotJson)
                } else {
                    Ok(start..self.at)
                }
            }
        }
    }

    fn nested(&mut self) -> Result<Range<usize>, NotJson> {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.here()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                // Brackets are not matched by type: the decoder rejects malformed JSON.
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(start..self.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Uid, version and labels; then the JSON without managedFields.
    fn print(json: &str) -> String {
        let Ok(outline) = Outline::of(json.as_bytes()) else {
            return "not JSON".into();
        };
        let text = |range: Option<Range<usize>>| range.map_or("-", |range| &json[range]).to_owned();
        let mut left = json.to_owned();
        outline
            .managed_fields
            .clone()
            .into_iter()
            .for_each(|range| left.replace_range(range, ""));
        format!(
            "{} {} {} | {left}",
            text(outline.uid),
            text(outline.resource_version),
            text(outline.labels)
        )
    }

    #[test]
    fn members_are_found_at_any_position() {
        let cases = [
            (
                r#"{"metadata":{"uid":"u","resourceVersion":"7","labels":{"a":"b"}}}"#,
                r#""u" "7" {"a":"b"}"#,
            ),
            (
                r#"{"spec":{"metadata":{"uid":"x"},"a":[1,{"b":"}"}]},"metadata":{"uid":"u"}}"#,
                r#""u" - -"#,
            ),
            (
                "{ \"a\" : -1.5e3 , \"metadata\" :\n{ \"labels\" : { } , \"uid\" : null } }",
                "- - { }",
            ),
            (
                r#"{"metadata":{"name":"a\"},\"uid\":\"no","uid":"u\\"}}"#,
                r#""u\\" - -"#,
            ),
            (r#"{"metadata":{}}"#, "- - -"),
            ("{}", "- - -"),
        ];
        for (json, found) in cases {
            assert_eq!(print(json), format!("{found} | {json}"));
        }
    }

    #[test]
    fn managed_fields_are_removed_with_one_comma() {
        let cases = [
            (
                r#"{"metadata":{"managedFields":[{"f:a":{"k:{\"b\":\"]\"}":{}}}]},"spec":1}"#,
                r#"{"metadata":{},"spec":1}"#,
            ),
            (
                r#"{"metadata":{"managedFields":[],"uid":"u"}}"#,
                r#"{"metadata":{"uid":"u"}}"#,
            ),
            (
                r#"{"metadata":{"uid":"u","managedFields":[]}}"#,
                r#"{"metadata":{"uid":"u"}}"#,
            ),
            (
                r#"{"metadata":{"uid":"u" , "managedFields" : [] , "a":1}}"#,
                r#"{"metadata":{"uid":"u" ,  "a":1}}"#,
            ),
        ];
        for (json, left) in cases {
            assert!(
                print(json).ends_with(&format!("| {left}")),
                "{json} became {}",
                print(json)
            );
        }
    }

    #[test]
    fn malformed_json_is_refused() {
        for json in [
            "",
            "{",
            "[]",
            "7",
            r#"{"metadata"}"#,
            r#"{"metadata":[]}"#,
            r#"{"metadata":{"uid":"u}"#,
            r#"{"a":"\"#,
            r#"{"a":}"#,
        ] {
            assert_eq!(print(json), "not JSON", "{json}");
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let text = prop_oneof![
            "[a-c]{0,2}",
            "metadata",
            "managedFields",
            "uid",
            "[\\PC\"\\\\{}\\[\\],:]{0,4}"
        ];
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i32>().prop_map(Into::into),
            text.clone().prop_map(Into::into)
        ];
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::btree_map(text.clone(), inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn outline_agrees_with_a_decoder(
            mut object in prop::collection::btree_map("[a-z]{0,3}", json(), 0..3),
            metadata in prop::collection::btree_map(
                "uid|labels|managedFields|[a-z\"\\\\]{0,3}", json(), 0..5
            ),
            pretty: bool,
        ) {
            let metadata = serde_json::Value::Object(metadata.into_iter().collect());
            object.insert("metadata".into(), metadata);
            let mut object = serde_json::Value::Object(object.into_iter().collect());
            let text = match pretty {
                true => serde_json::to_string_pretty(&object),
                false => serde_json::to_string(&object),
            };
            let text = text.expect("it is JSON");
            let outline = Outline::of(text.as_bytes()).expect("it is JSON");
            let read = |range: &Option<Range<usize>>| {
                let text = range.clone().map(|range| &text[range]);
                text.map(|text| serde_json::from_str(text).expect("a value"))
            };
            for (name, range) in [("uid", &outline.uid), ("labels", &outline.labels)] {
                let found = object["metadata"].get(name);
                let expected = found.filter(|value| !value.is_null()).cloned();
                prop_assert_eq!(read(range), expected);
            }
            let mut left = text.clone();
            if let Some(range) = outline.managed_fields {
                left.replace_range(range, "");
            }
            let metadata = object["metadata"].as_object_mut().expect("an object");
            metadata.remove("managedFields");
            let left: serde_json::Value = serde_json::from_str(&left).expect("still JSON");
            prop_assert_eq!(left, object);
        }

        #[test]
        fn scan_of_any_bytes_stays_within_them(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            text in "[{}\\[\\]\",:\\\\a ]{0,40}",
        ) {
            let nested = format!("{{\"metadata\":{text}");
            for json in [&bytes[..], text.as_bytes(), nested.as_bytes()] {
                let outline = Outline::of(json).unwrap_or_default();
                let values = [outline.uid, outline.resource_version, outline.labels];
                let found = values.into_iter().chain([outline.managed_fields]).flatten();
                for range in found {
                    prop_assert!(json.get(range).is_some());
                }
            }
        }
    }
}
