//! ResourceQuota controller: `status.hard` and `status.used` of ResourceQuotas.
//!
//! Input: ResourceQuotas and the objects of their namespaces. Output: their status.
//! Guarantees: usage is counted from the API server and not from caches, and stored only if the
//! quota has not changed since it was read, so that what the admission plugin charges meanwhile is
//! never overwritten. Usage that falls is counted when the object is deleted or the pod ends, and at
//! least every five minutes.
//! Mirrors `pkg/controller/resourcequota`.

mod amounts; // sums of quantities
mod usage; // usage of objects

use std::{collections::BTreeMap, time::Duration};

use bellerophon::index::Index;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, Service,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use kube::api::ListParams;

use self::amounts::Amounts;
use crate::core::discovery::{ServedResource, ServedResources};

/// How often usage is counted if nothing happens.
const RESYNC: Duration = Duration::from_secs(5 * 60);

/// How often objects are counted whose deletions are not watched.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

/// Quotas by their namespace.
const NAMESPACE_INDEX: &str = "namespace";

/// Adds the controller, under its upstream name.
pub(crate) fn setup(mgr: &mut Manager) {
    let namespace = |quota: &ResourceQuota| quota.namespace().into_iter().collect();
    let quotas: Index<ResourceQuota> = mgr.index(NAMESPACE_INDEX, namespace);
    let of = |quotas: &Index<ResourceQuota>, namespace: Option<String>| {
        namespace.map_or_else(Vec::new, |namespace| quotas.keys(&namespace))
    };
    let pods = quotas.clone();
    let services = quotas.clone();
    let claims = quotas;
    mgr.controller::<ResourceQuota>()
        // Mirrors NewController: the status is driven by this controller and by admission alone.
        .predicate(Predicate::on_update(
            |old: &ResourceQuota, new: &ResourceQuota| old.spec != new.spec,
        ))
        .watches::<Pod>(move |pod| of(&pods, pod.namespace()))
        .predicate(
            Predicate::deletions().or(Predicate::on_update(|old: &Pod, new: &Pod| {
                usage::is_counted(old) && !usage::is_counted(new)
            })),
        )
        .watches::<Service>(move |service| of(&services, service.namespace()))
        .predicate(Predicate::deletions().or(Predicate::on_update(
            |old: &Service, new: &Service| old.spec != new.spec,
        )))
        .watches::<PersistentVolumeClaim>(move |claim| of(&claims, claim.namespace()))
        .predicate(Predicate::deletions())
        .name("resourcequota-controller")
        .concurrency(5)
        .reconcile(reconcile);
}

async fn reconcile(req: Request<ResourceQuota>) -> Result<Action, Error> {
    // The live quota: what admission has charged since the cached version must not be lost. It is
    // listed, because upstream's controller may list and watch, and not get.
    let named = ListParams::default().fields(&format!("metadata.name={}", req.key().name()));
    let mut quotas = req
        .client()
        .list::<ResourceQuota>(req.key().namespace(), &named)
        .await?;
    let Some(quota) = quotas.pop() else {
        return Ok(Action::await_change());
    };
    let hard = quota
        .spec
        .as_ref()
        .and_then(|spec| spec.hard.clone())
        .unwrap_or_default();
    let counted = Counted::of(&req, &quota, &hard).await?;
    let used = counted.amounts.only(&hard);
    let mut desired = (*quota).clone();
    // Mirrors syncResourceQuota: what could not be counted keeps its last value.
    let before = quota.status.as_ref().and_then(|status| status.used.clone());
    let mut all = before.unwrap_or_default();
    all.retain(|name, _| hard.contains_key(name));
    all.extend(used);
    desired.status = Some(ResourceQuotaStatus {
        hard: Some(hard),
        used: Some(all),
    });
    if desired.status != quota.status {
        req.client().patch_status_from(&*quota, &desired).await?;
    }
    let delay = if counted.is_polled {
        COUNT_INTERVAL
    } else {
        RESYNC
    };
    Ok(Action::requeue_after(delay))
}

/// What is used of the resources of a quota.
#[derive(Default)]
struct Counted {
    amounts: Amounts,
    /// Whether objects are counted whose deletions are not watched.
    is_polled: bool,
}

impl Counted {
    async fn of(
        req: &Request<ResourceQuota>,
        quota: &ResourceQuota,
        hard: &BTreeMap<String, Quantity>,
    ) -> Result<Self, Error> {
        let namespace = req.key().namespace();
        let mut counted = Self::default();
        let concerns = |is_one: fn(&str) -> bool| hard.keys().any(|name| is_one(name));
        let all = ListParams::default();
        if concerns(usage::is_pod_resource) {
            counted.amounts.start(hard, usage::is_pod_resource);
            for pod in req.client().list::<Pod>(namespace, &all).await? {
                if usage::pod_is_in_scope(quota, &pod) {
                    counted.amounts.add(&usage::of_pod(&pod, req.now()));
                }
            }
        }
        if concerns(usage::is_service_resource) {
            counted.amounts.start(hard, usage::is_service_resource);
            for service in req.client().list::<Service>(namespace, &all).await? {
                if usage::has_no_scopes(quota) {
                    counted.amounts.add(&usage::of_service(&service));
                }
            }
        }
        if concerns(usage::is_claim_resource) {
            counted.amounts.start(hard, usage::is_claim_resource);
            let claims = req.client().list::<PersistentVolumeClaim>(namespace, &all);
            for claim in claims.await? {
                if usage::claim_is_in_scope(quota, &claim) {
                    counted.amounts.add(&usage::of_claim(&claim));
                }
            }
        }
        counted.count_objects(req, quota, hard).await?;
        Ok(counted)
    }

    /// Counts the objects of `count/` resources that have no evaluator.
    async fn count_objects(
        &mut self,
        req: &Request<ResourceQuota>,
        quota: &ResourceQuota,
        hard: &BTreeMap<String, Quantity>,
    ) -> Result<(), Error> {
        let names: Vec<(&String, &str)> = hard
            .keys()
            .filter_map(|name| Some((name, usage::counted_resource(name)?)))
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        self.is_polled = true;
        let served = ServedResources::discover(req.client().kube())
            .await
            .map_err(Error::retry)?;
        for (name, resource) in names {
            let found = served
                .deletable
                .iter()
                .find(|served| served.namespaced && served.group_resource() == resource);
            // A resource that is not served is not counted, and its last value stays.
            let Some(found) = found else {
                continue;
            };
            let count = if usage::has_no_scopes(quota) {
                count(req, found).await?
            } else {
                0
            };
            self.amounts.set_count(name, count);
        }
        Ok(())
    }
}

/// The number of objects of a resource in the namespace of a quota, without reading them.
async fn count(req: &Request<ResourceQuota>, resource: &ServedResource) -> Result<usize, Error> {
    let api = resource.api(req.client().kube(), req.key().namespace());
    let page = ListParams::default().limit(1);
    let listed = api.list_metadata(&page).await.map_err(Error::retry)?;
    let more = listed.metadata.remaining_item_count.unwrap_or_default();
    Ok(listed.items.len() + usize::try_from(more).unwrap_or_default())
}
