//! The API server as its clients see it. One program, since every test program is linked alone.

mod access; // authentication, authorization, reviews
mod admission; // webhooks, policies and quotas
mod aggregation; // APIServices of other servers
mod audit; // the audit log
mod connect; // logs, exec, attach, port-forward, proxies
mod discovery; // groups, versions, OpenAPI
mod flow_control; // priority and fairness
mod hostile; // malformed requests, floods
mod in_process; // a kube client without a socket
mod large_lists; // lists that are encoded while they are sent
mod options; // settings of a server, snapshots
mod protobuf; // the protobuf media type
mod semantics; // reads, watches, writes, row by row
mod subresources; // status, scale, bindings, evictions
