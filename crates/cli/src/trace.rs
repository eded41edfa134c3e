//! `bellerophon trace`: the timeline of an object of a running cluster.
//!
//! Inputs: a kubeconfig and the name of an object. Output: lines on stdout.
//!
//! The API server of `bellerophon up` serves the timeline at a non-resource path, to clients with
//! permission to get it; `bellerophon run --page` serves it with its page.

use std::io::{ErrorKind, Write as _, stdout};

use bellerophon::clock::Clock;
use bellerophon::trace::TraceRecord;
use bellerophon_page::LiveSource;
use bytes::Bytes;
use clap::Args;
use futures_util::{AsyncBufReadExt as _, Stream, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{
    error::CliError,
    flags::{TraceSource, object},
    signals::Signals,
    timeline::{ObjectSelector, Timeline, TimelineEntry},
};

/// The non-resource path of timelines.
pub(crate) const PATH: &str = "/debug/trace";

/// The maximum number of trace records that a cluster keeps.
pub(crate) const RECORDS_MAX: usize = 1 << 16;

/// The first character of a line that reports missing records.
const GAP: char = '…';

#[derive(Debug, Args)]
pub(crate) struct TraceOptions {
    /// The object, as KIND/NAME or NAME; objects that are written because of it are included.
    /// Default with --follow: all objects
    #[arg(value_name = "OBJECT", value_parser = object, required_unless_present = "follow")]
    object: Option<String>,

    /// Its namespace; default: the namespace of the kubeconfig
    #[arg(short, long, value_name = "NAMESPACE", value_parser = object)]
    namespace: Option<String>,

    /// Print new entries until Ctrl-C
    #[arg(short, long)]
    follow: bool,

    #[command(flatten)]
    source: TraceSource,
}

/// Prints the timeline of an object, until a signal with `--follow`.
///
/// # Errors
/// The kubeconfig cannot be read, the server cannot be reached or has no timelines, or nothing is
/// known of the object.
pub(crate) async fn trace(options: &TraceOptions) -> Result<(), CliError> {
    // Before the first request, so that Ctrl-C during it is a normal end.
    let mut signals = Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
    let (client, namespace) = connect(&options.source, options.namespace.as_deref()).await?;
    let query = Query {
        object: options.object.clone().unwrap_or_default(),
        namespace,
        follow: options.follow,
    };
    print(&client, &query, &mut signals).await
}

/// Prints the timeline of an object in a namespace, until a signal if it is followed.
///
/// # Errors
/// As [`trace`].
pub(crate) async fn print(
    client: &Client,
    query: &Query,
    signals: &mut Signals,
) -> Result<(), CliError> {
    let object = match query.object.as_str() {
        "" => "all objects",
        object => object,
    };
    let request = http::Request::get(query.path())
        .body(Vec::new())
        .map_err(CliError::context("cannot build the request"))?;
    let response = client.request_stream(request).await.map_err(|error| {
        let hint = "only a cluster of `bellerophon up` and `bellerophon run --page` have timelines";
        CliError::context(&format!("cannot trace {object}"))(error).with_hint(hint)
    })?;
    let mut lines = response.lines();
    let mut out = stdout().lock();
    let mut is_empty = true;
    loop {
        let line = tokio::select! {
            line = lines.try_next() => {
                line.map_err(CliError::context("the server closed the connection"))?
            }
            signal = signals.next() => {
                return signal.map_err(CliError::context("cannot listen for signals"));
            }
        };
        let Some(line) = line else { break };
        // A line about missing records does not show that the object is known.
        is_empty &= line.starts_with(GAP);
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            // The reader, such as `head`, has closed the pipe.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(CliError::context("cannot write to stdout"))?,
        }
    }
    if is_empty {
        let namespace = &query.namespace;
        let message = format!("nothing is known of {object} in namespace {namespace}");
        return Err(CliError::Failed(message)
            .with_hint("name it as kubectl does, or wait for it with --follow"));
    }
    Ok(())
}

/// A client of a cluster or of a page, and the namespace to use.
///
/// # Errors
/// The kubeconfig cannot be used.
pub(crate) async fn connect(
    source: &TraceSource,
    namespace: Option<&str>,
) -> Result<(Client, String), CliError> {
    if let Some(page) = &source.page {
        let client = Client::try_from(page.config()).map_err(CliError::new)?;
        return Ok((client, namespace.unwrap_or("default").to_owned()));
    }
    let kubeconfig = &source.kubeconfig;
    let failed = |error: kube::config::KubeconfigError| {
        CliError::context(&format!("cannot use kubeconfig {}", kubeconfig.display()))(error)
            .with_hint("set --kubeconfig to another file")
    };
    let parsed = Kubeconfig::read_from(kubeconfig).map_err(failed)?;
    let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default())
        .await
        .map_err(failed)?;
    let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
    Ok((Client::try_from(config).map_err(CliError::new)?, namespace))
}

/// The query parameters of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// Empty for all objects.
    pub(crate) object: String,
    pub(crate) namespace: String,
    pub(crate) follow: bool,
}

impl Query {
    fn path(&self) -> String {
        format!(
            "{PATH}?object={}&namespace={}&follow={}",
            self.object, self.namespace, self.follow
        )
    }

    fn parse(query: &str) -> Self {
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

    fn timeline(&self) -> Timeline {
        let selector =
            (!self.object.is_empty()).then(|| ObjectSelector::parse(&self.object, &self.namespace));
        Timeline::new(selector.into_iter().collect())
    }
}

/// The handler of the path: the entries of stored records, then new ones with `follow`; with
/// `format=json`, all records after `since` in the trace format.
pub(crate) fn endpoint(
    source: LiveSource,
) -> impl Fn(&str) -> std::pin::Pin<Box<dyn Stream<Item = Bytes> + Send>> + Send + Sync {
    move |query| {
        let bus = source.trace.clone();
        let clock = source.clock;
        if let Some(since) = JsonQuery::parse(query) {
            return since.lines(source.clone());
        }
        let query = Query::parse(query);
        let mut timeline = query.timeline();
        // Subscribe before the snapshot: records in between are in both, and printed once.
        let reader = bus.subscribe();
        let stored = bus.snapshot();
        let last_sequence = stored.last().map_or(0, |record| record.sequence);
        let evicted = stored.first().map_or(0, |record| record.sequence - 1);
        let mut text = if evicted > 0 {
            format!("{GAP} {evicted} earlier records were evicted\n")
        } else {
            String::new()
        };
        for record in &stored {
            text.extend(lines(&mut timeline, record, clock));
        }
        let stored = stream::iter([Bytes::from(text)]);
        if !query.follow {
            return Box::pin(stored);
        }
        let state = (reader, timeline);
        let new = stream::unfold(state, move |(mut reader, mut timeline)| async move {
            let batch = reader.next().await;
            let mut text = String::new();
            if batch.missed > 0 {
                text = format!("{GAP} {} records were missed\n", batch.missed);
            }
            for record in &batch.records {
                if record.sequence > last_sequence {
                    text.extend(lines(&mut timeline, record, clock));
                }
            }
            Some((Bytes::from(text), (reader, timeline)))
        });
        Box::pin(futures_util::StreamExt::chain(stored, new))
    }
}

/// The query parameters of records in the trace format.
struct JsonQuery {
    since: u64,
    follow: bool,
}

impl JsonQuery {
    /// `None` for a timeline as text.
    fn parse(query: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut pairs = query.split('&');
            pairs.find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
        };
        (value("format") == Some("json")).then(|| Self {
            since: value("since")
                .and_then(|since| since.parse().ok())
                .unwrap_or(0),
            follow: value("follow") == Some("true"),
        })
    }

    fn lines(&self, source: LiveSource) -> std::pin::Pin<Box<dyn Stream<Item = Bytes> + Send>> {
        match self.follow {
            true => Box::pin(bellerophon_page::following_lines(source, self.since)),
            false => Box::pin(bellerophon_page::stored_lines(source, self.since)),
        }
    }
}

/// The lines to print after a trace record.
pub(crate) fn lines(timeline: &mut Timeline, record: &TraceRecord, clock: Clock) -> Vec<String> {
    let time = clock.at(record.at);
    timeline
        .add(&record.event)
        .iter()
        .map(|entry| with_time(time, entry))
        .collect()
}

/// An entry as a line with the time of day.
pub(crate) fn with_time(time: Timestamp, entry: &TimelineEntry) -> String {
    format!("{} {entry}\n", time.strftime("%H:%M:%S%.3f"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_query_parses_to_itself() {
        for follow in [false, true] {
            let query = Query {
                object: "deployment/web".into(),
                namespace: "team-a".into(),
                follow,
            };
            let path = query.path();
            assert_eq!(
                Query::parse(path.split_once('?').expect("a query").1),
                query
            );
        }
        assert_eq!(
            Query::parse(""),
            Query {
                object: String::new(),
                namespace: "default".into(),
                follow: false
            }
        );
    }
}
