//! Where an example runs: on the cluster of `--kubeconfig FILE`, or on an embedded API server.

use std::error::Error;
use std::future::Future;

use bellerophon::prelude::*;
use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::Kubeconfig;
use kube::{Api, Client, Config};
use serde_json::json;

pub(crate) type BoxError = Box<dyn Error>;

/// The cluster of an example.
pub(crate) struct Cluster {
    client: Client,
    /// `None` on the cluster of a kubeconfig.
    server: Option<ApiServer>,
}

impl Cluster {
    pub(crate) async fn from_args() -> Result<Self, BoxError> {
        let mut arguments = std::env::args().skip_while(|argument| argument != "--kubeconfig");
        let Some(file) = arguments.nth(1) else {
            let server = ApiServer::builder().start().await?;
            return Ok(Self {
                client: server.client(),
                server: Some(server),
            });
        };
        let kubeconfig = Kubeconfig::read_from(file)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
        Ok(Self {
            client: Client::try_from(config)?,
            server: None,
        })
    }

    /// A Manager of the cluster; in your own program, `Manager::try_default`.
    pub(crate) fn manager(&self) -> Manager {
        Manager::new(self.client.clone(), ManagerOptions::default())
    }

    /// Runs a Manager until Ctrl-C; on the embedded server, while the demonstration lasts.
    pub(crate) async fn run<F>(
        self,
        mgr: Manager,
        demonstration: impl FnOnce(Api<ConfigMap>) -> F,
    ) -> Result<(), BoxError>
    where
        F: Future<Output = Result<(), BoxError>>,
    {
        let Some(server) = self.server else {
            return Ok(mgr.run().await?);
        };
        let mut running = mgr.start();
        running.ready().await?;
        demonstration(Api::default_namespaced(self.client)).await?;
        running.stop().await?;
        server.shutdown().await;
        Ok(())
    }
}

/// A ConfigMap with one label.
pub(crate) fn labelled(name: &str, label: &str, value: &str) -> Result<ConfigMap, BoxError> {
    let map = json!({ "metadata": { "name": name, "labels": { label: value } } });
    Ok(serde_json::from_value(map)?)
}
