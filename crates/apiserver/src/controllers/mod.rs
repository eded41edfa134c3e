//! Controllers that run within the server after writes: they serve definitions, configure flow
//! control and admission, and register APIServices.
//! In: committed writes. Out: the catalog, the configuration in use, and the status of those
//! objects.
//! Guarantees: a write takes effect before its response is sent.

pub(crate) mod definitions; // CustomResourceDefinitions: names, serving, clean-up
pub(crate) mod flow_control; // FlowSchemas and PriorityLevelConfigurations

use std::{future::Future, pin::Pin};

use bellerophon_resources::kinds::Effect;

use crate::{
    aggregation,
    api::{Api, WriteEvent},
};

/// Runs the controllers of the written resource.
pub(crate) fn after_write<'a>(
    api: &'a Api,
    event: WriteEvent<'a>,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    Box::pin(async move {
        let WriteEvent { resource, old, new } = event;
        match (resource.strategy.effect, old, new) {
            (Effect::Addresses, Some(old), None) => api.release_addresses(old),
            (Effect::Definition, Some(old), None) => definitions::deleted(api, old).await,
            (Effect::Definition, _, Some(new)) => definitions::written(api, &new.meta.name).await,
            (Effect::Instance, Some(_), None) => definitions::instance_deleted(api, resource).await,
            (Effect::Instance, None, Some(_)) => definitions::instance_created(api, resource).await,
            (Effect::FlowControl, _, _) => flow_control::written(api).await,
            (Effect::ApiService, _, _) => aggregation::register(api),
            (Effect::Admission, _, _) => api.admission_config.reload(&*api.store),
            _ => {}
        }
    })
}
