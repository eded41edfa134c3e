//! The plan of the controller: which nodes get a grant, and why the others wait.
//!
//! Inputs: nodes, the ledger, policies, active blockers, the time. Outputs: the desired ledger,
//! updates of Nodes, reports of pools.
//!
//! Guarantees: a plan never exceeds the limit of unavailable nodes of a pool; if the limit is
//! already exceeded, nothing is granted. Every node with a request and without a grant has exactly
//! one reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::grant_phase::{CLAIM_TIMEOUT, GrantPhase, grant_phase};
use crate::{
    annotations::{RebootResult, WaitReason, Waiting, sanitize_reason, truncate_to_seconds},
    ledger::{GRANTS_MAX, Grant, RebootLedger},
    parsed_policy::{ParsedPolicy, WindowState},
    policy::{ControlPlane, Order},
    state::{NodePatch, NodeState},
};

/// The back-off after the first failed grant of a node. Each further failure doubles it.
const BACK_OFF: SignedDuration = SignedDuration::from_mins(5);

/// The maximum back-off.
const BACK_OFF_MAX: SignedDuration = SignedDuration::from_hours(6);

/// The settle time of a grant whose policy was deleted.
const DEFAULT_SETTLE_SECONDS: i64 = 30;

/// All nodes, by name.
pub(crate) type Nodes = BTreeMap<String, Arc<NodeState>>;

/// When the nodes of ended grants were first observed to be Ready, by the ID of the grant.
pub(crate) type ReadySince = BTreeMap<String, Timestamp>;

/// The blockers of policies that are currently active.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ActiveBlockers {
    /// Nodes with blocking pods, by policy.
    pub(crate) by_pods: BTreeMap<String, BTreeSet<String>>,
    /// Policies with firing alerts or a failed query.
    pub(crate) by_alerts: BTreeSet<String>,
}

/// What a plan depends on.
pub(crate) struct ObservedState<'a> {
    pub(crate) now: Timestamp,
    pub(crate) nodes: &'a Nodes,
    pub(crate) ledger: &'a RebootLedger,
    /// The first policy that selects a node applies to it.
    pub(crate) policies: &'a [ParsedPolicy],
    /// The node that this controller runs on.
    pub(crate) own_node: Option<&'a str>,
    pub(crate) blockers: &'a ActiveBlockers,
    pub(crate) ready_since: &'a ReadySince,
}

/// A patch of a Node, and the event to record after it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeUpdate {
    pub(crate) node: String,
    pub(crate) patch: NodePatch,
    pub(crate) event: Option<NodeEvent>,
}

/// An event of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeEvent {
    Granted { id: String },
    Ended { result: RebootResult },
    Waiting { reason: WaitReason },
    Requested { reason: String },
}

/// The observed state of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolReport {
    /// The name of the policy; empty for the default.
    pub(crate) policy: String,
    pub(crate) generation: Option<i64>,
    pub(crate) invalid: Option<String>,
    pub(crate) nodes: usize,
    pub(crate) unavailable: usize,
    pub(crate) limit: usize,
    /// Nodes with a grant.
    pub(crate) holders: Vec<String>,
    /// The number of holders that did not come back in time.
    pub(crate) lost: usize,
    pub(crate) breaker_open: bool,
    /// The number of waiting nodes, by reason.
    pub(crate) waiting: BTreeMap<WaitReason, usize>,
}

/// The writes of one reconcile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// The desired ledger, if it differs from the current one.
    pub(crate) ledger: Option<RebootLedger>,
    /// Updates that do not depend on the ledger.
    pub(crate) updates: Vec<NodeUpdate>,
    /// Updates that may only be written after the ledger.
    pub(crate) announcements: Vec<NodeUpdate>,
    pub(crate) ready_since: ReadySince,
    pub(crate) reports: Vec<PoolReport>,
}

impl Plan {
    /// Whether a node has a grant or waits, so that the passage of time can change the plan.
    pub(crate) fn is_pending(&self) -> bool {
        self.reports
            .iter()
            .any(|report| !report.holders.is_empty() || !report.waiting.is_empty())
    }
}

/// The grants whose slots can be released according to the cache. Their nodes must be read again
/// before [`plan`].
pub(crate) fn completed_grants(observed: &ObservedState<'_>) -> Vec<Grant> {
    let pools = Pools::new(observed);
    let grants = observed.ledger.spec.grants.iter();
    grants
        .filter(|grant| pools.phase(observed, grant) == GrantPhase::Complete)
        .cloned()
        .collect()
}

/// Plans the writes of one reconcile. The nodes of [`completed_grants`] must have been read after
/// the ledger.
pub(crate) fn plan(observed: &ObservedState<'_>) -> Plan {
    let pools = Pools::new(observed);
    let mut ledger = observed.ledger.clone();
    let mut updates = Vec::new();
    let mut ready_since = ReadySince::new();
    for grant in &observed.ledger.spec.grants {
        match pools.phase(observed, grant) {
            // Released before pools are planned, so that the slot is granted again in the same
            // write.
            GrantPhase::Complete => ledger.release(&grant.id, observed.now),
            GrantPhase::Announce => updates.extend(announce(grant)),
            GrantPhase::End(result) => updates.extend(end(observed, grant, result)),
            GrantPhase::Settling { since } => {
                ready_since.insert(grant.id.clone(), since);
            }
            GrantPhase::Announced | GrantPhase::InProgress | GrantPhase::Recovering => {}
        }
    }
    let mut announcements = Vec::new();
    let mut reports = Vec::new();
    // One for all pools: policies may divide the control plane, etcd's quorum may not.
    let mut control_plane = UnavailableControlPlane::new(observed, &ledger);
    for pool in &pools.all {
        let report = pools.report(observed, pool, &ledger);
        let mut planner = PoolPlanner {
            observed,
            pools: &pools,
            pool,
            ledger: &mut ledger,
            control_plane: &mut control_plane,
            report,
        };
        let (grants, waiting) = planner.plan();
        announcements.extend(grants.iter().filter_map(announce));
        updates.extend(waiting);
        reports.push(planner.report);
    }
    // The ledger would otherwise grow with every policy that ever existed.
    ledger.retain_pools(|name| {
        let mut policies = observed.policies.iter();
        name.is_empty() || policies.any(|policy| policy.name == name)
    });
    updates.extend(remove_stale_waiting(observed));
    Plan {
        ledger: (ledger != *observed.ledger).then_some(ledger),
        updates,
        announcements,
        ready_since,
        reports,
    }
}

fn announce(grant: &Grant) -> Option<NodeUpdate> {
    Some(NodeUpdate {
        node: grant.node.clone(),
        patch: NodePatch::announce(grant)?,
        event: Some(NodeEvent::Granted {
            id: grant.id.clone(),
        }),
    })
}

fn end(observed: &ObservedState<'_>, grant: &Grant, result: RebootResult) -> Option<NodeUpdate> {
    let node = observed.nodes.get(&grant.node)?;
    Some(NodeUpdate {
        node: grant.node.clone(),
        patch: NodePatch::end(node, &grant.id()?, result, &grant.reason, observed.now),
        event: Some(NodeEvent::Ended { result }),
    })
}

/// Removes the waiting annotation of nodes without a request.
fn remove_stale_waiting(observed: &ObservedState<'_>) -> Vec<NodeUpdate> {
    let nodes = observed.nodes.values();
    nodes
        .filter(|node| node.has_waiting() && node.needed().is_none() && !node.is_in_progress())
        .map(|node| NodeUpdate {
            node: node.name.clone(),
            patch: NodePatch::remove_waiting(),
            event: None,
        })
        .collect()
}

/// The nodes of one policy.
struct Pool<'a> {
    policy: &'a ParsedPolicy,
    nodes: Vec<&'a NodeState>,
}

/// All pools. Every node is in exactly one.
struct Pools<'a> {
    /// In the order of the policies, then the default.
    all: Vec<Pool<'a>>,
    /// The name of the policy of each node.
    policy_of_node: BTreeMap<&'a str, &'a str>,
}

impl<'a> Pools<'a> {
    fn new(observed: &ObservedState<'a>) -> Self {
        static DEFAULT: std::sync::LazyLock<ParsedPolicy> =
            std::sync::LazyLock::new(ParsedPolicy::default_policy);
        let mut all: Vec<Pool<'a>> = observed
            .policies
            .iter()
            .chain([&*DEFAULT])
            .map(|policy| Pool {
                policy,
                nodes: Vec::new(),
            })
            .collect();
        let default_index = all.len() - 1;
        let mut policy_of_node = BTreeMap::new();
        for node in observed.nodes.values() {
            let mut policies = observed.policies.iter();
            let index = policies
                .position(|policy| policy.selects(node))
                .unwrap_or(default_index);
            policy_of_node.insert(node.name.as_str(), all[index].policy.name.as_str());
            all[index].nodes.push(node);
        }
        Self {
            all,
            policy_of_node,
        }
    }

    fn phase(&self, observed: &ObservedState<'_>, grant: &Grant) -> GrantPhase {
        let mut pools = self.all.iter();
        let settle_seconds = pools
            .find(|pool| pool.policy.name == grant.policy)
            .map_or(DEFAULT_SETTLE_SECONDS, |pool| {
                pool.policy.spec.settle_seconds
            });
        grant_phase(
            grant,
            observed.nodes.get(&grant.node).map(|node| &**node),
            observed.ready_since.get(&grant.id).copied(),
            SignedDuration::from_secs(settle_seconds),
            observed.now,
        )
    }

    /// The grants that count for a pool: those of its nodes, and those of nodes that no longer
    /// exist and had the policy of the pool.
    fn grants<'g>(
        &self,
        pool: &Pool<'_>,
        ledger: &'g RebootLedger,
    ) -> impl Iterator<Item = &'g Grant> {
        ledger.spec.grants.iter().filter(move |grant| {
            let of_node = self.policy_of_node.get(grant.node.as_str());
            of_node.map_or(grant.policy.as_str(), |policy| *policy) == pool.policy.name
        })
    }

    fn report(
        &self,
        observed: &ObservedState<'_>,
        pool: &Pool<'_>,
        ledger: &RebootLedger,
    ) -> PoolReport {
        let policy = pool.policy;
        let nodes = pool.nodes.len();
        let lost = self
            .grants(pool, ledger)
            .filter(|grant| observed.now >= grant.back_by.0)
            .count();
        // At least one: with a threshold of 0, no reboot could ever be granted.
        let threshold = usize::try_from(policy.spec.failure_threshold.max(1)).unwrap_or(1);
        PoolReport {
            policy: policy.name.clone(),
            generation: policy.generation,
            invalid: policy.invalid.clone(),
            nodes,
            limit: policy.limit(nodes),
            lost,
            breaker_open: lost >= threshold,
            holders: self
                .grants(pool, ledger)
                .map(|grant| grant.node.clone())
                .collect(),
            ..PoolReport::default()
        }
    }
}

/// The unavailable control-plane nodes of all pools. At most one has a grant.
struct UnavailableControlPlane(BTreeSet<String>);

impl UnavailableControlPlane {
    fn new(observed: &ObservedState<'_>, ledger: &RebootLedger) -> Self {
        let granted = nodes_with_grant(ledger);
        let nodes = observed.nodes.values();
        let unavailable = nodes.filter(|node| {
            node.is_control_plane()
                && (!node.ready || node.is_in_progress() || granted.contains(&node.name))
        });
        Self(unavailable.map(|node| node.name.clone()).collect())
    }
}

fn nodes_with_grant(ledger: &RebootLedger) -> BTreeSet<String> {
    let grants = ledger.spec.grants.iter();
    grants.map(|grant| grant.node.clone()).collect()
}

/// Plans the grants of one pool.
struct PoolPlanner<'a, 'b> {
    observed: &'a ObservedState<'a>,
    pools: &'a Pools<'a>,
    pool: &'a Pool<'a>,
    ledger: &'b mut RebootLedger,
    control_plane: &'b mut UnavailableControlPlane,
    report: PoolReport,
}

impl PoolPlanner<'_, '_> {
    /// Issues grants up to the limit. Returns them, and the updates of the nodes that wait.
    fn plan(&mut self) -> (Vec<Grant>, Vec<NodeUpdate>) {
        let granted = nodes_with_grant(self.ledger);
        let mut unavailable = self.unavailable_nodes(&granted);
        let mut candidates: Vec<&NodeState> = self
            .pool
            .nodes
            .iter()
            .copied()
            .filter(|node| is_requested(node) && !granted.contains(&node.name))
            .collect();
        candidates.sort_by_cached_key(|node| self.sort_key(node));
        let mut grants = Vec::new();
        let mut updates = Vec::new();
        for node in candidates {
            let reason = match self.wait_reason(node, &unavailable) {
                // A dry run counts slots as if they were taken, and takes none.
                None if self.pool.policy.spec.dry_run => {
                    unavailable.insert(node.name.clone());
                    WaitReason::DryRun
                }
                None => match self.issue_grant(node) {
                    Some(grant) => {
                        unavailable.insert(node.name.clone());
                        self.report.holders.push(node.name.clone());
                        grants.push(grant);
                        continue;
                    }
                    None => WaitReason::NoSlot,
                },
                Some(reason) => reason,
            };
            *self.report.waiting.entry(reason).or_default() += 1;
            updates.extend(self.set_waiting(node, reason));
        }
        self.report.unavailable = unavailable.len();
        (grants, updates)
    }

    /// Nodes that have a grant, are not Ready, were cordoned by others, or have an order or a
    /// reboot in progress without a grant.
    fn unavailable_nodes(&self, granted: &BTreeSet<String>) -> BTreeSet<String> {
        let count_cordoned = self.pool.policy.spec.count_cordoned;
        let is_unavailable = |node: &NodeState| {
            !node.ready
                || node.is_in_progress()
                || node.has_order()
                || (count_cordoned && node.unschedulable)
                || granted.contains(&node.name)
        };
        let nodes = self.pool.nodes.iter().copied();
        let existing = nodes
            .filter(|node| is_unavailable(node))
            .map(|node| node.name.clone());
        // Nodes with a grant that are not in the cache count too.
        let granted = self
            .pools
            .grants(self.pool, self.ledger)
            .map(|grant| grant.node.clone());
        existing.chain(granted).collect()
    }

    /// The position of a node among the candidates: the smallest is granted first. The node of the
    /// controller itself is last.
    fn sort_key(&self, node: &NodeState) -> (bool, u8, Timestamp, String) {
        let spec = &self.pool.policy.spec;
        let role = match spec.control_plane {
            ControlPlane::Any => 1,
            ControlPlane::First => u8::from(!node.is_control_plane()),
            ControlPlane::Last => u8::from(node.is_control_plane()),
        };
        let since = match spec.order {
            Order::LongestWaiting => node
                .waiting()
                .map_or(self.observed.now, |waiting| waiting.since),
            Order::Name => Timestamp::MIN,
        };
        let is_own_node = self.observed.own_node == Some(&node.name);
        (is_own_node, role, since, node.name.clone())
    }

    /// Why a node cannot get a grant now: the first check that applies.
    fn wait_reason(&self, node: &NodeState, unavailable: &BTreeSet<String>) -> Option<WaitReason> {
        let policy = self.pool.policy;
        let now = self.observed.now;
        let blockers = self.observed.blockers;
        let blocked_nodes = blockers.by_pods.get(&policy.name);
        let last_changed = self.ledger.last_changed(&policy.name);
        let is_counted = unavailable.contains(&node.name);
        // A node that is unavailable already takes no further slot of the limit when it reboots.
        let unavailable_after = unavailable.len() + usize::from(!is_counted);
        // Problems of the policy or the node come before what the pool waits for, so that the
        // reported reason is the one to act on. The limit is last, since it is the least specific.
        let checks = [
            (policy.invalid.is_some(), WaitReason::PolicyInvalid),
            (policy.spec.paused || node.is_paused(), WaitReason::Paused),
            (
                node.is_in_progress() || node.has_order(),
                WaitReason::InProgress,
            ),
            (!node.ready, WaitReason::NodeNotReady),
            (node.boot_id.is_none(), WaitReason::NoBootId),
            (is_backing_off(node, now), WaitReason::BackingOff),
            (self.report.breaker_open, WaitReason::BreakerOpen),
            (
                policy.window_state(now) == WindowState::Closed,
                WaitReason::OutsideWindow,
            ),
            (
                blockers.by_alerts.contains(&policy.name),
                WaitReason::BlockedByAlerts,
            ),
            (
                blocked_nodes.is_some_and(|nodes| nodes.contains(&node.name)),
                WaitReason::BlockedByPods,
            ),
            (
                last_changed.is_some_and(|changed| now < policy.gap_after(changed)),
                WaitReason::MinimumGap,
            ),
            (
                node.is_control_plane()
                    && self.control_plane.0.iter().any(|other| *other != node.name),
                WaitReason::ControlPlaneBusy,
            ),
            (
                unavailable_after > self.report.limit
                    || self.ledger.spec.grants.len() >= GRANTS_MAX,
                WaitReason::NoSlot,
            ),
        ];
        checks
            .into_iter()
            .find(|(applies, _)| *applies)
            .map(|(_, reason)| reason)
    }

    /// Adds a grant to the ledger. `None` if the ledger has no UID yet.
    fn issue_grant(&mut self, node: &NodeState) -> Option<Grant> {
        let spec = &self.pool.policy.spec;
        let now = truncate_to_seconds(self.observed.now);
        let after = |time: SignedDuration| now.saturating_add(time).unwrap_or(now);
        let drain_time = CLAIM_TIMEOUT + SignedDuration::from_secs(spec.drain.timeout_seconds);
        let boot_time = SignedDuration::from_secs(spec.boot_timeout_seconds);
        let expires_at = match self.pool.policy.window_state(now) {
            // No reboot starts after its window closed, however long the drain takes.
            WindowState::OpenUntil(closes) => closes.min(after(drain_time)),
            WindowState::Always | WindowState::Closed => after(drain_time),
        };
        let grant = Grant {
            id: self.ledger.next_id()?.to_string(),
            node: node.name.clone(),
            node_uid: node.uid.clone(),
            boot_id: node.boot_id.clone()?,
            policy: self.pool.policy.name.clone(),
            reason: sanitize_reason(node.needed().unwrap_or_default()),
            granted_at: Time(now),
            expires_at: Time(expires_at),
            back_by: Time(after(drain_time + boot_time)),
            drain: spec.drain.clone(),
        };
        if node.is_control_plane() {
            self.control_plane.0.insert(node.name.clone());
        }
        self.ledger.issue(grant.clone());
        Some(grant)
    }

    /// Writes the reason to the node, if it is another one.
    fn set_waiting(&self, node: &NodeState, reason: WaitReason) -> Option<NodeUpdate> {
        let current = node.waiting();
        if current.is_some_and(|waiting| waiting.reason == reason) {
            return None;
        }
        let now = truncate_to_seconds(self.observed.now);
        // Kept across reasons: the order of candidates is by the whole waiting time.
        let since = current.map_or(now, |waiting| waiting.since);
        Some(NodeUpdate {
            node: node.name.clone(),
            patch: NodePatch::set_waiting(&Waiting { reason, since }),
            event: Some(NodeEvent::Waiting { reason }),
        })
    }
}

fn is_requested(node: &NodeState) -> bool {
    node.needed().is_some() && !node.is_terminating
}

fn is_backing_off(node: &NodeState, now: Timestamp) -> bool {
    let Some(last) = node.last().filter(|last| last.failures > 0) else {
        return false;
    };
    // Limited so that the shift cannot overflow; the maximum is reached long before.
    let doublings = last.failures.saturating_sub(1).min(20);
    let back_off = BACK_OFF.saturating_mul(1 << doublings).min(BACK_OFF_MAX);
    now.duration_since(last.at) < back_off
}
