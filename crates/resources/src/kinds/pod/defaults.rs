//! Defaults of pods.
//! In: a decoded Pod or the spec of a template. Out: the same with defaults.
//! Guarantees: defaulting is idempotent; given values stay. Mirrors
//! `SetDefaults_Pod`, `SetDefaults_PodSpec` and `SetDefaults_Container` in
//! `pkg/apis/core/v1/defaults.go`.

use bellerophon_apimachinery::{
    json_ext::{JsonDefaults, JsonExt},
    quantity::Quantity,
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

use super::{resources, volume_defaults::default_volume};

type Json = Map<String, Value>;

/// The lists of a pod spec that hold containers.
pub(crate) const CONTAINER_LISTS: [&str; 3] =
    ["initContainers", "containers", "ephemeralContainers"];

/// Completes a Pod.
pub(crate) fn default_pod(pod: &mut Object) {
    let spec = pod.section("spec");
    default_spec(spec);
    for list in ["initContainers", "containers"] {
        spec.maps_mut(list)
            .filter_map(|c| c.map_mut("resources"))
            .for_each(requests_from_limits);
    }
    resources::default_pod_level(spec);
    spec.default_to("enableServiceLinks", true);
    if spec.is_true("hostNetwork") {
        for list in ["initContainers", "containers"] {
            spec.maps_mut(list).for_each(host_ports);
        }
    }
}

/// Completes the spec in a pod template; a template has both `metadata` and `spec`, however empty.
pub(crate) fn default_template(template: &mut Json) {
    template.map_at("metadata");
    default_spec(template.map_at("spec"));
}

/// Completes a pod spec, in a pod or in a template.
fn default_spec(spec: &mut Json) {
    spec.default_text("dnsPolicy", "ClusterFirst");
    spec.default_text("restartPolicy", "Always");
    spec.default_text("schedulerName", "default-scheduler");
    spec.default_to("terminationGracePeriodSeconds", 30);
    spec.map_at("securityContext");
    one_service_account(spec);
    spec.maps_mut("volumes").for_each(default_volume);
    for list in CONTAINER_LISTS {
        spec.maps_mut(list).for_each(default_container);
    }
    if let Some(overhead) = spec.map_mut("overhead") {
        canonical(overhead);
    }
    if let Some(resources) = spec.map_mut("resources") {
        canonical_lists(resources);
    }
}

/// `serviceAccount` is the old name of `serviceAccountName`; both are always shown.
fn one_service_account(spec: &mut Json) {
    let new = spec.text("serviceAccountName");
    let name = if new.is_empty() {
        spec.text("serviceAccount")
    } else {
        new
    }
    .to_owned();
    if !name.is_empty() {
        spec.insert("serviceAccountName".into(), name.clone().into());
        spec.insert("serviceAccount".into(), name.into());
    }
}

fn default_container(container: &mut Json) {
    let policy = pull_policy(container.text("image"));
    container.default_text("imagePullPolicy", policy);
    container.default_text("terminationMessagePath", "/dev/termination-log");
    container.default_text("terminationMessagePolicy", "File");
    container
        .maps_mut("ports")
        .for_each(|port| port.default_text("protocol", "TCP"));
    container
        .maps_mut("env")
        .filter_map(|e| e.map_mut("valueFrom"))
        .for_each(default_source);
    canonical_lists(container.map_at("resources"));
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        container.map_mut(probe).map(default_probe);
    }
    if let Some(lifecycle) = container.map_mut("lifecycle") {
        for hook in ["postStart", "preStop"] {
            lifecycle
                .map_mut(hook)
                .and_then(|h| h.map_mut("httpGet"))
                .map(default_http_get);
        }
    }
}

/// The default pull policy: `Always` for the tag `latest` or none.
pub(super) fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image
        .split_once('@')
        .map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or(name);
    match (last.split_once(':'), digest) {
        (Some((_, "latest")), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

/// A value taken from elsewhere: an environment variable's source or a file of a downward volume.
pub(super) fn default_source(source: &mut Json) {
    if let Some(reference) = source.map_mut("fieldRef") {
        reference.default_text("apiVersion", "v1");
    }
    if let Some(reference) = source.map_mut("resourceFieldRef") {
        let divisor = Quantity::of(reference.field("divisor")).unwrap_or(Quantity::ZERO);
        reference.insert("divisor".into(), divisor.to_string().into());
    }
    if let Some(reference) = source.map_mut("fileKeyRef") {
        reference.default_to("optional", false);
    }
}

fn default_probe(probe: &mut Json) {
    for (field, value) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        probe.default_number(field, value);
    }
    probe.map_mut("httpGet").map(default_http_get);
    if let Some(grpc) = probe.map_mut("grpc") {
        grpc.default_to("service", "");
    }
}

fn default_http_get(get: &mut Json) {
    get.default_text("path", "/");
    get.default_text("scheme", "HTTP");
}

fn host_ports(container: &mut Json) {
    for port in container.maps_mut("ports") {
        let number = port.number("containerPort");
        port.default_number("hostPort", number);
    }
}

fn requests_from_limits(resources: &mut Json) {
    let Some(limits) = resources.field("limits").as_object().cloned() else {
        return;
    };
    let requests = resources.map_at("requests");
    for (name, amount) in limits {
        requests.entry(name).or_insert(amount);
    }
    if requests.is_empty() {
        resources.remove("requests");
    }
}

/// Spells the amounts of `limits` and `requests` in their one form.
pub(crate) fn canonical_lists(resources: &mut Json) {
    for list in ["limits", "requests"] {
        resources.map_mut(list).map(canonical);
    }
}

/// Spells the amounts of a resource list in their one form, no finer than a thousandth.
fn canonical(list: &mut Json) {
    for amount in list.values_mut() {
        if let Some(quantity) = Quantity::of(amount) {
            *amount = json!(quantity.rounded_up_to_milli().to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::pod::testing::{pod, spec_of};

    /// A container as stored: what is given here plus what every container gets.
    fn container(own: Value) -> Value {
        let mut all = json!({"resources": {}, "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent"});
        all.as_object_mut()
            .expect("an object")
            .extend(own.as_object().cloned().expect("an object"));
        all
    }

    fn stored(spec: Value) -> Value {
        let mut object = pod(spec);
        default_pod(&mut object);
        let once = object.clone();
        default_pod(&mut object);
        assert_eq!(object, once, "defaulting twice changes nothing more");
        spec_of(&object)
    }

    #[test]
    fn minimal_pod_gets_every_default_of_its_spec() {
        assert_eq!(
            stored(
                json!({"automountServiceAccountToken": false, "containers": [{"name": "web", "image": "nginx"}]})
            ),
            json!({"containers": [container(json!({"name": "web", "image": "nginx", "imagePullPolicy": "Always"}))],
                "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
                "automountServiceAccountToken": false, "securityContext": {}, "schedulerName": "default-scheduler",
                "enableServiceLinks": true})
        );
    }

    #[test]
    fn pull_policy_follows_tag_or_digest() {
        let digest = "sha256:9b2e5a3c1f0d4e6b8a7c5d3e1f2a4b6c8d0e2f4a6b8c0d1e3f5a7b9c1d3e5f70";
        let cases = [
            ("app/front", "Always"),
            ("app/front:latest", "Always"),
            ("app/front:1.4", "IfNotPresent"),
            (&format!("app/front@{digest}"), "IfNotPresent"),
            (&format!("app/front:latest@{digest}"), "Always"),
            ("registry:5000/app", "Always"),
            ("registry:5000/app:1", "IfNotPresent"),
        ];
        for (image, policy) in cases {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn probes_of_every_handler_get_timings_and_scheme() {
        let spec = stored(json!({"containers": [{"name": "a", "image": "a:1",
            "livenessProbe": {"httpGet": {"port": "http"}},
            "readinessProbe": {"grpc": {"port": 9000}, "periodSeconds": 5},
            "startupProbe": {"tcpSocket": {"port": 1}, "failureThreshold": 30},
            "lifecycle": {"postStart": {"httpGet": {"port": 8080}}, "preStop": {"sleep": {"seconds": 5}}}}]}));
        assert_eq!(
            spec["containers"][0],
            container(json!({"name": "a", "image": "a:1",
                "livenessProbe": {"httpGet": {"path": "/", "port": "http", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
                    "successThreshold": 1, "failureThreshold": 3},
                "readinessProbe": {"grpc": {"port": 9000, "service": ""}, "timeoutSeconds": 1, "periodSeconds": 5,
                    "successThreshold": 1, "failureThreshold": 3},
                "startupProbe": {"tcpSocket": {"port": 1}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1,
                    "failureThreshold": 30},
                "lifecycle": {"postStart": {"httpGet": {"path": "/", "port": 8080, "scheme": "HTTP"}}, "preStop": {"sleep": {"seconds": 5}}}}))
        );
    }

    #[test]
    fn limits_become_requests_in_shortest_form() {
        let spec = stored(json!({
            "containers": [
                {"name": "a", "image": "a:1", "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}},
                {"name": "b", "image": "b:1", "resources": {"limits": {"cpu": 0.5, "memory": "1.5Gi"}, "requests": {"cpu": "250m"}}},
                {"name": "c", "image": "c:1", "resources": {"requests": {"memory": "134217728", "ephemeral-storage": "1e9"}}}],
            "initContainers": [{"name": "i", "image": "i:1", "resources": {"limits": {"memory": "128974848000m", "example.com/dongle": 2}}}]}));
        let resources: Vec<&Value> = [
            &spec["containers"][0],
            &spec["containers"][1],
            &spec["containers"][2],
            &spec["initContainers"][0],
        ]
        .map(|c| &c["resources"])
        .to_vec();
        assert_eq!(
            resources,
            [
                &json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}),
                &json!({"limits": {"cpu": "500m", "memory": "1536Mi"}, "requests": {"cpu": "250m", "memory": "1536Mi"}}),
                &json!({"requests": {"ephemeral-storage": "1e9", "memory": "134217728"}}),
                &json!({"limits": {"example.com/dongle": "2", "memory": "128974848"},
                    "requests": {"example.com/dongle": "2", "memory": "128974848"}}),
            ]
        );
    }

    #[test]
    fn references_and_host_ports_are_completed() {
        let spec = stored(
            json!({"hostNetwork": true, "serviceAccount": "builder", "containers": [{"name": "a", "image": "a:1",
            "ports": [{"containerPort": 8080}],
            "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}]}),
        );
        assert_eq!(
            spec["containers"][0]["ports"],
            json!([{"hostPort": 8080, "containerPort": 8080, "protocol": "TCP"}])
        );
        assert_eq!(
            spec["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"],
            "v1"
        );
        assert_eq!(
            spec["containers"][0]["env"][1]["valueFrom"]["resourceFieldRef"]["divisor"],
            "0"
        );
        assert_eq!(spec["serviceAccountName"], "builder");
    }
}
