//! The claims of service-account tokens, and their validation.
//! In: claims, the stored objects they name, the time. Out: the user, or why the claims are no
//! longer valid.

use bellerophon_apimachinery::{field::go_quote, time::Time};
use bellerophon_codec::object::Object;
use serde::{Deserialize, Serialize};

use super::{
    Lookup, Source,
    user::{CREDENTIAL_ID, User},
};

/// How far two clocks may be apart, and how long a deleted object still counts.
const LEEWAY_SECONDS: i64 = 60;

/// An object named in a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
}

impl Named {
    /// Names a stored object.
    pub(crate) fn of(object: &Object) -> Self {
        Self {
            name: object.meta.name.clone(),
            uid: object.meta.uid.clone(),
        }
    }
}

/// The private claims of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Binding {
    pub(crate) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Named>,
    pub(crate) serviceaccount: Named,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warnafter: Option<i64>,
}

/// All claims of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Claims {
    pub(crate) aud: Vec<String>,
    pub(crate) exp: i64,
    pub(crate) iat: i64,
    pub(crate) iss: String,
    pub(crate) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) binding: Binding,
    pub(crate) nbf: i64,
    pub(crate) sub: String,
}

impl Claims {
    /// Whether the token is valid at this time.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn validate_time(&self, now: Time) -> Result<(), String> {
        let latest = now.as_second() + LEEWAY_SECONDS;
        let earliest = now.as_second() - LEEWAY_SECONDS;
        if latest < self.nbf {
            return Err("service account token is not valid yet".into());
        }
        if earliest > self.exp {
            return Err("service account token has expired".into());
        }
        if latest < self.iat {
            return Err("service account token is issued in the future".into());
        }
        Ok(())
    }

    /// The service account of the token, with the object that it is bound to.
    pub(super) fn user(&self) -> User {
        let Binding {
            namespace,
            serviceaccount,
            pod,
            node,
            ..
        } = &self.binding;
        let mut user = User::service_account(namespace, &serviceaccount.name, &serviceaccount.uid);
        let mut extra = |key: &str, value: &str| {
            if !value.is_empty() {
                user.extra.insert(
                    format!("authentication.kubernetes.io/{key}"),
                    vec![value.to_owned()],
                );
            }
        };
        for (kind, named) in [("pod", pod), ("node", node)] {
            if let Some(named) = named {
                extra(&format!("{kind}-name"), &named.name);
                extra(&format!("{kind}-uid"), &named.uid);
            }
        }
        if !self.jti.is_empty() {
            user.extra
                .insert(CREDENTIAL_ID.into(), vec![format!("JTI={}", self.jti)]);
        }
        user
    }
}

impl Binding {
    /// Validates that every object that the token names exists, with the uid that it names.
    ///
    /// # Errors
    /// The object that does not.
    pub(super) fn validate(&self, stored: &dyn Lookup, now: Time) -> Result<(), String> {
        let gone = |object: &Object| {
            object
                .meta
                .deletion_timestamp
                .is_some_and(|t| t.as_second() < now.as_second() - LEEWAY_SECONDS)
        };
        let namespace = &self.namespace;
        let account = &self.serviceaccount;
        let Some(found) = stored.get(Source::ServiceAccount, namespace, &account.name) else {
            return Err(format!(
                "serviceaccounts {} not found",
                go_quote(&account.name)
            ));
        };
        if found.meta.uid != account.uid {
            return Err(format!(
                "service account UID ({}) does not match claim ({})",
                found.meta.uid, account.uid
            ));
        }
        if gone(&found) {
            return Err(format!(
                "service account {namespace}/{} has been deleted",
                account.name
            ));
        }
        // A pod's token names the node for information only: the pod may outlive the node object.
        let node = self.node.as_ref().filter(|_| self.pod.is_none());
        let bound = [
            (
                Source::Secret,
                "secret",
                namespace.as_str(),
                self.secret.as_ref(),
            ),
            (Source::Pod, "pod", namespace.as_str(), self.pod.as_ref()),
            (Source::Node, "node", "", node),
        ];
        for (source, word, namespace, named) in bound {
            let Some(named) = named else { continue };
            let Some(found) = stored
                .get(source, namespace, &named.name)
                .filter(|o| o.meta.uid != named.uid || !gone(o))
            else {
                return Err("service account token has been invalidated".into());
            };
            if found.meta.uid != named.uid {
                return Err(format!(
                    "{word} UID ({}) does not match service account {word} ref claim ({})",
                    found.meta.uid, named.uid
                ));
            }
        }
        Ok(())
    }
}
