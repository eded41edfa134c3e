//! Webhooks: every ConfigMap gets a team, and one of a team that does not exist is refused.
//!
//! Run: `cargo run -p bellerophon --example webhook` (on an embedded API server, with sample objects)
//! or `cargo run -p bellerophon --example webhook -- --kubeconfig FILE` (on a cluster that reaches
//! this machine at 127.0.0.1, such as that of `bellerophon up`, until Ctrl-C). There is nothing to
//! set up: certificates and registration are made at the start.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod common; // the cluster of --kubeconfig, or an embedded API server

use bellerophon::webhook::{FailurePolicy, FieldError, Rejection, Review};
use common::{BoxError, Cluster, labelled};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt};

const TEAMS: [&str; 3] = ["none", "heroes", "monsters"];

fn default_team(_: &Review<ConfigMap>, map: &mut ConfigMap) -> Result<(), Rejection> {
    map.labels_mut()
        .entry("team".into())
        .or_insert_with(|| "none".into());
    Ok(())
}

fn check_team(review: &Review<ConfigMap>, map: &ConfigMap) -> Result<(), Rejection> {
    let team = map.labels().get("team").map_or("", String::as_str);
    if !TEAMS.contains(&team) {
        let error = FieldError::not_supported("metadata.labels[team]", team, &TEAMS);
        return Err(Rejection::invalid([error]));
    }
    if team == "monsters" {
        review.warn("monsters are fought");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let cluster = Cluster::from_args().await?;
    let mut mgr = cluster.manager();
    mgr.webhook::<ConfigMap>()
        .mutate(FailurePolicy::Fail, default_team)
        .validate(FailurePolicy::Fail, check_team);
    cluster.run(mgr, demonstrate).await
}

/// On the embedded server: one ConfigMap is admitted with a default, one is refused.
async fn demonstrate(api: Api<ConfigMap>) -> Result<(), BoxError> {
    let admitted = labelled("icarus", "wings", "wax")?;
    let admitted = api.create(&Default::default(), &admitted).await?;
    println!("admitted, team {:?}", admitted.labels()["team"]);
    let refused = labelled("chimera", "team", "chimeras")?;
    match api.create(&Default::default(), &refused).await {
        Err(kube::Error::Api(status)) => println!("refused: {}", status.message),
        other => println!("{other:?}"),
    }
    Ok(())
}
