//! A controller with an owned kind, an index and a finalizer: each ConfigMap with the label
//! `account` gets a Secret, the accounts of a team are found by an index, and a ledger outside of
//! the cluster is cleaned up before an account is removed.
//!
//! Run: `cargo run -p bellerophon --example accounts` (on an embedded API server, with a sample
//! object) or `cargo run -p bellerophon --example accounts -- --kubeconfig FILE` (on any cluster,
//! until Ctrl-C).
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod common; // the cluster of --kubeconfig, or an embedded API server

use std::collections::BTreeSet;
use std::sync::Mutex;

use bellerophon::finalizer;
use bellerophon::index::Index;
use bellerophon::informer::InformerOptions;
use bellerophon::prelude::*;
use common::{BoxError, Cluster, labelled};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, ResourceExt};

struct Accounts {
    by_team: Index<ConfigMap>,
    /// Represents a system outside of the cluster.
    ledger: Mutex<BTreeSet<ObjectKey>>,
}

impl Reconciler<ConfigMap> for Accounts {
    async fn reconcile(&self, req: Request<ConfigMap>) -> Result<Action, Error> {
        let Some(account) = req.object() else {
            return Ok(Action::await_change());
        };
        let work = async |event| match event {
            finalizer::Event::Apply => self.apply(&req, account).await,
            finalizer::Event::Cleanup => {
                println!("{}: removed from the ledger", req.key());
                self.ledger.lock().expect("not poisoned").remove(req.key());
                Ok(Action::await_change())
            }
        };
        let client = req.client();
        client.finalizer(account, "example.org/ledger", work).await
    }
}

impl Accounts {
    async fn apply(&self, req: &Request<ConfigMap>, account: &ConfigMap) -> Result<Action, Error> {
        let key = req.key();
        self.ledger
            .lock()
            .expect("not poisoned")
            .insert(key.clone());
        let team = account.labels()["account"].clone();
        let mut secret = Secret::default();
        secret.metadata.namespace = account.namespace();
        secret.metadata.name = Some(format!("{}-login", account.name_any()));
        set_controller_reference(account, &mut secret)?;
        let label = |new: &mut Secret| _ = new.labels_mut().insert("team".into(), team.clone());
        let written = req.client().create_or_update(&secret, label).await?;
        let size = self.by_team.keys(&team).len();
        println!("{key}: secret {:?}, team of {size}", written.operation);
        Ok(Action::await_change())
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let cluster = Cluster::from_args().await?;
    let mut mgr = cluster.manager();
    let maps = mgr.informer::<ConfigMap>(InformerOptions::labels("account"));
    let secrets = mgr.informer::<Secret>(InformerOptions::labels("team"));
    let by_team = maps.index("team", |map| vec![map.labels()["account"].clone()]);
    let ledger = Mutex::default();
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .owns::<Secret>()
        .informer(&secrets)
        .concurrency(2)
        .reconcile(Accounts { by_team, ledger });
    cluster
        .run(mgr, |api| demonstrate(api, maps.lister(), secrets.lister()))
        .await
}

/// On the embedded server: creates an account, waits for its Secret, and deletes it.
async fn demonstrate(
    api: Api<ConfigMap>,
    maps: Lister<ConfigMap>,
    secrets: Lister<Secret>,
) -> Result<(), BoxError> {
    let icarus = labelled("icarus", "account", "heroes")?;
    let icarus = api.create(&Default::default(), &icarus).await?;
    let login = ObjectKey::in_namespace_of(&icarus, "icarus-login");
    secrets
        .await_condition(&login, |secret| secret.is_some())
        .await;
    api.delete("icarus", &Default::default()).await?;
    let key = ObjectKey::from_object(&icarus);
    maps.await_condition(&key, |map| map.is_none()).await;
    println!("{key}: deleted");
    Ok(())
}
