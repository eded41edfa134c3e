//! The embedded server as the subject: the same scenarios in-process and over HTTPS, each way on a fresh server of its own.
//! In: a corpus. Out: two results, and where they disagree.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bellerophon_apiserver::ApiServer;

use crate::{
    corpus::Corpus,
    run::Options,
    suite::{Outcome, Results, replay},
    transport::{Https, InProcess, TransportError},
};

/// What came of the same scenarios both ways.
#[derive(Clone, Debug)]
pub struct BothWays {
    /// Without a socket. Scenarios that ask without credentials are missing: in-process, who asks is the administrator.
    pub in_process: Results,
    /// Over HTTPS, every scenario.
    pub https: Results,
}

/// Replays the corpus against the embedded server, both ways.
///
/// # Errors
/// A server that does not start.
pub async fn replay_embedded(
    corpus: &Corpus,
    options: &Options,
) -> Result<BothWays, TransportError> {
    let unstarted = |e| TransportError::new("the embedded server did not start", e);
    let server = ApiServer::builder().start().await.map_err(unstarted)?;
    let known = corpus
        .clone()
        .filtered(|recorded| !recorded.scenario.is_anonymous());
    let in_process = replay(&known, Arc::new(InProcess::new(server.service())), options).await;
    server.shutdown().await;

    let server = ApiServer::builder()
        .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .start()
        .await
        .map_err(unstarted)?;
    let kubeconfig = server
        .kubeconfig()
        .ok_or_else(|| TransportError("the embedded server listens nowhere".to_owned()))?;
    let https = replay(corpus, Arc::new(Https::new(&kubeconfig)?), options).await;
    server.shutdown().await;
    Ok(BothWays { in_process, https })
}

impl BothWays {
    /// Scenarios that pass one way and not the other, a line each.
    pub fn disagreements(&self) -> Vec<String> {
        let https = |title: &str| {
            self.https
                .outcomes
                .iter()
                .find(|outcome| outcome.title == title)
        };
        let pairs = self
            .in_process
            .outcomes
            .iter()
            .filter_map(|outcome| Some((outcome, https(&outcome.title)?)));
        pairs
            .filter(|(a, b)| a.passed() != b.passed())
            .map(|(a, b)| disagreement(a, b))
            .collect()
    }
}

fn disagreement(in_process: &Outcome, https: &Outcome) -> String {
    let (failing, way) = if in_process.passed() {
        (https, "over HTTPS")
    } else {
        (in_process, "in-process")
    };
    format!(
        "{} fails only {way}: {}",
        failing.title, failing.differences[0]
    )
}
