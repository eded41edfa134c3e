//! The server side of Kubernetes' streaming protocols: exec, attach and port-forward.
//!
//! Input: a request for an HTTP/1.1 upgrade, as hyper has it. Output: byte streams. The crate
//! implements the protocols of kubelet's streaming server and of the translators in kube-apiserver.
//! It is independent of pods, containers and processes.
//!
//! | request | protocols |
//! |---|---|
//! | exec, attach | WebSocket `v5.channel.k8s.io`, `v4.channel.k8s.io`, `channel.k8s.io`, none, and `v4.base64.channel.k8s.io`, `base64.channel.k8s.io`; SPDY/3.1 with `v4.channel.k8s.io` to `channel.k8s.io` |
//! | port-forward | WebSocket `SPDY/3.1+portforward.k8s.io`, `v4.channel.k8s.io`, none, and `v4.base64.channel.k8s.io`; SPDY/3.1 with `portforward.k8s.io` |
//!
//! Memory is bounded: a stream that is not read holds back its connection, and a connection that is
//! not read holds back its writers. None of the protocols has a window per stream that clients
//! honor, so one stalled stream stalls the other streams of its connection, as in Kubernetes.
//! A client that disconnects meanwhile is detected when the stream is read or dropped, or by the
//! idle timeout of the connection.
//!
//! Sockets should have `TCP_NODELAY`: streams are opened by small frames, and each waits for a
//! delayed acknowledgement of 40 ms otherwise.

mod activity;
mod mux; // byte streams of one connection
mod options;
mod session; // the tasks of one connection
pub mod spdy; // SPDY/3.1 frames, headers and connections
mod upgrade; // requests for an upgrade and their responses
mod websocket; // channels in WebSocket messages; SPDY in WebSocket messages

pub mod port_forward;
pub mod remote_command;

pub use mux::{ByteReader, ByteStream, ByteWriter};
pub use options::ConnectionOptions;
pub use upgrade::{Error, Upgrade};
