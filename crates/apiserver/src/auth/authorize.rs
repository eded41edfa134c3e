//! Authorizes requests.
//! In: user, verb and target; the stored roles and bindings. Out: a decision, or a Forbidden error
//! with the message of Kubernetes.
//! Guarantees: a request that no rule allows is denied; only `system:masters` needs no rule.

use bellerophon_apimachinery::{
    error::{ApiError, GroupResource},
    field::go_quote,
};

use super::{
    Lookup, rbac,
    user::{MASTERS, User},
};
use crate::{
    http::{request_info::RequestInfo, route::ResourcePath},
    options::AuthorizationMode,
};

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// Objects. What does not apply is empty.
    Resource {
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
    },
    /// A path that is no resource.
    Path(&'a str),
}

/// The attributes of a request, as the authorizer sees them. Mirrors authorizer.Attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes<'a> {
    /// Who.
    pub(crate) user: &'a User,
    /// `get`, `list`, `deletecollection`, …; for a path the HTTP method in lower case.
    pub(crate) verb: &'a str,
    /// On what.
    pub(crate) target: Target<'a>,
}

impl<'a> Attributes<'a> {
    /// The attributes of a request that `user` sends.
    pub(crate) fn of(request: &'a RequestInfo, user: &'a User) -> Self {
        let ResourcePath {
            group,
            namespace,
            resource,
            name,
            subresource,
            ..
        } = &request.resource;
        let target = match request.path.as_str() {
            "" => Target::Resource {
                group,
                resource,
                subresource,
                namespace,
                name,
            },
            path => Target::Path(path),
        };
        Self {
            user,
            verb: &request.verb,
            target,
        }
    }
}

/// The answer, with the reason a review shows; empty where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A rule allows it.
    Allow(String),
    /// No rule does.
    NoOpinion(String),
}

impl Decision {
    /// Whether it is a yes.
    pub(crate) fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// The decision as a refusal.
    ///
    /// # Errors
    /// `Forbidden` when no rule allows it.
    pub(crate) fn into_result(self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        match self {
            Self::Allow(_) => Ok(()),
            Self::NoOpinion(reason) => Err(forbidden(attributes, &reason)),
        }
    }
}

/// Decides by the roles bound to the user.
pub(crate) fn authorize(attributes: &Attributes<'_>, stored: &dyn Lookup) -> Decision {
    let always = stored.authorization_mode() == AuthorizationMode::AlwaysAllow;
    if always || attributes.user.is_in(MASTERS) {
        Decision::Allow(String::new())
    } else {
        rbac::decide(attributes, stored)
    }
}

/// The same as a refusal.
///
/// # Errors
/// `Forbidden` when no rule allows it.
pub(crate) fn check(attributes: &Attributes<'_>, stored: &dyn Lookup) -> Result<(), ApiError> {
    authorize(attributes, stored).into_result(attributes)
}

/// The refusal of a request, with why in addition where that is known.
pub(crate) fn forbidden(attributes: &Attributes<'_>, reason: &str) -> ApiError {
    let Attributes { user, verb, target } = attributes;
    let user = go_quote(&user.name);
    match target {
        Target::Path(path) => ApiError::ForbiddenPath(with_reason(
            format!("User {user} cannot {verb} path {}", go_quote(path)),
            reason,
        )),
        Target::Resource {
            group,
            resource,
            subresource,
            namespace,
            name,
        } => {
            let slash = if subresource.is_empty() { "" } else { "/" };
            let what = go_quote(&format!("{resource}{slash}{subresource}"));
            let place = match *namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {}", go_quote(namespace)),
            };
            let why = format!(
                "User {user} cannot {verb} resource {what} in API group {} {place}",
                go_quote(group)
            );
            ApiError::forbidden(
                GroupResource::new(*group, *resource),
                *name,
                with_reason(why, reason),
            )
        }
    }
}

/// Escapes HTML, then appends the reason.
fn with_reason(why: String, reason: &str) -> String {
    let escaped = why
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    if reason.is_empty() {
        escaped
    } else {
        format!("{escaped}: {reason}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::fake_lookup::FakeLookup;

    #[test]
    fn refusals_read_as_kubernetes_writes_them() {
        let user = User {
            name: "ann".into(),
            ..User::default()
        };
        let message = |verb, target| {
            let error = check(
                &Attributes {
                    user: &user,
                    verb,
                    target,
                },
                &FakeLookup::default(),
            )
            .expect_err("nothing is allowed");
            error.to_status()["message"]
                .as_str()
                .expect("text")
                .to_owned()
        };
        let on = |group, resource, subresource, namespace, name| Target::Resource {
            group,
            resource,
            subresource,
            namespace,
            name,
        };
        assert_eq!(
            message("list", on("", "configmaps", "", "ns", "")),
            r#"configmaps is forbidden: User "ann" cannot list resource "configmaps" in API group "" in the namespace "ns""#
        );
        assert_eq!(
            message("get", on("apps", "deployments", "scale", "", "d")),
            r#"deployments.apps "d" is forbidden: User "ann" cannot get resource "deployments/scale" in API group "apps" at the cluster scope"#
        );
        assert_eq!(
            message("get", Target::Path("/apis?<x>")),
            r#"forbidden: User "ann" cannot get path "/apis?&lt;x&gt;""#
        );
    }

    #[test]
    fn masters_need_no_rule() {
        let user = User {
            name: "root".into(),
            groups: vec![MASTERS.into()],
            ..User::default()
        };
        let attributes = Attributes {
            user: &user,
            verb: "*",
            target: Target::Path("/metrics"),
        };
        assert_eq!(
            authorize(&attributes, &FakeLookup::default()),
            Decision::Allow(String::new())
        );
    }
}
