//! TokenRequest: a token for a service account, issued through the API.
//! In: the request, its service account and the object it is bound to. Out: the request with a
//! token in its status.
//! Guarantees: limits and error messages are those of Kubernetes; nothing is stored.

use std::sync::Arc;

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind, GroupResource},
    field::{FieldError, go_quote},
    time::Time,
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

use super::{
    Authenticator, Lookup, Source,
    claims::{Binding, Claims, Named},
    user::service_account_name,
};
use crate::entropy::Entropy;

const GROUP: &str = "authentication.k8s.io";
const DEFAULT_SECONDS: i64 = 60 * 60;
const SECONDS_MIN: i64 = 10 * 60;
const SECONDS_MAX: i64 = 1 << 32;
/// The expiration that the kubelet requests for every pod. Such tokens expire after a year and
/// contain a `warnafter` claim.
const PROJECTED_SECONDS: i64 = 60 * 60 + 7;
const EXTENDED_SECONDS: i64 = 365 * 24 * 60 * 60;

/// A request for a token of `namespace/account`.
pub(crate) struct TokenRequest<'a> {
    /// From the path.
    pub(crate) namespace: &'a str,
    /// From the path.
    pub(crate) account: &'a str,
    /// The body as the client sent it.
    pub(crate) body: Object,
    /// When it is answered.
    pub(crate) now: Time,
}

/// Sets the default expiration of a token request.
pub(crate) fn default_token_request(body: &mut Object) {
    let seconds = body
        .section("spec")
        .entry("expirationSeconds")
        .or_insert(Value::Null);
    if seconds.is_null() {
        *seconds = DEFAULT_SECONDS.into();
    }
}

/// Answers a request with a token.
///
/// # Errors
/// Names or uids that do not match, a life time out of bounds, an account or bound object that does
/// not exist.
pub(crate) fn issue_token(
    request: TokenRequest<'_>,
    authenticator: &Authenticator,
    stored: &dyn Lookup,
    entropy: &Entropy,
) -> Result<Object, ApiError> {
    let TokenRequest {
        namespace,
        account,
        mut body,
        now,
    } = request;
    must_match(&body, namespace, account)?;
    let found = stored
        .get(Source::ServiceAccount, namespace, account)
        .ok_or_else(|| ApiError::NotFound {
            resource: Source::ServiceAccount.group_resource(),
            name: account.to_owned(),
        })?;
    if !body.meta.uid.is_empty() && body.meta.uid != found.meta.uid {
        let requested = &body.meta.uid;
        let actual = &found.meta.uid;
        let why = format!(
            "the UID in the token request ({requested}) does not match the UID of the service account ({actual})"
        );
        return Err(ApiError::Conflict {
            what: GroupResource::new(GROUP, "TokenRequest"),
            name: account.to_owned(),
            why,
        });
    }
    let spec = Spec::read(&body, authenticator.audiences());
    spec.check_bounds()?;
    let mut binding = Binding {
        namespace: namespace.to_owned(),
        serviceaccount: Named::of(&found),
        ..Binding::default()
    };
    if let Some(reference) = &spec.bound {
        bind(&mut binding, reference, stored)?;
    }
    let extend = binding.pod.is_some()
        && spec.seconds == PROJECTED_SECONDS
        && spec
            .audiences
            .iter()
            .all(|a| authenticator.audiences().contains(a));
    binding.warnafter = extend.then(|| now.as_second() + spec.seconds);
    let claims = Claims {
        aud: spec.audiences.clone(),
        exp: now.as_second()
            + if extend {
                EXTENDED_SECONDS
            } else {
                spec.seconds
            },
        iat: now.as_second(),
        nbf: now.as_second(),
        iss: authenticator.tokens().issuer().to_owned(),
        jti: entropy.uid(),
        sub: service_account_name(namespace, account),
        binding,
    };
    let status = json!({"token": authenticator.tokens().sign(&claims), "expirationTimestamp": now.plus_seconds(spec.seconds)});
    body.meta.name = account.to_owned();
    body.meta.namespace = namespace.to_owned();
    body.meta.uid.clone_from(&found.meta.uid);
    body.meta.creation_timestamp = Some(now);
    body.body = Map::from_iter([
        ("spec".to_owned(), spec.to_value()),
        ("status".to_owned(), status),
    ]);
    Ok(body)
}

/// The body may repeat the name and namespace of the path, but not contradict them.
fn must_match(body: &Object, namespace: &str, account: &str) -> Result<(), ApiError> {
    for (field, given, wanted, what) in [
        ("metadata.name", &body.meta.name, account, "name"),
        (
            "metadata.namespace",
            &body.meta.namespace,
            namespace,
            "namespace",
        ),
    ] {
        if !given.is_empty() && given != wanted {
            let error = FieldError::invalid(
                field,
                given,
                &format!("must match the service account {what} if specified"),
            );
            return ApiError::from_fields(
                GroupKind::new(GROUP, "TokenRequest"),
                account,
                vec![error],
            );
        }
    }
    Ok(())
}

/// The object a token is to be bound to, as the request names it.
struct Reference {
    value: Value,
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

struct Spec {
    audiences: Vec<String>,
    seconds: i64,
    bound: Option<Reference>,
}

impl Spec {
    fn read(body: &Object, audiences: &[String]) -> Self {
        let requested = body.at("spec.audiences").and_then(Value::as_array);
        let requested: Vec<String> = requested
            .into_iter()
            .flatten()
            .filter_map(|a| a.as_str().map(str::to_owned))
            .collect();
        let bound = body
            .at("spec.boundObjectRef")
            .filter(|r| r.is_object())
            .map(|value| {
                let text = |key| {
                    value
                        .get(key)
                        .and_then(Value::as_str)
                        .unwrap_or_default()
                        .to_owned()
                };
                let api_version = text("apiVersion");
                let kind = text("kind");
                let name = text("name");
                let uid = text("uid");
                Reference {
                    value: value.clone(),
                    api_version,
                    kind,
                    name,
                    uid,
                }
            });
        Self {
            audiences: if requested.is_empty() {
                audiences.to_vec()
            } else {
                requested
            },
            seconds: body
                .at("spec.expirationSeconds")
                .and_then(Value::as_i64)
                .unwrap_or(DEFAULT_SECONDS),
            bound,
        }
    }

    fn check_bounds(&self) -> Result<(), ApiError> {
        let mut errors = Vec::new();
        if self.seconds < SECONDS_MIN {
            errors.push("may not specify a duration less than 10 minutes");
        }
        if self.seconds > SECONDS_MAX {
            errors.push("may not specify a duration larger than 2^32 seconds");
        }
        let errors = errors
            .into_iter()
            .map(|why| FieldError::invalid("spec.expirationSeconds", self.seconds, why))
            .collect();
        ApiError::from_fields(GroupKind::new(GROUP, "TokenRequest"), "", errors)
    }

    fn to_value(&self) -> Value {
        let bound = self.bound.as_ref().map_or(Value::Null, |r| r.value.clone());
        json!({"audiences": self.audiences, "expirationSeconds": self.seconds, "boundObjectRef": bound})
    }
}

/// Finds the object a token is to be bound to and names it in the token.
fn bind(binding: &mut Binding, reference: &Reference, stored: &dyn Lookup) -> Result<(), ApiError> {
    let Reference {
        api_version,
        kind,
        name,
        uid,
        ..
    } = reference;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let find = |source: Source, namespace: &str| -> Result<Arc<Object>, ApiError> {
        let missing = || ApiError::NotFound {
            resource: source.group_resource(),
            name: name.clone(),
        };
        stored.get(source, namespace, name).ok_or_else(missing)
    };
    let (slot, found) = match (group, kind.as_str()) {
        ("", "Pod") => {
            let pod = find(Source::Pod, &binding.namespace)?;
            let account = &binding.serviceaccount.name;
            if pod.str_at("spec.serviceAccountName") != account {
                return Err(ApiError::BadRequest(format!(
                    "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
                    go_quote(account)
                )));
            }
            binding.node = node_of(&pod, stored);
            (&mut binding.pod, pod)
        }
        ("", "Node") => (&mut binding.node, find(Source::Node, "")?),
        ("", "Secret") => (
            &mut binding.secret,
            find(Source::Secret, &binding.namespace)?,
        ),
        _ => {
            return Err(ApiError::BadRequest(format!(
                "cannot bind token to object of type {group}/{version}, Kind={kind}"
            )));
        }
    };
    if !uid.is_empty() && *uid != found.meta.uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(ApiError::Conflict {
            what: GroupResource::new(group, kind),
            name: name.clone(),
            why,
        });
    }
    *slot = Some(Named::of(&found));
    Ok(())
}

/// The node a pod is on: with its uid when there is such a node, by name alone otherwise.
fn node_of(pod: &Object, stored: &dyn Lookup) -> Option<Named> {
    let name = pod.str_at("spec.nodeName");
    let by_name = || Named {
        name: name.to_owned(),
        uid: String::new(),
    };
    (!name.is_empty()).then(|| {
        stored
            .get(Source::Node, "", name)
            .map_or_else(by_name, |node| Named::of(&node))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Tokens, fake_lookup::FakeLookup, tokens::ISSUER};

    fn fake_lookup() -> FakeLookup {
        let meta = |name: &str, uid: &str| json!({"metadata": {"name": name, "namespace": "ns", "uid": uid}});
        let pod = |name: &str, account: &str| json!({"metadata": {"name": name, "namespace": "ns", "uid": "u-pod"}, "spec": {"serviceAccountName": account, "nodeName": "n1"}});
        FakeLookup::default()
            .with(Source::ServiceAccount, meta("default", "u-sa"))
            .with(Source::Secret, meta("s", "u-secret"))
            .with(Source::Pod, pod("p", "default"))
            .with(Source::Pod, pod("q", "other"))
            .with(
                Source::Node,
                json!({"metadata": {"name": "n1", "uid": "u-node"}}),
            )
    }

    fn now() -> Time {
        Time::parse("2026-01-01T00:00:00Z").expect("a time")
    }

    fn authenticator() -> Authenticator {
        Authenticator::new("secret", Tokens::generate())
    }

    fn issue(
        authenticator: &Authenticator,
        account: &str,
        body: Value,
    ) -> Result<Object, ApiError> {
        let Value::Object(map) = body else {
            panic!("an object was expected")
        };
        let body = Object::from_map(map).expect("good metadata");
        issue_token(
            TokenRequest {
                namespace: "ns",
                account,
                body,
                now: now(),
            },
            authenticator,
            &fake_lookup(),
            &Entropy::seeded(1),
        )
    }

    fn refused(account: &str, body: Value) -> String {
        let error = issue(&authenticator(), account, body).expect_err("refused");
        format!(
            "{} {}",
            error.code(),
            error.to_status()["message"].as_str().expect("text")
        )
    }

    #[test]
    fn token_is_valid_for_its_audiences() {
        let authenticator = authenticator();
        let answer = issue(&authenticator, "default", json!({"spec": {}})).expect("a token");
        assert_eq!(
            answer.body["spec"],
            json!({"audiences": [ISSUER], "expirationSeconds": 3600, "boundObjectRef": null})
        );
        assert_eq!(
            answer.str_at("status.expirationTimestamp"),
            "2026-01-01T01:00:00Z"
        );
        assert_eq!(answer.meta.name.as_str(), "default");
        assert_eq!(answer.meta.uid.as_str(), "u-sa");
        let verified = authenticator.user_of_token(
            answer.str_at("status.token"),
            &[ISSUER.to_owned()],
            &fake_lookup(),
            now(),
        );
        let user = verified.expect("a good token").user;
        assert_eq!(user.name, "system:serviceaccount:ns:default");
        assert!(user.extra["authentication.kubernetes.io/credential-id"][0].starts_with("JTI="));
    }

    #[test]
    fn pod_token_names_pod_and_node_and_lives_a_year() {
        let authenticator = authenticator();
        let bound = json!({"spec": {"expirationSeconds": 3607, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}}});
        let answer = issue(&authenticator, "default", bound).expect("a token");
        assert_eq!(
            answer.str_at("status.expirationTimestamp"),
            "2026-01-01T01:00:07Z"
        );
        let later = now().plus_seconds(EXTENDED_SECONDS);
        let user = authenticator
            .user_of_token(
                answer.str_at("status.token"),
                &[ISSUER.to_owned()],
                &fake_lookup(),
                later,
            )
            .expect("good")
            .user;
        for (key, want) in [
            ("pod-name", "p"),
            ("pod-uid", "u-pod"),
            ("node-name", "n1"),
            ("node-uid", "u-node"),
        ] {
            assert_eq!(
                user.extra[&format!("authentication.kubernetes.io/{key}")],
                [want]
            );
        }
    }

    #[test]
    fn refusals_read_as_kubernetes_writes_them() {
        let spec = |spec: Value| json!({ "spec": spec });
        let bound = |kind: &str, name: &str, uid: &str| json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}}});
        let head = "422 TokenRequest.authentication.k8s.io";
        for (account, body, want) in [
            (
                "default",
                spec(json!({"expirationSeconds": 599})),
                format!("{head} \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"),
            ),
            (
                "default",
                spec(json!({"expirationSeconds": 4_294_967_297_i64})),
                format!(
                    "{head} \"\" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds"
                ),
            ),
            ("missing", spec(json!({})), "404 serviceaccounts \"missing\" not found".into()),
            (
                "default",
                json!({"metadata": {"name": "x"}}),
                format!("{head} \"default\" is invalid: metadata.name: Invalid value: \"x\": must match the service account name if specified"),
            ),
            ("default", bound("Secret", "none", ""), "404 secrets \"none\" not found".into()),
            ("default", bound("ConfigMap", "x", ""), "400 cannot bind token to object of type /v1, Kind=ConfigMap".into()),
            (
                "default",
                bound("Pod", "q", ""),
                "400 cannot bind token for serviceaccount \"default\" to pod running with different serviceaccount name.".into(),
            ),
            (
                "default",
                bound("Secret", "s", "u-old"),
                "409 Operation cannot be fulfilled on Secret \"s\": the UID in the bound object reference (u-old) does not match the UID \
                 in record. The object might have been deleted and then recreated"
                    .into(),
            ),
            (
                "default",
                json!({"metadata": {"uid": "u-old"}}),
                "409 Operation cannot be fulfilled on TokenRequest.authentication.k8s.io \"default\": the UID in the token request (u-old) \
                 does not match the UID of the service account (u-sa)"
                    .into(),
            ),
        ] {
            assert_eq!(refused(account, body), want);
        }
    }
}
