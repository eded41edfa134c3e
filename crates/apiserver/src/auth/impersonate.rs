//! Impersonation.
//! In: the `Impersonate-*` headers and the requesting user. Out: the impersonated user, or an
//! error.
//! Guarantees: a constrained mode allows one verb while acting as one kind of user; failing those,
//! plain `impersonate` allows all.

use std::collections::BTreeMap;

use bellerophon_apimachinery::{error::ApiError, field::go_quote, names};
use http::HeaderMap;

use super::{
    Attributes, Lookup, Target,
    authorize::{check, forbidden},
    user::{
        ANONYMOUS, MASTERS, UNAUTHENTICATED, User, as_node, as_service_account,
        service_account_groups,
    },
};

const PREFIX: &str = "impersonate-";
const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA_PREFIX: &str = "impersonate-extra-";

const AUTHENTICATION: &str = "authentication.k8s.io";
const NODE_NAME_EXTRA: &str = "authentication.kubernetes.io/node-name";
/// From how many groups or extras on a constrained mode first checks all of them in one request.
const MANY: usize = 4;
const EXTRA_PATH_PATTERN: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";

/// The user that the headers name; `None` without such headers.
///
/// # Errors
/// `BadRequest` when they name groups, a uid or extras without a user.
pub(crate) fn wanted_user(headers: &HeaderMap) -> Result<Option<User>, ApiError> {
    let has_some = headers.keys().any(|name| name.as_str().starts_with(PREFIX));
    if !has_some {
        return Ok(None);
    }
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let first = |name: &str| headers.get(name).map(text).unwrap_or_default();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix(EXTRA_PREFIX) {
            extra.entry(unescape(key)).or_default().push(text(value));
        }
    }
    let user = User {
        name: first(USER),
        uid: first(UID),
        groups: headers.get_all(GROUP).iter().map(text).collect(),
        extra,
    };
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty() {
        return Ok(None);
    }
    Err(ApiError::BadRequest(format!(
        "requested {} without impersonating a user name",
        go_syntax(&user)
    )))
}

/// The impersonated user, if the user of `attributes` may impersonate `wanted` for this request.
///
/// # Errors
/// The refusal of the first mode that could have applied.
pub(crate) fn impersonate(
    wanted: &User,
    attributes: &Attributes<'_>,
    stored: &dyn Lookup,
) -> Result<User, ApiError> {
    let mut first_refusal = None;
    for mode in Mode::ALL
        .into_iter()
        .filter(|mode| mode.applies(wanted, attributes.user))
    {
        match (Attempt {
            mode,
            requester: attributes.user,
            stored,
        })
        .act_as(wanted, attributes)
        {
            Ok(user) => return Ok(user),
            Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
        }
    }
    Err(first_refusal.expect("the legacy mode applies to all users"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    Legacy,
}

impl Mode {
    const ALL: [Self; 5] = [
        Self::AssociatedNode,
        Self::ArbitraryNode,
        Self::ServiceAccount,
        Self::UserInfo,
        Self::Legacy,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Legacy => "",
        }
    }

    fn verb(self) -> String {
        if self == Self::Legacy {
            "impersonate".into()
        } else {
            format!("impersonate:{}", self.name())
        }
    }

    fn applies(self, wanted: &User, requester: &User) -> bool {
        let name_only =
            wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let node = as_node(&wanted.name);
        let account = as_service_account(&wanted.name);
        match self {
            Self::AssociatedNode => {
                let own = requester
                    .extra
                    .get(NODE_NAME_EXTRA)
                    .filter(|names| names.len() == 1)
                    .map(|names| names[0].as_str());
                name_only
                    && node.is_some()
                    && node == own
                    && as_service_account(&requester.name).is_some()
            }
            Self::ArbitraryNode => name_only && node.is_some(),
            Self::ServiceAccount => name_only && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }
}

/// An attempt to impersonate in one mode.
struct Attempt<'a> {
    mode: Mode,
    requester: &'a User,
    stored: &'a dyn Lookup,
}

impl Attempt<'_> {
    fn act_as(&self, wanted: &User, attributes: &Attributes<'_>) -> Result<User, ApiError> {
        if self.mode != Mode::Legacy {
            let verb = format!("impersonate-on:{}:{}", self.mode.name(), attributes.verb);
            check(
                &Attributes {
                    verb: &verb,
                    ..*attributes
                },
                self.stored,
            )?;
        }
        let groups = self.authorize_name(wanted)?;
        if !wanted.uid.is_empty() {
            self.authorize(AUTHENTICATION, "uids", "", &wanted.uid)?;
        }
        self.authorize_groups(&wanted.groups)?;
        self.authorize_extra(&wanted.extra)?;
        let actual = User {
            groups,
            ..wanted.clone()
        };
        Ok(if actual.name == ANONYMOUS {
            actual.joined(UNAUTHENTICATED)
        } else {
            actual.authenticated()
        })
    }

    /// The group of users and groups: they were part of the core group before modes existed.
    fn group(&self) -> &'static str {
        if self.mode == Mode::Legacy {
            ""
        } else {
            AUTHENTICATION
        }
    }

    /// Authorizes the name, and returns the groups of the impersonated user.
    fn authorize_name(&self, wanted: &User) -> Result<Vec<String>, ApiError> {
        if let Some((namespace, name)) = as_service_account(&wanted.name) {
            self.authorize_namespaced(self.group(), "serviceaccounts", "", namespace, name)?;
            return Ok(if wanted.groups.is_empty() {
                service_account_groups(namespace)
            } else {
                wanted.groups.clone()
            });
        }
        match as_node(&wanted.name).filter(|_| self.mode != Mode::Legacy) {
            None => self
                .authorize(self.group(), "users", "", &wanted.name)
                .map(|()| wanted.groups.clone()),
            Some(node) => {
                // The permission to impersonate the associated node is granted for all nodes or
                // none.
                let name = if self.mode == Mode::AssociatedNode {
                    "*"
                } else {
                    node
                };
                self.authorize(AUTHENTICATION, "nodes", "", name)
                    .map(|()| vec!["system:nodes".to_owned()])
            }
        }
    }

    fn authorize_groups(&self, groups: &[String]) -> Result<(), ApiError> {
        if self.mode != Mode::Legacy {
            if groups.iter().any(String::is_empty) {
                return Err(self.refusal(
                    "groups",
                    "",
                    "impersonating the empty string group is not allowed",
                ));
            }
            if groups.iter().any(|g| g == MASTERS) {
                return Err(self.refusal(
                    "groups",
                    MASTERS,
                    "impersonating the system:masters group is not allowed",
                ));
            }
            if groups.len() >= MANY && self.authorize(self.group(), "groups", "", "*").is_ok() {
                return Ok(());
            }
        }
        groups
            .iter()
            .try_for_each(|group| self.authorize(self.group(), "groups", "", group))
    }

    fn authorize_extra(&self, extra: &BTreeMap<String, Vec<String>>) -> Result<(), ApiError> {
        if self.mode != Mode::Legacy {
            if let Some(error) = extra
                .iter()
                .find_map(|(key, values)| invalid_extra(key, values))
            {
                return Err(self.refusal("userextras", "", &error));
            }
            let values: usize = extra.values().map(Vec::len).sum();
            if values >= MANY
                && self
                    .authorize(AUTHENTICATION, "userextras", "*", "*")
                    .is_ok()
            {
                return Ok(());
            }
        }
        let mut pairs = extra
            .iter()
            .flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
        pairs.try_for_each(|(key, value)| self.authorize(AUTHENTICATION, "userextras", key, value))
    }

    fn authorize(
        &self,
        group: &str,
        resource: &str,
        subresource: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        self.authorize_namespaced(group, resource, subresource, "", name)
    }

    fn authorize_namespaced(
        &self,
        group: &str,
        resource: &str,
        subresource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        let target = Target::Resource {
            group,
            resource,
            subresource,
            namespace,
            name,
        };
        check(
            &Attributes {
                user: self.requester,
                verb: &self.mode.verb(),
                target,
            },
            self.stored,
        )
    }

    fn refusal(&self, resource: &str, name: &str, reason: &str) -> ApiError {
        let target = Target::Resource {
            group: AUTHENTICATION,
            resource,
            subresource: "",
            namespace: "",
            name,
        };
        forbidden(
            &Attributes {
                user: self.requester,
                verb: &self.mode.verb(),
                target,
            },
            reason,
        )
    }
}

/// The error of an extra that constrained modes do not accept.
fn invalid_extra(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".into());
    }
    if let Some(error) = extra_key_error(key) {
        return Some(format!(
            "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {}: {error}",
            go_quote(key)
        ));
    }
    if key.chars().any(char::is_uppercase) {
        return Some(format!(
            "impersonating a non-lowercase key in extra is not allowed: {}",
            go_quote(key)
        ));
    }
    values
        .iter()
        .any(String::is_empty)
        .then(|| "impersonating the empty string value in extra is not allowed".into())
}

fn extra_key_error(key: &str) -> Option<String> {
    match key.split_once('/') {
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            let plain = |c: char| c.is_ascii_alphanumeric() || r"/-._~%!$&'()*+,;=:".contains(c);
            let bad_path =
                || format!("Invalid path (regex used for validation is '{EXTRA_PATH_PATTERN}')");
            names::dns_subdomain(host)
                .into_iter()
                .next()
                .or_else(|| (!path.chars().all(plain)).then(bad_path))
        }
        _ => Some(r#"must be a domain-prefixed path (such as "acme.io/foo")"#.into()),
    }
}

/// Undoes percent-encoding; text that is not properly encoded is returned unchanged.
fn unescape(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = |b: Option<&u8>| {
            b.and_then(|b| char::from(*b).to_digit(16))
                .and_then(|d| u8::try_from(d).ok())
        };
        rest = match (first, hex(tail.first()), hex(tail.get(1))) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(high * 16 + low);
                &tail[2..]
            }
            (b'%', ..) => return key.to_owned(),
            _ => {
                bytes.push(first);
                tail
            }
        };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

/// The user as Go prints its struct, as in the message of kube-apiserver.
fn go_syntax(user: &User) -> String {
    let list = |values: &[String]| {
        let quoted: Vec<String> = values.iter().map(|v| go_quote(v)).collect();
        if quoted.is_empty() {
            "[]string(nil)".to_owned()
        } else {
            format!("[]string{{{}}}", quoted.join(", "))
        }
    };
    let entries: Vec<String> = user
        .extra
        .iter()
        .map(|(key, values)| format!("{}:{}", go_quote(key), list(values)))
        .collect();
    let extra = if entries.is_empty() {
        "(nil)".to_owned()
    } else {
        format!("{{{}}}", entries.join(", "))
    };
    let name = go_quote(&user.name);
    let uid = go_quote(&user.uid);
    let groups = list(&user.groups);
    format!(
        "&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:map[string][]string{extra}}}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::auth::fake_lookup::FakeLookup;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().expect("a value"));
        }
        headers
    }

    fn try_as(
        requester: &User,
        wanted: &[(&'static str, &str)],
        stored: &FakeLookup,
    ) -> Result<User, String> {
        let wanted = wanted_user(&headers(wanted))
            .expect("good headers")
            .expect("a user");
        let target = Target::Resource {
            group: "",
            resource: "configmaps",
            subresource: "",
            namespace: "ns",
            name: "",
        };
        let attributes = Attributes {
            user: requester,
            verb: "list",
            target,
        };
        impersonate(&wanted, &attributes, stored)
            .map_err(|e| e.to_status()["message"].as_str().expect("text").to_owned())
    }

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.into(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            ..User::default()
        }
    }

    #[test]
    fn headers_name_the_user_to_act_as() {
        let all = [
            (USER, "ann"),
            (GROUP, "devs"),
            (GROUP, "ops"),
            (UID, "u-1"),
            ("impersonate-extra-example.com%2fteam", "red"),
        ];
        let root = user("root", &[MASTERS]);
        let ann = try_as(&root, &all, &FakeLookup::default()).expect("masters may");
        assert_eq!(ann.groups, ["devs", "ops", "system:authenticated"]);
        assert_eq!(ann.uid.as_str(), "u-1");
        assert_eq!(
            ann.extra["example.com/team"].as_slice(),
            &["red".to_owned()][..]
        );
        assert_eq!(wanted_user(&HeaderMap::new()), Ok(None));
        let groups = |name| {
            try_as(&root, &[(USER, name)], &FakeLookup::default())
                .expect("masters may")
                .groups
        };
        assert_eq!(
            groups("system:serviceaccount:ns:a"),
            [
                "system:serviceaccounts",
                "system:serviceaccounts:ns",
                "system:authenticated"
            ]
        );
        assert_eq!(groups(ANONYMOUS), [UNAUTHENTICATED]);
        assert_eq!(
            groups("system:node:n1"),
            ["system:nodes", "system:authenticated"]
        );
    }

    #[test]
    fn attributes_without_a_user_are_an_error() {
        for (header, shown) in [
            (
                (GROUP, "devs"),
                r#"Name:"", UID:"", Groups:[]string{"devs"}, Extra:map[string][]string(nil)"#,
            ),
            (
                (UID, "u"),
                r#"Name:"", UID:"u", Groups:[]string(nil), Extra:map[string][]string(nil)"#,
            ),
            (
                ("impersonate-extra-a", "b"),
                r#"Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"a":[]string{"b"}}"#,
            ),
        ] {
            let message =
                format!("requested &user.DefaultInfo{{{shown}}} without impersonating a user name");
            assert_eq!(
                wanted_user(&headers(&[header])),
                Err(ApiError::BadRequest(message))
            );
        }
    }

    #[test]
    fn refusal_names_the_constrained_mode_that_was_tried() {
        let account = User::service_account("ns", "default", "");
        let message = |wanted| {
            try_as(&account, &[(USER, wanted)], &FakeLookup::default()).expect_err("no permissions")
        };
        for (wanted, mode) in [
            ("jane", "user-info"),
            ("system:serviceaccount:ns:other", "serviceaccount"),
            ("system:node:n1", "arbitrary-node"),
        ] {
            let verb = format!("impersonate-on:{mode}:list");
            assert_eq!(
                message(wanted),
                format!(
                    r#"configmaps is forbidden: User "system:serviceaccount:ns:default" cannot {verb} resource "configmaps" in API group "" in the namespace "ns""#
                )
            );
        }
    }

    #[test]
    fn rules_allow_some_users_or_some_verbs() {
        let rule = |verb: &str, group: &str, resource: &str, names: Value| json!({"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": names});
        let legacy = json!([
            rule("impersonate", "", "users", json!(["jane"])),
            rule("impersonate", "", "groups", json!(["devs"]))
        ]);
        let stored = FakeLookup::default().bound_everywhere("l", "User bob", legacy);
        let bob = user("bob", &[]);
        assert!(try_as(&bob, &[(USER, "jane"), (GROUP, "devs")], &stored).is_ok());
        assert!(try_as(&bob, &[(USER, "jane"), (GROUP, MASTERS)], &stored).is_err());
        assert!(try_as(&bob, &[(USER, "joe")], &stored).is_err());
        let constrained = json!([
            rule("impersonate-on:user-info:list", "", "configmaps", json!([])),
            rule("impersonate:user-info", AUTHENTICATION, "users", json!([])),
            rule("impersonate:user-info", AUTHENTICATION, "groups", json!([])),
        ]);
        let stored = FakeLookup::default().bound_everywhere("c", "User bob", constrained);
        assert!(try_as(&bob, &[(USER, "jane"), (GROUP, "devs")], &stored).is_ok());
        assert_eq!(
            try_as(&bob, &[(USER, "jane"), (GROUP, MASTERS)], &stored).expect_err("never"),
            r#"groups.authentication.k8s.io "system:masters" is forbidden: User "bob" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope: impersonating the system:masters group is not allowed"#
        );
    }
}
