//! What authentication and authorization read from storage.

use std::sync::Arc;

use bellerophon_apimachinery::error::GroupResource;
use bellerophon_codec::object::Object;

use super::User;
use crate::options::AuthorizationMode;

/// The kinds that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    ServiceAccount,
    Secret,
    Pod,
    Node,
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

impl Source {
    /// The source of a resource, if it is a role or binding.
    pub(crate) fn of_policy(group: &str, resource: &str) -> Option<Self> {
        let kinds = [
            Self::Role,
            Self::ClusterRole,
            Self::RoleBinding,
            Self::ClusterRoleBinding,
        ];
        kinds
            .into_iter()
            .find(|kind| kind.group() == group && kind.resource() == resource)
    }

    /// The API group; empty for the core group.
    pub(crate) const fn group(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::Secret | Self::Pod | Self::Node => "",
            Self::Role | Self::ClusterRole | Self::RoleBinding | Self::ClusterRoleBinding => {
                "rbac.authorization.k8s.io"
            }
        }
    }

    /// The plural name.
    pub(crate) const fn resource(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceaccounts",
            Self::Secret => "secrets",
            Self::Pod => "pods",
            Self::Node => "nodes",
            Self::Role => "roles",
            Self::ClusterRole => "clusterroles",
            Self::RoleBinding => "rolebindings",
            Self::ClusterRoleBinding => "clusterrolebindings",
        }
    }

    /// Whether it is about who may do what, and so read for every request.
    pub(crate) const fn is_policy(self) -> bool {
        matches!(
            self,
            Self::Role | Self::ClusterRole | Self::RoleBinding | Self::ClusterRoleBinding
        )
    }

    /// The name under which the storage keeps the objects.
    pub(crate) fn storage_name(self) -> String {
        format!("{}/{}", self.group(), self.resource())
    }

    /// Both.
    pub(crate) fn group_resource(self) -> GroupResource {
        GroupResource::new(self.group(), self.resource())
    }
}

/// The newest state of stored objects.
pub(crate) trait Lookup {
    /// The authorization mode.
    fn authorization_mode(&self) -> AuthorizationMode {
        AuthorizationMode::Rbac
    }

    /// The object, if there is one. `namespace` is empty for cluster-scoped kinds.
    fn get(&self, source: Source, namespace: &str, name: &str) -> Option<Arc<Object>>;

    /// The `RoleBinding`s of a namespace that name the user or one of its groups, sorted by name;
    /// with an empty namespace, the `ClusterRoleBinding`s. Others may be among them.
    fn bindings_of(&self, user: &User, namespace: &str) -> Vec<Arc<Object>>;
}
