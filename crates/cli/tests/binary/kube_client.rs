//! Clients of kube-rs for a `bellerophon up` process.

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::running::RunningServer;

impl RunningServer {
    /// The configuration of a client as its administrator.
    pub(crate) async fn config(&self) -> Config {
        config_of(self.kubeconfig()).await
    }

    /// A client as its administrator.
    pub(crate) async fn client(&self) -> Client {
        Client::try_from(self.config().await).expect("a client")
    }
}

/// The configuration of a client with the credentials of a kubeconfig.
pub(crate) async fn config_of(kubeconfig: &str) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.expect("a configuration")
}
