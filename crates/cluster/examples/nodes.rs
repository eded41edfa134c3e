//! Adds simulated nodes to any cluster until the process is stopped.
//!
//! `cargo run -p bellerophon-cluster --example nodes -- KUBECONFIG N`
//!
//! The control plane runs elsewhere: its scheduler assigns pods to these nodes, and no container of
//! them runs. For clusters of tests only; the kubeconfig is that of an administrator.
#![expect(clippy::print_stdout, reason = "the line that scripts wait for")]

use std::{env, error::Error};

use bellerophon::client::connect;
use bellerophon_cluster::{Cluster, Level};
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: nodes KUBECONFIG N";
    let mut arguments = env::args().skip(1);
    let kubeconfig = arguments.next().ok_or(usage)?;
    let nodes = arguments.next().ok_or(usage)?.parse()?;
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    let mut cluster = Cluster::builder(connect(config)?)
        .level(Level::Nodes)
        .nodes(nodes)
        .start();
    cluster.ready().await?;
    println!("ready");
    cluster.ended().await?;
    Ok(())
}
