//! The objects of a new cluster.
//! In: the server's address and CA, the time. Out: complete objects, in the order in which they are
//! to be stored.
//! Guarantees: the objects are those of Kubernetes 1.36 with its default settings; each has a uid
//! and a creation time, none a revision.

mod cluster; // namespaces, the server's own service, API services
mod policy; // roles and bindings

use std::net::{IpAddr, Ipv4Addr};

use bellerophon_apimachinery::time::Time;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::{self, Effect};

use crate::{api::Api, controllers, entropy::Entropy, write};

/// The addresses of services.
pub(crate) const SERVICE_RANGE: &str = "10.0.0.0/16";
/// The first of them, which is the server's own.
pub(crate) const SERVER_SERVICE_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// The parameters of a server.
pub(crate) struct Params<'a> {
    /// The authorities of client certificates, in PEM.
    pub(crate) client_ca_pem: &'a str,
    /// The authority of the front proxy, in PEM.
    pub(crate) front_proxy_ca_pem: &'a str,
    /// Where the server listens.
    pub(crate) address: IpAddr,
    /// And on which port.
    pub(crate) port: u16,
    /// The name of the machine; the identity of the server derives from it.
    pub(crate) hostname: &'a str,
    /// When the cluster begins.
    pub(crate) now: Time,
    /// Where uids come from.
    pub(crate) entropy: &'a Entropy,
}

/// Stores the objects of a new cluster unchanged. Those of a snapshot are not replaced.
///
/// # Errors
/// A kind that is not served.
pub(crate) async fn store(api: &Api, objects: Vec<Object>) -> Result<(), String> {
    let catalog = api.registry.catalog();
    for object in objects {
        let (group, version) = object
            .api_version
            .split_once('/')
            .unwrap_or(("", &object.api_version));
        let resource = catalog
            .find_kind(group, version, &object.kind)
            .ok_or_else(|| format!("no kind {}", object.kind))?;
        if resource.strategy.effect == Effect::Addresses {
            api.adopt_addresses(&object);
        }
        // A conflict is an object of a snapshot.
        let _stored = write::store_as_is(api, &resource, &object).await;
    }
    controllers::flow_control::written(api).await;
    // History begins with the first write of a client.
    api.store.compact(api.store.revision());
    Ok(())
}

/// Every object of a fresh cluster: namespaces first, so that nothing is in one that does not
/// exist.
pub(crate) fn objects(params: &Params<'_>) -> Vec<Object> {
    let mut objects = cluster::namespaces();
    objects.extend(policy::objects());
    objects.extend(cluster::priority_classes());
    objects.extend(kinds::flow_control::default_objects(params.now));
    objects.extend(cluster::api_services(params.now));
    objects.extend(cluster::networking(params));
    objects.extend(cluster::settings(params));
    for object in &mut objects {
        object.meta.uid = params.entropy.uid();
        object.meta.creation_timestamp = Some(params.now);
    }
    objects
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::{Value, json};

    use super::*;

    fn fresh() -> Vec<Object> {
        let now = Time::parse("2026-01-02T03:04:05Z").expect("a time");
        let entropy = Entropy::seeded(1);
        objects(&Params {
            client_ca_pem: "CA",
            front_proxy_ca_pem: "FRONT PROXY CA",
            address: [192, 0, 2, 7].into(),
            port: 6443,
            hostname: "box",
            now,
            entropy: &entropy,
        })
    }

    fn find(objects: &[Object], kind: &str, place: &str) -> Value {
        let (namespace, name) = place.split_once('/').unwrap_or(("", place));
        let found = objects
            .iter()
            .find(|o| o.kind == kind && o.meta.name == name && o.meta.namespace == namespace);
        found.unwrap_or_else(|| panic!("{kind} {place}")).to_value()
    }

    #[test]
    fn new_cluster_has_the_objects_of_a_real_one() {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for object in fresh() {
            *counts.entry(object.kind).or_default() += 1;
        }
        let counts: Vec<String> = counts
            .into_iter()
            .map(|(kind, n)| format!("{kind} {n}"))
            .collect();
        assert_eq!(
            counts.join(", "),
            "APIService 21, ClusterRole 69, ClusterRoleBinding 50, ConfigMap 2, EndpointSlice 1, Endpoints 1, FlowSchema 11, IPAddress 1, \
             Lease 1, Namespace 4, PriorityClass 2, PriorityLevelConfiguration 8, Role 7, RoleBinding 7, Service 1, ServiceCIDR 1"
        );
    }

    #[test]
    fn every_object_is_named_once_and_placed() {
        let mut places = BTreeSet::new();
        let mut uids = BTreeSet::new();
        let mut namespaces = BTreeSet::from([String::new()]);
        for object in fresh() {
            if object.kind == "Namespace" {
                namespaces.insert(object.meta.name.clone());
            }
            assert!(
                namespaces.contains(&object.meta.namespace),
                "{}",
                object.meta.name
            );
            assert!(
                object.meta.creation_timestamp.is_some() && uids.insert(object.meta.uid.clone())
            );
            assert!(
                places.insert((
                    object.kind.clone(),
                    object.meta.namespace.clone(),
                    object.meta.name.clone()
                )),
                "{}",
                object.meta.name
            );
        }
    }

    #[test]
    fn bindings_refer_to_roles_that_exist() {
        let objects = fresh();
        for binding in objects.iter().filter(|o| o.kind.ends_with("RoleBinding")) {
            let kind = binding.str_at("roleRef.kind");
            let name = binding.str_at("roleRef.name");
            let role = objects.iter().find(|o| {
                o.kind == kind && o.meta.name == name && o.meta.namespace == binding.meta.namespace
            });
            assert!(
                role.is_some(),
                "{} refers to {kind} {name}",
                binding.meta.name
            );
        }
        for schema in objects.iter().filter(|o| o.kind == "FlowSchema") {
            find(
                &objects,
                "PriorityLevelConfiguration",
                schema.str_at("spec.priorityLevelConfiguration.name"),
            );
        }
    }

    #[test]
    fn well_known_roles_have_their_rules() {
        let objects = fresh();
        let admin = find(&objects, "ClusterRole", "cluster-admin");
        assert_eq!(
            admin["rules"],
            json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}])
        );
        assert_eq!(
            admin["metadata"]["labels"],
            json!({"kubernetes.io/bootstrapping": "rbac-defaults"})
        );
        assert_eq!(
            admin["metadata"]["annotations"],
            json!({"rbac.authorization.kubernetes.io/autoupdate": "true"})
        );
        let view = find(&objects, "ClusterRole", "view");
        let selector =
            json!({"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}});
        assert_eq!(&view["rules"], &Value::Null);
        assert_eq!(
            &view["aggregationRule"],
            &json!({"clusterRoleSelectors": [selector]})
        );
        assert_eq!(
            view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"],
            "true"
        );
        assert_eq!(
            find(&objects, "ClusterRole", "system:basic-user")["rules"],
            json!([
                {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
                 "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]},
                {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
            ])
        );
        assert_eq!(
            find(
                &objects,
                "Role",
                "kube-public/system:controller:bootstrap-signer"
            )["rules"][1],
            json!({"verbs": ["update"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"]})
        );
        assert_eq!(
            find(&objects, "ClusterRole", "system:controller:ttl-controller")["rules"],
            json!([
                {"verbs": ["list", "patch", "update", "watch"], "apiGroups": [""], "resources": ["nodes"]},
                {"verbs": ["create", "patch", "update"], "apiGroups": ["", "events.k8s.io"], "resources": ["events"]},
            ])
        );
    }

    #[test]
    fn bindings_name_their_subjects() {
        let objects = fresh();
        let subjects = |kind, place| find(&objects, kind, place)["subjects"].clone();
        assert_eq!(
            subjects("ClusterRoleBinding", "cluster-admin"),
            json!([{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:masters"}])
        );
        assert_eq!(
            subjects("ClusterRoleBinding", "system:controller:ttl-controller"),
            json!([{"kind": "ServiceAccount", "name": "ttl-controller", "namespace": "kube-system"}])
        );
        assert_eq!(subjects("ClusterRoleBinding", "system:node"), Value::Null);
        let reader = find(
            &objects,
            "RoleBinding",
            "kube-system/system::extension-apiserver-authentication-reader",
        );
        assert_eq!(
            reader["roleRef"]["name"],
            "extension-apiserver-authentication-reader"
        );
        assert_eq!(reader["subjects"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn server_is_reachable_as_a_service() {
        let objects = fresh();
        let service = find(&objects, "Service", "default/kubernetes");
        assert_eq!(
            service["spec"]["ports"],
            json!([{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}])
        );
        let endpoints = find(&objects, "Endpoints", "default/kubernetes");
        assert_eq!(
            endpoints["subsets"][0]["addresses"],
            json!([{"ip": "192.0.2.7"}])
        );
        assert_eq!(
            find(&objects, "EndpointSlice", "default/kubernetes")["addressType"],
            "IPv4"
        );
        let tracking = find(
            &objects,
            "ConfigMap",
            "kube-system/kube-apiserver-legacy-service-account-token-tracking",
        );
        assert_eq!(tracking["data"], json!({"since": "2026-01-02"}));
    }

    #[test]
    fn fairness_follows_the_defaults() {
        let objects = fresh();
        let schema = find(&objects, "FlowSchema", "system-node-high")["spec"].clone();
        assert_eq!(
            schema,
            json!({
                "priorityLevelConfiguration": {"name": "node-high"}, "matchingPrecedence": 400, "distinguisherMethod": {"type": "ByUser"},
                "rules": [{"subjects": [{"kind": "Group", "group": {"name": "system:nodes"}}], "resourceRules": [
                    {"verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"], "clusterScope": true, "namespaces": ["*"]},
                    {"verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "namespaces": ["*"]},
                ]}],
            })
        );
        let level =
            find(&objects, "PriorityLevelConfiguration", "leader-election")["spec"]["limited"]
                .clone();
        assert_eq!(
            level,
            json!({"nominalConcurrencyShares": 10, "lendablePercent": 0,
                   "limitResponse": {"type": "Queue", "queuing": {"queues": 16, "handSize": 4, "queueLengthLimit": 50}}})
        );
    }
}
