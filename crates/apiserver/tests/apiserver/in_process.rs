//! The server as Rust tests use it: a `kube::Client` without a socket.

use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

#[tokio::test]
async fn object_lives_from_create_to_delete() -> Result<(), Box<dyn std::error::Error>> {
    let server = ApiServer::builder().start().await?;
    let client = server.client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "team-a"}}))?,
        )
        .await?;

    let maps: Api<ConfigMap> = Api::namespaced(client, "team-a");
    let made = maps
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "a"}, "data": {"k": "1"}}))?,
        )
        .await?;
    assert!(made.metadata.uid.is_some() && made.metadata.resource_version.is_some());
    let patched = maps
        .patch(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"data": {"k": "2"}})),
        )
        .await?;
    assert_ne!(
        patched.metadata.resource_version,
        made.metadata.resource_version
    );
    assert_eq!(maps.list(&ListParams::default()).await?.items.len(), 1);
    maps.delete("a", &DeleteParams::default()).await?;
    assert!(maps.get_opt("a").await?.is_none());
    server.shutdown().await;
    Ok(())
}

/// The seed used to determine the administrator's token of a server that listens.
#[tokio::test]
async fn seed_determines_uids_but_no_credentials() -> Result<(), Box<dyn std::error::Error>> {
    let mut uids = Vec::new();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let builder = ApiServer::builder().seed(7);
        let server = builder.listen("127.0.0.1:0".parse()?).start().await?;
        let namespaces: Api<Namespace> = Api::all(server.client());
        uids.push(namespaces.get("default").await?.metadata.uid);
        let kubeconfig = server.kubeconfig().ok_or("the server has an address")?;
        let token = kubeconfig.lines().find(|line| line.contains("token"));
        tokens.push(token.ok_or("the kubeconfig has a token")?.to_owned());
        server.shutdown().await;
    }
    assert_eq!(uids[0], uids[1]);
    assert_ne!(tokens[0], tokens[1]);
    Ok(())
}
