//! Decodes YAML to a tree.
//! In: a body. Out: the tree of the equivalent JSON, with sorted keys.
//! Guarantees: scalars follow YAML 1.1 (`y`, `on`, `0o7`, `1_000`); depth, and the expansion of
//! aliases, are limited.

use std::{borrow::Cow, collections::HashMap};

use bellerophon_apimachinery::field::go_quote;
use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::{BODY_MAX_BYTES, DEPTH_MAX, Members, Node, Tree, json_in_yaml, scalar::plain};

/// Values that a body may hold with all its aliases written out.
const NODES_MAX: usize = 400_000;

/// Bytes of text that anchors and aliases may copy: four times the largest body.
const COPIED_BYTES_MAX: usize = 4 * BODY_MAX_BYTES;

const TOO_DEEP: &str = "yaml: exceeded max depth of 10000";
const TOO_MANY_ALIASES: &str = "yaml: document contains excessive aliasing";

/// The text before the repeated keys, and between two of them.
pub(super) const REPEATED: &str = "yaml: unmarshal errors:\n  ";
pub(super) const NEXT: &str = "\n  ";

/// Reads the first document of a stream. An empty stream is null.
pub(super) fn parse(bytes: &[u8]) -> Result<Tree<'_>, String> {
    match json_in_yaml::parse(bytes) {
        Some(root) => Ok(Tree {
            root,
            repeated: None,
        }),
        None => read(bytes),
    }
}

/// Reads a body that may be no JSON.
pub(super) fn read(bytes: &[u8]) -> Result<Tree<'_>, String> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| "yaml: invalid leading UTF-8 octet".to_owned())?;
    let options = granit_parser::options! { emit_unresolved_aliases: true };
    let events = Parser::new_from_str_with_options(text, options);
    let mut reader = Reader {
        text,
        events,
        anchors: HashMap::new(),
        repeated: Vec::new(),
        nodes: 0,
        copied_bytes: 0,
        ended: false,
    };
    let root = loop {
        let (event, span) = reader.next_event()?;
        match event {
            Event::StreamEnd => break Node::Null,
            Event::StreamStart | Event::DocumentStart(..) => {}
            event => break reader.node(event, span)?,
        }
    };
    reader.finish_document()?;
    let repeated =
        (!reader.repeated.is_empty()).then(|| format!("{REPEATED}{}", reader.repeated.join(NEXT)));
    Ok(Tree { root, repeated })
}

struct Reader<'a> {
    text: &'a str,
    events: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Node<'a>>,
    /// `line 7: key "a" already set in map`.
    repeated: Vec<String>,
    /// Values made so far, those of aliases counted each time.
    nodes: usize,
    /// Bytes of text that anchors and aliases copied so far.
    copied_bytes: usize,
    ended: bool,
}

impl<'a> Reader<'a> {
    fn next_event(&mut self) -> Result<(Event<'a>, Span), String> {
        loop {
            match self.events.next_event() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(event)) => {
                    self.ended = matches!(event.0, Event::StreamEnd);
                    return Ok(event);
                }
                Some(Err(error)) => return Err(syntax_error(&error, self.text)),
                None => return Err("yaml: did not find expected <stream-end>".to_owned()),
            }
        }
    }

    /// Reads to the end of the first document, to find errors behind its root.
    fn finish_document(&mut self) -> Result<(), String> {
        while !self.ended && !matches!(self.next_event()?.0, Event::DocumentEnd) {}
        Ok(())
    }

    /// Reads one value. Collections under way are kept in a list, not on the stack, so that depth
    /// costs no stack.
    fn node(&mut self, mut event: Event<'a>, mut span: Span) -> Result<Node<'a>, String> {
        let mut open: Vec<Open<'a>> = Vec::new();
        loop {
            let position = Position {
                line: span.start.line(),
                is_merge: is_merge(&event),
            };
            let whole = match event {
                Event::SequenceStart(_, anchor, _) => self.begin(
                    &mut open,
                    Open {
                        anchor,
                        holds: Holds::Items(Vec::new()),
                    },
                )?,
                Event::MappingStart(_, anchor, _) => self.begin(
                    &mut open,
                    Open {
                        anchor,
                        holds: Holds::Members(Mapping::default()),
                    },
                )?,
                Event::SequenceEnd | Event::MappingEnd => open.pop(),
                event => {
                    let leaf = self.leaf(event, position.line, open.len())?;
                    match open.last_mut() {
                        None => return Ok(leaf),
                        Some(parent) => parent.take(leaf, position, &mut self.repeated)?,
                    }
                    None
                }
            };
            if let Some(Open { anchor, holds }) = whole {
                let node = self.anchored(anchor, holds.into_node())?;
                match open.last_mut() {
                    None => return Ok(node),
                    Some(parent) => parent.take(node, position, &mut self.repeated)?,
                }
            }
            (event, span) = self.next_event()?;
        }
    }

    /// Begins a collection.
    fn begin(
        &mut self,
        open: &mut Vec<Open<'a>>,
        collection: Open<'a>,
    ) -> Result<Option<Open<'a>>, String> {
        self.count(1)?;
        if open.len() == DEPTH_MAX {
            return Err(TOO_DEEP.to_owned());
        }
        open.push(collection);
        Ok(None)
    }

    fn leaf(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Node<'a>, String> {
        self.count(1)?;
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let node = scalar(text, style, tag.as_deref())?;
                self.anchored(anchor, node)
            }
            Event::Alias(anchor) => {
                let node = self
                    .anchors
                    .get(&anchor)
                    .ok_or_else(|| "yaml: anchor value contains itself".to_owned())?;
                let size = Size::of(node);
                if depth + size.depth > DEPTH_MAX {
                    return Err(TOO_DEEP.to_owned());
                }
                self.count_copy(size)?;
                Ok(self.anchors[&anchor].clone())
            }
            Event::UnresolvedAlias(name) => {
                Err(format!("yaml: unknown anchor '{name}' referenced"))
            }
            _ => Err(format!(
                "yaml: line {line}: did not find expected node content"
            )),
        }
    }

    /// Keeps a copy for aliases, which counts: anchors inside anchors are copies of copies.
    fn anchored(&mut self, anchor: usize, node: Node<'a>) -> Result<Node<'a>, String> {
        if anchor > 0 {
            self.count_copy(Size::of(&node))?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn count(&mut self, nodes: usize) -> Result<(), String> {
        self.nodes += nodes;
        if self.nodes > NODES_MAX {
            Err(TOO_MANY_ALIASES.to_owned())
        } else {
            Ok(())
        }
    }

    /// Counts a copy before it is made.
    fn count_copy(&mut self, size: Size) -> Result<(), String> {
        self.copied_bytes += size.bytes;
        if self.copied_bytes > COPIED_BYTES_MAX {
            return Err(TOO_MANY_ALIASES.to_owned());
        }
        self.count(size.nodes)
    }
}

/// Whether a key brings in the members of another map.
fn is_merge(event: &Event<'_>) -> bool {
    matches!(event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<")
}

/// The position of a key or value.
#[derive(Clone, Copy)]
struct Position {
    line: usize,
    is_merge: bool,
}

/// A collection that is being read.
struct Open<'a> {
    anchor: usize,
    holds: Holds<'a>,
}

enum Holds<'a> {
    Items(Vec<Node<'a>>),
    Members(Mapping<'a>),
}

#[derive(Default)]
struct Mapping<'a> {
    own: HashMap<Cow<'a, str>, Node<'a>>,
    /// The members that `<<` merges, for keys that are not in `own`.
    merged: Members<'a>,
    /// The key whose value is expected next.
    key: Option<(Node<'a>, Position)>,
}

impl<'a> Open<'a> {
    fn take(
        &mut self,
        node: Node<'a>,
        position: Position,
        repeated: &mut Vec<String>,
    ) -> Result<(), String> {
        match &mut self.holds {
            Holds::Items(items) => items.push(node),
            Holds::Members(mapping) => match mapping.key.take() {
                None => mapping.key = Some((node, position)),
                Some((_, Position { is_merge: true, .. })) => {
                    mapping.merged.extend(merge_sources(node)?)
                }
                Some((key, Position { line, .. })) => {
                    let shown = shown_key(&key);
                    if mapping.own.insert(key_text(key)?, node).is_some() {
                        repeated.push(format!("line {line}: key {shown} already set in map"));
                    }
                }
            },
        }
        Ok(())
    }
}

impl<'a> Holds<'a> {
    fn into_node(self) -> Node<'a> {
        let Mapping {
            mut own, merged, ..
        } = match self {
            Self::Items(items) => return Node::Array(items),
            Self::Members(mapping) => mapping,
        };
        for (key, value) in merged {
            own.entry(key).or_insert(value);
        }
        let mut members: Members<'a> = own.into_iter().collect();
        members.sort_by(|(a, _), (b, _)| a.cmp(b));
        Node::Object(members)
    }
}

/// The members that `<<` brings in; of several sources the first wins.
fn merge_sources(value: Node<'_>) -> Result<Members<'_>, String> {
    let errors = || "yaml: map merge requires map or sequence of maps as the value".to_owned();
    match value {
        Node::Object(members) => Ok(members),
        Node::Array(sources) => {
            let members = sources.into_iter().map(|source| match source {
                Node::Object(members) => Ok(members),
                _ => Err(errors()),
            });
            Ok(members
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .flatten()
                .collect())
        }
        _ => Err(errors()),
    }
}

/// A key as JSON has it: `n: 1` is `{"false": 1}`.
fn key_text(key: Node<'_>) -> Result<Cow<'_, str>, String> {
    match key {
        Node::String(text) | Node::Number(text) => Ok(text),
        Node::Bool(b) => Ok(b.to_string().into()),
        other => Err(format!("unsupported map key of type: {}", other.go_kind())),
    }
}

fn shown_key(key: &Node<'_>) -> String {
    match key {
        Node::String(text) => go_quote(text),
        Node::Number(text) => text.to_string(),
        Node::Bool(b) => b.to_string(),
        other => other.go_kind().to_owned(),
    }
}

/// The size of a copy of a value.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    /// Text in keys, strings and numbers. Text that borrows from the body counts too: it is copied
    /// when the tree becomes a value.
    bytes: usize,
    /// Levels of nesting; 0 for a scalar.
    depth: usize,
}

impl Size {
    fn of(node: &Node<'_>) -> Self {
        match node {
            Node::Null | Node::Bool(_) => Self::scalar(""),
            Node::Number(text) | Node::String(text) => Self::scalar(text),
            Node::Array(items) => Self::collection(items.iter().map(Self::of)),
            Node::Object(members) => {
                Self::collection(members.iter().map(|(key, value)| Self::of(value).and(key)))
            }
        }
    }

    fn scalar(text: &str) -> Self {
        Self {
            nodes: 1,
            bytes: text.len(),
            depth: 0,
        }
    }

    fn collection(values: impl Iterator<Item = Self>) -> Self {
        let empty = Self {
            nodes: 1,
            bytes: 0,
            depth: 1,
        };
        values.fold(empty, |size, value| Self {
            nodes: size.nodes + value.nodes,
            bytes: size.bytes + value.bytes,
            depth: size.depth.max(value.depth + 1),
        })
    }

    fn and(self, key: &str) -> Self {
        Self {
            nodes: self.nodes + 1,
            bytes: self.bytes + key.len(),
            ..self
        }
    }
}

fn scalar<'a>(
    text: Cow<'a, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
) -> Result<Node<'a>, String> {
    let tag = tag.map(ToString::to_string).unwrap_or_default();
    let tag = tag
        .strip_prefix("tag:yaml.org,2002:")
        .or_else(|| tag.strip_prefix("!!"))
        .unwrap_or(&tag);
    match tag {
        "" if style == ScalarStyle::Plain => plain(text),
        "bool" | "int" | "float" | "null" | "timestamp" => plain(text),
        "binary" => binary(&text),
        _ => Ok(Node::String(text)),
    }
}

/// The bytes of a `!!binary` value, which JSON can only take as text.
fn binary(text: &str) -> Result<Node<'static>, String> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let compact: String = text.split_whitespace().collect();
    let bytes = STANDARD
        .decode(compact)
        .map_err(|_| "yaml: !!binary value contains invalid base64 data".to_owned())?;
    Ok(Node::String(
        String::from_utf8_lossy(&bytes).into_owned().into(),
    ))
}

/// The parser's error with the message and line of Go's library, where there is an equivalent.
fn syntax_error(error: &ScanError, text: &str) -> String {
    let index = error.marker().line().saturating_sub(1);
    let (line, why) = match error.kind() {
        ErrorKind::UnclosedFlowCollection { open } => {
            (text.matches('\n').count(), unclosed(*open, text).to_owned())
        }
        ErrorKind::ExpectedNodeContent => (index, "did not find expected node content".to_owned()),
        ErrorKind::ExpectedFlowMappingSeparator => {
            (index, "did not find expected ',' or '}'".to_owned())
        }
        ErrorKind::ExpectedFlowSequenceSeparator => {
            (index, "did not find expected ',' or ']'".to_owned())
        }
        ErrorKind::ExpectedBlockMappingKey => (index, "did not find expected key".to_owned()),
        ErrorKind::ExpectedBlockSequenceEntry => {
            (index, "did not find expected '-' indicator".to_owned())
        }
        // Lines of the scanner are counted from one, except for the first line.
        kind => {
            let why = match kind {
                ErrorKind::MappingValueNotAllowed => {
                    "mapping values are not allowed in this context".to_owned()
                }
                ErrorKind::UnexpectedCharacter { .. } => {
                    "found character that cannot start any token".to_owned()
                }
                ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => {
                    "found unexpected end of stream".to_owned()
                }
                ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => {
                    "could not find expected ':'".to_owned()
                }
                _ => error.info(),
            };
            (if index == 0 { 0 } else { index + 1 }, why)
        }
    };
    if line == 0 {
        format!("yaml: {why}")
    } else {
        format!("yaml: line {line}: {why}")
    }
}

/// The error of a text that leaves `[` or `{` open.
fn unclosed(open: char, text: &str) -> &'static str {
    match open {
        _ if text.trim_end().ends_with(['[', '{', ',', ':']) => {
            "did not find expected node content"
        }
        '[' => "did not find expected ',' or ']'",
        _ => "did not find expected ',' or '}'",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn value(text: &str) -> Result<Value, String> {
        parse(text.as_bytes())?.root.into_value(&mut Vec::new())
    }

    #[test]
    fn scalars_follow_yaml_1_1() {
        let cases = [
            ("a: y", json!({"a": true})),
            ("a: 'y'", json!({"a": "y"})),
            ("n: \"42\"", json!({"false": "42"})),
            ("a: Off", json!({"a": false})),
            (
                "a: ~\nb:\nc: null",
                json!({"a": null, "b": null, "c": null}),
            ),
            (
                "a: [0x1f, 017, 0o17, 0b11, 1_000, +5, -3]",
                json!({"a": [31, 15, 15, 3, 1000, 5, -3]}),
            ),
            (
                "a: [1.5, 1e3, .5, 1.0, -.5]",
                json!({"a": [1.5, 1000, 0.5, 1, -0.5]}),
            ),
            (
                "a: [1.2.3, 2024-05-01, 0x, 1:30, v1]",
                json!({"a": ["1.2.3", "2024-05-01", "0x", "1:30", "v1"]}),
            ),
            ("a: !!str 5\nb: !!int '7'", json!({"a": "5", "b": 7})),
            ("1: a\ntrue: b", json!({"1": "a", "true": "b"})),
            ("a: |\n  one\n  two\n", json!({"a": "one\ntwo\n"})),
            ("", Value::Null),
            ("--- {a: 1}\n---\nb: 2", json!({"a": 1})),
            (
                "base: &b {x: 1, y2: 2}\nuse:\n  <<: *b\n  x: 3",
                json!({"base": {"x": 1, "y2": 2}, "use": {"x": 3, "y2": 2}}),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn repeated_keys_are_one_strict_error_and_the_last_wins() {
        let tree =
            parse(b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n  a: \"1\"\n  a: \"2\"\n").expect("good YAML");
        let expected = "yaml: unmarshal errors:\n  line 7: key \"a\" already set in map";
        assert_eq!(tree.repeated.as_deref(), Some(expected));
        assert_eq!(
            tree.root
                .into_value(&mut Vec::new())
                .map(|v| v["data"]["a"].clone()),
            Ok(json!("2"))
        );
    }

    #[test]
    fn broken_yaml_is_refused_with_its_line() {
        let cases = [
            (
                "a: 1\nb: 2\nc: [\n",
                "line 3: did not find expected node content",
            ),
            ("a: {b: 1\nc: 2", "line 1: did not find expected ',' or '}'"),
            ("a: b: c", "mapping values are not allowed in this context"),
            (
                "a: b\n  c: d",
                "line 2: mapping values are not allowed in this context",
            ),
            ("- a\nb: c\n", "line 1: did not find expected '-' indicator"),
            ("a:\n  - b\n c: 1", "line 2: did not find expected key"),
            ("a: *nope", "unknown anchor 'nope' referenced"),
            ("a: \"x", "found unexpected end of stream"),
            ("a: @x", "found character that cannot start any token"),
        ];
        for (text, why) in cases {
            assert_eq!(value(text), Err(format!("yaml: {why}")), "{text}");
        }
        assert_eq!(
            value("a: .nan"),
            Err("json: unsupported value: NaN".to_owned())
        );
    }

    #[test]
    fn bombs_are_refused() {
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..9 {
            let alias = format!("*a{}", i - 1);
            laughs.push_str(&format!(
                "a{i}: &a{i} [{}]\n",
                [alias.as_str(); 10].join(", ")
            ));
        }
        assert_eq!(value(&laughs), Err(TOO_MANY_ALIASES.to_owned()));
        assert!(value(&"[".repeat(DEPTH_MAX + 2)).is_err());
    }

    /// Aliases were counted as one value each, whatever their size: a body of 1 MiB took 3.5 GB.
    #[test]
    fn copies_of_long_text_are_bounded() {
        let long = "A".repeat(1 << 20);
        let alias_of = |anchored: &str, copies: usize| {
            format!("x: {anchored}\ny: [{}]\n", ["*a"].repeat(copies).join(", "))
        };
        let merges = |copies: usize| {
            let merged = "  - {<<: *a}\n".repeat(copies);
            format!("x: &a {{ k: {long} }}\ny:\n{merged}")
        };
        let nested = |depth: usize| {
            let open: String = (0..depth).map(|i| format!("&a{i} [")).collect();
            format!("{open}\"{long}\\n\"{}", "]".repeat(depth))
        };
        let refused = Err(TOO_MANY_ALIASES.to_owned());
        let escaped = format!("&a \"{long}\\n\"");
        let plain = format!("&a {long}");
        let in_a_list = format!("&a [1, {{k: {long}}}]");
        for anchored in [&escaped, &plain, &in_a_list] {
            assert!(value(&alias_of(anchored, 2)).is_ok());
            assert_eq!(value(&alias_of(anchored, 3_000)), refused);
        }
        assert!(value(&merges(2)).is_ok());
        assert_eq!(value(&merges(200)), refused);
        assert!(value(&nested(2)).is_ok());
        assert_eq!(value(&nested(200)), refused);
    }

    /// An alias of a list that contains an alias of a list is deeper than the brackets around it.
    #[test]
    fn aliases_do_not_nest_deeper_than_brackets() {
        let nested = |depth: usize| {
            let next = |i: usize| format!("a{i}: &a{i} [*a{}]\n", i - 1);
            let lists: String = (1..depth - 1).map(next).collect();
            format!("a0: &a0 [x]\n{lists}")
        };
        assert!(value(&nested(DEPTH_MAX)).is_ok());
        assert_eq!(value(&nested(DEPTH_MAX + 2)), Err(TOO_DEEP.to_owned()));
    }

    #[test]
    fn long_text_without_aliases_is_read_whole() {
        let long = "A".repeat(BODY_MAX_BYTES - 10);
        assert_eq!(value(&format!("a: {long}")), Ok(json!({"a": long})));
    }
}
