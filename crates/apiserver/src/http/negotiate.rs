//! Content negotiation of requests and responses.
//! In: `Accept` and `Content-Type`. Out: one format and one form.
//! Guarantees: the error for a client that cannot be served lists the supported media types, with
//! the message of Kubernetes.

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::decode::{Encoding, Media};
use bellerophon_resources::print::MetaVersion;
use http::{HeaderMap, header::HeaderName};

/// How bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Yaml,
    Protobuf,
}

impl Format {
    /// The `Content-Type`.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => PROTOBUF,
        }
    }
}

/// The form of objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Unchanged.
    Object,
    /// Rows and columns.
    Table(MetaVersion),
    /// Metadata of one object.
    Partial(MetaVersion),
    /// Metadata of a list.
    PartialList(MetaVersion),
}

/// The negotiated format and form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) format: Format,
    pub(crate) form: Form,
}

/// One entry of an `Accept` header.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MediaRange {
    pub(crate) type_: String,
    pub(crate) parameters: Vec<(String, String)>,
    quality: f32,
}

impl MediaRange {
    /// The format it names, if the server writes it.
    fn format(&self) -> Option<Format> {
        match self.type_.as_str() {
            "application/json" | "*/*" => Some(Format::Json),
            "application/yaml" => Some(Format::Yaml),
            PROTOBUF => Some(Format::Protobuf),
            _ => None,
        }
    }

    /// The value of a parameter, empty when it is not there.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.parameters
            .iter()
            .find(|(k, _)| k == name)
            .map_or("", |(_, v)| v)
    }
}

/// The text of a header that may stand more than once; `None` when it is not there.
pub(crate) fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let values = headers.get_all(name);
    let mut values = values.iter().filter_map(|value| value.to_str().ok());
    let mut joined = values.next()?.to_owned();
    for value in values {
        joined.push(',');
        joined.push_str(value);
    }
    Some(joined)
}

/// The entries of an `Accept` header, the best first. None at all means anything will do.
pub(crate) fn ranges(accept: &str) -> Vec<MediaRange> {
    let mut list: Vec<MediaRange> = accept
        .split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(range)
        .collect();
    list.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    list
}

fn range(text: &str) -> MediaRange {
    let mut parts = text.split(';').map(str::trim);
    let type_ = parts.next().unwrap_or_default().to_ascii_lowercase();
    let parameters: Vec<(String, String)> = parts
        .filter_map(|p| p.split_once('='))
        .map(|(k, v)| (k.trim().to_ascii_lowercase(), v.trim().to_owned()))
        .collect();
    let quality = parameters
        .iter()
        .find(|(k, _)| k == "q")
        .and_then(|(_, v)| v.parse().ok())
        .unwrap_or(1.0);
    MediaRange {
        type_,
        parameters,
        quality,
    }
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The media types of objects in kube-apiserver.
pub(crate) const OBJECT_TYPES: [&str; 3] = ["application/json", "application/yaml", PROTOBUF];
const STREAM_TYPES: [&str; 2] = [
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];

/// The offered forms and media types of a response, and the media types that kube-apiserver names
/// in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// An object or list of a built-in kind. Its reads can also be streams, which the refusal names
    /// too.
    BuiltIn { streams: bool },
    /// An object or list of a custom kind.
    Custom { streams: bool },
    /// The answer to a request of a kind that can only be sent, never read: it has no table.
    Unread,
    /// A watch.
    Watch { custom: bool },
}

impl Offer {
    fn media_types(self) -> Vec<&'static str> {
        let known = |custom: bool| OBJECT_TYPES[..if custom { 2 } else { 3 }].to_vec();
        match self {
            Self::BuiltIn { streams: false } | Self::Unread => known(false),
            Self::BuiltIn { streams: true } => [known(false), STREAM_TYPES.to_vec()].concat(),
            Self::Custom { streams: false } => known(true),
            Self::Custom { streams: true } => [known(true), STREAM_TYPES[..1].to_vec()].concat(),
            Self::Watch { custom } => known(custom),
        }
    }

    fn is_custom(self) -> bool {
        matches!(self, Self::Custom { .. } | Self::Watch { custom: true })
    }

    /// Whether an answer can be written so. Tables have no protobuf form, and of custom objects
    /// only the metadata has one.
    fn includes(self, format: Format, form: Form) -> bool {
        match (format, form) {
            (_, Form::Table(_)) if self == Self::Unread => false,
            (Format::Json, _) => true,
            (Format::Yaml, _) => !matches!(self, Self::Watch { .. }),
            (Format::Protobuf, Form::Object) => !self.is_custom(),
            (Format::Protobuf, Form::Table(_)) => false,
            (Format::Protobuf, Form::Partial(_) | Form::PartialList(_)) => true,
        }
    }
}

/// Chooses format and form.
///
/// # Errors
/// 406 when nothing the client accepts is on offer.
pub(crate) fn wanted(accept: Option<&str>, offer: Offer) -> Result<Wanted, ApiError> {
    let list = ranges(accept.unwrap_or_default());
    if list.is_empty() {
        return Ok(Wanted {
            format: Format::Json,
            form: Form::Object,
        });
    }
    let mut named = false;
    for range in &list {
        let Some(format) = range.format() else {
            continue;
        };
        named |= format != Format::Protobuf || !offer.is_custom();
        if let Some(form) = form(range).filter(|form| offer.includes(format, *form)) {
            return Ok(Wanted { format, form });
        }
    }
    if named {
        return Err(ApiError::NotAcceptableForm(format!(
            "only the following media types are accepted: {}",
            OBJECT_TYPES[..if offer.is_custom() { 2 } else { 3 }].join(", ")
        )));
    }
    Err(ApiError::NotAcceptable(offer.media_types()))
}

/// The format of a `Status`, which has only one form.
pub(crate) fn status_format(accept: Option<&str>) -> Format {
    let plain = |range: &MediaRange| {
        range.format().filter(|_| {
            ["as", "g", "v"]
                .iter()
                .all(|name| range.parameter(name).is_empty())
        })
    };
    ranges(accept.unwrap_or_default())
        .iter()
        .find_map(plain)
        .unwrap_or(Format::Json)
}

/// The form that an entry requests; `None` when there is no such form.
fn form(range: &MediaRange) -> Option<Form> {
    let as_ = range.parameter("as");
    if as_.is_empty() {
        return Some(Form::Object);
    }
    if range.parameter("g") != "meta.k8s.io" {
        return None;
    }
    let version = MetaVersion::parse(range.parameter("v"))?;
    match as_ {
        "Table" => Some(Form::Table(version)),
        "PartialObjectMetadata" => Some(Form::Partial(version)),
        "PartialObjectMetadataList" => Some(Form::PartialList(version)),
        _ => None,
    }
}

/// How a request body is written.
///
/// # Errors
/// 415 when it is written in no way the server reads.
pub(crate) fn body_encoding(content_type: Option<&str>) -> Result<Encoding, ApiError> {
    let essence = content_type
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    match essence.as_str() {
        "" | "application/json" => Ok(Encoding::Text(Media::Json)),
        "application/yaml" => Ok(Encoding::Text(Media::Yaml)),
        PROTOBUF => Ok(Encoding::Protobuf),
        _ => Err(ApiError::UnsupportedMediaType(OBJECT_TYPES.to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header_chooses_format_and_form() {
        let read = Offer::BuiltIn { streams: true };
        let json = Wanted {
            format: Format::Json,
            form: Form::Object,
        };
        let protobuf = Wanted {
            format: Format::Protobuf,
            form: Form::Object,
        };
        for (accept, expected) in [
            (None, Some(json)),
            (Some("*/*"), Some(json)),
            (Some("application/json"), Some(json)),
            (
                Some("application/yaml"),
                Some(Wanted {
                    format: Format::Yaml,
                    form: Form::Object,
                }),
            ),
            (
                Some("application/json;q=0.5,application/yaml"),
                Some(Wanted {
                    format: Format::Yaml,
                    form: Form::Object,
                }),
            ),
            (
                Some("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
                Some(Wanted {
                    format: Format::Json,
                    form: Form::Table(MetaVersion::V1),
                }),
            ),
            (
                Some("application/json;as=Table;v=v9;g=meta.k8s.io,application/json"),
                Some(json),
            ),
            (
                Some("application/vnd.kubernetes.protobuf,application/json"),
                Some(protobuf),
            ),
            (
                Some(
                    "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json",
                ),
                Some(json),
            ),
            (
                Some("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io"),
                None,
            ),
            (Some("application/xml"), None),
            (Some("application/*"), None),
        ] {
            assert_eq!(wanted(accept, read).ok(), expected, "{accept:?}");
        }
    }

    #[test]
    fn custom_kinds_show_only_metadata_in_protobuf() {
        let partial =
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
        for (accept, expected) in [
            (PROTOBUF, None),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Some(Wanted {
                    format: Format::Json,
                    form: Form::Object,
                }),
            ),
            (
                partial,
                Some(Wanted {
                    format: Format::Protobuf,
                    form: Form::Partial(MetaVersion::V1),
                }),
            ),
        ] {
            assert_eq!(
                wanted(Some(accept), Offer::Custom { streams: false }).ok(),
                expected,
                "{accept}"
            );
            assert_eq!(
                wanted(Some(accept), Offer::Watch { custom: true }).ok(),
                expected,
                "{accept}"
            );
        }
    }

    #[test]
    fn errors_are_sent_in_the_first_plain_format() {
        for (accept, expected) in [
            ("", Format::Json),
            ("text/html", Format::Json),
            ("application/yaml", Format::Yaml),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Format::Protobuf,
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
                Format::Json,
            ),
        ] {
            assert_eq!(status_format(Some(accept)), expected, "{accept}");
        }
    }
}
