//! Tests of the Bellerophon operator.

mod api; // versions, permissions, backups, nodes
mod convergence; // every scenario with crashes and faults
mod fixture; // the operator on an embedded API server
mod histories; // random histories in memory
mod insight; // alerts, runbooks, dashboard
mod scenarios; // the plan in memory: install, scale, upgrade, failures
mod simulation; // a store, its Pods and claims in memory
mod store_model; // a model of the replicated store
