//! Services: defaults, and the fields that a change of type drops.
//! Guarantees: addresses and node ports come from [`Addresses`] before anything here runs.

mod addresses; // allocated addresses and node ports
mod assign; // allocation for a service
mod validate; // the errors of a service

pub use addresses::{Addresses, Reservation};

use serde_json::{Map, Value, json};

use super::{DeleteAnswer, Effect, Generation, ProxyTarget, Strategy, strategy::keep_status};
use bellerophon_apimachinery::{
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;

/// The strategy of Services. Mirrors `pkg/registry/core/service`.
pub const SERVICE: Strategy = Strategy {
    proxy: Some(ProxyTarget::Service),
    default,
    prepare_create: |service| {
        service
            .body
            .insert("status".into(), json!({"loadBalancer": {}}));
        hide_internal_policy(service.section("spec"));
    },
    prepare_update,
    validate: validate::service,
    validate_update: validate::change,
    validate_status: validate::status,
    warnings,
    name: names::dns_label,
    generation: Generation::None,
    create_on_update: true,
    delete_answer: DeleteAnswer::Object,
    effect: Effect::Addresses,
    ..Strategy::WITH_STATUS
};

/// The default session affinity timeout: three hours.
const STICKY_SECONDS: i64 = 10_800;
const HEADLESS: &str = "None";

fn default(service: &mut Object) {
    let spec = service.section("spec");
    spec.default_text("sessionAffinity", "None");
    match spec.text("sessionAffinity") {
        "None" => {
            spec.remove("sessionAffinityConfig");
        }
        "ClientIP"
            if spec
                .field("sessionAffinityConfig")
                .field("clientIP")
                .int("timeoutSeconds")
                .is_none() =>
        {
            spec.insert(
                "sessionAffinityConfig".into(),
                json!({"clientIP": {"timeoutSeconds": STICKY_SECONDS}}),
            );
        }
        _ => {}
    }
    spec.default_text("type", "ClusterIP");
    for port in spec.maps_mut("ports") {
        port.default_text("protocol", "TCP");
        let unset = matches!(port.field("targetPort"), Value::Null)
            || port.int("targetPort") == Some(0)
            || port.field("targetPort") == "";
        if unset {
            let own = port.int("port").unwrap_or_default();
            port.insert("targetPort".into(), own.into());
        }
    }
    if is_external(spec) {
        spec.default_text("externalTrafficPolicy", "Cluster");
    }
    if matches!(spec.text("type"), "NodePort" | "LoadBalancer" | "ClusterIP") {
        spec.default_to("internalTrafficPolicy", "Cluster");
    }
    if spec.text("type") == "LoadBalancer" {
        spec.default_to("allocateLoadBalancerNodePorts", true);
        let status = service.section("status");
        for ingress in status
            .map_mut("loadBalancer")
            .into_iter()
            .flat_map(|lb| lb.maps_mut("ingress"))
        {
            if !ingress.text("ip").is_empty() {
                ingress.default_to("ipMode", "VIP");
            }
        }
    }
    service
        .section("status")
        .default_to("loadBalancer", Map::new());
}

fn prepare_update(new: &mut Object, old: &Object) {
    keep_status(new, old);
    drop_what_the_type_had(new.section("spec"), old.body.field("spec"));
    hide_internal_policy(new.section("spec"));
    if new.str_at("spec.type") != "LoadBalancer" {
        new.body
            .insert("status".into(), json!({"loadBalancer": {}}));
    }
}

/// Removes `internalTrafficPolicy` of an ExternalName service, though the field manager that set it
/// still owns it. An invalid policy is kept, to be rejected.
fn hide_internal_policy(spec: &mut Map<String, Value>) {
    if spec.text("type") == "ExternalName"
        && matches!(spec.text("internalTrafficPolicy"), "Cluster" | "Local")
    {
        spec.remove("internalTrafficPolicy");
    }
}

/// Forgets what only the old type needed, unless the client changed it.
fn drop_what_the_type_had(new: &mut Map<String, Value>, old: &Value) {
    let same = |new: &Map<String, Value>, field: &str| new.field(field) == old.field(field);
    if needs_address(old) && !needs_address(new) {
        if same(new, "clusterIP") && same(new, "clusterIPs") {
            new.remove("clusterIP");
            new.remove("clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if same(new, field) {
                new.remove(field);
            }
        }
    }
    if has_node_ports(old)
        && !has_node_ports(new)
        && node_ports(new)
            .iter()
            .all(|port| node_ports(old).contains(port))
    {
        new.maps_mut("ports").for_each(|port| {
            port.remove("nodePort");
        });
    }
    if needs_health_check(old) && !needs_health_check(new) && same(new, "healthCheckNodePort") {
        new.remove("healthCheckNodePort");
    }
    if old.text("type") == "LoadBalancer" && new.text("type") != "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(new, field) {
                new.remove(field);
            }
        }
    }
    if is_external(old) && !is_external(new) && same(new, "externalTrafficPolicy") {
        new.remove("externalTrafficPolicy");
    }
}

/// Whether clients outside the cluster can reach it.
fn is_external(spec: &impl JsonExt) -> bool {
    match spec.text("type") {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !spec.is_empty_at("externalIPs"),
        _ => false,
    }
}

fn needs_address(spec: &impl JsonExt) -> bool {
    spec.text("type") != "ExternalName"
}

fn has_node_ports(spec: &impl JsonExt) -> bool {
    matches!(spec.text("type"), "NodePort" | "LoadBalancer")
}

fn needs_health_check(spec: &impl JsonExt) -> bool {
    spec.text("type") == "LoadBalancer" && spec.text("externalTrafficPolicy") == "Local"
}

/// Whether its one address is that it has none.
fn is_headless(spec: &impl JsonExt) -> bool {
    matches!(spec.list("clusterIPs"), [only] if only == HEADLESS)
}

/// The node ports that are set.
fn node_ports(spec: &impl JsonExt) -> Vec<i64> {
    spec.list("ports")
        .iter()
        .filter_map(|port| port.int("nodePort"))
        .filter(|port| *port != 0)
        .collect()
}

fn warnings(new: &Object, _: Option<&Object>) -> Vec<String> {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let spec = new.body.field("spec");
    let headless = spec.text("type") == "ClusterIP" && spec.text("clusterIP") == HEADLESS;
    let has_external = !spec.is_empty_at("externalIPs");
    let by_name = spec.text("type") == "ExternalName";
    [
        (
            new.meta.annotations.contains_key(HINTS),
            format!("annotation {HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead"),
        ),
        (headless && !spec.is_empty_at("loadBalancerIP"), "spec.loadBalancerIP is ignored for headless services".into()),
        (headless && has_external, "spec.externalIPs is ignored for headless services".into()),
        (headless && spec.text("sessionAffinity") != "None", "spec.SessionAffinity is ignored for headless services".into()),
        (has_external && !headless && !by_name, "spec.externalIPs is deprecated and may no longer be implemented in some clusters".into()),
        (by_name && has_external, "spec.externalIPs is ignored when spec.type is \"ExternalName\"".into()),
        (!by_name && !spec.is_empty_at("externalName"), "spec.externalName is ignored when spec.type is not \"ExternalName\"".into()),
        (
            spec.text("trafficDistribution") == "PreferClose",
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".into(),
        ),
    ]
    .into_iter()
    .filter_map(|(applies, text)| applies.then_some(text))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, object, update};

    fn stored(spec: Value) -> (Object, Addresses) {
        let mut addresses = Addresses::new();
        let mut service = object(json!({"metadata": {"name": "web"}, "spec": spec}));
        default(&mut service);
        let reservation = addresses.begin_create(&mut service).expect("there is room");
        addresses.commit(reservation);
        let (service, errors) = create(&SERVICE, service.to_value());
        assert_eq!(errors, [""; 0]);
        (service, addresses)
    }

    #[test]
    fn minimal_service_is_completed() {
        let (service, _) = stored(json!({"selector": {"app": "web"}, "ports": [{"port": 80}]}));
        assert_eq!(
            service.body["spec"],
            json!({"ports": [{"protocol": "TCP", "port": 80, "targetPort": 80}], "selector": {"app": "web"}, "clusterIP": "10.0.1.0", "clusterIPs": ["10.0.1.0"], "type": "ClusterIP",
                "sessionAffinity": "None", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster"})
        );
        assert_eq!(service.body["status"], json!({"loadBalancer": {}}));
    }

    #[test]
    fn node_ports_follow_the_type() {
        let (mut service, mut addresses) = stored(json!({"ports": [{"port": 80}]}));
        let steps = [
            (json!({"type": "NodePort"}), true, false),
            (
                json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}),
                true,
                true,
            ),
            (json!({"type": "ClusterIP"}), false, false),
        ];
        for (patch, has_port, has_check) in steps {
            let mut next = service.to_value();
            patch
                .as_object()
                .expect("a map")
                .iter()
                .for_each(|(k, v)| next["spec"][k] = v.clone());
            let mut next = object(next);
            default(&mut next);
            let reservation = addresses
                .begin_update(&mut next, &service)
                .expect("there is room");
            addresses.commit(reservation);
            let (next, errors) = update(&SERVICE, &service, next.to_value());
            assert_eq!(errors, [""; 0], "{patch}");
            assert_eq!(
                node_ports(next.body.field("spec")).len() == 1,
                has_port,
                "{patch}"
            );
            assert_eq!(
                next.at("spec.healthCheckNodePort").is_some(),
                has_check,
                "{patch}"
            );
            service = next;
        }
        assert_eq!(addresses.ports_taken(), 0);
        assert_eq!(
            service
                .at("spec.externalTrafficPolicy")
                .or(service.at("spec.allocateLoadBalancerNodePorts")),
            None
        );
    }

    #[test]
    fn external_name_gives_the_address_back() {
        let (service, mut addresses) = stored(json!({"ports": [{"port": 80}]}));
        let mut next = service.to_value();
        next["spec"]["type"] = json!("ExternalName");
        next["spec"]["externalName"] = json!("x.example.com");
        let mut next = object(next);
        let reservation = addresses
            .begin_update(&mut next, &service)
            .expect("nothing is needed");
        addresses.commit(reservation);
        let (next, errors) = update(&SERVICE, &service, next.to_value());
        assert_eq!(errors, [""; 0]);
        let expected = json!({"ports": [{"protocol": "TCP", "port": 80, "targetPort": 80}], "type": "ExternalName", "sessionAffinity": "None", "externalName": "x.example.com"});
        assert_eq!(next.body["spec"], expected);
        assert_eq!(addresses.addresses_taken(), 0);
    }
}
