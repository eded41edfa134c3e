//! Decodes a request body as the kind that its path expects.
//! In: bytes. Out: an [`Object`] with its strict decoding errors, or an error with the message of
//! the server.

use serde_json::{Map, Value};

use crate::{
    decode::{self, Encoding, Media, Tree, parse, type_meta},
    object::Object,
    protobuf::{self, Envelope},
    types::{Decoded, Published, Type, decode_node, is_registered},
};

/// The kind that a path expects in a body.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    /// The kind, without its group.
    pub kind: &'static str,
    /// Other versions of the group that the path takes too; their bodies have the same fields.
    pub also: &'static [&'static str],
    ty: Published,
}

impl Expected {
    /// Expects a built-in kind; `None` when there is no such kind.
    pub fn of(group: &str, version: &str, kind: &str) -> Option<Self> {
        let (ty, [group, version, kind]) = Published::named(group, version, kind)?;
        Some(Self {
            group,
            version,
            kind,
            also: &[],
            ty,
        })
    }

    /// The type that bodies are read by.
    pub fn ty(&self) -> &'static Type {
        self.ty.type_()
    }

    fn api_version(&self) -> String {
        join(self.group, self.version)
    }
}

/// A body read by its type.
#[derive(Debug)]
pub struct Typed {
    /// With the apiVersion and kind that were expected.
    pub object: Object,
    /// The strict decoding errors, which `fieldValidation` rejects or warns of, in the order of the
    /// server.
    pub strict: Vec<String>,
}

/// Why a body was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Not even its kind could be found out.
    Unrecognized {
        /// The message of the decoder.
        why: String,
    },
    /// It names a kind, but cannot be read as the one that is expected.
    Unhandled {
        /// The kind that the body names.
        kind: String,
        /// The apiVersion that the body names.
        version: String,
        /// The message of the decoder.
        why: String,
    },
    /// It is the right kind in another version.
    WrongVersion {
        /// The apiVersion of the body.
        found: String,
        /// The apiVersion of the path.
        expected: String,
    },
}

impl DecodeError {
    /// The whole message of a 400 for a body that should have been of `kind`.
    pub fn message(&self, kind: &str, bytes: &[u8]) -> String {
        match self {
            Self::Unrecognized { why } => {
                format!(
                    "the object provided is unrecognized (must be of type {kind}): {why} ({})",
                    decode::summary(bytes)
                )
            }
            Self::Unhandled {
                kind: found,
                version,
                why,
            } => format!("{found} in version {version:?} cannot be handled as a {kind}: {why}"),
            Self::WrongVersion { found, expected } => {
                format!(
                    "the API version in the data ({found}) does not match the expected API version ({expected})"
                )
            }
        }
    }
}

/// Decodes a body as the expected kind. A body may leave out its apiVersion and kind.
///
/// # Errors
/// A body that is malformed, of another kind or version, or has a field of another type.
pub fn read_typed(
    bytes: &[u8],
    encoding: Encoding,
    expected: &Expected,
) -> Result<Typed, DecodeError> {
    let (named, content) =
        open(bytes, encoding, expected).map_err(|why| DecodeError::Unrecognized { why })?;
    let unhandled = |why| DecodeError::Unhandled {
        kind: named.kind.clone(),
        version: named.version.clone(),
        why,
    };
    if named.version.is_empty() {
        return Err(unhandled(format!(
            "Object 'apiVersion' is missing in '{}'",
            String::from_utf8_lossy(bytes)
        )));
    }
    let scheme = scheme(expected.group);
    if !named.is_expected(expected)
        && (self::scheme(&named.group) != scheme
            || !is_registered(&named.group, &named.version, &named.kind))
    {
        return Err(unhandled(named.unregistered(scheme)));
    }
    let ty = Published::of_kind(&named.group, &named.version, &named.kind).unwrap_or(expected.ty);
    let is_message = matches!(content, Content::Message(_));
    let tree = content.into_tree(ty).map_err(unhandled)?;
    let Decoded {
        mut object,
        mut strict,
    } = decode_node(ty.type_(), tree.root).map_err(unhandled)?;
    if is_message {
        // Repeated fields and keys of a message are not reported.
        strict.clear();
    }
    let from = internal(&named.group, &named.kind);
    let to = internal(expected.group, expected.kind);
    if from != to {
        return Err(unhandled(format!(
            "converting ({}.{}) to ({to}): unknown conversion",
            named.version, named.kind
        )));
    }
    if !named.is_expected(expected) {
        return Err(DecodeError::WrongVersion {
            found: join(&named.group, &named.version),
            expected: expected.api_version(),
        });
    }
    object.insert(
        "apiVersion".to_owned(),
        Value::String(expected.api_version()),
    );
    object.insert("kind".to_owned(), Value::String(expected.kind.to_owned()));
    let object = Object::from_map(object).map_err(|e| unhandled(e.to_string()))?;
    Ok(Typed {
        object,
        strict: tree.repeated.into_iter().chain(strict).collect(),
    })
}

/// Why JSON that names another kind or version is no object of the kind that is expected; `None`
/// when it is one.
pub fn misnamed(value: &Value, expected: &Expected) -> Option<String> {
    let refused = read_typed(
        value.to_string().as_bytes(),
        Encoding::Text(Media::Json),
        expected,
    )
    .err()?;
    Some(match refused {
        DecodeError::Unrecognized { why } | DecodeError::Unhandled { why, .. } => why,
        DecodeError::WrongVersion { .. } => refused.message(expected.kind, &[]),
    })
}

/// Reads options, which have the same form in every group and version.
///
/// # Errors
/// The errors of the options, without the name of the options.
pub fn read_options(
    bytes: &[u8],
    encoding: Encoding,
    expected: &Expected,
) -> Result<Map<String, Value>, String> {
    let (named, content) = open(bytes, encoding, expected)?;
    if named.kind != expected.kind {
        return Err(named.unregistered(
            "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27",
        ));
    }
    let tree = content.into_tree(expected.ty)?;
    Ok(decode_node(expected.ty.type_(), tree.root)?.object)
}

/// The content of a body, before its type is known.
enum Content<'a> {
    Tree(Tree<'a>),
    Message(&'a [u8]),
}

impl<'a> Content<'a> {
    fn into_tree(self, ty: Published) -> Result<Tree<'a>, String> {
        match self {
            Self::Tree(tree) => Ok(tree),
            Self::Message(bytes) => Ok(Tree {
                root: protobuf::decode(ty, bytes)?,
                repeated: None,
            }),
        }
    }
}

fn open<'a>(
    bytes: &'a [u8],
    encoding: Encoding,
    expected: &Expected,
) -> Result<(Named, Content<'a>), String> {
    match encoding {
        Encoding::Text(media) => {
            let tree = parse(bytes, media)?;
            let (api_version, kind) = type_meta(&tree.root)?;
            Ok((
                Named::new(api_version, kind, expected)?,
                Content::Tree(tree),
            ))
        }
        Encoding::Protobuf => {
            let envelope = Envelope::open(bytes)?;
            Ok((
                Named::new(&envelope.api_version, &envelope.kind, expected)?,
                Content::Message(envelope.message),
            ))
        }
    }
}

/// The kind and version that a body names, completed by the expected ones.
struct Named {
    group: String,
    version: String,
    kind: String,
}

impl Named {
    fn new(api_version: &str, kind: &str, expected: &Expected) -> Result<Self, String> {
        let (mut group, mut version) = match api_version.split_once('/') {
            None => ("", api_version),
            Some((_, rest)) if rest.contains('/') => {
                return Err(format!("unexpected GroupVersion string: {api_version}"));
            }
            Some(parts) => parts,
        };
        if version.is_empty() && (group.is_empty() || group == expected.group) {
            (group, version) = (expected.group, expected.version);
        }
        let kind = if kind.is_empty() { expected.kind } else { kind };
        Ok(Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        })
    }

    /// The error of a kind that is not registered.
    fn unregistered(&self, scheme: &str) -> String {
        let api_version = join(&self.group, &self.version);
        format!(
            "no kind {:?} is registered for version {api_version:?} in scheme {scheme:?}",
            self.kind
        )
    }

    fn is_expected(&self, expected: &Expected) -> bool {
        let version =
            self.version == expected.version || expected.also.contains(&self.version.as_str());
        version && self.group == expected.group && self.kind == expected.kind
    }
}

fn join(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// The registry of kinds that a group belongs to, as the server names it in errors.
fn scheme(group: &str) -> &'static str {
    match group {
        "apiextensions.k8s.io" => "pkg/apiserver/apiserver.go:55",
        "apiregistration.k8s.io" => "pkg/apiserver/scheme/scheme.go:28",
        _ => "pkg/api/legacyscheme/scheme.go:30",
    }
}

/// The kind that all versions of a kind are converted by, as the server names it in errors:
/// `core.ConfigMap`.
fn internal(group: &str, kind: &str) -> String {
    let package = match (group, kind) {
        ("", _) | ("events.k8s.io", "Event" | "EventList") => "core",
        ("extensions", kind)
            if kind.starts_with("Ingress") || kind.starts_with("NetworkPolicy") =>
        {
            "networking"
        }
        ("extensions", _) => "apps",
        ("internal.apiserver.k8s.io", _) => "apiserverinternal",
        (group, _) => group.split('.').next().unwrap_or(group),
    };
    format!("{package}.{kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(
        expected: (&'static str, &'static str, &'static str),
        body: &str,
        media: Media,
    ) -> String {
        let expected = Expected::of(expected.0, expected.1, expected.2).expect("a built-in kind");
        read_typed(body.as_bytes(), Encoding::Text(media), &expected)
            .expect_err(body)
            .message(expected.kind, body.as_bytes())
    }

    const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");
    const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");
    const DEFINITION: (&str, &str, &str) =
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");

    #[test]
    fn refused_bodies_are_explained_as_the_server_does() {
        let parse = "couldn't get version/kind; json parse error:";
        let anonymous = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
        let legacy = r#"in scheme "pkg/api/legacyscheme/scheme.go:30""#;
        let unrecognized = |kind: &str, why: String| {
            format!("the object provided is unrecognized (must be of type {kind}): {why}")
        };
        let cases = [
            (CONFIG_MAP, "", unrecognized("ConfigMap", format!("{parse} unexpected end of JSON input (<empty>)"))),
            (
                CONFIG_MAP,
                r#"{"kind":"ConfigMap","#,
                unrecognized("ConfigMap", format!(r#"{parse} unexpected end of JSON input ({{"kind":"ConfigMap",)"#)),
            ),
            (
                CONFIG_MAP,
                "not json at all",
                unrecognized("ConfigMap", format!("{parse} invalid character 'o' in literal null (expecting 'u') (6e6f74206a736f6e20617420616c6c)")),
            ),
            (
                CONFIG_MAP,
                "[]",
                unrecognized("ConfigMap", format!("{parse} json: cannot unmarshal array into Go value of type {anonymous} (5b5d)")),
            ),
            (
                DEPLOYMENT,
                r#"{"apiVersion": "a/b/c", "kind": "Deployment"}"#,
                unrecognized("Deployment", r#"unexpected GroupVersion string: a/b/c ({"apiVersion": "a/b/c", "kind" ...)"#.to_owned()),
            ),
            (
                CONFIG_MAP,
                r#"{"apiVersion":"v1","kind":"Secret"}"#,
                r#"Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion"#.to_owned(),
            ),
            (
                ("autoscaling", "v1", "Scale"),
                r#"{"apiVersion":"apps/v1","kind":"Deployment"}"#,
                r#"Deployment in version "v1" cannot be handled as a Scale: converting (v1.Deployment) to (autoscaling.Scale): unknown conversion"#
                    .to_owned(),
            ),
            (
                CONFIG_MAP,
                r#"{"apiVersion":"v2","kind":"ConfigMap"}"#,
                format!(r#"ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v2" {legacy}"#),
            ),
            (
                CONFIG_MAP,
                r#"{"apiVersion":"apps/v1"}"#,
                format!(
                    r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "apps/v1" {legacy}"#
                ),
            ),
            (
                DEFINITION,
                r#"{"apiVersion":"v1","kind":"Pod"}"#,
                r#"Pod in version "v1" cannot be handled as a CustomResourceDefinition: no kind "Pod" is registered for version "v1" in scheme "pkg/apiserver/apiserver.go:55""#.to_owned(),
            ),
            (
                DEPLOYMENT,
                r#"{"apiVersion":"apps/v1beta1","kind":"Deployment"}"#,
                "the API version in the data (apps/v1beta1) does not match the expected API version (apps/v1)".to_owned(),
            ),
            (
                DEPLOYMENT,
                r#"{"kind":"Deployment","spec":{"replicas":"two"}}"#,
                r#"Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"#.to_owned(),
            ),
        ];
        for (expected, body, message) in cases {
            assert_eq!(refusal(expected, body, Media::Json), message);
        }
        let yaml = r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.name of type string"#;
        assert_eq!(
            refusal(CONFIG_MAP, "metadata:\n  name: y\n", Media::Yaml),
            yaml
        );
    }

    #[test]
    fn body_may_leave_out_its_kind() {
        let expected = Expected::of("apps", "v1", "Deployment").expect("a built-in kind");
        for body in [
            "{}",
            "null",
            r#"{"kind":"Deployment"}"#,
            r#"{"apiVersion":"apps/v1"}"#,
            r#"{"apiVersion":"apps/"}"#,
        ] {
            let object = read_typed(body.as_bytes(), Encoding::Text(Media::Json), &expected)
                .expect(body)
                .object;
            assert_eq!(object.api_version.as_str(), "apps/v1", "{body}");
            assert_eq!(object.kind.as_str(), "Deployment", "{body}");
        }
    }

    #[test]
    fn another_version_is_decoded_where_the_path_allows_it() {
        let expected = Expected {
            also: &["v1beta1"],
            ..Expected::of("policy", "v1", "Eviction").expect("a built-in kind")
        };
        let body = br#"{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"p"}}"#;
        let object = read_typed(body, Encoding::Text(Media::Json), &expected)
            .expect("a good body")
            .object;
        assert_eq!(object.api_version.as_str(), "policy/v1");
        assert_eq!(object.meta.name.as_str(), "p");
    }

    #[test]
    fn strict_errors_become_one_refusal() {
        let expected = Expected::of("", "v1", "ConfigMap").expect("a built-in kind");
        let body = br#"{"metadata":{"name":"b"},"colour":"red","data":{"k":"1","k":"2"}}"#;
        let typed = read_typed(body, Encoding::Text(Media::Json), &expected).expect("a good body");
        assert_eq!(
            decode::strict_error(&typed.strict),
            r#"strict decoding error: unknown field "colour", duplicate field "data.k""#
        );
        let yaml = read_typed(
            b"data:
  a: '1'
  a: '2'
zz: 1
",
            Encoding::Text(Media::Yaml),
            &expected,
        )
        .expect("good YAML");
        assert_eq!(
            yaml.strict,
            [
                "yaml: unmarshal errors:\n  line 3: key \"a\" already set in map",
                r#"unknown field "zz""#
            ]
        );
    }

    #[test]
    fn options_are_the_same_in_every_group() {
        let expected = Expected::of("", "v1", "DeleteOptions").expect("a built-in kind");
        let json = Encoding::Text(Media::Json);
        for api_version in [
            "v1",
            "apps/v1",
            "apiextensions.k8s.io/v1",
            "example.com/v1",
            "meta.k8s.io/v1",
        ] {
            let body = format!(
                r#"{{"apiVersion":"{api_version}","kind":"DeleteOptions","gracePeriodSeconds":7}}"#
            );
            let options = read_options(body.as_bytes(), json, &expected).expect(api_version);
            assert_eq!(options["gracePeriodSeconds"], 7, "{api_version}");
        }
        let other = read_options(
            br#"{"apiVersion":"v1","kind":"ConfigMap"}"#,
            json,
            &expected,
        )
        .expect_err("another kind");
        let scheme = "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27";
        assert_eq!(
            other,
            format!(r#"no kind "ConfigMap" is registered for version "v1" in scheme "{scheme}""#)
        );
    }

    #[test]
    fn protobuf_names_its_kind_in_the_envelope() {
        let expected = Expected::of("apps", "v1", "Deployment").expect("a built-in kind");
        let cases: [(&[u8], &str); 4] = [
            (
                b"",
                "the object provided is unrecognized (must be of type Deployment): empty data (<empty>)",
            ),
            (
                b"k8s\0\x0a\x05",
                "the object provided is unrecognized (must be of type Deployment): unexpected EOF (6b3873000a05)",
            ),
            (
                b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod",
                r#"Pod in version "v1" cannot be handled as a Deployment: converting (v1.Pod) to (apps.Deployment): unknown conversion"#,
            ),
            (
                b"k8s\0\x12\x02\x0a\x05",
                r#"Deployment in version "v1" cannot be handled as a Deployment: unexpected EOF"#,
            ),
        ];
        for (body, message) in cases {
            assert_eq!(
                read_typed(body, Encoding::Protobuf, &expected)
                    .expect_err(message)
                    .message("Deployment", body),
                message
            );
        }
        let object = read_typed(
            b"k8s\0\x12\x05\x0a\x03\x0a\x01a",
            Encoding::Protobuf,
            &expected,
        )
        .expect("a named object")
        .object;
        assert_eq!(object.api_version.as_str(), "apps/v1");
        assert_eq!(object.meta.name.as_str(), "a");
    }
}
