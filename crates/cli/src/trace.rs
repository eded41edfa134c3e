//! `bellerophon trace`: the choreography around an object of a running cluster.
//! In: a kubeconfig and the name of an object. Out: lines on stdout, as it happens.
//!
//! The cluster tells its story on a page of its API server, to whoever may read that path.

use std::{
    io::{ErrorKind, Write as _, stdout},
    path::Path,
};

use bellerophon::{TraceBus, TraceRecord, WallClock};
use bytes::Bytes;
use futures_util::{AsyncBufReadExt as _, Stream, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{
    arguments::TraceOptions,
    failure::Failure,
    stop::Signals,
    story::{Line, Story, Subject},
};

/// Where the story is told.
pub(crate) const PATH: &str = "/debug/trace";

/// How many records a cluster keeps for those who ask later.
pub(crate) const RECORDS_MAX: usize = 1 << 16;

/// What a line begins with that tells of what cannot be told.
const GAP: char = '…';

/// Prints the story of an object until it is asked to stop.
///
/// # Errors
/// The kubeconfig cannot be read, nobody answers, or what answers tells no stories.
pub(crate) async fn trace(options: &TraceOptions) -> Result<(), Failure> {
    let mut signals = Signals::listen().map_err(Failure::caused_by("cannot listen for signals"))?;
    let (client, namespace) = connect(&options.kubeconfig, options.namespace.as_deref()).await?;
    let query = Query {
        object: options.object.clone(),
        namespace: namespace.clone(),
        follow: options.follow,
    };
    let request = http::Request::get(query.path())
        .body(Vec::new())
        .map_err(Failure::caused_by("cannot ask for it"))?;
    let told = client.request_stream(request).await.map_err(|error| {
        let advice = "only a cluster started by `bellerophon up` tells how it came to be";
        Failure::caused_by(&format!("cannot trace {}", options.object))(error).advising(advice)
    })?;
    let (mut lines, mut out, mut silent) = (told.lines(), stdout().lock(), true);
    loop {
        let line = tokio::select! {
            line = lines.try_next() => line.map_err(Failure::caused_by("the cluster stopped in the middle of its story"))?,
            signal = signals.next() => return signal.map_err(Failure::caused_by("cannot listen for signals")),
        };
        let Some(line) = line else { break };
        silent &= line.starts_with(GAP);
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            // Whoever reads has read enough, as `head` does.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(Failure::caused_by("cannot write to stdout"))?,
        }
    }
    if silent {
        let why = format!(
            "nothing is known of {} in namespace {namespace}",
            options.object
        );
        return Err(
            Failure::Failed(why).advising("name it as kubectl does, or wait for it with --follow")
        );
    }
    Ok(())
}

async fn connect(kubeconfig: &Path, namespace: Option<&str>) -> Result<(Client, String), Failure> {
    let failed = |error: kube::config::KubeconfigError| {
        Failure::caused_by(&format!("cannot use kubeconfig {}", kubeconfig.display()))(error)
            .advising("name another file with --kubeconfig")
    };
    let read = Kubeconfig::read_from(kubeconfig).map_err(failed)?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(failed)?;
    let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
    Ok((Client::try_from(config).map_err(Failure::of)?, namespace))
}

/// What somebody wants to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Query {
    object: String,
    namespace: String,
    follow: bool,
}

impl Query {
    fn path(&self) -> String {
        format!(
            "{PATH}?object={}&namespace={}&follow={}",
            self.object, self.namespace, self.follow
        )
    }

    fn read(query: &str) -> Self {
        let value = |key: &str| {
            query
                .split('&')
                .find_map(|pair| pair.split_once('=').filter(|(name, _)| *name == key))
                .map(|(_, value)| value)
        };
        Self {
            object: value("object").unwrap_or_default().to_owned(),
            namespace: value("namespace").unwrap_or("default").to_owned(),
            follow: value("follow") == Some("true"),
        }
    }

    fn story(&self) -> Story {
        let subject =
            (!self.object.is_empty()).then(|| Subject::parse(&self.object, &self.namespace));
        Story::of(subject.into_iter().collect())
    }
}

/// The page: what is remembered, then what happens if somebody wants to follow.
pub(crate) fn page(
    bus: TraceBus,
    clock: WallClock,
) -> impl Fn(&str) -> std::pin::Pin<Box<dyn Stream<Item = Bytes> + Send>> + Send + Sync {
    move |query| {
        let query = Query::read(query);
        let mut story = query.story();
        // First who reads on, then what was: what comes in between is in both, and told once.
        let (reader, past) = (bus.subscribe(), bus.snapshot());
        let told = past.last().map_or(0, |record| record.sequence);
        let forgotten = past.first().map_or(0, |record| record.sequence - 1);
        let mut text = if forgotten > 0 {
            format!("{GAP} {forgotten} earlier records are forgotten\n")
        } else {
            String::new()
        };
        text.extend(
            past.iter()
                .flat_map(|record| lines(&mut story, record, clock)),
        );
        let past = stream::iter([Bytes::from(text)]);
        if !query.follow {
            return Box::pin(past);
        }
        let future = stream::unfold((reader, story), move |(mut reader, mut story)| async move {
            let batch = reader.next().await;
            let mut text = String::new();
            if batch.missed > 0 {
                text = format!("{GAP} {} records came too fast to be told\n", batch.missed);
            }
            let new = batch.records.iter().filter(|record| record.sequence > told);
            text.extend(new.flat_map(|record| lines(&mut story, record, clock)));
            Some((Bytes::from(text), (reader, story)))
        });
        Box::pin(futures_util::StreamExt::chain(past, future))
    }
}

/// What a record has to say to a story, a line each.
pub(crate) fn lines(story: &mut Story, record: &TraceRecord, clock: WallClock) -> Vec<String> {
    let time = clock.at(record.at);
    story
        .tell(&record.event)
        .iter()
        .map(|line| timed(time, line))
        .collect()
}

/// A line and when that was.
pub(crate) fn timed(time: Timestamp, line: &Line) -> String {
    format!("{} {line}\n", time.strftime("%H:%M:%S%.3f"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_read_as_it_was_written() {
        for follow in [false, true] {
            let query = Query {
                object: "deployment/web".into(),
                namespace: "team-a".into(),
                follow,
            };
            let path = query.path();
            assert_eq!(Query::read(path.split_once('?').expect("a query").1), query);
        }
        assert_eq!(
            Query::read(""),
            Query {
                object: String::new(),
                namespace: "default".into(),
                follow: false
            }
        );
    }
}
