//! Protected API groups: `k8s.io` and `kubernetes.io` need an approval annotation.
//! In: a group and the annotations of its definition. Out: whether it is approved, with the message
//! of Kubernetes.

use std::collections::BTreeMap;

use bellerophon_apimachinery::field::{FieldError, Path};

use super::formats;

/// The annotation that carries the approval.
const ANNOTATION: &str = "api-approved.kubernetes.io";

/// The approval annotation of a protected group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Approval {
    Missing,
    Invalid,
    Bypassed,
    Approved,
}

/// The approval of a definition; none when its group is not protected.
pub(super) fn approval(group: &str, annotations: &BTreeMap<String, String>) -> Option<Approval> {
    let protected = ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        group
            .strip_suffix(domain)
            .is_some_and(|g| g.is_empty() || g.ends_with('.'))
    });
    protected.then(
        || match annotations.get(ANNOTATION).map_or("", String::as_str) {
            "" => Approval::Missing,
            text if text.starts_with("unapproved") => Approval::Bypassed,
            text if formats::is_url_with_host(text) => Approval::Approved,
            _ => Approval::Invalid,
        },
    )
}

/// The message of the approval.
pub(super) fn message(approval: Approval, annotations: &BTreeMap<String, String>) -> String {
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let text = annotations.get(ANNOTATION).map_or("", String::as_str);
    match approval {
        Approval::Missing => {
            format!("protected groups must have approval annotation {ANNOTATION:?}, {SEE}")
        }
        Approval::Invalid => {
            format!(
                "protected groups must have approval annotation {ANNOTATION:?} with either a URL or a reason starting with \"unapproved\", {SEE}"
            )
        }
        Approval::Bypassed => format!(
            "not approved: {}",
            bellerophon_apimachinery::field::go_quote(text)
        ),
        Approval::Approved => format!("approved in {text}"),
    }
}

/// The errors of the approval of a definition. An unchanged approval is always valid.
pub(super) fn validate(
    group: &str,
    annotations: &BTreeMap<String, String>,
    old_annotations: Option<&BTreeMap<String, String>>,
    errors: &mut Vec<FieldError>,
) {
    let Some(state) = approval(group, annotations) else {
        return;
    };
    if old_annotations.is_some_and(|old| approval(group, old) == Some(state)) {
        return;
    }
    let at = Path::field("metadata");
    let at = at.child("annotations");
    let at = at.key(ANNOTATION);
    match state {
        Approval::Missing => errors.push(FieldError::required(at, &message(state, annotations))),
        Approval::Invalid => {
            let text = annotations.get(ANNOTATION).map_or("", String::as_str);
            errors.push(FieldError::invalid(at, text, &message(state, annotations)));
        }
        Approval::Bypassed | Approval::Approved => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_groups_need_an_approval() {
        let with = |text: &str| BTreeMap::from([(ANNOTATION.to_owned(), text.to_owned())]);
        for (group, text, expected) in [
            ("example.dev", "", None),
            ("notk8s.io", "", None),
            ("k8s.io", "", Some(Approval::Missing)),
            ("a.kubernetes.io", "yes please", Some(Approval::Invalid)),
            ("a.k8s.io", "unapproved, testing", Some(Approval::Bypassed)),
            (
                "a.k8s.io",
                "https://github.com/kubernetes/pull/1",
                Some(Approval::Approved),
            ),
        ] {
            assert_eq!(approval(group, &with(text)), expected, "{group} {text}");
        }
        let mut errors = Vec::new();
        validate("k8s.io", &with("no"), Some(&with("never")), &mut errors);
        assert!(errors.is_empty(), "an invalid approval may stay");
    }
}
