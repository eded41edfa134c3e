//! Reviews: what a handler knows of a request, beside its object.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellerophon_kinds::{Kind, Object, downcast};
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a request does with its object.
///
/// ```
/// use bellerophon::webhook::Operation;
///
/// assert_eq!(Operation::Create.to_string(), "CREATE");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// POST, or an apply of an object that does not exist.
    Create,
    /// PUT or PATCH.
    Update,
    /// DELETE. There is no new object; handlers are given the one that is deleted.
    Delete,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        })
    }
}

/// A group, version and kind in a review.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct GroupVersionKind {
    #[serde(default)]
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group.as_str() {
            "" => write!(f, "{} {}", self.version, self.kind),
            group => write!(f, "{group}/{} {}", self.version, self.kind),
        }
    }
}

/// The part of an admission request that needs no type, and what the handler adds to the answer.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) uid: String,
    pub(crate) kind: GroupVersionKind,
    pub(crate) operation: Operation,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) subresource: String,
    pub(crate) user: UserInfo,
    pub(crate) dry_run: bool,
    pub(crate) options: Value,
    pub(crate) additions: Mutex<Additions>,
}

/// What a handler adds to the answer.
#[derive(Debug, Default)]
pub(crate) struct Additions {
    pub(crate) warnings: Vec<String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Exchange {
    pub(crate) fn additions(&self) -> MutexGuard<'_, Additions> {
        self.additions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// An admission request: who does what with an object of kind `K`.
///
/// ```
/// use bellerophon::webhook::{Operation, Rejection, Review};
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// fn check(review: &Review<ConfigMap>, map: &ConfigMap) -> Result<(), Rejection> {
///     let is_locked = |map: &ConfigMap| map.immutable == Some(true);
///     if review.operation() == Operation::Delete && is_locked(map) {
///         let user = review.user().username.as_deref().unwrap_or_default();
///         return Err(Rejection::denied(format!("{user} may not delete a locked ConfigMap")));
///     }
///     if map.data.as_ref().is_none_or(|data| data.is_empty()) {
///         review.warn("the ConfigMap has no data");
///     }
///     review.annotate("checked", "true");
///     Ok(())
/// }
/// ```
pub struct Review<K> {
    exchange: Arc<Exchange>,
    old: Option<Arc<K>>,
}

impl<K: Kind> Review<K> {
    pub(crate) fn new(exchange: Arc<Exchange>, old: Option<Object>) -> Self {
        Self {
            exchange,
            old: old.map(downcast),
        }
    }
}

impl<K> Review<K> {
    /// What the request does.
    pub fn operation(&self) -> Operation {
        self.exchange.operation
    }

    /// The object before the request; `None` when it is created.
    pub fn old_object(&self) -> Option<&K> {
        self.old.as_deref()
    }

    /// Who sent the request.
    pub fn user(&self) -> &UserInfo {
        &self.exchange.user
    }

    /// Whether nothing will be stored. A handler with side effects leaves them out then; see
    /// [`SideEffects`](super::SideEffects).
    pub fn dry_run(&self) -> bool {
        self.exchange.dry_run
    }

    /// The name of the object. It is empty if the API server will generate it.
    pub fn name(&self) -> &str {
        &self.exchange.name
    }

    /// The namespace of the request; `None` for cluster-scoped objects.
    pub fn namespace(&self) -> Option<&str> {
        Some(self.exchange.namespace.as_str()).filter(|namespace| !namespace.is_empty())
    }

    /// The subresource that is written, such as `status`.
    pub fn subresource(&self) -> Option<&str> {
        Some(self.exchange.subresource.as_str()).filter(|name| !name.is_empty())
    }

    /// The `CreateOptions`, `UpdateOptions`, `PatchOptions` or `DeleteOptions` of the request; null
    /// if there are none.
    pub fn options(&self) -> &Value {
        &self.exchange.options
    }

    /// The identifier of this call, for logs.
    pub fn uid(&self) -> &str {
        &self.exchange.uid
    }

    /// Shows a warning to the client, whether the request is admitted or not. kubectl prints it.
    pub fn warn(&self, message: impl Into<String>) {
        self.exchange.additions().warnings.push(message.into());
    }

    /// Adds an annotation to the audit event of the request. The API server prefixes the key with
    /// the name of the webhook.
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        let mut additions = self.exchange.additions();
        additions.annotations.insert(key.into(), value.into());
    }
}

impl<K> fmt::Debug for Review<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exchange = &self.exchange;
        f.debug_struct("Review")
            .field("uid", &exchange.uid)
            .field("operation", &exchange.operation)
            .field("namespace", &exchange.namespace)
            .field("name", &exchange.name)
            .finish_non_exhaustive()
    }
}
