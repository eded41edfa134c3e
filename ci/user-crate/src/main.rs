//! Heroes: each owns a Deployment with its replicas.

use std::time::Duration;

use bellerophon::prelude::*;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.org", version = "v1", kind = "Hero", plural = "heroes")]
#[kube(namespaced, derive = "Kind")]
struct HeroSpec {
    replicas: i32,
}

struct Heroes {
    deployments: Lister<Deployment>,
}

impl Reconciler<Hero> for Heroes {
    async fn reconcile(&self, req: Request<Hero>) -> Result<Action, Error> {
        let Some(hero) = req.object() else {
            return Ok(Action::await_change());
        };
        if self.deployments.get(req.key()).is_none() {
            println!("creating the deployment of {}", req.key());
        }
        let mut deployment = deployment_for(hero);
        set_controller_reference(hero, &mut deployment)?;
        req.client().apply(&deployment).await?;
        Ok(Action::requeue_after(Duration::from_secs(300)))
    }
}

fn deployment_for(hero: &Hero) -> Deployment {
    let labels = Some([("hero".to_owned(), hero.name_any())].into());
    let container = Container {
        name: "hero".to_owned(),
        image: Some("registry.example/hero:1".to_owned()),
        ..Container::default()
    };
    Deployment {
        metadata: ObjectMeta {
            name: Some(hero.name_any()),
            namespace: hero.namespace(),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(hero.spec.replicas),
            selector: LabelSelector {
                match_labels: labels.clone(),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels,
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    containers: vec![container],
                    ..PodSpec::default()
                }),
            },
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

#[tokio::main]
async fn main() -> Result<(), ManagerError> {
    let mut mgr = Manager::try_default().await?;
    let heroes = Heroes {
        deployments: mgr.lister(),
    };
    mgr.controller::<Hero>()
        .owns::<Deployment>()
        .concurrency(4)
        .reconcile(heroes);
    mgr.run().await
}
