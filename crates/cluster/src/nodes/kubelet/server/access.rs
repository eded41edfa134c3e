//! Access to a kubelet's socket: authentication and authorization of requests.
//!
//! In: the client certificate of a connection, the request. Out: whether it is served.
//! Guarantees: a request without valid credentials is refused; every request is authorized by a
//! SubjectAccessReview of the API server, as in the kubelet's webhook mode. Reviews are not cached:
//! a permission ends when it is revoked.

use std::collections::BTreeMap;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tracing::warn;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::AttributeTypeAndValue;

use super::response::Refusal;

/// The group of every user who has proved an identity.
const AUTHENTICATED: &str = "system:authenticated";

/// A user, as the API server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct User {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

impl User {
    /// The user that a verified certificate in DER names; `None` if it has no common name. Mirrors
    /// `CommonNameUserConversion`.
    pub(super) fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let text =
            |attribute: &AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
        let name = subject.iter_common_name().filter_map(text).last()?;
        if name.is_empty() {
            return None;
        }
        Some(Self {
            name,
            groups: subject.iter_organization().filter_map(text).collect(),
            ..Self::default()
        })
    }

    fn of_token(info: UserInfo) -> Self {
        Self {
            name: info.username.unwrap_or_default(),
            uid: info.uid,
            groups: info.groups.unwrap_or_default(),
            extra: info.extra,
        }
    }
}

/// The client of a connection to the socket of a kubelet.
pub(super) struct SocketClient {
    /// Reviews tokens and access as the user of the kubelets.
    pub(super) reviewer: Client,
    /// The user of the client certificate, if there is one.
    pub(super) certificate: Option<User>,
}

impl SocketClient {
    /// Whether a request may be served. Mirrors `InstallAuthFilter`.
    pub(super) async fn authorize(
        &self,
        node: &str,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let user = match &self.certificate {
            Some(user) => Some(user.clone()),
            None => self.review_token(headers).await,
        };
        let Some(mut user) = user else {
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized"));
        };
        if !user.groups.iter().any(|group| group == AUTHENTICATED) {
            user.groups.push(AUTHENTICATED.to_owned());
        }
        let verb = verb(method);
        let subresources = subresources(path);
        for subresource in &subresources {
            let access = ResourceAttributes {
                verb: Some(verb.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some((*subresource).to_owned()),
                name: Some(node.to_owned()),
                ..ResourceAttributes::default()
            };
            if self.review_access(&user, access).await? {
                return Ok(());
            }
        }
        let message = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])",
            user.name,
            subresources.join(" "),
        );
        Err(Refusal::new(StatusCode::FORBIDDEN, message))
    }

    /// The user of a bearer token; `None` if there is none, or it is invalid.
    async fn review_token(&self, headers: &HeaderMap) -> Option<User> {
        let token = bearer_token(headers)?;
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.reviewer.clone());
        let status = match reviews.create(&PostParams::default(), &review).await {
            Ok(review) => review.status?,
            Err(error) => {
                warn!(%error, "cannot review a token");
                return None;
            }
        };
        let user = status.user.filter(|_| status.authenticated == Some(true));
        user.map(User::of_token)
            .filter(|user| !user.name.is_empty())
    }

    async fn review_access(
        &self,
        user: &User,
        access: ResourceAttributes,
    ) -> Result<bool, Refusal> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: user.extra.clone(),
                resource_attributes: Some(access),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.reviewer.clone());
        match reviews.create(&PostParams::default(), &review).await {
            Ok(review) => Ok(review.status.is_some_and(|status| status.allowed)),
            Err(error) => {
                warn!(%error, user = user.name, "cannot review access to a kubelet");
                let message = format!("Authorization error (user={})", user.name);
                Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message))
            }
        }
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Mirrors `GetRequestAttributes`: other methods have no verb.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// The subresources of a Node of which one permits the request. Mirrors `GetRequestAttributes` with
/// `KubeletFineGrainedAuthz`.
fn subresources(path: &str) -> Vec<&'static str> {
    let first = path.trim_start_matches('/').split('/').next();
    match first.unwrap_or_default() {
        "stats" => vec!["stats"],
        "metrics" => vec!["metrics"],
        "logs" => vec!["log"],
        "checkpoint" => vec!["checkpoint"],
        "pods" | "runningpods" => vec!["pods", "proxy"],
        "healthz" => vec!["healthz", "proxy"],
        "configz" => vec!["configz", "proxy"],
        _ => vec!["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn paths_have_the_subresources_of_upstream() {
        for (path, expected) in [
            ("/exec/ns/web/app", &["proxy"][..]),
            ("/containerLogs/ns/web/app", &["proxy"]),
            ("/podsecurity", &["proxy"]),
            ("/pods", &["pods", "proxy"]),
            ("/pods/", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/stats/summary", &["stats"]),
            ("/metrics/cadvisor", &["metrics"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
    }

    #[test]
    fn only_bearer_tokens_are_credentials() {
        for (header, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic abc", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(header));
            assert_eq!(bearer_token(&headers), expected, "{header}");
        }
    }
}
