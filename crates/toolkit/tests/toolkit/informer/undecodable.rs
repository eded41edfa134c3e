//! Objects that cannot be decoded.

use std::collections::BTreeMap;

use bellerophon::informer::{InformerOptions, InformerStats, InitialList};
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta};
use kube::{Api, Resource};
use serde::{Deserialize, Serialize};

use super::{config_map, factory, put};
use crate::harness::server;

/// A ConfigMap whose values are numbers.
#[derive(Clone, Debug, Deserialize, Serialize, Kind)]
struct Numbers {
    metadata: ObjectMeta,
    #[serde(default)]
    data: BTreeMap<String, NumberText>,
}

/// A number as text.
#[derive(Clone, Debug, Serialize)]
struct NumberText(u64);

impl<'de> Deserialize<'de> for NumberText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

impl Resource for Numbers {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;
    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::kind(&())
    }
    fn group((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::group(&())
    }
    fn version((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::version(&())
    }
    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[tokio::test(start_paused = true)]
async fn one_undecodable_object_costs_no_other() {
    let server = server().await;
    let client = server.client();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let write = async |name: &str, value: &str| {
        let object = ConfigMap {
            data: Some([("n".to_owned(), value.to_owned())].into()),
            ..config_map(name, "x")
        };
        put(&maps, &object).await;
    };
    for (name, value) in [("a", "1"), ("b", "two"), ("c", "3")] {
        write(name, value).await;
    }
    let key = |name: &str| ObjectKey::namespaced("default", name);
    for initial_list in [InitialList::Streamed, InitialList::Paged] {
        let informers = factory(&client, 1);
        let informer = informers.informer::<Numbers>(InformerOptions {
            initial_list: Some(initial_list),
            ..InformerOptions::labels("app=x")
        });
        informer.wait_for_cache_sync().await.unwrap();
        let lister = informer.lister();
        let value = |name: &str| lister.get(&key(name)).map(|object| object.data["n"].0);
        assert_eq!(value("a"), Some(1));
        assert_eq!(value("b"), None);
        assert_eq!(value("c"), Some(3));
        write("c", "four").await;
        write("b", "2").await;
        lister
            .await_condition(&key("b"), |object| object.is_some())
            .await;
        assert_eq!(value("b"), Some(2));
        assert_eq!(value("c"), Some(3), "the last decodable state stays");
        maps.delete("c", &DeleteParams::default()).await.unwrap();
        lister
            .await_condition(&key("c"), |object| object.is_none())
            .await;
        let InformerStats {
            undecodable,
            watches,
            ..
        } = informer.stats();
        assert_eq!(undecodable, 2, "{initial_list:?}");
        assert_eq!(watches, 1, "{initial_list:?}");
        informers.stop().await;
        write("b", "two").await;
        write("c", "3").await;
    }
}
