//! Checks the availability of aggregated API servers.
//!
//! Guarantees: a server is checked when its APIService, Service or EndpointSlices change, every 30
//! seconds, and more often while its check fails (5 ms, doubled up to 30 s). Its documents are read
//! with the first check that succeeds after a change, and every minute. Without registered servers
//! there is no timer and no watch.

use std::{sync::Arc, time::Duration};

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;
use bellerophon_storage::{ObjectKey, Scope, StoreWatch};
use futures_util::future::{join_all, select_all};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Aggregator, GROUP, PLURAL, availability::Availability};
use crate::{
    api::Api,
    connect::Connector,
    managed_fields::Tracker,
    registry::RemoteVersion,
    write::{self, Change},
};

/// How often an available server is checked.
const RESYNC_PERIOD: Duration = Duration::from_secs(30);

/// How often the documents of an available server are read (upstream: the discovery manager and
/// the OpenAPI controllers).
const DOCUMENTS_PERIOD: Duration = Duration::from_secs(60);

/// The pause after the first failed check; each further one is twice as long, up to the resync
/// period.
const RETRY_FIRST: Duration = Duration::from_millis(5);

/// The field manager of the condition.
const MANAGER: &str = "kube-apiserver";

/// Where the Service and the endpoints of a server are stored.
const WATCHED: [&str; 2] = ["/services", "discovery.k8s.io/endpointslices"];

impl Aggregator {
    /// Keeps conditions and documents of registered servers up to date until `stop` is cancelled.
    pub(crate) async fn run(&self, api: &Api, connector: &Connector, stop: CancellationToken) {
        let mut retry = RETRY_FIRST;
        let mut documents_due = Instant::now();
        loop {
            let with_documents = Instant::now() >= documents_due;
            if with_documents {
                documents_due = Instant::now() + DOCUMENTS_PERIOD;
            }
            let since = api.store.revision();
            let catalog = api.registry.catalog();
            let checks = catalog
                .remotes()
                .map(|remote| self.sync(api, connector, remote, with_documents));
            let Some(checked) = stop.run_until_cancelled(join_all(checks)).await else {
                return;
            };
            if checked
                .iter()
                .all(|availability| availability.is_available())
            {
                retry = RETRY_FIRST;
            } else {
                retry = (retry * 2).min(RESYNC_PERIOD);
            }
            let pause = if retry == RETRY_FIRST {
                RESYNC_PERIOD
            } else {
                retry
            };
            let namespaces = catalog.remotes().map(|remote| &remote.namespace);
            let watches = watches(api, namespaces.cloned().collect(), since);
            let changed = watches.iter().map(|watch| Box::pin(watch.changed()));
            let changed: Vec<_> = changed.collect();
            let has_changed = async {
                if changed.is_empty() {
                    std::future::pending::<()>().await;
                }
                tokio::select! {
                    _ = select_all(changed) => true,
                    () = tokio::time::sleep(pause) => false,
                }
            };
            let has_changed = tokio::select! {
                () = stop.cancelled() => return,
                () = api.api_services_changed.notified() => true,
                has_changed = has_changed => has_changed,
            };
            if has_changed {
                documents_due = Instant::now();
            }
        }
    }

    /// Brings condition and documents of one server up to date.
    async fn sync(
        &self,
        api: &Api,
        connector: &Connector,
        remote: &Arc<RemoteVersion>,
        with_documents: bool,
    ) -> Availability {
        let availability = self.check(api, connector, remote).await;
        let has_documents = remote.discovery.is_some();
        if availability.is_available() && (with_documents || !has_documents) {
            let documents = self.documents(api, connector, remote).await;
            api.registry.update_remotes(|catalog| {
                let remotes = catalog.remotes().map(|known| {
                    let is_same = known.api_service() == remote.api_service();
                    let mut known = RemoteVersion::clone(known);
                    if is_same {
                        known.discovery.clone_from(&documents.discovery);
                        known.openapi_url.clone_from(&documents.openapi_url);
                        known.swagger.clone_from(&documents.swagger);
                    }
                    known
                });
                remotes.collect()
            });
        }
        if let Err(error) = set_available(api, remote, &availability).await {
            // It was deleted meanwhile, or the next check writes the condition.
            let api_service = remote.api_service();
            tracing::debug!(%api_service, ?error, "cannot write the condition of an APIService");
        }
        availability
    }
}

/// Watches of what the availability of servers in these namespaces depends on.
fn watches(api: &Api, mut namespaces: Vec<String>, since: u64) -> Vec<StoreWatch> {
    namespaces.sort();
    namespaces.dedup();
    let scopes = namespaces.into_iter().map(Scope::Namespace);
    scopes
        .flat_map(|scope| WATCHED.map(|collection| (collection, scope.clone())))
        // A revision that is compacted by now is followed by the next resync.
        .filter_map(|(collection, scope)| api.store.watch(&collection.into(), &scope, since).ok())
        .collect()
}

/// Writes the condition of an APIService, if it differs.
async fn set_available(
    api: &Api,
    remote: &RemoteVersion,
    availability: &Availability,
) -> Result<(), ApiError> {
    let resource = api.registry.catalog().find(GROUP, "v1", PLURAL);
    let resource = resource.expect("APIServices are built in");
    let name = remote.api_service();
    let key = ObjectKey::new("", &name);
    let missing = || ApiError::NotFound {
        resource: resource.group_resource(),
        name: name.clone(),
    };
    let now = api.clock.now();
    let stored = api
        .store
        .get(&resource.collection, &key)
        .ok_or_else(missing)?;
    let stored = resource.read(&stored);
    let mut changed = stored.clone();
    availability.set(&mut changed, now);
    if stored.body == changed.body {
        return Ok(());
    }
    let tracker = Tracker {
        catalog: api.registry.catalog(),
        resource: &resource,
        subresource: "status",
        manager: MANAGER.to_owned(),
        now,
    };
    let edit = |old: Option<&Object>| {
        let mut new = old.cloned().ok_or_else(missing)?;
        availability.set(&mut new, now);
        tracker.update(old, &mut new);
        Ok(new)
    };
    write::update(api, &resource, &key, Change::status(), false, None, edit).await?;
    Ok(())
}
