//! Tests of the cluster on the embedded API server, in paused time.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod autoscaling; // HorizontalPodAutoscalers and metrics.k8s.io
mod core_controllers; // cluster roles, finished Jobs, volume protection
mod endpoints; // EndpointSlices and Endpoints
mod extremes; // values at the limits of their types
mod garbage_collector; // owner references
mod histories; // random histories converge to the desired state
mod lifecycle; // start, stop, restart
mod logs; // logs of simulated pods
mod namespace; // default objects and deletion of namespaces
mod nodes; // simulated nodes and node lifecycle
mod permissions; // users of the controllers
mod pods; // helpers for pods
mod policy_status; // type checking of policies
mod resource_quota; // usage of quotas
mod scheduler; // binding, preemption, gates
mod storage; // volume binding
mod workloads; // workload controllers
