//! The scenarios against embedded servers: in-process against one, over HTTPS against another.
//! Input: a corpus. Output: both results, and where they differ.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bellerophon_apiserver::{ApiServer, Builder};

use crate::{
    corpus::Corpus,
    hooks,
    run::Options,
    suite::{Outcome, Results, replay},
    transport::{Https, InProcess, TransportError},
};

/// The results of the same scenarios over both transports.
#[derive(Clone, Debug)]
pub struct BothWays {
    /// Without a socket and without the scenarios that send requests without credentials:
    /// in-process, their user is the administrator.
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
    // Scenarios wait more than they compute, so both servers run at the same time. Each has its own
    // runtime: in-process requests are computed where they are sent from, and a runtime polls its
    // sockets and timers only every 61 polls while tasks are ready. On a machine with a load of 17,
    // the first requests over HTTPS had no response for 30 seconds.
    let in_process = {
        let corpus = corpus.clone();
        let options = options.clone();
        tokio::task::spawn_blocking(move || on_own_runtime(replay_in_process(&corpus, &options)))
    };
    let https = replay_https(corpus, options).await?;
    let in_process = in_process.await;
    let in_process = in_process.map_err(|e| TransportError::new("the replay panicked", e))??;
    Ok(BothWays { in_process, https })
}

fn on_own_runtime<T>(
    replay: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| TransportError::new("cannot start a runtime", e))?;
    runtime.block_on(replay)
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
    hooks::in_process(builder).start().await.map_err(unstarted)
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
