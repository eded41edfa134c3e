//! Identities: the users as which the controllers act, with the permissions that upstream's
//! bootstrap policy binds to them.
//!
//! In: the name of a controller. Out: its user and groups, and the RBAC objects that upstream's
//! policy lacks.
//! Guarantees: a controller has the permissions of its upstream counterpart and no others.

use serde_json::{Value, json};

/// A user and its groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// `system:kube-scheduler`, `system:serviceaccount:kube-system:job-controller`.
    pub user: String,
    /// Besides `system:authenticated`.
    pub groups: Vec<String>,
}

/// The user of the simulated kubelets.
const KUBELET: &str = "bellerophon:kubelet";

/// The user that creates the default storage class, which is an add-on of real clusters.
const ADD_ON: &str = "bellerophon:add-on";

impl Identity {
    /// kube-controller-manager itself, whose informers its controllers share.
    pub(crate) fn controller_manager() -> Self {
        Self::user("system:kube-controller-manager")
    }

    /// The identity of a controller, runnable or event source of this crate.
    pub(crate) fn of(controller: &str) -> Self {
        let account = match controller {
            "default-scheduler" => return Self::user("system:kube-scheduler"),
            "kubelet" | "kubelet-heartbeat" => {
                return Self {
                    groups: vec!["system:nodes".to_owned()],
                    ..Self::user(KUBELET)
                };
            }
            "storage-class" => return Self::user(ADD_ON),
            "controllermanager" => "disruption-controller",
            "daemonset-controller" => "daemon-set-controller",
            "garbage-collector-controller" => "generic-garbage-collector",
            "node-lifecycle-controller" | "taint-eviction-controller" => "node-controller",
            "persistentvolume-binder-controller" | "persistentvolume-reclaimer" => {
                "persistent-volume-binder"
            }
            "persistentvolume-protection-controller" => "pv-protection-controller",
            "persistentvolumeclaim-protection-controller" => "pvc-protection-controller",
            "root-ca-certificate-publisher-controller" => "root-ca-cert-publisher",
            "serviceaccount-controller" => "service-account-controller",
            name => name,
        };
        Self::service_account(account)
    }

    fn user(name: &str) -> Self {
        Self {
            user: name.to_owned(),
            groups: Vec::new(),
        }
    }

    /// A service account of kube-system, as with `--use-service-account-credentials`.
    fn service_account(name: &str) -> Self {
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:kube-system",
        ];
        Self {
            user: format!("system:serviceaccount:kube-system:{name}"),
            groups: groups.map(str::to_owned).to_vec(),
        }
    }
}

/// The RBAC objects that the identities of a cluster need beyond upstream's bootstrap policy; apply
/// them before the controllers start.
///
/// Upstream authorizes kubelets by the node authorizer. Here all simulated kubelets are one user,
/// with the role that upstream's policy has for nodes.
pub fn rbac_objects() -> Vec<Value> {
    let api_version = "rbac.authorization.k8s.io/v1";
    let binding = |user: &str, role: &str| {
        let group = "rbac.authorization.k8s.io";
        json!({
            "apiVersion": api_version, "kind": "ClusterRoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        })
    };
    let create_classes = json!({
        "verbs": ["create"], "apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"],
    });
    vec![
        binding(KUBELET, "system:node"),
        json!({
            "apiVersion": api_version, "kind": "ClusterRole",
            "metadata": {"name": ADD_ON},
            "rules": [create_classes],
        }),
        binding(ADD_ON, ADD_ON),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_have_the_accounts_of_upstream() {
        let user = |controller: &str| Identity::of(controller).user;
        let account = |name: &str| format!("system:serviceaccount:kube-system:{name}");
        assert_eq!(user("job-controller"), account("job-controller"));
        assert_eq!(
            user("daemonset-controller"),
            account("daemon-set-controller")
        );
        assert_eq!(
            user("taint-eviction-controller"),
            account("node-controller")
        );
        assert_eq!(user("default-scheduler"), "system:kube-scheduler");
        assert_eq!(Identity::of("kubelet").groups, ["system:nodes"]);
    }
}
