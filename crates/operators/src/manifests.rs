//! The objects that install an operator in a cluster.
//!
//! Inputs: an operator and its installation options. Output: objects in the order in which they
//! are to be applied.
//!
//! Guarantee: the operator's service account has the operator's permissions, may hold the
//! operator's Lease and record Events, and nothing else.

use serde_json::{Value, json};

use crate::{
    Operator, Placement, RoleAggregation,
    json::to_json,
    permissions::{RBAC_GROUP, RBAC_VERSION, lease_permissions, permissions_of, to_rules},
    webhooks,
};

/// How an operator is installed.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The namespace of Deployments. It enforces the `restricted` Pod Security Standard.
    pub namespace: String,
    /// The namespace of DaemonSets, whose host paths the `restricted` standard forbids.
    pub node_namespace: String,
    /// The image of the `bellerophon` binary.
    pub image: String,
    /// The number of replicas of a Deployment; one is active, the others are on standby.
    pub replicas: u32,
    /// Whether to create a ServiceMonitor for the Prometheus Operator.
    pub service_monitor: bool,
    /// Whether to install the webhooks of operators that have some.
    pub webhooks: bool,
}

impl Default for Installation {
    fn default() -> Self {
        Self {
            namespace: "bellerophon-system".into(),
            node_namespace: "bellerophon-nodes".into(),
            image: concat!("bellerophon:", env!("CARGO_PKG_VERSION")).into(),
            replicas: 2,
            service_monitor: false,
            webhooks: false,
        }
    }
}

/// The port of `/healthz`, `/readyz` and `/metrics`.
const HTTP_PORT: u16 = 8080;

/// All objects of an operator: CRDs, ClusterRoles for users, and, if it has
/// permissions, its namespace, service account, RBAC rules, admission policies, workload, Service,
/// webhooks and ServiceMonitor.
pub fn manifests(operator: &Operator, installation: &Installation) -> Vec<Value> {
    let mut all: Vec<Value> = (operator.crds)().iter().map(to_json).collect();
    all.extend(user_roles(operator));
    // Without permissions there are no controllers either, and the definitions are all of it.
    if (operator.permissions)().is_empty() {
        return all;
    }
    let pod_security = match operator.placement {
        Placement::Deployment => "restricted",
        Placement::DaemonSet { .. } => "privileged",
    };
    all.push(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": installation.namespace_of(operator),
            "labels": {"pod-security.kubernetes.io/enforce": pod_security},
        },
    }));
    all.extend(service_account(operator, installation));
    // Before the workload, so that no pod of it runs without the restrictions.
    all.extend((operator.admission_policies)());
    all.push(workload(operator, installation));
    all.push(service(operator, installation));
    let declared = installation.webhooks_of(operator);
    if !declared.is_empty() {
        all.extend(webhooks::objects(
            declared,
            webhook_service(operator, installation),
        ));
    }
    if installation.service_monitor {
        all.push(service_monitor(operator, installation));
    }
    all
}

impl Installation {
    /// The namespace of an operator's pods.
    fn namespace_of(&self, operator: &Operator) -> &str {
        match operator.placement {
            Placement::Deployment => &self.namespace,
            Placement::DaemonSet { .. } => &self.node_namespace,
        }
    }

    /// The declared webhooks of an operator, if they are installed.
    fn webhooks_of(&self, operator: &Operator) -> Vec<Value> {
        match self.webhooks {
            true => webhooks::declared_webhooks(operator, self.namespace_of(operator)),
            false => Vec::new(),
        }
    }
}

/// The labels of all objects of an operator, and the selector of its pods.
fn labels(operator: &Operator) -> Value {
    json!({"app.kubernetes.io/name": operator.name, "app.kubernetes.io/part-of": "bellerophon"})
}

fn metadata(operator: &Operator, installation: &Installation) -> Value {
    json!({
        "name": operator.name,
        "namespace": installation.namespace_of(operator),
        "labels": labels(operator),
    })
}

/// The verbs of the built-in `edit` role on namespaced resources.
const EDIT_VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// The verbs of the built-in `view` role.
const VIEW_VERBS: &[&str] = &["get", "list", "watch"];

/// ClusterRoles to edit and to view the operator's resources, aggregated to the built-in roles
/// according to its [`RoleAggregation`]. Cluster-scoped resources have a role to view them only;
/// their administration needs `cluster-admin`.
fn user_roles(operator: &Operator) -> Vec<Value> {
    let mut roles = Vec::new();
    for crd in (operator.crds)() {
        let group = &crd.spec.group;
        let plural = &crd.spec.names.plural;
        for (role, verbs) in [("edit", EDIT_VERBS), ("view", VIEW_VERBS)] {
            if role == "edit" && crd.spec.scope == "Cluster" {
                continue;
            }
            let mut metadata = json!({"name": format!("{plural}.{group}-{role}")});
            if role == "view" || operator.role_aggregation == RoleAggregation::EditAndView {
                let aggregate = format!("{RBAC_GROUP}/aggregate-to-{role}");
                metadata["labels"] = json!({aggregate: "true"});
            }
            roles.push(json!({
                "apiVersion": RBAC_VERSION, "kind": "ClusterRole",
                "metadata": metadata,
                "rules": [{"apiGroups": [group], "resources": [plural], "verbs": verbs}],
            }));
        }
    }
    roles
}

/// The service account of the pods, with its roles and bindings.
fn service_account(operator: &Operator, installation: &Installation) -> Vec<Value> {
    let name = format!("bellerophon-{}", operator.name);
    let cluster_role = json!({"name": name, "labels": labels(operator)});
    let subjects = json!([{
        "kind": "ServiceAccount",
        "name": operator.name,
        "namespace": installation.namespace_of(operator),
    }]);
    let declared = installation.webhooks_of(operator);
    let mut rules = permissions_of(operator);
    rules.extend(webhooks::cluster_permissions(&declared));
    let mut all = vec![
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": metadata(operator, installation),
        }),
        json!({
            "apiVersion": RBAC_VERSION, "kind": "ClusterRole",
            "metadata": cluster_role,
            "rules": to_rules(rules),
        }),
        json!({
            "apiVersion": RBAC_VERSION, "kind": "ClusterRoleBinding",
            "metadata": cluster_role,
            "subjects": subjects,
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name},
        }),
    ];
    // Only Deployments elect a leader.
    let mut roles = Vec::new();
    if operator.placement == Placement::Deployment {
        roles.push(("leader", lease_permissions(operator)));
    }
    if !declared.is_empty() {
        roles.push(("webhooks", webhooks::secret_permissions(operator)));
    }
    for (suffix, rules) in roles {
        let mut role = metadata(operator, installation);
        role["name"] = json!(format!("{}-{suffix}", operator.name));
        all.push(json!({
            "apiVersion": RBAC_VERSION, "kind": "Role",
            "metadata": role,
            "rules": to_rules(rules),
        }));
        all.push(json!({
            "apiVersion": RBAC_VERSION, "kind": "RoleBinding",
            "metadata": role,
            "subjects": subjects,
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": role["name"]},
        }));
    }
    all
}

/// The Deployment or DaemonSet of the pods.
fn workload(operator: &Operator, installation: &Installation) -> Value {
    let probe =
        |path: &str| json!({"httpGet": {"path": path, "port": "pages"}, "periodSeconds": 10});
    let field = |name: &str, path: &str| {
        let field_ref = json!({"fieldPath": path});
        json!({"name": name, "valueFrom": {"fieldRef": field_ref}})
    };
    let mut container = json!({
        "name": "operator",
        "image": installation.image,
        "args": [
            "run", operator.name,
            "--metrics", format!("0.0.0.0:{HTTP_PORT}"),
            "--log-format", "json",
        ],
        "env": [field("POD_NAME", "metadata.name"), field("NODE_NAME", "spec.nodeName")],
        "ports": [{"name": "pages", "containerPort": HTTP_PORT}],
        "livenessProbe": probe("/healthz"),
        "readinessProbe": probe("/readyz"),
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    });
    if !installation.webhooks_of(operator).is_empty() {
        let push = |container: &mut Value, field: &str, value| {
            let list = container[field].as_array_mut();
            list.expect("it is an array").push(value);
        };
        let argument = webhooks::arguments(operator, installation.namespace_of(operator));
        push(&mut container, "args", argument);
        let port = json!({"name": "webhooks", "containerPort": webhooks::WEBHOOK_PORT});
        push(&mut container, "ports", port);
    }
    let mut pod = json!({
        "serviceAccountName": operator.name,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        // More than the graceful shutdown of the Manager takes, which is 30 seconds by default: a
        // leader that is killed cannot release its Lease.
        "terminationGracePeriodSeconds": 40,
    });
    let mut spec = json!({"selector": {"matchLabels": labels(operator)}});
    let kind = match operator.placement {
        Placement::Deployment => {
            container["args"]
                .as_array_mut()
                .expect("args is an array")
                .push(json!("--leader-elect"));
            spec["replicas"] = json!(installation.replicas);
            "Deployment"
        }
        Placement::DaemonSet { host_paths } => {
            // Sockets of the node accept UID 0 only. All capabilities are dropped, so the UID
            // grants nothing else.
            pod["securityContext"]["runAsNonRoot"] = json!(false);
            pod["securityContext"]["runAsUser"] = json!(0);
            pod["priorityClassName"] = json!("system-node-critical");
            // Nodes that are cordoned, not ready or tainted by their administrators need the agent
            // too.
            pod["tolerations"] = json!([{"operator": "Exists"}]);
            let name = |path: &str| path.trim_matches('/').replace('/', "-");
            let volume = |path: &&str| {
                let host_path = json!({"path": path, "type": "Directory"});
                json!({"name": name(path), "hostPath": host_path})
            };
            let mount =
                |path: &&str| json!({"name": name(path), "mountPath": path, "readOnly": true});
            pod["volumes"] = host_paths.iter().map(volume).collect();
            container["volumeMounts"] = host_paths.iter().map(mount).collect();
            "DaemonSet"
        }
    };
    pod["containers"] = json!([container]);
    spec["template"] = json!({"metadata": {"labels": labels(operator)}, "spec": pod});
    json!({
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": metadata(operator, installation),
        "spec": spec,
    })
}

fn service(operator: &Operator, installation: &Installation) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata(operator, installation),
        "spec": {
            "selector": labels(operator),
            "ports": [{"name": "pages", "port": HTTP_PORT, "targetPort": "pages"}],
        },
    })
}

/// The Service by which the API server calls the webhooks.
fn webhook_service(operator: &Operator, installation: &Installation) -> Value {
    let mut metadata = metadata(operator, installation);
    metadata["name"] = json!(webhooks::webhooks_name(operator));
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata,
        "spec": {
            "selector": labels(operator),
            "ports": [{"name": "webhooks", "port": 443, "targetPort": "webhooks"}],
        },
    })
}

fn service_monitor(operator: &Operator, installation: &Installation) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
        "metadata": metadata(operator, installation),
        "spec": {
            "selector": {"matchLabels": labels(operator)},
            "endpoints": [{"port": "pages", "path": "/metrics"}],
        },
    })
}
