//! A controller with a secondary resource, an index and a finalizer: each ConfigMap labelled `account` gets a Secret it
//! owns, every account of a team is found by an index, and a ledger outside the cluster is cleaned up before it goes.
//!
//! Run: `cargo run -p bellerophon --example accounts` (on an embedded server, with a sample object)
//! or `cargo run -p bellerophon --example accounts -- --kubeconfig FILE` (on any cluster, until Ctrl-C).
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, Mutex};

use bellerophon::{
    Controller, FactoryOptions, Failure, InformerOptions, Lister, Manager, ManagerOptions,
    ObjectKey, Outcome, ReconcileResult, Request, SharedInformerFactory, Step,
    set_controller_reference,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, Config, ResourceExt, config::Kubeconfig};
use tokio_util::sync::CancellationToken;

/// What a reconcile reads and writes. The ledger stands for a system outside the cluster.
struct Accounts {
    client: Client,
    maps: Lister<ConfigMap>,
    secrets: Lister<Secret>,
    ledger: Mutex<BTreeSet<ObjectKey>>,
}

impl Accounts {
    async fn reconcile(self: Arc<Self>, request: Request<ConfigMap>) -> ReconcileResult {
        let Some(map) = &request.object else {
            return Ok(Outcome::Done);
        };
        let maps =
            Api::<ConfigMap>::namespaced(self.client.clone(), &map.namespace().unwrap_or_default());
        let work = |step| self.step(&request, map, step);
        request
            .writes()
            .finalizer(&maps, map, "example.org/ledger", work)
            .await
    }

    async fn step(
        &self,
        request: &Request<ConfigMap>,
        map: &ConfigMap,
        step: Step,
    ) -> ReconcileResult {
        let ledger = || {
            self.ledger
                .lock()
                .map_err(|_| Failure::retry("the ledger is broken"))
        };
        if step == Step::CleanUp {
            ledger()?.remove(&request.key);
            println!("{}: removed from the ledger", request.key);
            return Ok(Outcome::Done);
        }
        ledger()?.insert(request.key.clone());
        let team = map.labels().get("account").cloned().unwrap_or_default();
        let mates = self.maps.by_index("team", &team)?.len();
        let mut secret = Secret::default();
        (secret.metadata.namespace, secret.metadata.name) =
            (map.namespace(), Some(format!("{}-login", map.name_any())));
        set_controller_reference(map, &mut secret)?;
        let secrets = Api::namespaced(self.client.clone(), &map.namespace().unwrap_or_default());
        let current = self.secrets.get(&ObjectKey::of(&secret));
        let change =
            |secret: &mut Secret| _ = secret.labels_mut().insert("team".into(), team.clone());
        let (secret, done) = request
            .writes()
            .create_or_patch(&secrets, current.as_deref(), secret, change)
            .await?;
        println!(
            "{}: secret {} {done:?}, {mates} of team {team:?}, because {}",
            request.key,
            secret.name_any(),
            request.causes
        );
        Ok(Outcome::Done)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args()
        .skip_while(|argument| argument != "--kubeconfig")
        .skip(1);
    let (client, embedded) = match arguments.next() {
        Some(file) => (
            Client::try_from(
                Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &Default::default())
                    .await?,
            )?,
            None,
        ),
        None => {
            let server = bellerophon_apiserver::ApiServer::builder().start().await?;
            (server.client(), Some(server))
        }
    };
    let factory = SharedInformerFactory::new(client.clone(), FactoryOptions::default());
    let maps = factory.informer::<ConfigMap>(
        (),
        InformerOptions {
            labels: Some("account".into()),
            ..InformerOptions::default()
        },
    );
    let secrets = factory.informer::<Secret>(
        (),
        InformerOptions {
            labels: Some("team".into()),
            ..InformerOptions::default()
        },
    );
    maps.add_index("team", |map| {
        map.labels().get("account").cloned().into_iter().collect()
    })?;
    let (map_lister, secret_lister) = (maps.lister(), secrets.lister());
    let accounts = Arc::new(Accounts {
        client: client.clone(),
        maps: map_lister.clone(),
        secrets: secret_lister.clone(),
        ledger: Mutex::default(),
    });
    let controller = Controller::of(&maps)
        .owns(&secrets)
        .workers(2)
        .reconcile_with(move |request| accounts.clone().reconcile(request));
    let manager = Manager::new(client.clone(), ManagerOptions::default())
        .factory(&factory)
        .controller(controller);
    if embedded.is_none() {
        return Ok(manager.run_until_signal().await?);
    }
    let stop = CancellationToken::new();
    let story = async {
        let sample = serde_json::json!({ "metadata": { "name": "icarus", "labels": { "account": "heroes" } } });
        let maps = Api::<ConfigMap>::namespaced(client, "default");
        maps.create(&Default::default(), &serde_json::from_value(sample)?)
            .await?;
        while secret_lister.is_empty() {
            tokio::task::yield_now().await;
        }
        maps.delete("icarus", &Default::default()).await?;
        while !map_lister.is_empty() {
            tokio::task::yield_now().await;
        }
        println!("the account is gone");
        stop.cancel();
        Ok::<_, Box<dyn Error>>(())
    };
    let (ran, told) = tokio::join!(manager.run(stop.clone()), story);
    ran?;
    told
}
