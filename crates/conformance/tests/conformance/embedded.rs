//! The embedded server passes the scenarios of `docs/conformance.md`, with the same results
//! in-process and over HTTPS.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bellerophon_apiserver::ApiServer;
use bellerophon_conformance::{
    Corpus, Detail, Https, KnownDifferences, Options, Recorded, document, failures, page, replay,
    replay_embedded,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_server_answers_as_documented() {
    let corpus = Corpus::of_repository().expect("the recordings are sound");
    let known_differences = KnownDifferences::of_repository().expect("the list is sound");
    let both = replay_embedded(&corpus, &Options::nearby())
        .await
        .expect("the server starts");
    let titles = || corpus.scenarios.iter().map(Recorded::title);
    let verdict = known_differences.verdict(&both.https, titles());
    assert!(
        verdict.is_as_known(),
        "known-differences.json is not the truth:\n{verdict}"
    );
    assert_eq!(
        both.disagreements(),
        [""; 0],
        "in-process and HTTPS must answer alike"
    );
    let written = fs::read_to_string(page()).expect("docs/conformance.md is there");
    assert_eq!(
        written,
        document(&both.https, &known_differences),
        "run `cargo xtask conformance --write-docs`"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_speaks_for_the_administrator_without_a_token() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    fs::create_dir(folder.path().join("own")).expect("a folder can be made");
    let scenario = r#"[{"name":"a namespace is read","steps":[{"do":"GET","path":"/api/v1/namespaces/{ns}","only":["metadata.name"],"ignore":["headers"],
        "expect":{"status":200,"body":{"metadata":{"name":"{ns}"}}}}]}]"#;
    fs::write(folder.path().join("own/namespace.json"), scenario).expect("a file can be written");
    let corpus = Corpus::read(folder.path()).expect("the scenario is sound");

    let server = ApiServer::builder()
        .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .start()
        .await
        .expect("the server starts");
    let kubeconfig = server.kubeconfig().expect("the server listens");
    let tokenless: String = kubeconfig
        .lines()
        .filter(|line| !line.trim_start().starts_with("token:"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_ne!(kubeconfig, tokenless, "the kubeconfig has a token");
    let results = replay(
        &corpus,
        Arc::new(Https::new(&tokenless).expect("the kubeconfig is sound")),
        &Options::nearby(),
    )
    .await;
    server.shutdown().await;
    assert_eq!(failures(&results, Detail::All), "");
}
