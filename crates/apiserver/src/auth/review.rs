//! TokenReview and the access reviews.
//! In: a review object and the requesting user. Out: the same object with its status.
//! Guarantees: a review uses the code that authorizes requests; nothing is stored.

use std::collections::BTreeMap;

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    field::{FieldError, Path, Verbatim},
    time::Time,
};
use bellerophon_codec::{
    object::{Object, ObjectMeta},
    types,
};
use serde_json::{Map, Value, json};

use super::{
    Attributes, Authenticator, Decision, Lookup, Target, authorize,
    rbac::{Grants, Rule},
    user::User,
};

const AUTHORIZATION: &str = "authorization.k8s.io";

/// A rules review lists rules up to this size, as a role may be bound to a user any number of
/// times.
const RULES_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The user of an access review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessReview<'a> {
    /// `SubjectAccessReview`: the user that the review names.
    Subject,
    /// `LocalSubjectAccessReview` sent to this namespace: the same, within it.
    Local { namespace: &'a str },
    /// `SelfSubjectAccessReview`: the requesting user.
    Own(&'a User),
}

/// Answers whether a user may do something.
///
/// # Errors
/// A review that names no subject, or not exactly one kind of target.
pub(crate) fn review_access(
    kind: AccessReview<'_>,
    mut review: Object,
    stored: &dyn Lookup,
) -> Result<Object, ApiError> {
    let errors = invalid_fields(kind, &review);
    // kube-apiserver leaves out the kind here.
    ApiError::from_fields(GroupKind::new(AUTHORIZATION, ""), "", errors)?;
    let user = match kind {
        AccessReview::Own(user) => user.clone(),
        AccessReview::Subject | AccessReview::Local { .. } => named_user(&review),
    };
    let text = |path: &str| review.str_at(path);
    let target = if given(&review, "resourceAttributes") {
        Target::Resource {
            group: text("spec.resourceAttributes.group"),
            resource: text("spec.resourceAttributes.resource"),
            subresource: text("spec.resourceAttributes.subresource"),
            namespace: text("spec.resourceAttributes.namespace"),
            name: text("spec.resourceAttributes.name"),
        }
    } else {
        Target::Path(text("spec.nonResourceAttributes.path"))
    };
    let verb = match target {
        Target::Resource { .. } => text("spec.resourceAttributes.verb"),
        Target::Path(_) => text("spec.nonResourceAttributes.verb"),
    };
    let (allowed, reason) = match authorize(
        &Attributes {
            user: &user,
            verb,
            target,
        },
        stored,
    ) {
        Decision::Allow(reason) => (true, reason),
        Decision::NoOpinion(reason) => (false, reason),
    };
    let mut status = Map::from_iter([("allowed".to_owned(), allowed.into())]);
    if !reason.is_empty() {
        status.insert("reason".into(), reason.into());
    }
    review.body.insert("status".into(), status.into());
    Ok(review)
}

/// Lists what the user may do in the namespace that the review names.
///
/// # Errors
/// A review without a namespace.
pub(crate) fn review_own_rules(
    user: &User,
    mut review: Object,
    stored: &dyn Lookup,
) -> Result<Object, ApiError> {
    let namespace = review.str_at("spec.namespace");
    if namespace.is_empty() {
        return Err(ApiError::BadRequest("no namespace on request".into()));
    }
    let grants = Grants::of(user, namespace, stored);
    let mut bytes = 0;
    let rules: Vec<Rule<'_>> = grants
        .rules()
        .take_while(|rule| {
            bytes += rule.bytes();
            bytes <= RULES_BYTES_MAX
        })
        .collect();
    let pick = |rule: Rule<'_>, keys: &[&str]| -> Value {
        let lists = keys.iter().filter(|key| !rule.is_empty(key));
        lists
            .map(|key| ((*key).to_owned(), Value::from_iter(rule.list(key))))
            .collect::<Map<_, _>>()
            .into()
    };
    let rules_with = |list: &'static str, keys: &[&str]| -> Value {
        rules
            .iter()
            .filter(|rule| !rule.is_empty(list))
            .map(|rule| pick(*rule, keys))
            .collect::<Vec<_>>()
            .into()
    };
    let mut status = json!({
        "resourceRules": rules_with("resources", &["verbs", "apiGroups", "resources", "resourceNames"]),
        "nonResourceRules": rules_with("nonResourceURLs", &["verbs", "nonResourceURLs"]),
        "incomplete": bytes > RULES_BYTES_MAX,
    });
    if !grants.problems.is_empty() {
        status["evaluationError"] = grants.problem().into();
    }
    // kube-apiserver returns a new object: neither spec nor metadata are echoed.
    review.meta = ObjectMeta::default();
    review.body = Map::from_iter([
        ("spec".to_owned(), json!({})),
        ("status".to_owned(), status),
    ]);
    Ok(review)
}

/// SelfSubjectReview: returns the attributes of the authenticated user. The response is a new
/// object; the request body is not echoed.
pub(crate) fn review_self(user: &User, mut review: Object, now: Time) -> Object {
    review.meta = ObjectMeta {
        creation_timestamp: Some(now),
        ..ObjectMeta::default()
    };
    review.body = Map::from_iter([("status".to_owned(), json!({"userInfo": user.to_value()}))]);
    review
}

/// TokenReview: authenticates a token and returns its user.
///
/// # Errors
/// A review without a token.
pub(crate) fn review_token(
    mut review: Object,
    authenticator: &Authenticator,
    stored: &dyn Lookup,
    now: Time,
) -> Result<Object, ApiError> {
    let token = review.str_at("spec.token");
    if token.is_empty() {
        return Err(ApiError::BadRequest(
            "token is required for TokenReview in authentication".into(),
        ));
    }
    let requested = strings(&review, "spec.audiences");
    let audiences = if requested.is_empty() {
        authenticator.audiences()
    } else {
        &requested
    };
    let status = match authenticator.user_of_token(token, audiences, stored, now) {
        Ok(good) => {
            json!({"authenticated": true, "user": good.user.to_value(), "audiences": good.audiences})
        }
        Err(why) => json!({"user": {}, "error": why}),
    };
    review.body.insert("status".into(), status);
    Ok(review)
}

fn given(review: &Object, attributes: &str) -> bool {
    review
        .body
        .get("spec")
        .and_then(|spec| spec.get(attributes))
        .is_some_and(|v| !v.is_null())
}

fn strings(object: &Object, path: &str) -> Vec<String> {
    let list = object.at(path).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|v| v.as_str().map(str::to_owned))
        .collect()
}

/// The user a review is about.
fn named_user(review: &Object) -> User {
    let extra = review
        .at("spec.extra")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let values = |v: &Value| {
        v.as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect()
    };
    User {
        name: review.str_at("spec.user").to_owned(),
        uid: review.str_at("spec.uid").to_owned(),
        groups: strings(review, "spec.groups"),
        extra: extra
            .map(|(key, v)| (key.clone(), values(v)))
            .collect::<BTreeMap<_, _>>(),
    }
}

fn invalid_fields(kind: AccessReview<'_>, review: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let resource = given(review, "resourceAttributes");
    let path = given(review, "nonResourceAttributes");
    // The message shows the fields under their Go names.
    let text = |key: &str| Value::from(review.str_at(&format!("spec.nonResourceAttributes.{key}")));
    let shown = format!(r#"{{"Path":{},"Verb":{}}}"#, text("path"), text("verb"));
    if resource && path {
        let why = "cannot be specified in combination with resourceAttributes";
        errors.push(FieldError::invalid(
            "spec.nonResourceAttributes",
            Verbatim(&shown),
            why,
        ));
    }
    if !resource && !path {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.push(FieldError::invalid(
            "spec.resourceAttributes",
            Verbatim("null"),
            why,
        ));
    }
    let own = matches!(kind, AccessReview::Own(_));
    if !own && review.str_at("spec.user").is_empty() && strings(review, "spec.groups").is_empty() {
        errors.push(FieldError::invalid(
            "spec.user",
            "",
            "at least one of user or group must be specified",
        ));
    }
    for selector in ["fieldSelector", "labelSelector"] {
        invalid_selector(review, selector, &mut errors);
    }
    invalid_metadata(kind, &review.meta, &mut errors);
    if let AccessReview::Local { namespace } = kind {
        let requested = review.str_at("spec.resourceAttributes.namespace");
        if resource && requested != namespace {
            errors.push(FieldError::invalid(
                "spec.resourceAttributes.namespace",
                requested,
                "must match metadata.namespace",
            ));
        }
        if path {
            errors.push(FieldError::invalid(
                "spec.nonResourceAttributes",
                Verbatim(&shown),
                "disallowed on this kind of request",
            ));
        }
    }
    errors
}

fn invalid_selector(review: &Object, selector: &str, errors: &mut Vec<FieldError>) {
    let Some(value) = review
        .at(&format!("spec.resourceAttributes.{selector}"))
        .filter(|v| !v.is_null())
    else {
        return;
    };
    let raw = value
        .get("rawSelector")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let requirements = value
        .get("requirements")
        .and_then(Value::as_array)
        .is_some_and(|r| !r.is_empty());
    let spec = Path::field("spec.resourceAttributes");
    let place = spec.child(selector);
    if !raw.is_empty() && requirements {
        errors.push(FieldError::invalid(
            place.child("rawSelector"),
            raw,
            "may not specified at the same time as requirements",
        ));
    }
    if raw.is_empty() && !requirements {
        let why = format!("when {place} is specified, requirements or rawSelector is required");
        errors.push(FieldError::required(place.child("requirements"), &why));
    }
}

fn invalid_metadata(kind: AccessReview<'_>, meta: &ObjectMeta, errors: &mut Vec<FieldError>) {
    let mut bare = ObjectMeta {
        managed_fields: Vec::new(),
        ..meta.clone()
    };
    let mut why = "must be empty";
    if matches!(kind, AccessReview::Local { .. }) {
        bare.namespace.clear();
        why = "must be empty except for namespace";
    }
    if bare != ObjectMeta::default() {
        let meta = meta.to_value();
        let shown = types::written(Some(types::object_meta()), &meta, None);
        errors.push(FieldError::invalid("metadata", Verbatim(&shown), why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Source, Tokens, fake_lookup::FakeLookup};

    fn review(value: Value) -> Object {
        let Value::Object(map) = value else {
            panic!("an object was expected")
        };
        Object::from_map(map).expect("good metadata")
    }

    fn fake_lookup() -> FakeLookup {
        let rules = json!([
            {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["x"]},
            {"verbs": ["create"], "apiGroups": ["apps"], "resources": ["deployments"]},
        ]);
        FakeLookup::default()
            .bound("r", "User ann", rules)
            .bound_everywhere(
                "info",
                "Group all",
                json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}]),
            )
    }

    fn ann() -> User {
        User {
            name: "ann".into(),
            groups: vec!["all".into()],
            ..User::default()
        }
    }

    fn status_or_message(kind: AccessReview<'_>, value: Value) -> String {
        match review_access(kind, review(value), &fake_lookup()) {
            Ok(answer) => answer.body["status"].to_string(),
            Err(error) => error.to_status()["message"]
                .as_str()
                .expect("text")
                .to_owned(),
        }
    }

    #[test]
    fn access_review_answers_with_the_reason() {
        let on = |verb: &str| json!({"verb": verb, "resource": "deployments", "group": "apps", "namespace": "ns"});
        let yes = r#"{"allowed":true,"reason":"RBAC: allowed by RoleBinding \"r/ns\" of Role \"r\" to User \"ann\""}"#;
        assert_eq!(
            status_or_message(
                AccessReview::Subject,
                json!({"spec": {"user": "ann", "resourceAttributes": on("create")}})
            ),
            yes
        );
        assert_eq!(
            status_or_message(
                AccessReview::Own(&ann()),
                json!({"spec": {"resourceAttributes": on("delete")}})
            ),
            r#"{"allowed":false}"#
        );
        let local = json!({"metadata": {"namespace": "ns"}, "spec": {"user": "ann", "resourceAttributes": on("create")}});
        assert_eq!(
            status_or_message(AccessReview::Local { namespace: "ns" }, local),
            yes
        );
        let path = json!({"spec": {"groups": ["all"], "nonResourceAttributes": {"path": "/healthz", "verb": "get"}}});
        assert!(status_or_message(AccessReview::Subject, path).starts_with(r#"{"allowed":true"#));
    }

    #[test]
    fn access_review_must_name_subject_and_one_target() {
        let on = |ns: &str| json!({"verb": "get", "resource": "pods", "namespace": ns});
        let path = || json!({"path": "/", "verb": "get"});
        let local = AccessReview::Local { namespace: "ns" };
        for (kind, value, want) in [
            (
                AccessReview::Subject,
                json!({"spec": {"resourceAttributes": on("ns")}}),
                r#"spec.user: Invalid value: "": at least one of user or group must be specified"#,
            ),
            (
                AccessReview::Own(&ann()),
                json!({"spec": {}}),
                "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ),
            (
                AccessReview::Subject,
                json!({"spec": {"user": "u", "resourceAttributes": on("ns"), "nonResourceAttributes": path()}}),
                r#"spec.nonResourceAttributes: Invalid value: {"Path":"/","Verb":"get"}: cannot be specified in combination with resourceAttributes"#,
            ),
            (
                AccessReview::Subject,
                json!({"metadata": {"name": "n"}, "spec": {"user": "u", "resourceAttributes": on("ns")}}),
                r#"metadata: Invalid value: {"name":"n"}: must be empty"#,
            ),
            (
                local,
                json!({"spec": {"user": "u", "resourceAttributes": on("elsewhere")}}),
                r#"spec.resourceAttributes.namespace: Invalid value: "elsewhere": must match metadata.namespace"#,
            ),
            (
                local,
                json!({"spec": {"user": "u", "nonResourceAttributes": path()}}),
                r#"spec.nonResourceAttributes: Invalid value: {"Path":"/","Verb":"get"}: disallowed on this kind of request"#,
            ),
        ] {
            assert_eq!(
                status_or_message(kind, value),
                format!(r#".authorization.k8s.io "" is invalid: {want}"#)
            );
        }
    }

    #[test]
    fn rules_review_lists_the_rules_of_the_namespace() {
        let answer = review_own_rules(
            &ann(),
            review(json!({"spec": {"namespace": "ns"}})),
            &fake_lookup(),
        )
        .expect("rules");
        let want = json!({
            "resourceRules": [
                {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["x"]},
                {"verbs": ["create"], "apiGroups": ["apps"], "resources": ["deployments"]},
            ],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}],
            "incomplete": false,
        });
        assert_eq!(&answer.body["spec"], &json!({}));
        assert_eq!(&answer.body["status"], &want);
        assert_eq!(
            review_own_rules(&ann(), review(json!({})), &fake_lookup()),
            Err(ApiError::BadRequest("no namespace on request".into()))
        );
    }

    #[test]
    fn rules_review_of_too_many_rules_is_incomplete() {
        let long = "x".repeat(1 << 20);
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": [long]}]);
        let stored = (0..20).fold(FakeLookup::default(), |stored, i| {
            stored.bound(&format!("r{i}"), "User ann", rules.clone())
        });
        let answer = review_own_rules(
            &ann(),
            review(json!({"spec": {"namespace": "ns"}})),
            &stored,
        );
        let status = &answer.expect("rules").body["status"];
        assert_eq!(status["incomplete"], true);
        assert_eq!(status["resourceRules"].as_array().map(Vec::len), Some(7));
    }

    #[test]
    fn token_review_distinguishes_valid_and_invalid_tokens() {
        let authenticator = Authenticator::new("secret", Tokens::generate());
        let now = Time::parse("2026-01-01T00:00:00Z").expect("a time");
        let stored = fake_lookup().with(
            Source::ServiceAccount,
            json!({"metadata": {"name": "default", "namespace": "ns", "uid": "u"}}),
        );
        let status = |spec: Value| {
            review_token(
                review(json!({ "spec": spec })),
                &authenticator,
                &stored,
                now,
            )
            .map(|answer| answer.body["status"].clone())
        };
        let good = status(json!({"token": "secret"})).expect("a review");
        assert_eq!(&good["authenticated"], &json!(true));
        assert_eq!(&good["user"]["username"], &json!("admin"));
        assert_eq!(
            status(json!({"token": "nonsense"})),
            Ok(json!({"user": {}, "error": "invalid bearer token"}))
        );
        let required = "token is required for TokenReview in authentication";
        assert_eq!(
            status(json!({})),
            Err(ApiError::BadRequest(required.into()))
        );
        assert_eq!(
            review_self(&ann(), review(json!({})), now).body["status"],
            json!({"userInfo": {"username": "ann", "groups": ["all"]}})
        );
    }
}
