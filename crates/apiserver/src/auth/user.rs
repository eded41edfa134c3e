//! The user of a request: set by authentication, read by authorization.

use std::collections::BTreeMap;

use bellerophon_apimachinery::names;
use serde_json::{Map, Value, json};

/// The group that may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// The group of authenticated users.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
/// The group of unauthenticated users.
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user without credentials.
pub(crate) const ANONYMOUS: &str = "system:anonymous";
/// The extra under which the credential itself is named.
pub(crate) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const NODE_PREFIX: &str = "system:node:";

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    /// `admin`, `system:serviceaccount:NAMESPACE:NAME`.
    pub(crate) name: String,
    /// Empty where the credential has none.
    pub(crate) uid: String,
    /// In the order of the credential.
    pub(crate) groups: Vec<String>,
    /// Further facts, such as the pod a token is bound to.
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The user of requests without credentials.
    pub(crate) fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.into(),
            groups: vec![UNAUTHENTICATED.into()],
            ..Self::default()
        }
    }

    /// A service account, in the groups all service accounts are in.
    pub(crate) fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: service_account_name(namespace, name),
            uid: uid.into(),
            groups: service_account_groups(namespace),
            extra: BTreeMap::new(),
        }
    }

    /// Whether the user is in `group`.
    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The same user, in `group` too.
    pub(crate) fn joined(mut self, group: &str) -> Self {
        if !self.is_in(group) {
            self.groups.push(group.into());
        }
        self
    }

    /// The same user, counted as authenticated unless known to be anonymous.
    pub(crate) fn authenticated(self) -> Self {
        if self.is_in(UNAUTHENTICATED) {
            self
        } else {
            self.joined(AUTHENTICATED)
        }
    }

    /// The `UserInfo` of a review.
    pub(crate) fn to_value(&self) -> Value {
        let mut map = Map::new();
        for (key, text) in [("username", &self.name), ("uid", &self.uid)] {
            if !text.is_empty() {
                map.insert(key.into(), json!(text));
            }
        }
        if !self.groups.is_empty() {
            map.insert("groups".into(), json!(self.groups));
        }
        if !self.extra.is_empty() {
            map.insert("extra".into(), json!(self.extra));
        }
        Value::Object(map)
    }
}

/// The user name of a service account.
pub(crate) fn service_account_name(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

/// The groups of every service account of a namespace.
pub(crate) fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![
        "system:serviceaccounts".into(),
        format!("system:serviceaccounts:{namespace}"),
    ]
}

/// Namespace and name when the user name is that of a service account.
pub(crate) fn as_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (names::dns_label(namespace).is_empty() && names::dns_subdomain(name).is_empty())
        .then_some((namespace, name))
}

/// The node's name when the user name is that of a node.
pub(crate) fn as_node(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_PREFIX)
        .filter(|name| names::dns_subdomain(name).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_names_are_parsed() {
        assert_eq!(
            as_service_account("system:serviceaccount:ns:a.b"),
            Some(("ns", "a.b"))
        );
        for other in [
            "ann",
            "system:serviceaccount:ns",
            "system:serviceaccount:a.b:c",
            "system:serviceaccount:ns:a:b",
            "system:serviceaccount::",
        ] {
            assert_eq!(as_service_account(other), None, "{other}");
        }
        assert_eq!(as_node("system:node:n1"), Some("n1"));
        assert_eq!(as_node("system:node:N1"), None);
        assert_eq!(as_node("n1"), None);
    }

    #[test]
    fn user_info_leaves_out_what_is_empty() {
        assert_eq!(User::default().to_value(), json!({}));
        let user = User::service_account("ns", "default", "u")
            .authenticated()
            .authenticated();
        assert_eq!(
            user.to_value(),
            json!({"username": "system:serviceaccount:ns:default", "uid": "u",
                   "groups": ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]})
        );
        assert_eq!(User::anonymous().authenticated().groups, [UNAUTHENTICATED]);
    }
}
