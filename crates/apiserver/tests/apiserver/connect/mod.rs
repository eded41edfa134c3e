//! Connect subresources: logs, exec, attach, port-forward and proxies.

pub(crate) mod backend; // a kubelet and pods behind the dialer
mod logs; // pods/log
mod proxies; // pods/proxy, services/proxy, nodes/proxy
mod streams; // pods/exec, attach, portforward
mod websocket; // logs and watches as messages
