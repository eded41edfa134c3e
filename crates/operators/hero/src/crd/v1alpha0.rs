//! The older version of Bellerophon: a horse, an image and a number of replicas.
//!
//! Guarantees: a conversion to it and back loses nothing: what it does not show is kept in the
//! annotation of the toolkit. Fields that a client of it writes nevertheless, which the schema
//! admits, are those of the stored version.

use bellerophon::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{CustomResource, Resource};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Bellerophon, BellerophonSpec, BellerophonStatus, GROUP, OLD_VERSION, Weapons, kind};

/// What the older version shows of a store.
#[derive(Clone, CustomResource, Debug, Deserialize, PartialEq, Serialize)]
#[kube(
    group = "stable.bellerophon.io",
    version = "v1alpha0",
    kind = "Bellerophon",
    root = "DefinitionV1alpha0",
    plural = "heroes",
    namespaced,
    schema = "disabled",
    crates(serde_json = "bellerophon_operator::crd_json")
)]
pub(crate) struct SpecV1alpha0 {
    winged_horse_name: String,
    image: String,
    #[serde(default = "super::spec::three")]
    replicas: i32,
    /// Fields of the stored version that a client wrote.
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// A Bellerophon of the older version.
#[derive(Clone, Debug, Deserialize, Kind, PartialEq, Resource, Serialize)]
#[resource(inherit = "DefinitionV1alpha0")]
#[serde(rename_all = "camelCase")]
pub(crate) struct BellerophonV1alpha0 {
    #[serde(default = "api_version")]
    api_version: String,
    #[serde(default = "kind")]
    kind: String,
    metadata: ObjectMeta,
    spec: SpecV1alpha0,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weapons: Option<Weapons>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<BellerophonStatus>,
}

fn api_version() -> String {
    format!("{GROUP}/{OLD_VERSION}")
}

impl TryFrom<BellerophonV1alpha0> for Bellerophon {
    type Error = serde_json::Error;

    fn try_from(old: BellerophonV1alpha0) -> Result<Self, serde_json::Error> {
        let spec = BellerophonSpec::deserialize(serde_json::to_value(old.spec)?)?;
        let mut hero = Self::new("", spec);
        hero.metadata = old.metadata;
        hero.weapons = old.weapons;
        hero.status = old.status;
        Ok(hero)
    }
}

impl From<Bellerophon> for BellerophonV1alpha0 {
    fn from(hero: Bellerophon) -> Self {
        Self {
            api_version: api_version(),
            kind: kind(),
            metadata: hero.metadata,
            spec: SpecV1alpha0 {
                winged_horse_name: hero.spec.winged_horse_name,
                image: hero.spec.image,
                replicas: hero.spec.replicas,
                other: Map::new(),
            },
            weapons: hero.weapons,
            status: hero.status,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bellerophon::{
        manager::{Manager, ManagerOptions},
        webhook::CONVERSION_DATA,
    };
    use bellerophon_operator::Switches;
    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use serde_json::json;
    use tower::ServiceExt as _;

    /// Converts an object by the webhook of the operator.
    async fn convert(object: &super::Value, version: &str) -> super::Value {
        let unconnected = tower::service_fn(|_: Request<kube::client::Body>| {
            std::future::pending::<Result<Response<String>, Infallible>>()
        });
        let client = kube::Client::new(unconnected, "default");
        let mut mgr = Manager::new(client, ManagerOptions::default());
        let declare = crate::OPERATOR.webhooks.expect("it has webhooks");
        declare(&mut mgr, &Switches::default());
        let review = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "request": {
                "uid": "1", "objects": [object],
                "desiredAPIVersion": format!("stable.bellerophon.io/{version}"),
            },
        });
        let request = Request::post("/convert")
            .header("content-type", "application/json")
            .body(review.to_string())
            .unwrap();
        let response = mgr.webhook_service().oneshot(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let answer: super::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            answer["response"]["result"]["status"], "Success",
            "{answer}"
        );
        answer["response"]["convertedObjects"][0].clone()
    }

    fn stored() -> super::Value {
        json!({
            "apiVersion": "stable.bellerophon.io/v1beta7", "kind": "Bellerophon",
            "metadata": {"name": "icarus", "namespace": "default", "uid": "u1"},
            "spec": {
                "winged_horse_name": "pegasus", "image": "bellerophon:0.1.0", "replicas": 5,
                "storage": {"size": "7Gi", "claimPolicy": "Delete"},
                "backup": {
                    "schedule": "@daily", "keep": 3, "size": "5Gi", "timeoutSeconds": 600,
                },
                "autopilot": {
                    "heal": false, "restartAfterSeconds": 300, "replaceAfterSeconds": 1800,
                    "lagEntriesMax": 1000, "compactLogBytes": 268_435_456,
                    "readers": {
                        "min": 1, "max": 2, "readsPerSecond": 1000, "cooldownSeconds": 300,
                    },
                },
            },
            "weapons": {"explosive": "none"},
        })
    }

    #[tokio::test]
    async fn conversions_are_lossless_in_both_directions() {
        let down = convert(&stored(), "v1alpha0").await;
        let spec = json!({
            "winged_horse_name": "pegasus", "image": "bellerophon:0.1.0", "replicas": 5,
        });
        assert_eq!(down["spec"], spec);
        assert_eq!(down["weapons"], json!({"explosive": "none"}));
        assert!(down["metadata"]["annotations"][CONVERSION_DATA].is_string());
        assert_eq!(convert(&down, "v1beta7").await, stored());

        let old = json!({
            "apiVersion": "stable.bellerophon.io/v1alpha0", "kind": "Bellerophon",
            "metadata": {"name": "icarus"}, "spec": spec,
        });
        let up = convert(&old, "v1beta7").await;
        assert_eq!(
            up["spec"]["storage"]["size"], "1Gi",
            "defaults are those of the stored version"
        );
        assert_eq!(convert(&up, "v1alpha0").await, old);
    }

    #[tokio::test]
    async fn a_client_of_the_older_version_changes_what_it_writes_and_nothing_else() {
        let mut down = convert(&stored(), "v1alpha0").await;
        down["spec"]["replicas"] = json!(3);
        // The schema admits fields of the stored version.
        down["spec"]["storage"] = json!({"size": "9Gi"});
        let up = convert(&down, "v1beta7").await;
        let mut expected = stored();
        expected["spec"]["replicas"] = json!(3);
        expected["spec"]["storage"]["size"] = json!("9Gi");
        assert_eq!(up, expected);
    }
}
