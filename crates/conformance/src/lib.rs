//! Recorded API scenarios: what a real kube-apiserver 1.36.4 answered, replayed against any server that claims to be one.
//! In: the scenarios in `vectors/` and a [`Transport`] to a server. Out: what differs, scenario by scenario, to the letter.
//! Holds: values that change from run to run are named in order of appearance, so equal ones stay equal.

mod answer; // an answer, with what changes from run to run named
mod awaited; // the scenarios known not to pass, with reasons
mod compare; // wanted against got
mod corpus; // the recordings on disk
mod embedded; // the embedded server, both ways
mod json; // JSON that keeps the order of its keys
#[cfg(test)]
mod playback; // a server that says what was recorded
mod report; // the results in words
mod run; // one scenario against one server
mod scenario; // what is asked, and what was answered
mod suite; // many scenarios at once
mod template; // `{ns}`, `{id}` and saved values in requests
mod transport; // the way to a server: in-process or HTTPS
mod watch; // a watch read in the background

pub use awaited::{Awaited, Group, Verdict};
pub use corpus::{Corpus, Recorded};
pub use embedded::{BothWays, replay_embedded};
pub use json::Json;
pub use report::{Detail, document, failures, page, summary};
pub use run::Options;
pub use scenario::{Reach, Scenario};
pub use suite::{Outcome, Results, Tally, replay};
pub use transport::{Https, InProcess, Reply, Transport, TransportError};
