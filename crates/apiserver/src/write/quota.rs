//! Charges the ResourceQuotas of a namespace for a write, before it is stored.
//! Guarantees: the usage of a quota is stored by compare-and-swap before the object is, so that
//! concurrent writes never exceed a quota together; one write of a namespace is charged at a time,
//! as upstream's evaluators do, so that writers do not repeat each other's work.
//! Mirrors `quotaEvaluator.checkQuotas`: a write that fails after it was charged is given back by
//! the quota controller.

use std::sync::Arc;

use super::{ATTEMPTS_MAX, Effects, after_write};
use crate::{admission::Attributes, admission::quota, api::Api, managed_fields::Tracker};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_apimachinery::error::GroupResource;
use bellerophon_codec::object::Object;
use bellerophon_storage::Conflict;
use bellerophon_storage::Expect;
use bellerophon_storage::ObjectKey;
use bellerophon_storage::Range;
use bellerophon_storage::Scope;
use bellerophon_storage::Stored;
use bellerophon_storage::Write;

/// The field manager of what the server itself writes.
const MANAGER: &str = "kube-apiserver";

/// Charges the quotas that a write concerns. A dry run is checked and not charged.
///
/// # Errors
/// 403 for what exceeds a quota.
pub(super) async fn charge(
    api: &Api,
    attributes: &Attributes<'_>,
    object: &Object,
    old: Option<&Object>,
    dry_run: bool,
) -> Result<(), ApiError> {
    if api
        .store
        .size(quota::COLLECTION)
        .is_none_or(|(n, _)| n == 0)
        || !api.runs_admission_plugin("ResourceQuota")
        || !quota::concerns(attributes, object, old)
    {
        return Ok(());
    }
    let mut pending = enforced(api, attributes.namespace);
    if pending.is_empty() {
        return Ok(());
    }
    let _permit = api.quota_semaphores.acquire(attributes.namespace).await;
    // Read again: quotas may have been charged while this write waited.
    pending = enforced(api, attributes.namespace);
    for _ in 0..ATTEMPTS_MAX {
        let quotas: Vec<Object> = pending
            .iter()
            .map(|stored| stored.encoded.decode())
            .collect();
        let charged = quota::charge(api, attributes, &quotas, object, old)?;
        if dry_run {
            return Ok(());
        }
        let mut conflicted = Vec::new();
        for (index, used) in charged {
            let mut new = quotas[index].clone();
            quota::set_used(&mut new, &used);
            if store(api, &pending[index], &quotas[index], new)
                .await
                .is_err()
            {
                conflicted.push(pending[index].key.clone());
            }
        }
        if conflicted.is_empty() {
            return Ok(());
        }
        // Those that were charged stay so; the others are read again.
        pending = enforced(api, attributes.namespace);
        pending.retain(|stored| conflicted.contains(&stored.key));
    }
    Err(ApiError::modified(
        GroupResource::new("", "resourcequotas"),
        pending.first().map_or("", |stored| stored.key.name()),
    ))
}

fn enforced(api: &Api, namespace: &str) -> Vec<Arc<Stored>> {
    let range = Range::all_of(Scope::Namespace(namespace.to_owned()));
    let listing = api
        .store
        .list(quota::COLLECTION, &range, None)
        .expect("the newest state is always kept");
    let mut objects = listing.objects;
    objects.retain(|stored| quota::is_enforced(&stored.encoded.decode()));
    objects
}

async fn store(
    api: &Api,
    existing: &Stored,
    old: &Object,
    mut new: Object,
) -> Result<(), Conflict> {
    let catalog = api.registry.catalog();
    let resource = catalog
        .find("", "v1", "resourcequotas")
        .expect("quotas are built in")
        .clone();
    let tracker = Tracker {
        catalog,
        resource: &resource,
        subresource: "status",
        manager: MANAGER.to_owned(),
        now: api.clock.now(),
    };
    tracker.update(Some(old), &mut new);
    let write = Write {
        collection: resource.collection.clone(),
        key: ObjectKey::new(&new.meta.namespace, &new.meta.name),
        expect: Expect::Version(existing.revision),
        put: Some(resource.put(&new)),
    };
    api.store.commit(write).await?;
    after_write(api, &resource, Some(old), Some(&new), Effects::Immediate).await;
    Ok(())
}
