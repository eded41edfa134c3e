//! Whatever the server stores, controllers can decode: an object that cannot be decoded is invisible
//! to them.

use bellerophon::kinds::{Kind, KindCodec};
use bellerophon_testkit::TestCluster;
use http::Request;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::{CronJob, Job},
    coordination::v1::Lease,
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use serde_json::{Value, json};

/// Levels of fields that are looked into.
const DEPTH_MAX: usize = 9;

/// A kind and an object of it that the server accepts.
struct Case {
    /// The URL path of the collection, and that of the group's OpenAPI document.
    collection: &'static str,
    group: &'static str,
    /// The name of its schema.
    schema: &'static str,
    codec: &'static KindCodec,
    base: Value,
}

fn cases() -> Vec<Case> {
    let pod = json!({"containers": [{"name": "c", "image": "i"}]});
    let selector = json!({"matchLabels": {"app": "a"}});
    let template = |spec: Value| json!({"metadata": {"labels": {"app": "a"}}, "spec": spec});
    let workload = |spec: Value| {
        let mut workload = json!({"selector": selector, "template": template(pod.clone())});
        workload
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        json!({"metadata": {"name": "a"}, "spec": workload})
    };
    let once = template(json!({"restartPolicy": "Never", "containers": pod["containers"]}));
    let job = json!({"template": once});
    let claim = json!({
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    });
    let volume = json!({
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"},
    });
    let of = |spec: Value| json!({"metadata": {"name": "a"}, "spec": spec});
    let case = |collection, group, schema, codec, base| Case {
        collection,
        group,
        schema,
        codec,
        base,
    };
    let core = "/openapi/v3/api/v1";
    let apps = "/openapi/v3/apis/apps/v1";
    let batch = "/openapi/v3/apis/batch/v1";
    vec![
        case(
            "/api/v1/namespaces/default/pods",
            core,
            "core.v1.Pod",
            Pod::codec(),
            of(pod.clone()),
        ),
        case(
            "/api/v1/nodes",
            core,
            "core.v1.Node",
            Node::codec(),
            of(json!({})),
        ),
        case(
            "/api/v1/namespaces",
            core,
            "core.v1.Namespace",
            Namespace::codec(),
            of(json!({})),
        ),
        case(
            "/api/v1/namespaces/default/services",
            core,
            "core.v1.Service",
            Service::codec(),
            of(json!({"ports": [{"port": 80}], "selector": {"app": "a"}})),
        ),
        case(
            "/api/v1/persistentvolumes",
            core,
            "core.v1.PersistentVolume",
            PersistentVolume::codec(),
            of(volume),
        ),
        case(
            "/api/v1/namespaces/default/persistentvolumeclaims",
            core,
            "core.v1.PersistentVolumeClaim",
            PersistentVolumeClaim::codec(),
            of(claim),
        ),
        case(
            "/apis/apps/v1/namespaces/default/deployments",
            apps,
            "apps.v1.Deployment",
            Deployment::codec(),
            workload(json!({})),
        ),
        case(
            "/apis/apps/v1/namespaces/default/replicasets",
            apps,
            "apps.v1.ReplicaSet",
            ReplicaSet::codec(),
            workload(json!({})),
        ),
        case(
            "/apis/apps/v1/namespaces/default/daemonsets",
            apps,
            "apps.v1.DaemonSet",
            DaemonSet::codec(),
            workload(json!({})),
        ),
        case(
            "/apis/apps/v1/namespaces/default/statefulsets",
            apps,
            "apps.v1.StatefulSet",
            StatefulSet::codec(),
            workload(json!({"serviceName": "a"})),
        ),
        case(
            "/apis/batch/v1/namespaces/default/jobs",
            batch,
            "batch.v1.Job",
            Job::codec(),
            of(job.clone()),
        ),
        case(
            "/apis/batch/v1/namespaces/default/cronjobs",
            batch,
            "batch.v1.CronJob",
            CronJob::codec(),
            of(json!({"schedule": "@daily", "jobTemplate": {"spec": job}})),
        ),
        case(
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            "/openapi/v3/apis/coordination.k8s.io/v1",
            "coordination.v1.Lease",
            Lease::codec(),
            of(json!({})),
        ),
        case(
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            "/openapi/v3/apis/discovery.k8s.io/v1",
            "discovery.v1.EndpointSlice",
            EndpointSlice::codec(),
            json!({"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": []}),
        ),
        case(
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            "/openapi/v3/apis/policy/v1",
            "policy.v1.PodDisruptionBudget",
            PodDisruptionBudget::codec(),
            of(json!({"selector": selector})),
        ),
    ]
}

/// A step from a value to a field of it.
#[derive(Clone, Debug)]
enum Step {
    Field(String),
    /// The first item of a list.
    Item,
}

/// Collects the paths of fields that have extreme values, with these values.
fn collect(
    schemas: &Value,
    schema: &Value,
    path: &mut Vec<Step>,
    found: &mut Vec<(Vec<Step>, Vec<Value>)>,
) {
    let reference = schema["$ref"]
        .as_str()
        .or_else(|| schema["allOf"][0]["$ref"].as_str());
    let name = reference.and_then(|reference| reference.rsplit('/').next());
    let schema = name.map_or(schema, |name| &schemas[name]);
    let values = extremes(name.unwrap_or_default(), schema);
    if !values.is_empty() {
        found.push((path.clone(), values));
    }
    // Pods have a separate case.
    let is_template = name.is_some_and(|name| name.ends_with("PodTemplateSpec"));
    if path.len() == DEPTH_MAX || is_template {
        return;
    }
    let mut visit = |step: Step, schema: &Value| {
        path.push(step);
        collect(schemas, schema, path, found);
        path.pop();
    };
    for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
        visit(Step::Field(field.clone()), schema);
    }
    if schema["items"].is_object() {
        visit(Step::Item, &schema["items"]);
    }
    if schema["additionalProperties"].is_object() {
        visit(Step::Field("k".to_owned()), &schema["additionalProperties"]);
    }
}

/// Values that some decoder might refuse.
fn extremes(name: &str, schema: &Value) -> Vec<Value> {
    let values = match (name.rsplit('.').next(), schema["format"].as_str()) {
        (Some("Quantity"), _) => json!([
            "0",
            "-1",
            "1e-9",
            "1n",
            "9223372036854775807E",
            "1e18",
            "0.5",
            7,
            i64::MAX,
            1.5,
        ]),
        (Some("IntOrString"), _) => json!([i32::MIN, i32::MAX, "", "100%", "9999999999999%", -1]),
        (_, Some("date-time")) => json!([
            "0000-01-01T00:00:00Z",
            "0000-01-01T00:00:00+01:00",
            "0000-01-01T00:00:00.000000+01:00",
            "0001-01-01T00:00:00Z",
            "0001-01-01T00:00:00.000000Z",
            "1582-10-10T00:00:00Z",
            "2016-12-31T23:59:60Z",
            "2026-01-01T00:00:00.123456789+05:30",
            "2026-01-01T00:00:00.123456-24:00",
            "2026-02-29T00:00:00Z",
            "9999-12-30T22:00:00Z",
            "9999-12-30T22:00:01Z",
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59.999999Z",
            "9999-12-31T23:59:59.999999999Z",
            "9999-12-31T23:59:59-01:00",
            null,
        ]),
        (_, Some("int32")) => json!([i32::MIN, -1, 0, i32::MAX, i64::from(i32::MAX) + 1]),
        (_, Some("int64")) => json!([i64::MIN, -1, 0, i64::MAX, u64::MAX]),
        (_, Some("double")) => json!([0, -1.5, 1e308]),
        (_, Some("byte")) => json!(["", "AA==", "A\nA==", "?", [1, 255], null]),
        _ => json!([]),
    };
    values.as_array().cloned().unwrap_or_default()
}

fn set(mut value: &mut Value, path: &[Step], leaf: Value) {
    for step in path {
        value = match step {
            Step::Field(field) => &mut value[field.as_str()],
            Step::Item => {
                if value.as_array().is_none_or(Vec::is_empty) {
                    *value = json!([null]);
                }
                &mut value[0]
            }
        };
    }
    *value = leaf;
}

/// The response of the server to an object, if it accepts it.
async fn accepted(
    cluster: &TestCluster,
    method: &str,
    url: &str,
    object: &Value,
) -> Option<String> {
    let request = Request::builder().method(method).uri(url);
    let request = request.header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes()).unwrap();
    cluster.client.request_text(request).await.ok()
}

#[tokio::test(start_paused = true)]
async fn extreme_values_that_the_server_accepts_are_decoded() {
    let cluster = TestCluster::api_server_only().await;
    let account = json!({"metadata": {"name": "default"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert!(
        accepted(&cluster, "POST", accounts, &account)
            .await
            .is_some()
    );
    let mut failures = Vec::new();
    for case in cases() {
        let Case { collection, .. } = case;
        let created = accepted(&cluster, "POST", collection, &case.base).await;
        assert!(created.is_some(), "{} is valid", case.schema);
        let document = accepted(&cluster, "GET", case.group, &Value::Null).await;
        let document: Value = serde_json::from_str(&document.expect("a document")).unwrap();
        let schemas = &document["components"]["schemas"];
        let schema = &schemas[format!("io.k8s.api.{}", case.schema)];
        let mut fields = Vec::new();
        collect(schemas, schema, &mut Vec::new(), &mut fields);
        let mut count = 0;
        for (path, value) in fields
            .iter()
            .flat_map(|(path, values)| values.iter().map(move |value| (path, value)))
        {
            let mut object = case.base.clone();
            set(&mut object, path, value.clone());
            let is_status = matches!(&path[0], Step::Field(field) if field == "status");
            let (method, url) = if is_status {
                ("PUT", format!("{collection}/a/status?dryRun=All"))
            } else {
                object["metadata"]["name"] = json!("b");
                ("POST", format!("{collection}?dryRun=All"))
            };
            let Some(answer) = accepted(&cluster, method, &url, &object).await else {
                continue;
            };
            count += 1;
            if let Err(error) = case.codec.decode(answer.as_bytes()) {
                failures.push(format!("{} {path:?} = {value}: {error}", case.schema));
            }
        }
        assert!(count >= 20, "{} accepts {count} values", case.schema);
    }
    assert_eq!(failures, [""; 0]);
    cluster.stop().await;
}
