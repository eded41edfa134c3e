//! The permissions of the controllers, compared with upstream's bootstrap policy.

use bellerophon_cluster::rbac_objects;
use bellerophon_testkit::TestCluster;
use http::Request;
use serde_json::{Value, json};

/// Whether a user may do this, by the policy that the server starts with.
async fn is_allowed(cluster: &TestCluster, user: &str, attributes: Value) -> bool {
    let review = json!({"spec": {"user": user, "resourceAttributes": attributes}});
    let request = Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes())
        .unwrap();
    let review: Value = cluster.client.request(request).await.unwrap();
    review["status"]["allowed"] == true
}

#[tokio::test(start_paused = true)]
async fn controllers_may_patch_only_what_upstream_lets_them_update() {
    let cluster = TestCluster::api_server_only().await;
    let objects = rbac_objects();
    let bindings = objects
        .iter()
        .filter(|object| object["kind"] == "ClusterRoleBinding");
    let mut checked = 0;
    for binding in bindings {
        let user = binding["subjects"][0]["name"].as_str().unwrap();
        if !user.starts_with("system:serviceaccount:") {
            continue;
        }
        let role = |object: &&Value| {
            object["kind"] == "ClusterRole" && object["metadata"] == binding["metadata"]
        };
        let role = objects.iter().find(role).expect("its role");
        for rule in role["rules"].as_array().unwrap() {
            assert_eq!(rule["verbs"], json!(["patch"]));
            let resource = rule["resources"][0].as_str().unwrap();
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let attributes = |verb: &str| {
                json!({
                    "verb": verb, "group": rule["apiGroups"][0], "resource": resource,
                    "subresource": subresource, "namespace": "default", "name": "a",
                })
            };
            assert!(
                is_allowed(&cluster, user, attributes("update")).await,
                "{user} {rule}"
            );
            assert!(
                !is_allowed(&cluster, user, attributes("patch")).await,
                "{user} {rule}"
            );
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked}");
    cluster.stop().await;
}
