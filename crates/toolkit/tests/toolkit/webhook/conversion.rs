//! Conversions between versions of a kind.

use bellerophon::Kind;
use bellerophon::webhook::{CONVERSION_DATA, WebhookService};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{post, unconnected_manager};

pub(crate) mod v1alpha1 {
    use super::*;

    #[derive(CustomResource, Clone, Debug, Deserialize, JsonSchema, Serialize)]
    #[kube(
        group = "example.org",
        version = "v1alpha1",
        kind = "Hero",
        plural = "heroes"
    )]
    #[kube(namespaced, derive = "Kind")]
    pub(crate) struct HeroSpec {
        pub(crate) horse: String,
    }
}

mod v1beta1 {
    use super::*;

    #[derive(CustomResource, Clone, Debug, Deserialize, JsonSchema, Serialize)]
    #[kube(
        group = "example.org",
        version = "v1beta1",
        kind = "Hero",
        plural = "heroes"
    )]
    #[kube(namespaced, derive = "Kind")]
    pub(crate) struct HeroSpec {
        pub(crate) team: Option<String>,
    }
}

#[derive(CustomResource, Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(
    group = "example.org",
    version = "v1",
    kind = "Hero",
    plural = "heroes"
)]
#[kube(namespaced, derive = "Kind")]
pub(crate) struct HeroSpec {
    #[serde(default)]
    horse: String,
    #[serde(default)]
    replicas: i32,
    team: Option<String>,
}

impl TryFrom<v1alpha1::Hero> for Hero {
    type Error = String;

    fn try_from(hero: v1alpha1::Hero) -> Result<Self, String> {
        if hero.spec.horse == "bolted" {
            return Err("the horse has bolted".into());
        }
        assert_ne!(hero.spec.horse, "panic");
        let spec = HeroSpec {
            horse: hero.spec.horse,
            replicas: 1,
            team: None,
        };
        let metadata = hero.metadata;
        Ok(Self { metadata, spec })
    }
}

impl From<Hero> for v1alpha1::Hero {
    fn from(hero: Hero) -> Self {
        let spec = v1alpha1::HeroSpec {
            horse: hero.spec.horse,
        };
        let metadata = hero.metadata;
        Self { metadata, spec }
    }
}

impl From<v1beta1::Hero> for Hero {
    fn from(hero: v1beta1::Hero) -> Self {
        let spec = HeroSpec {
            horse: String::new(),
            replicas: 0,
            team: hero.spec.team,
        };
        let metadata = hero.metadata;
        Self { metadata, spec }
    }
}

impl From<Hero> for v1beta1::Hero {
    fn from(hero: Hero) -> Self {
        let spec = v1beta1::HeroSpec {
            team: hero.spec.team,
        };
        let metadata = hero.metadata;
        Self { metadata, spec }
    }
}

fn service() -> WebhookService {
    let mut mgr = unconnected_manager();
    mgr.webhook::<Hero>()
        .convert::<v1alpha1::Hero>()
        .convert::<v1beta1::Hero>();
    mgr.webhook_service()
}

/// Converts objects; the converted ones, or the message of the failure.
async fn convert(objects: Value, version: &str) -> Result<Vec<Value>, String> {
    let review = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {
            "uid": "1", "desiredAPIVersion": format!("example.org/{version}"), "objects": objects,
        },
    });
    let (code, answer) = post(&service(), "/convert?timeout=30s", review.to_string()).await;
    if code != 200 {
        return Err(answer["message"].as_str().unwrap().to_owned());
    }
    let response = &answer["response"];
    assert_eq!(response["uid"], "1");
    match response["result"]["status"].as_str() {
        Some("Success") => Ok(response["convertedObjects"].as_array().unwrap().clone()),
        _ => Err(response["result"]["message"].as_str().unwrap().to_owned()),
    }
}

fn hero(version: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("example.org/{version}"), "kind": "Hero",
        "metadata": {
            "name": "icarus", "namespace": "team-a", "uid": "u1", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": spec,
    })
}

#[tokio::test]
async fn a_round_trip_through_any_version_loses_nothing() {
    for spec in [
        json!({"horse": "pegasus", "replicas": 5, "team": "heroes"}),
        json!({"horse": "pegasus", "replicas": 0, "team": null}),
        json!({"horse": "", "replicas": 1, "team": null, "unknown": {"deep": [1]}}),
    ] {
        let stored = hero("v1", spec);
        for version in ["v1alpha1", "v1beta1"] {
            let down = convert(json!([stored]), version).await.unwrap().remove(0);
            assert_eq!(down["apiVersion"], format!("example.org/{version}"));
            assert_eq!(
                down["metadata"]["managedFields"],
                stored["metadata"]["managedFields"]
            );
            let up = convert(json!([down]), "v1").await.unwrap().remove(0);
            assert_eq!(up, stored, "through {version}: {down}");
            // Between two versions, through the hub.
            let other = if version == "v1alpha1" {
                "v1beta1"
            } else {
                "v1alpha1"
            };
            let across = convert(json!([down]), other).await.unwrap().remove(0);
            let up = convert(json!([across]), "v1").await.unwrap().remove(0);
            assert_eq!(up, stored, "through {version} and {other}: {across}");
        }
    }
}

#[tokio::test]
async fn what_a_client_changes_is_newer_than_what_was_kept() {
    let stored = hero(
        "v1",
        json!({"horse": "pegasus", "replicas": 5, "team": "heroes"}),
    );
    let mut down = convert(json!([stored]), "v1alpha1")
        .await
        .unwrap()
        .remove(0);
    assert!(down["metadata"]["annotations"][CONVERSION_DATA].is_string());
    assert_eq!(down["spec"], json!({"horse": "pegasus"}));
    down["spec"]["horse"] = "arion".into();
    let up = convert(json!([down]), "v1").await.unwrap().remove(0);
    assert_eq!(
        up["spec"],
        json!({"horse": "arion", "replicas": 5, "team": "heroes"})
    );
    assert_eq!(up["metadata"]["annotations"], Value::Null);
    // Data that contradicts the object has no effect; the rest of it has.
    let data = json!({"spec": {"horse": "stolen", "replicas": 7}}).to_string();
    down["metadata"]["annotations"][CONVERSION_DATA] = data.into();
    let up = convert(json!([down]), "v1").await.unwrap().remove(0);
    assert_eq!(
        up["spec"],
        json!({"horse": "arion", "replicas": 7, "team": null})
    );
    // Damaged data is none.
    down["metadata"]["annotations"][CONVERSION_DATA] = "{".into();
    let up = convert(json!([down]), "v1").await.unwrap().remove(0);
    assert_eq!(up["spec"]["replicas"], 1);
}

#[tokio::test]
async fn all_objects_are_converted_or_none() {
    let good = hero("v1alpha1", json!({"horse": "pegasus"}));
    let bad = hero("v1alpha1", json!({"horse": "bolted"}));
    let error = convert(json!([good, bad]), "v1").await.unwrap_err();
    let expected = "cannot convert Hero \"icarus\" from example.org/v1alpha1 to example.org/v1: the \
                    horse has bolted";
    assert_eq!(error, expected);
    let error = convert(json!([good]), "v2").await.unwrap_err();
    assert!(
        error.contains("no conversion of example.org/v2 is declared"),
        "{error}"
    );
    let panic = hero("v1alpha1", json!({"horse": "panic"}));
    let error = convert(json!([panic]), "v1").await.unwrap_err();
    assert!(error.contains("panicked"), "{error}");
    let same = convert(json!([bad]), "v1alpha1").await.unwrap();
    assert_eq!(same, [bad], "the same version needs no conversion");
}

#[tokio::test]
async fn two_hubs_of_one_kind_are_a_mistake_of_the_setup() {
    let mut mgr = unconnected_manager();
    mgr.webhook::<Hero>()
        .convert::<v1alpha1::Hero>()
        .convert::<v1alpha1::Hero>();
    let error = mgr.run_until(std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("declared twice"), "{error}");
}
