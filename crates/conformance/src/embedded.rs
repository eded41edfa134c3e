//! The embedded server as the subject: the same scenarios in-process and over HTTPS, each way on a fresh server of its own.
//! In: a corpus. Out: two results, and where they disagree.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bellerophon_apiserver::{ApiServer, Builder};

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
    // Scenarios wait more than they compute, so both servers run at the same time.
    let (in_process, https) = tokio::try_join!(
        replay_in_process(corpus, options),
        replay_https(corpus, options)
    )?;
    Ok(BothWays { in_process, https })
}

async fn replay_in_process(corpus: &Corpus, options: &Options) -> Result<Results, TransportError> {
    let server = start(ApiServer::builder()).await?;
    let known = corpus
        .clone()
        .filtered(|recorded| !recorded.scenario.is_anonymous());
    let transport = Arc::new(InProcess::new(server.service()));
    let results = replay(&known, transport, options).await;
    server.shutdown().await;
    Ok(results)
}

async fn replay_https(corpus: &Corpus, options: &Options) -> Result<Results, TransportError> {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = start(ApiServer::builder().listen(loopback)).await?;
    let kubeconfig = server
        .kubeconfig()
        .ok_or_else(|| TransportError("the embedded server listens nowhere".to_owned()))?;
    let results = replay(corpus, Arc::new(Https::new(&kubeconfig)?), options).await;
    server.shutdown().await;
    Ok(results)
}

async fn start(builder: Builder) -> Result<ApiServer, TransportError> {
    let unstarted = |e| TransportError::new("the embedded server did not start", e);
    builder.start().await.map_err(unstarted)
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
