//! JSONPath of columns, selectable fields and scale: `.spec.ports[?(@.name=='http')].port`.
//! In: a path and a value. Out: the values at the path.
//! Guarantees: a missing field has no values and is no error; paths are parsed once.

mod find;
mod parse;

use std::borrow::Cow;

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath {
    steps: Vec<Step>,
}

/// One step from values to values.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// `.name` or `['name']`.
    Field(String),
    /// `.*`.
    Wildcard,
    /// `..`: the value and everything in it.
    Descent,
    /// `[0]`, `[-1]`, `[1:3:2]`, `[*]`.
    Slice(Slice),
    /// `[0,2]` and `['a','b']`.
    Union(Vec<Vec<Step>>),
    /// `[?(…)]`.
    Filter(Filter),
    /// A literal string, number or boolean.
    Literal(Value),
    /// A bare word, which only templates support.
    Word(String),
}

/// Which items of a list to take. A lone index has an `end` derived from it.
#[derive(Clone, Debug, PartialEq, Default)]
struct Slice {
    start: Option<i64>,
    end: Option<i64>,
    /// Whether `end` follows from `start`.
    single: bool,
    step: Option<i64>,
}

/// The filter of list items.
#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Vec<Step>,
    /// The comparison, or `None` for an existence test of `left`.
    compare: Option<(String, Vec<Step>)>,
}

impl JsonPath {
    /// Parses the path of a column or of a selectable field.
    ///
    /// # Errors
    /// The errors of the path, with the messages of Kubernetes.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        parse::steps(text).map(|steps| Self { steps })
    }

    /// The values at the path.
    ///
    /// # Errors
    /// An index out of range, or a filter or comparison that the values do not allow.
    pub(crate) fn find<'a>(&'a self, value: &'a Value) -> Result<Vec<Cow<'a, Value>>, String> {
        find::follow(vec![Cow::Borrowed(value)], &self.steps)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The values of a path, as JSON side by side, or the error.
    fn found(path: &str) -> String {
        let value = json!({
            "a": {"b": 1, "dotted.key": "d", "n": null},
            "l": [{"t": "Up", "v": "no", "n": 1}, {"t": "Ready", "v": "yes", "n": 2}, {"t": "Down", "n": 3}],
            "s": ["x", "y", "z"],
        });
        match JsonPath::parse(path).and_then(|p| {
            Ok(p.find(&value)?
                .iter()
                .map(|v| v.to_string())
                .collect::<Vec<_>>())
        }) {
            Ok(values) => values.join(" "),
            Err(problem) => format!("error: {problem}"),
        }
    }

    #[test]
    fn paths_find_the_values_of_kubernetes() {
        for (path, expected) in [
            (".a.b", "1"),
            ("$.a.b", "1"),
            (".a.missing.further", ""),
            (".a.n", "null"),
            (".a.n.x", ""),
            (".a['dotted.key']", ""),
            (r".a.dotted\.key", "\"d\""),
            (".a.*", "1 \"d\" null"),
            (".s[0]", "\"x\""),
            (".s[-1]", "\"z\""),
            (".s[*]", "\"x\" \"y\" \"z\""),
            (".s[1:]", "\"y\" \"z\""),
            (".s[:2]", "\"x\" \"y\""),
            (".s[0:3:2]", "\"x\" \"z\""),
            (".s[0,2]", "\"x\" \"z\""),
            (
                ".s[5]",
                "error: array index out of bounds: index 5, length 3",
            ),
            (
                ".s[2:1]",
                "error: starting index 2 is greater than ending index 1",
            ),
            (
                ".a[0]",
                "error: map[string]interface {} is not array or slice",
            ),
            (".l[?(@.t=='Ready')].v", "\"yes\""),
            (".l[?(@.t==\"Ready\")].v", "\"yes\""),
            (".l[?(@.v)].t", "\"Up\" \"Ready\""),
            (".l[?(@.n>1)].t", "\"Ready\" \"Down\""),
            (".l[?(@.n<=1)].t", "\"Up\""),
            (".l[?(@.t!='Up')].n", "2 3"),
            (
                ".l[?(@.t==1)].n",
                "error: incompatible types for comparison",
            ),
            (
                ".a[?(@.t==1)]",
                "error: value is not array or slice and cannot be filtered",
            ),
            ("..v", "\"no\" \"yes\""),
            (".a.b.word", ""),
            (".s[", "error: unterminated array"),
            (".s[x]", "error: invalid array index x"),
            (".l[?(@", "error: unterminated filter"),
            (".l[?(@.t=='a'", "error: unterminated filter"),
            (".l....v", "error: invalid multiple recursive descent"),
            (
                ".a #",
                "error: unrecognized character in action: U+0023 '#'",
            ),
            ("word", "error: unrecognized identifier word"),
        ] {
            assert_eq!(found(path), expected, "{path}");
        }
    }

    #[test]
    fn deep_values_do_not_exhaust_the_stack() {
        let deep = (0..1000).fold(json!({"v": 1}), |inner, _| json!({"a": inner}));
        assert!(
            JsonPath::parse("..v")
                .expect("a good path")
                .find(&deep)
                .expect("found")
                .is_empty(),
            "it lies below the limit"
        );
    }

    proptest::proptest! {
        #[test]
        fn no_path_panics(path in r#"[.\[\]?()@'"a0*:,=<-]{0,16}"#) {
            if let Ok(path) = JsonPath::parse(&path) {
                let value = json!({"a": [{"a": 1}, 0, "a"]});
                let _outcome = path.find(&value);
            }
        }
    }
}
