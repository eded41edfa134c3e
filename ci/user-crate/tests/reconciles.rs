//! The program runs on an embedded API server, over HTTPS and with the kubeconfig it writes.

use std::pin::pin;
use std::process::{Child, Command};
use std::time::Duration;

use bellerophon_apiserver::ApiServer;
use futures_util::StreamExt;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;

/// How long the program may take; far more than it needs on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The running program, which ends with this value.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().expect("the program runs");
    }
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(group, version, kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

fn object(value: serde_json::Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

#[tokio::test(flavor = "multi_thread")]
async fn hero_gets_a_deployment() {
    let server = ApiServer::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .start()
        .await
        .expect("the server starts");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let kubeconfig = folder.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
    let client = kube::Client::new(server.service(), "default");

    let definitions = resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    );
    let definition = object(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "heroes.example.org" },
        "spec": {
            "group": "example.org",
            "scope": "Namespaced",
            "names": { "kind": "Hero", "plural": "heroes" },
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": { "spec": {
                        "type": "object",
                        "properties": { "replicas": { "type": "integer" } },
                    } },
                } },
            }],
        },
    }));
    let params = PostParams::default();
    let definitions: Api<DynamicObject> = Api::all_with(client.clone(), &definitions);
    definitions.create(&params, &definition).await.expect("the definition");

    let mut command = Command::new(env!("CARGO_BIN_EXE_hero-operator"));
    let _program = Program(command.env("KUBECONFIG", &kubeconfig).spawn().expect("it starts"));
    let heroes = resource("example.org", "v1", "Hero", "heroes");
    let heroes: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &heroes);
    let hero = object(json!({
        "apiVersion": "example.org/v1",
        "kind": "Hero",
        "metadata": { "name": "icarus" },
        "spec": { "replicas": 3 },
    }));
    heroes.create(&params, &hero).await.expect("the hero");

    let deployments = resource("apps", "v1", "Deployment", "deployments");
    let deployments: Api<DynamicObject> = Api::namespaced_with(client, "default", &deployments);
    let reconciled = async {
        let watch = deployments.watch(&WatchParams::default(), "0").await;
        let mut events = pin!(watch.expect("a watch"));
        loop {
            match events.next().await.expect("the watch goes on").expect("an event") {
                WatchEvent::Added(found) if found.name_any() == "icarus" => return found,
                _ => {}
            }
        }
    };
    let deployment = tokio::time::timeout(TIMEOUT, reconciled).await.expect("a deployment");
    assert_eq!(deployment.data["spec"]["replicas"], 3);
    let owners = deployment.metadata.owner_references.expect("an owner");
    assert_eq!(owners[0].name, "icarus");
}
