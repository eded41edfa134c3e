//! Shared informers: kinds of every sort, undecodable objects, and random histories of faults.

mod caches; // cached objects and lookups
mod histories; // random histories
mod undecodable; // objects that cannot be decoded

use bellerophon::clock::Rng;
use bellerophon::informer::{FactoryOptions, SharedInformerFactory};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};

/// A factory whose jitter is seeded.
fn factory(client: &Client, seed: u64) -> SharedInformerFactory {
    let options = FactoryOptions {
        rng: Rng::seeded(seed),
        ..FactoryOptions::default()
    };
    SharedInformerFactory::start(client.clone(), options)
}

fn config_map(name: &str, app: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some([("app".to_owned(), app.to_owned())].into()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

async fn create(client: &Client, name: &str, app: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let created = maps
        .create(&PostParams::default(), &config_map(name, app))
        .await;
    created.unwrap();
}

/// Creates the object, or replaces the one of its name.
async fn put(maps: &Api<ConfigMap>, object: &ConfigMap) {
    let params = PostParams::default();
    let written = match maps.replace(&object.name_any(), &params, object).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            maps.create(&params, object).await
        }
        written => written,
    };
    written.unwrap();
}
