//! Recorded API scenarios: the responses of kube-apiserver 1.36.4, replayed
//! against another server.
//! Input: the scenarios in `vectors/` and a [`Transport`] to a server. Output: the
//! differences of each scenario.
//! Guarantees: values that differ between runs are replaced by names in order of appearance, so
//! that equal values have equal names.

mod answer; // a response, with names for values that differ between runs
mod compare; // expected and actual responses
mod corpus; // the recordings on disk
mod embedded; // the embedded server, in-process and over HTTPS
mod hooks; // the webhooks that scenarios name
mod json; // JSON that keeps the order of its keys
mod known_differences; // scenarios that do not pass, with reasons
#[cfg(test)]
mod playback; // a server that returns the recorded responses
mod record; // records the responses of a server in scenarios
mod report; // results for the terminal and the documentation
mod run; // one scenario against one server
mod scenario; // requests and their recorded responses
mod suite; // all scenarios
mod template; // `{ns}`, `{id}` and saved values in requests
mod transport; // requests in-process or over HTTPS
mod watch; // a watch read in the background

pub use corpus::{Corpus, Recorded};
pub use embedded::{BothWays, replay_embedded};
pub use hooks::{
    ADDRESS as WEBHOOKS_ADDRESS, in_process as answer_webhooks, serve as serve_webhooks,
};
pub use json::Json;
pub use known_differences::{Group, KnownDifferences, Verdict};
pub use record::record;
pub use report::{Detail, document, failures, page, summary};
pub use run::Options;
pub use scenario::{Reach, Scenario};
pub use suite::{Outcome, Results, Tally, replay};
pub use transport::{Https, InProcess, Reply, Transport, TransportError};
