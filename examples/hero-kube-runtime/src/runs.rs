//! Faults, and the result of an operator under one of them.

use std::time::Duration;

use crate::operator_process::Usage;
use crate::proxy::NetworkFault;

/// What happens to an operator.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) network: NetworkFault,
    /// The operator is killed with SIGKILL and started again at this interval.
    pub(crate) kill_interval: Option<Duration>,
}

impl Fault {
    const fn network(name: &'static str, network: NetworkFault) -> Self {
        Self {
            name,
            network,
            kill_interval: None,
        }
    }
}

/// The faults, none first.
pub(crate) const FAULTS: [Fault; 5] = [
    Fault::network("none", NetworkFault::None),
    Fault::network(
        "20 ms latency",
        NetworkFault::Latency(Duration::from_millis(20)),
    ),
    Fault::network(
        "connections cut every 2 s",
        NetworkFault::Cut(Duration::from_secs(2)),
    ),
    Fault::network(
        "API server unreachable for 5 of 10 s",
        NetworkFault::Outage(Duration::from_secs(5)),
    ),
    Fault {
        name: "operator killed every 3 s",
        network: NetworkFault::None,
        kill_interval: Some(Duration::from_secs(3)),
    },
];

/// The result of one operator under one fault.
pub(crate) struct Run {
    pub(crate) implementation: &'static str,
    pub(crate) fault: &'static str,
    /// How long each step took; an error if one did not converge.
    pub(crate) durations: Result<Vec<Duration>, String>,
    pub(crate) usage: Usage,
}
