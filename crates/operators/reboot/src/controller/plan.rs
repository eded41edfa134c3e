//! Plan: who may reboot now, and why the others wait.
//!
//! In: nodes, the ledger, rules, what blockers say, the time. Out: the ledger as it should be, changes to nodes, reports.
//! Holds: after every plan each pool has at most as many unavailable nodes as it may, unless more were unavailable before;
//! then nothing is granted. Every node that wants to reboot and may not has exactly one reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::standing::{CLAIM_TIME, Standing, standing};
use crate::{
    ledger::{GRANTS_MAX, Grant, RebootLedger},
    notes::{self, Reason, Waiting},
    policy::{ControlPlane, Order},
    rules::{Open, Rules},
    state::{Edit, NodeState},
};

/// How long a node waits after its first grant that came to nothing. Each further one doubles it.
const BACK_OFF: SignedDuration = SignedDuration::from_mins(5);

/// How long it waits at most.
const BACK_OFF_MAX: SignedDuration = SignedDuration::from_hours(6);

/// The nodes there are, by name.
pub(crate) type Nodes = BTreeMap<String, Arc<NodeState>>;

/// Since when the nodes of grants have looked well again, by the id of the grant.
pub(crate) type Back = BTreeMap<String, Timestamp>;

/// What holds nodes back, by policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Nodes with pods that hold them.
    pub(crate) by_pods: BTreeMap<String, BTreeSet<String>>,
    /// Policies whose alerts fire, or could not be asked for.
    pub(crate) by_alerts: BTreeSet<String>,
}

/// What is there.
pub(crate) struct View<'a> {
    pub(crate) now: Timestamp,
    pub(crate) nodes: &'a Nodes,
    pub(crate) ledger: &'a RebootLedger,
    /// In the order in which nodes are theirs.
    pub(crate) rules: &'a [Rules],
    /// The node this controller runs on.
    pub(crate) own_node: Option<&'a str>,
    pub(crate) held: &'a Held,
    pub(crate) back: &'a Back,
}

/// A change to a node, and what people are told of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Deed {
    pub(crate) node: String,
    pub(crate) edit: Edit,
    pub(crate) told: Option<Told>,
}

/// What people are told of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Granted { id: String },
    Ended { fate: notes::Fate },
    Waits { reason: Reason },
    Asked { why: String },
}

/// What is known of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) policy: String,
    pub(crate) generation: Option<i64>,
    pub(crate) invalid: Option<String>,
    pub(crate) nodes: usize,
    pub(crate) unavailable: usize,
    pub(crate) limit: usize,
    /// Nodes that may reboot now.
    pub(crate) holders: Vec<String>,
    /// Of those, how many did not come back in time.
    pub(crate) lost: usize,
    pub(crate) breaker_open: bool,
    /// Nodes that wait, by reason.
    pub(crate) waiting: BTreeMap<Reason, usize>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// The ledger as it should be, if it is not.
    pub(crate) ledger: Option<RebootLedger>,
    /// Changes that do not depend on the ledger being written.
    pub(crate) deeds: Vec<Deed>,
    /// Changes that follow once it is.
    pub(crate) announcements: Vec<Deed>,
    pub(crate) back: Back,
    pub(crate) reports: Vec<Report>,
}

impl Plan {
    /// Whether anything is under way or waits, so that time alone may change the plan.
    pub(crate) fn is_pending(&self) -> bool {
        self.reports
            .iter()
            .any(|report| !report.holders.is_empty() || !report.waiting.is_empty())
    }
}

/// The grants whose slots look free. They are, once their nodes were read afresh and still look so.
pub(crate) fn free(view: &View<'_>) -> Vec<Grant> {
    let pools = Pools::of(view);
    let grants = view.ledger.spec.grants.iter();
    grants
        .filter(|grant| pools.standing(view, grant) == Standing::Free)
        .cloned()
        .collect()
}

/// Decides. The nodes of grants that are [`free`] must have been read after the ledger was.
pub(crate) fn plan(view: &View<'_>) -> Plan {
    let pools = Pools::of(view);
    let mut ledger = view.ledger.clone();
    let (mut deeds, mut back) = (Vec::new(), Back::new());
    for grant in &view.ledger.spec.grants {
        match pools.standing(view, grant) {
            Standing::Free => ledger.free(&grant.id, view.now),
            Standing::Announce => deeds.extend(announce(grant)),
            Standing::End(fate) => deeds.extend(end(view, grant, fate)),
            Standing::Settling { since } => _ = back.insert(grant.id.clone(), since),
            Standing::Told | Standing::Busy | Standing::Unwell => {}
        }
    }
    let (mut announcements, mut reports) = (Vec::new(), Vec::new());
    let mut control_plane = ControlPlaneNodes::of(view, &ledger);
    for pool in &pools.all {
        let report = pools.report(view, pool, &ledger);
        let mut turn = Turn {
            view,
            pools: &pools,
            pool,
            ledger: &mut ledger,
            control_plane: &mut control_plane,
            report,
        };
        let (granted, waiting) = turn.run();
        announcements.extend(granted.iter().filter_map(announce));
        deeds.extend(waiting);
        reports.push(turn.report);
    }
    ledger.keep_pools(|policy| {
        policy.is_empty() || view.rules.iter().any(|rules| rules.policy == policy)
    });
    deeds.extend(withdrawn(view));
    Plan {
        ledger: (ledger != *view.ledger).then_some(ledger),
        deeds,
        announcements,
        back,
        reports,
    }
}

fn announce(grant: &Grant) -> Option<Deed> {
    Some(Deed {
        node: grant.node.clone(),
        edit: Edit::announce(grant)?,
        told: Some(Told::Granted {
            id: grant.id.clone(),
        }),
    })
}

fn end(view: &View<'_>, grant: &Grant, fate: notes::Fate) -> Option<Deed> {
    let node = view.nodes.get(&grant.node)?;
    let edit = Edit::end(node, &grant.id()?, fate, &grant.reason, view.now);
    Some(Deed {
        node: grant.node.clone(),
        edit,
        told: Some(Told::Ended { fate }),
    })
}

/// Nodes that say they wait and want nothing any more.
fn withdrawn(view: &View<'_>) -> Vec<Deed> {
    let idle = view
        .nodes
        .values()
        .filter(|node| node.has_waiting() && node.needed().is_none() && !node.is_busy());
    idle.map(|node| Deed {
        node: node.name.clone(),
        edit: Edit::stop_waiting(),
        told: None,
    })
    .collect()
}

/// The nodes of one policy.
struct Pool<'a> {
    rules: &'a Rules,
    nodes: Vec<&'a NodeState>,
}

/// Every node in exactly one pool.
struct Pools<'a> {
    all: Vec<Pool<'a>>,
    /// The policy of each node.
    policy: BTreeMap<&'a str, &'a str>,
}

impl<'a> Pools<'a> {
    fn of(view: &View<'a>) -> Self {
        static DEFAULT: std::sync::LazyLock<Rules> = std::sync::LazyLock::new(Rules::default_ones);
        let mut all: Vec<Pool<'a>> = view
            .rules
            .iter()
            .map(|rules| Pool {
                rules,
                nodes: Vec::new(),
            })
            .collect();
        all.push(Pool {
            rules: &DEFAULT,
            nodes: Vec::new(),
        });
        let last = all.len() - 1;
        let mut policy = BTreeMap::new();
        for node in view.nodes.values() {
            let place = view
                .rules
                .iter()
                .position(|rules| rules.selects(node))
                .unwrap_or(last);
            policy.insert(node.name.as_str(), all[place].rules.policy.as_str());
            all[place].nodes.push(node);
        }
        Self { all, policy }
    }

    fn standing(&self, view: &View<'_>, grant: &Grant) -> Standing {
        let of_policy = self
            .all
            .iter()
            .find(|pool| pool.rules.policy == grant.policy);
        let settle = of_policy.map_or(30, |pool| pool.rules.spec.settle_seconds);
        let back = view.back.get(&grant.id).copied();
        let node = view.nodes.get(&grant.node).map(|node| &**node);
        standing(
            grant,
            node,
            back,
            SignedDuration::from_secs(settle),
            view.now,
        )
    }

    /// The grants that count for a pool: their nodes are there, or are nowhere and were there when it was granted.
    fn grants<'g>(
        &self,
        pool: &Pool<'_>,
        ledger: &'g RebootLedger,
    ) -> impl Iterator<Item = &'g Grant> {
        let policy = |grant: &Grant| {
            self.policy
                .get(grant.node.as_str())
                .map_or(&*grant.policy, |policy| *policy)
                == pool.rules.policy
        };
        ledger.spec.grants.iter().filter(move |grant| policy(grant))
    }

    fn report(&self, view: &View<'_>, pool: &Pool<'_>, ledger: &RebootLedger) -> Report {
        let Rules {
            policy,
            generation,
            invalid,
            spec,
            ..
        } = pool.rules;
        let (nodes, limit) = (pool.nodes.len(), pool.rules.limit(pool.nodes.len()));
        let lost = self
            .grants(pool, ledger)
            .filter(|grant| view.now >= grant.back_by.0)
            .count();
        let breaker_open = lost >= usize::try_from(spec.failure_threshold.max(1)).unwrap_or(1);
        let holders = self
            .grants(pool, ledger)
            .map(|grant| grant.node.clone())
            .collect();
        let (policy, generation, invalid) = (policy.clone(), *generation, invalid.clone());
        Report {
            policy,
            generation,
            invalid,
            nodes,
            limit,
            lost,
            breaker_open,
            holders,
            ..Report::default()
        }
    }
}

/// The nodes of the control plane that are unavailable, in all pools. There is never more than one by us.
struct ControlPlaneNodes(BTreeSet<String>);

impl ControlPlaneNodes {
    fn of(view: &View<'_>, ledger: &RebootLedger) -> Self {
        let granted: BTreeSet<&str> = ledger
            .spec
            .grants
            .iter()
            .map(|grant| grant.node.as_str())
            .collect();
        let nodes = view.nodes.values().filter(|node| node.is_control_plane());
        let away = nodes
            .filter(|node| !node.ready || node.is_busy() || granted.contains(node.name.as_str()));
        Self(away.map(|node| node.name.clone()).collect())
    }
}

/// One pool's turn.
struct Turn<'a, 'b> {
    view: &'a View<'a>,
    pools: &'a Pools<'a>,
    pool: &'a Pool<'a>,
    ledger: &'b mut RebootLedger,
    control_plane: &'b mut ControlPlaneNodes,
    report: Report,
}

impl Turn<'_, '_> {
    /// Grants what may be granted; everyone else is told why not.
    fn run(&mut self) -> (Vec<Grant>, Vec<Deed>) {
        let granted: BTreeSet<String> = self
            .ledger
            .spec
            .grants
            .iter()
            .map(|grant| grant.node.clone())
            .collect();
        let mut unavailable = self.unavailable(&granted);
        let mut candidates: Vec<&NodeState> = self
            .pool
            .nodes
            .iter()
            .copied()
            .filter(|node| wants(node) && !granted.contains(&node.name))
            .collect();
        candidates.sort_by_cached_key(|node| self.rank(node));
        let (mut grants, mut deeds) = (Vec::new(), Vec::new());
        // In a dry run slots are counted as if they had been spent, and nothing is.
        for node in candidates {
            let reason = match self.refusal(node, &unavailable) {
                None if self.pool.rules.spec.dry_run => {
                    unavailable.insert(node.name.clone());
                    Reason::DryRun
                }
                None => match self.grant(node) {
                    Some(grant) => {
                        unavailable.insert(node.name.clone());
                        self.report.holders.push(node.name.clone());
                        grants.push(grant);
                        continue;
                    }
                    None => Reason::NoSlot,
                },
                Some(reason) => reason,
            };
            *self.report.waiting.entry(reason).or_default() += 1;
            deeds.extend(self.wait(node, reason));
        }
        self.report.unavailable = unavailable.len();
        (grants, deeds)
    }

    /// Granted, not Ready, cordoned by others, or at a reboot that no ledger knows of.
    fn unavailable(&self, granted: &BTreeSet<String>) -> BTreeSet<String> {
        let cordoned = |node: &NodeState| self.pool.rules.spec.count_cordoned && node.unschedulable;
        let away = |node: &&NodeState| {
            !node.ready
                || node.is_busy()
                || node.has_order()
                || cordoned(node)
                || granted.contains(&node.name)
        };
        let here = self
            .pool
            .nodes
            .iter()
            .copied()
            .filter(away)
            .map(|node| node.name.clone());
        let nowhere = self
            .pools
            .grants(self.pool, self.ledger)
            .map(|grant| grant.node.clone());
        here.chain(nowhere).collect()
    }

    /// Who comes first is the smallest.
    fn rank(&self, node: &NodeState) -> (bool, u8, Timestamp, String) {
        let spec = &self.pool.rules.spec;
        let turn = match spec.control_plane {
            ControlPlane::Any => 1,
            ControlPlane::First => u8::from(!node.is_control_plane()),
            ControlPlane::Last => u8::from(node.is_control_plane()),
        };
        let since = match spec.order {
            Order::LongestWaiting => node
                .waiting()
                .map_or(self.view.now, |waiting| waiting.since),
            Order::Name => Timestamp::MIN,
        };
        (
            self.view.own_node == Some(&node.name),
            turn,
            since,
            node.name.clone(),
        )
    }

    /// Why a node may not reboot now.
    fn refusal(&self, node: &NodeState, unavailable: &BTreeSet<String>) -> Option<Reason> {
        let (rules, now) = (self.pool.rules, self.view.now);
        let held = self.view.held;
        let changed = self.ledger.changed(&rules.policy);
        let reached =
            unavailable.len() + usize::from(!unavailable.contains(&node.name)) > self.report.limit;
        let checks = [
            (rules.invalid.is_some(), Reason::PolicyInvalid),
            (rules.spec.paused || node.is_paused(), Reason::Paused),
            (node.is_busy() || node.has_order(), Reason::InProgress),
            (!node.ready, Reason::NodeNotReady),
            (node.boot_id.is_none(), Reason::NoBootId),
            (backs_off(node, now), Reason::BackingOff),
            (self.report.breaker_open, Reason::BreakerOpen),
            (rules.open(now) == Open::Closed, Reason::OutsideWindow),
            (
                held.by_alerts.contains(&rules.policy),
                Reason::BlockedByAlerts,
            ),
            (
                held.by_pods
                    .get(&rules.policy)
                    .is_some_and(|nodes| nodes.contains(&node.name)),
                Reason::BlockedByPods,
            ),
            (
                changed.is_some_and(|changed| now < rules.gap_after(changed)),
                Reason::MinimumGap,
            ),
            (
                node.is_control_plane()
                    && self.control_plane.0.iter().any(|other| *other != node.name),
                Reason::ControlPlaneBusy,
            ),
            (
                reached || self.ledger.spec.grants.len() >= GRANTS_MAX,
                Reason::NoSlot,
            ),
        ];
        checks
            .into_iter()
            .find(|(holds, _)| *holds)
            .map(|(_, reason)| reason)
    }

    /// Writes a grant into the ledger; `None` if the ledger has no identity yet.
    fn grant(&mut self, node: &NodeState) -> Option<Grant> {
        let (spec, now) = (&self.pool.rules.spec, notes::whole_seconds(self.view.now));
        let after = |time: SignedDuration| now.saturating_add(time).unwrap_or(now);
        let drained = CLAIM_TIME + SignedDuration::from_secs(spec.drain.timeout_seconds);
        let expires = match self.pool.rules.open(now) {
            // No reboot begins after its window closed, however long the drain took.
            Open::Until(closes) => closes.min(after(drained)),
            Open::Always | Open::Closed => after(drained),
        };
        let grant = Grant {
            id: self.ledger.next_id()?.to_string(),
            node: node.name.clone(),
            node_uid: node.uid.clone(),
            boot_id: node.boot_id.clone()?,
            policy: self.pool.rules.policy.clone(),
            reason: notes::reason(node.needed().unwrap_or_default()),
            granted_at: Time(now),
            expires_at: Time(expires),
            back_by: Time(after(
                drained + SignedDuration::from_secs(spec.boot_timeout_seconds),
            )),
            drain: spec.drain.clone(),
        };
        if node.is_control_plane() {
            self.control_plane.0.insert(node.name.clone());
        }
        self.ledger.issue(grant.clone());
        Some(grant)
    }

    fn wait(&self, node: &NodeState, reason: Reason) -> Option<Deed> {
        let known = node.waiting();
        if known
            .as_ref()
            .is_some_and(|waiting| waiting.reason == reason)
        {
            return None;
        }
        let since = known.map_or(notes::whole_seconds(self.view.now), |waiting| waiting.since);
        let edit = Edit::wait(&Waiting { reason, since });
        Some(Deed {
            node: node.name.clone(),
            edit,
            told: Some(Told::Waits { reason }),
        })
    }
}

fn wants(node: &NodeState) -> bool {
    node.needed().is_some() && !node.going
}

fn backs_off(node: &NodeState, now: Timestamp) -> bool {
    let Some(last) = node.last().filter(|last| last.failures > 0) else {
        return false;
    };
    let doubled = BACK_OFF
        .saturating_mul(1 << last.failures.saturating_sub(1).min(20))
        .min(BACK_OFF_MAX);
    now.duration_since(last.at) < doubled
}
