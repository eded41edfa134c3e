//! Metrics: what `/metrics` exposes, under the names and labels of kube-apiserver 1.36.
//! In: every request to a resource, from its start to its end; at a scrape, the state of the
//! server. Out: the text of a scrape.
//! Guarantees: labels are names of served resources, of FlowSchemas and of priority levels, and a
//! few constants, never what a client wrote; the number of series is bounded.

mod labels; // which series a request belongs to
mod process; // metrics of the process
mod request; // requests, counted and timed
mod scrape; // the text, in either format
mod state; // stored objects and requests in flight

pub(crate) use labels::MeasuredRequest;
pub(crate) use request::Metrics;
pub(crate) use scrape::scrape;
