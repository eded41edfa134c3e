//! What a cluster is given so that an operator can run there.
//!
//! In: an operator and where it is installed. Out: objects, in the order in which they are to be applied.
//! Holds: the operator's account may do what its rights say, hold its own lease and write events, and nothing else.

use serde_json::{Value, json};

use crate::{
    Operator, Place,
    rights::{lease_rights, rights_of},
};

/// Where and how an operator is installed.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The namespace of its pods.
    pub namespace: String,
    /// The namespace of pods that reach into their node, which the rules of the other one forbid.
    pub node_namespace: String,
    /// The image of the `bellerophon` binary.
    pub image: String,
    /// How many pods; one of them works, the others stand by.
    pub replicas: u32,
    /// Whether there is a Prometheus operator that is to be told where metrics are.
    pub service_monitor: bool,
}

impl Default for Installation {
    fn default() -> Self {
        Self {
            namespace: "bellerophon-system".into(),
            node_namespace: "bellerophon-nodes".into(),
            image: concat!("bellerophon:", env!("CARGO_PKG_VERSION")).into(),
            replicas: 2,
            service_monitor: false,
        }
    }
}

/// Where pods serve health and metrics.
const PAGES_PORT: u16 = 8080;

/// Everything an operator needs in a cluster: its kinds, roles for people, and, if it does anything, its namespace, its
/// account and rights, its pods and their metrics.
pub fn manifests(operator: &Operator, installation: &Installation) -> Vec<Value> {
    let mut all: Vec<Value> = (operator.definitions)()
        .iter()
        .map(|definition| json!(definition))
        .collect();
    all.extend(roles(operator));
    if (operator.rights)().is_empty() {
        return all;
    }
    let allowed = if operator.place == Place::Anywhere {
        "restricted"
    } else {
        "privileged"
    };
    all.push(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": installation.of(operator), "labels": {"pod-security.kubernetes.io/enforce": allowed}},
    }));
    all.extend(account(operator, installation));
    all.extend((operator.guards)());
    all.extend([
        workload(operator, installation),
        service(operator, installation),
    ]);
    all.extend(
        installation
            .service_monitor
            .then(|| monitor(operator, installation)),
    );
    all
}

impl Installation {
    /// The namespace of an operator's pods.
    fn of(&self, operator: &Operator) -> &str {
        if operator.place == Place::Anywhere {
            &self.namespace
        } else {
            &self.node_namespace
        }
    }
}

/// What pods of an operator are called and found by.
fn labels(operator: &Operator) -> Value {
    json!({"app.kubernetes.io/name": operator.name, "app.kubernetes.io/part-of": "bellerophon"})
}

fn metadata(operator: &Operator, installation: &Installation) -> Value {
    json!({"name": operator.name, "namespace": installation.of(operator), "labels": labels(operator)})
}

/// Roles for people: who may edit and view anything in a namespace may do so with the operator's kinds. Kinds of no namespace
/// are about the whole cluster: others than its administrators may view them.
fn roles(operator: &Operator) -> Vec<Value> {
    let mut roles = Vec::new();
    for definition in (operator.definitions)() {
        let (group, plural) = (&definition.spec.group, &definition.spec.names.plural);
        for (role, verbs) in [
            (
                "edit",
                &[
                    "create",
                    "delete",
                    "deletecollection",
                    "get",
                    "list",
                    "patch",
                    "update",
                    "watch",
                ][..],
            ),
            ("view", &["get", "list", "watch"]),
        ] {
            if role == "edit" && definition.spec.scope == "Cluster" {
                continue;
            }
            let aggregate = format!("rbac.authorization.k8s.io/aggregate-to-{role}");
            roles.push(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": format!("{plural}.{group}-{role}"), "labels": {aggregate: "true"}},
                "rules": [{"apiGroups": [group], "resources": [plural], "verbs": verbs}],
            }));
        }
    }
    roles
}

/// The account of the pods, and what it may do.
fn account(operator: &Operator, installation: &Installation) -> Vec<Value> {
    let name = format!("bellerophon-{}", operator.name);
    let subjects = json!([{"kind": "ServiceAccount", "name": operator.name, "namespace": installation.of(operator)}]);
    let rules = rights_of(operator);
    let mut all = vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(operator, installation)}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name, "labels": labels(operator)}, "rules": rules}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name, "labels": labels(operator)}, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        }),
    ];
    if operator.place == Place::Anywhere {
        let (lease, mut role) = (lease_rights(operator), metadata(operator, installation));
        role["name"] = json!(format!("{}-leader", operator.name));
        all.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": role, "rules": lease}));
        all.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": role, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role["name"]},
        }));
    }
    all
}

/// The pods: a few anywhere, or one on every node.
fn workload(operator: &Operator, installation: &Installation) -> Value {
    let probe =
        |path: &str| json!({"httpGet": {"path": path, "port": "pages"}, "periodSeconds": 10});
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut container = json!({
        "name": "operator",
        "image": installation.image,
        "args": ["run", operator.name, "--metrics", format!("0.0.0.0:{PAGES_PORT}"), "--log-format", "json"],
        "env": [field("POD_NAME", "metadata.name"), field("NODE_NAME", "spec.nodeName")],
        "ports": [{"name": "pages", "containerPort": PAGES_PORT}],
        "livenessProbe": probe("/healthz"),
        "readinessProbe": probe("/readyz"),
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
    });
    let mut pod = json!({
        "serviceAccountName": operator.name,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 40,
    });
    let mut spec = json!({"selector": {"matchLabels": labels(operator)}});
    let kind = match operator.place {
        Place::Anywhere => {
            container["args"]
                .as_array_mut()
                .expect("arguments")
                .push(json!("--leader-elect"));
            spec["replicas"] = json!(installation.replicas);
            "Deployment"
        }
        Place::EveryNode(folders) => {
            // What listens on a node's sockets obeys root alone; without any capability that is a name, not a power.
            pod["securityContext"]["runAsNonRoot"] = json!(false);
            pod["securityContext"]["runAsUser"] = json!(0);
            pod["priorityClassName"] = json!("system-node-critical");
            pod["tolerations"] = json!([{"operator": "Exists"}]);
            let name = |folder: &str| folder.trim_matches('/').replace('/', "-");
            let volume = |folder: &&str| json!({"name": name(folder), "hostPath": {"path": folder, "type": "Directory"}});
            let mount = |folder: &&str| json!({"name": name(folder), "mountPath": folder, "readOnly": true});
            pod["volumes"] = folders.iter().map(volume).collect();
            container["volumeMounts"] = folders.iter().map(mount).collect();
            "DaemonSet"
        }
    };
    pod["containers"] = json!([container]);
    spec["template"] = json!({"metadata": {"labels": labels(operator)}, "spec": pod});
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata(operator, installation), "spec": spec})
}

fn service(operator: &Operator, installation: &Installation) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(operator, installation),
        "spec": {"selector": labels(operator), "ports": [{"name": "pages", "port": PAGES_PORT, "targetPort": "pages"}]},
    })
}

fn monitor(operator: &Operator, installation: &Installation) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": metadata(operator, installation),
        "spec": {"selector": {"matchLabels": labels(operator)}, "endpoints": [{"port": "pages", "path": "/metrics"}]},
    })
}
