//! What types and fields mean, told to people: the text behind `kubectl explain`.
//! Holds: the words are the API's own and come from the `k8s-openapi` crate, read when a document is first asked for. Without the feature
//! `descriptions` only lists are described, whose words are ours.

#[cfg(feature = "descriptions")]
mod k8s; // the words of the k8s-openapi crate

use std::borrow::Cow;

/// The type whose `apiVersion` and `kind` are explained; they mean the same in every kind.
const ANY_KIND: &str = "io.k8s.api.core.v1.ConfigMap";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// What the API itself leaves unsaid, though its schema has a place for it: type, field, text.
const OWN: &[(&str, &str, &str)] = &[(
    "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent",
    "object",
    "The object as it is now; of a deletion, as it last was; of an error, a Status; of a bookmark, nothing but the version.",
)];

/// What a published type is.
pub(super) fn of_type(name: &str) -> Option<Cow<'static, str>> {
    known_type(name).map(Cow::Borrowed).or_else(|| {
        let list = listed(name)?;
        Some(Cow::Owned(format!(
            "{list}List is a list of {list} objects."
        )))
    })
}

/// What a field of a published type is.
pub(super) fn of_field(type_name: &str, field: &str) -> Option<Cow<'static, str>> {
    let own = || {
        OWN.iter()
            .find(|(name, of, _)| (*name, *of) == (type_name, field))
            .map(|(.., text)| *text)
    };
    let known = known_field(type_name, field)
        .or_else(own)
        .map(Cow::Borrowed);
    known.or_else(|| listed(type_name).and_then(|kind| of_list_field(kind, field)))
}

/// What `apiVersion` or `kind` is in an object of any kind.
pub(super) fn of_any_kind(field: &str) -> Option<Cow<'static, str>> {
    known_field(ANY_KIND, field).map(Cow::Borrowed)
}

/// What a field of a list of `kind` is.
pub(super) fn of_list_field(kind: &str, field: &str) -> Option<Cow<'static, str>> {
    match field {
        "items" => Some(Cow::Owned(format!("The {kind} objects of the list."))),
        "metadata" => known_type(LIST_META).map(Cow::Borrowed),
        _ => of_any_kind(field),
    }
}

/// The text of a field that takes only some values: what it is, and which they are.
pub(super) fn with_values(
    about: Option<Cow<'static, str>>,
    values: &[&str],
) -> Option<Cow<'static, str>> {
    if values.is_empty() {
        return about;
    }
    let list: String = values
        .iter()
        .map(|value| format!("\n - `{value:?}`"))
        .collect();
    let about = about
        .map(|about| format!("{about}\n\n"))
        .unwrap_or_default();
    Some(Cow::Owned(format!("{about}Possible enum values:{list}")))
}

/// `Pod` for the name of a list of pods.
fn listed(name: &str) -> Option<&str> {
    name.rsplit('.').next()?.strip_suffix("List")
}

#[cfg(feature = "descriptions")]
fn known_type(name: &str) -> Option<&'static str> {
    k8s::WORDS
        .get(name)
        .and_then(|words| words.about.as_deref())
}

#[cfg(feature = "descriptions")]
fn known_field(type_name: &str, field: &str) -> Option<&'static str> {
    k8s::WORDS
        .get(type_name)
        .and_then(|words| words.fields.get(field))
        .map(|about| &**about)
}

#[cfg(not(feature = "descriptions"))]
fn known_type(_name: &str) -> Option<&'static str> {
    None
}

#[cfg(not(feature = "descriptions"))]
fn known_field(_type_name: &str, _field: &str) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_the_text() {
        assert_eq!(with_values(None, &[]), None);
        assert_eq!(
            with_values(None, &["A"]).as_deref(),
            Some("Possible enum values:\n - `\"A\"`")
        );
        assert_eq!(
            with_values(Some("x".into()), &["A", ""]).as_deref(),
            Some("x\n\nPossible enum values:\n - `\"A\"`\n - `\"\"`")
        );
    }

    #[test]
    fn lists_are_described_without_a_dictionary() {
        assert_eq!(
            of_type("io.k8s.api.core.v1.PodList").as_deref(),
            Some("PodList is a list of Pod objects.")
        );
        assert_eq!(
            of_field("io.k8s.api.core.v1.PodList", "items").as_deref(),
            Some("The Pod objects of the list.")
        );
    }

    #[cfg(feature = "descriptions")]
    #[test]
    fn every_served_field_is_described() {
        use std::collections::BTreeSet;

        use crate::types::Published;

        // Fields that the API itself publishes without a word.
        let silent = [
            "io.k8s.api.certificates.v1.CertificateSigningRequest.metadata",
            "io.k8s.api.networking.v1.IngressRule.http",
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps.",
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.ExternalDocumentation.",
            "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent.",
            "io.k8s.apimachinery.pkg.version.Info.",
        ];
        let rows = crate::kinds::ROWS.iter();
        let mut left: Vec<Published> = rows
            .filter_map(|row| Published::of_kind(row.group, row.version, row.kind))
            .collect();
        let (mut seen, mut missing) = (BTreeSet::new(), BTreeSet::new());
        while let Some(published) = left.pop() {
            if !seen.insert(published) {
                continue;
            }
            let name = published.name();
            for field in published.type_().fields() {
                let path = format!("{name}.{}", field.name);
                if of_field(&name, field.name).is_none()
                    && !silent.iter().any(|s| path.starts_with(s))
                {
                    missing.insert(path);
                }
                left.extend(Published::of_item(field.shape.item()));
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }
}
