//! Identities: the users as which the controllers act, with the permissions that upstream's
//! bootstrap policy binds to them.
//!
//! In: the name of a controller. Out: its user and groups, and the RBAC objects that upstream's
//! policy lacks.
//! Guarantees: a controller has the permissions of its upstream counterpart, and may patch what it
//! may update.

use serde_json::{Value, json};

use crate::metrics_server::{ACCOUNT, REGISTRAR};

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

/// The user that creates the default storage class and the RuntimeClasses, and registers the metrics
/// server, which are add-ons of real clusters.
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
            "storage-class" | "runtime-classes" | REGISTRAR => return Self::user(ADD_ON),
            "controllermanager" => "disruption-controller",
            "daemonset-controller" => "daemon-set-controller",
            "garbage-collector-controller" => "generic-garbage-collector",
            "horizontal-pod-autoscaler-controller" => "horizontal-pod-autoscaler",
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

/// What controllers patch here and update upstream: service account, API group, resource. A patch
/// leaves fields alone that this version does not know, and needs no permission in effect that
/// `update` does not give.
const PATCHED: &[(&str, &str, &str)] = &[
    ("cronjob-controller", "batch", "cronjobs/status"),
    ("daemon-set-controller", "apps", "daemonsets/status"),
    ("deployment-controller", "apps", "deployments/status"),
    (
        "disruption-controller",
        "policy",
        "poddisruptionbudgets/status",
    ),
    ("endpoint-controller", "", "endpoints"),
    (
        "endpointslice-controller",
        "discovery.k8s.io",
        "endpointslices",
    ),
    (
        "endpointslicemirroring-controller",
        "discovery.k8s.io",
        "endpointslices",
    ),
    (
        "horizontal-pod-autoscaler",
        "autoscaling",
        "horizontalpodautoscalers/status",
    ),
    ("job-controller", "batch", "jobs/status"),
    ("namespace-controller", "", "namespaces/finalize"),
    ("namespace-controller", "", "namespaces/status"),
    ("persistent-volume-binder", "", "persistentvolumeclaims"),
    (
        "persistent-volume-binder",
        "",
        "persistentvolumeclaims/status",
    ),
    ("persistent-volume-binder", "", "persistentvolumes"),
    ("persistent-volume-binder", "", "persistentvolumes/status"),
    ("pv-protection-controller", "", "persistentvolumes"),
    ("pvc-protection-controller", "", "persistentvolumeclaims"),
    ("replicaset-controller", "apps", "replicasets/status"),
    (
        "replication-controller",
        "",
        "replicationcontrollers/status",
    ),
    ("resourcequota-controller", "", "resourcequotas/status"),
    ("root-ca-cert-publisher", "", "configmaps"),
    ("statefulset-controller", "", "persistentvolumeclaims"),
    ("statefulset-controller", "apps", "statefulsets/status"),
    (
        "volumeattributesclass-protection-controller",
        "storage.k8s.io",
        "volumeattributesclasses",
    ),
];

/// The RBAC objects that the identities of a cluster need beyond upstream's bootstrap policy; apply
/// them before the controllers start.
///
/// Upstream authorizes kubelets by the node authorizer. Here all simulated kubelets are one user,
/// with the role that upstream's policy has for nodes. Controllers may patch what upstream's policy
/// lets them update.
pub fn rbac_objects() -> Vec<Value> {
    let rule = |verb: &str, group: &str, resource: &str| {
        let resources = [resource];
        json!({"verbs": [verb], "apiGroups": [group], "resources": resources})
    };
    let mut objects = vec![
        binding(KUBELET, KUBELET, "system:node"),
        role(ADD_ON, add_on_rules()),
        binding(ADD_ON, ADD_ON, ADD_ON),
    ];
    objects.extend(metrics_server_objects());
    for account in PATCHED.chunk_by(|(left, ..), (right, ..)| left == right) {
        let name = account[0].0;
        let rules = account
            .iter()
            .map(|(_, group, resource)| rule("patch", group, resource));
        let role_name = format!("bellerophon:controller:{name}");
        let user = Identity::service_account(name).user;
        objects.push(role(&role_name, rules.collect()));
        objects.push(binding(&role_name, &user, &role_name));
    }
    objects
}

/// What add-ons create, and patch when a cluster starts again.
fn add_on_rules() -> Vec<Value> {
    let mut rules = Vec::new();
    for (group, resource, name) in [
        ("storage.k8s.io", "storageclasses", ""),
        ("node.k8s.io", "runtimeclasses", ""),
        ("", "services", ACCOUNT),
        ("discovery.k8s.io", "endpointslices", ACCOUNT),
        (
            "apiregistration.k8s.io",
            "apiservices",
            "v1beta1.metrics.k8s.io",
        ),
    ] {
        let resources = [resource];
        rules.push(json!({"verbs": ["create"], "apiGroups": [group], "resources": resources}));
        if !name.is_empty() {
            rules.push(json!({
                "verbs": ["get", "patch"], "apiGroups": [group], "resources": resources,
                "resourceNames": [name],
            }));
        }
    }
    rules
}

/// The RBAC objects of metrics-server's manifests: users who can view pods can view their metrics,
/// and the server can read the authority of the front proxy. It has no other permissions, because
/// it reads the caches of this process.
fn metrics_server_objects() -> [Value; 2] {
    let aggregate_to = |role: &str| format!("rbac.authorization.k8s.io/aggregate-to-{role}");
    let reader = json!({
        "apiVersion": API_VERSION, "kind": "ClusterRole",
        "metadata": {
            "name": "system:aggregated-metrics-reader",
            "labels": {
                aggregate_to("view"): "true",
                aggregate_to("edit"): "true",
                aggregate_to("admin"): "true",
            },
        },
        "rules": [{
            "verbs": ["get", "list", "watch"],
            "apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"],
        }],
    });
    let group = "rbac.authorization.k8s.io";
    let role = "extension-apiserver-authentication-reader";
    let namespace = "kube-system";
    let authority = json!({
        "apiVersion": API_VERSION, "kind": "RoleBinding",
        "metadata": {"namespace": namespace, "name": "metrics-server-auth-reader"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": ACCOUNT}],
    });
    [reader, authority]
}

const API_VERSION: &str = "rbac.authorization.k8s.io/v1";

fn role(name: &str, rules: Vec<Value>) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    })
}

fn binding(name: &str, user: &str, role: &str) -> Value {
    let group = "rbac.authorization.k8s.io";
    json!({
        "apiVersion": API_VERSION, "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    })
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
