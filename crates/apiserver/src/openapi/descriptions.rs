//! Descriptions of types and fields: what `kubectl explain` shows.
//!
//! In: names of types and fields. Out: their descriptions.
//! Those of built-in types are Kubernetes' own. The build script collects them from the source of
//! the k8s-openapi package; they are decompressed at the first request of a document. Without the
//! feature `descriptions` only lists are described, by texts of this module.

#[cfg(feature = "descriptions")]
mod builtin; // the texts of Kubernetes
#[cfg(not(feature = "descriptions"))]
mod builtin {
    //! No descriptions of built-in types.

    pub(super) fn of_type(_name: &str) -> Option<&'static str> {
        None
    }

    pub(super) fn of_field(_type_name: &str, _field: &str) -> Option<&'static str> {
        None
    }
}

use std::borrow::Cow;

/// The type whose `apiVersion` and `kind` describe those of every kind.
const ANY_KIND: &str = "io.k8s.api.core.v1.ConfigMap";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// Fields that the API describes elsewhere: type, field, text.
const OWN: &[(&str, &str, &str)] = &[(
    "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent",
    "object",
    "The object as it is now; of a deletion, as it last was; of an error, a Status; of a bookmark, nothing but the version.",
)];

/// The description of a published type.
pub(super) fn of_type(name: &str) -> Option<Cow<'static, str>> {
    builtin::of_type(name).map(Cow::Borrowed).or_else(|| {
        let list = listed(name)?;
        Some(Cow::Owned(format!(
            "{list}List is a list of {list} objects."
        )))
    })
}

/// The description of a field of a published type.
pub(super) fn of_field(type_name: &str, field: &str) -> Option<Cow<'static, str>> {
    let own = || {
        OWN.iter()
            .find(|(name, of, _)| *name == type_name && *of == field)
            .map(|(.., text)| *text)
    };
    let known = builtin::of_field(type_name, field)
        .or_else(own)
        .map(Cow::Borrowed);
    known.or_else(|| listed(type_name).and_then(|kind| of_list_field(kind, field)))
}

/// The description of `apiVersion` or `kind` in an object of any kind.
pub(super) fn of_any_kind(field: &str) -> Option<Cow<'static, str>> {
    builtin::of_field(ANY_KIND, field).map(Cow::Borrowed)
}

/// The description of a field of a list of `kind`.
pub(super) fn of_list_field(kind: &str, field: &str) -> Option<Cow<'static, str>> {
    match field {
        "items" => Some(Cow::Owned(format!("The {kind} objects of the list."))),
        "metadata" => builtin::of_type(LIST_META).map(Cow::Borrowed),
        _ => of_any_kind(field),
    }
}

/// The description of a field with an enum: its text, then the possible values.
pub(super) fn with_values(
    description: Option<Cow<'static, str>>,
    values: &[&str],
) -> Option<Cow<'static, str>> {
    if values.is_empty() {
        return description;
    }
    let list: String = values
        .iter()
        .map(|value| format!("\n - `{value:?}`"))
        .collect();
    let text = description
        .map(|text| format!("{text}\n\n"))
        .unwrap_or_default();
    Some(Cow::Owned(format!("{text}Possible enum values:{list}")))
}

/// The kind of the items, from the name of a list type: `Pod` for `PodList`.
fn listed(name: &str) -> Option<&str> {
    name.rsplit('.').next()?.strip_suffix("List")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enum_values_follow_the_text() {
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
    fn lists_are_described_without_the_feature() {
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

        use bellerophon_codec::types::Published;

        // Fields that the API publishes without a description.
        let undescribed = [
            "io.k8s.api.certificates.v1.CertificateSigningRequest.metadata",
            "io.k8s.api.networking.v1.IngressRule.http",
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps.",
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.ExternalDocumentation.",
            "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent.",
            "io.k8s.apimachinery.pkg.version.Info.",
        ];
        let rows = crate::registry::ROWS.iter();
        let mut left: Vec<Published> = rows
            .filter_map(|row| Published::of_kind(row.group, row.version, row.kind))
            .collect();
        let mut seen = BTreeSet::new();
        let mut missing = BTreeSet::new();
        while let Some(published) = left.pop() {
            if !seen.insert(published) {
                continue;
            }
            let name = published.name();
            for field in published.type_().fields() {
                let path = format!("{name}.{}", field.name);
                if of_field(&name, field.name).is_none()
                    && !undescribed.iter().any(|s| path.starts_with(s))
                {
                    missing.insert(path);
                }
                left.extend(Published::of_item(field.shape.item()));
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }
}
