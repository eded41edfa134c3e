//! The annotations of Nodes, and one condition: names, types and their text form.
//!
//! Input: the values of annotations, which any user may have written. Output: typed values, or an
//! error.
//!
//! Guarantees: a printed value parses to itself; a value that is too long, incomplete or of another
//! form is invalid and never interpreted in part.
//!
//! | annotation | written by | meaning |
//! |---|---|---|
//! | `reboot-needed` | anyone | requests a reboot; the value is the reason |
//! | `reboot-now` | controller | the reboot order: grant and expiry |
//! | `reboot-in-progress` | agent | grant, boot ID before the reboot, start time and stage |
//! | `cordoned-by-us` | agent | the agent cordoned the node; the value is the grant |
//! | `last-reboot` | agent, controller | the result of the last grant, which cannot be used again |
//! | `reboot-waiting` | controller, agent | why and since when the node waits |
//! | `reboot-paused` | anyone | the node is not granted a reboot |
//!
//! Any user who may annotate Nodes may write them. The commit of a reboot is therefore a condition
//! in the status of the Node, [`COMMITTED`], for which another permission is needed.
//!
//! All names have one [`AnnotationPrefix`]. The constants have the default prefix.

use std::{fmt, str::FromStr, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

/// Requests a reboot; the value is the reason.
pub const NEEDED: &str = "reboot.bellerophon.io/reboot-needed";
/// The controller's order to reboot.
pub const NOW: &str = "reboot.bellerophon.io/reboot-now";
/// The agent's progress.
pub const IN_PROGRESS: &str = "reboot.bellerophon.io/reboot-in-progress";
/// The agent cordoned the node, and is to uncordon it.
pub const CORDONED: &str = "reboot.bellerophon.io/cordoned-by-us";
/// The result of the last grant.
pub const LAST: &str = "reboot.bellerophon.io/last-reboot";
/// Why the node waits.
pub const WAITING: &str = "reboot.bellerophon.io/reboot-waiting";
/// Excludes the node from reboots.
pub const PAUSED: &str = "reboot.bellerophon.io/reboot-paused";

/// The condition of a Node whose machine was or is about to be rebooted; its message is the ID of
/// the grant. Only the agent writes it: it is part of the status, so that permission to annotate
/// Nodes is not enough.
pub const COMMITTED: &str = "reboot.bellerophon.io/RebootCommitted";

/// All annotations of the operator.
pub(crate) const ALL: [&str; 7] = [NEEDED, NOW, IN_PROGRESS, CORDONED, LAST, WAITING, PAUSED];

/// The prefix of all annotation names. Controller, agents and CLI must use the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationPrefix(Arc<str>);

const DEFAULT_PREFIX: &str = "reboot.bellerophon.io";

/// The maximum length of a DNS subdomain.
const PREFIX_LENGTH_MAX: usize = 253;

impl Default for AnnotationPrefix {
    /// `reboot.bellerophon.io`.
    fn default() -> Self {
        Self(DEFAULT_PREFIX.into())
    }
}

impl AnnotationPrefix {
    /// Parses a prefix, which must be a DNS subdomain.
    pub fn parse(text: &str) -> Option<Self> {
        let is_label = |label: &str| {
            let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            !label.is_empty()
                && label.bytes().all(is_allowed)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let is_subdomain = text.len() <= PREFIX_LENGTH_MAX && text.split('.').all(is_label);
        is_subdomain.then(|| Self(text.into()))
    }

    /// The name of one of the annotation constants under this prefix.
    pub fn key(&self, annotation: &str) -> String {
        let name = annotation
            .strip_prefix(DEFAULT_PREFIX)
            .unwrap_or(annotation);
        format!("{}{name}", self.0)
    }
}

/// The maximum length of a value that is parsed. Values of the operator are shorter.
const LENGTH_MAX: usize = 512;

/// The maximum length of a reason.
const REASON_MAX: usize = 256;

/// The ID of a grant. It is never used for another grant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(String);

impl GrantId {
    /// Parses an ID of 1 to 64 lower-case letters, digits and hyphens.
    pub fn parse(text: &str) -> Option<Self> {
        is_identifier(text).then(|| Self(text.to_owned()))
    }

    /// The ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value of [`NOW`]: permission to reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RebootOrder {
    pub(crate) id: GrantId,
    /// No reboot is started after this time.
    pub(crate) expires: Timestamp,
}

/// The stage of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Pods are evicted. The grant can still end without a reboot.
    Draining,
    /// The machine was or is about to be rebooted. This is for people to read: the agent acts on
    /// the condition [`COMMITTED`].
    Rebooting,
}

/// The value of [`IN_PROGRESS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RebootProgress {
    pub(crate) id: GrantId,
    /// The boot ID before the reboot.
    pub(crate) boot: String,
    pub(crate) since: Timestamp,
    pub(crate) stage: Stage,
}

/// The result of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RebootResult {
    /// The node rebooted.
    Done,
    /// Pods were not evicted in time.
    DrainTimedOut,
    /// The order expired before the reboot started.
    Expired,
    /// No agent claimed the order.
    NotClaimed,
    /// The machine refused to reboot.
    Refused,
    /// The request was withdrawn before the agent started.
    Withdrawn,
    /// The ledger has no such grant.
    Revoked,
    /// An administrator released the slot.
    Released,
}

const RESULTS: [(RebootResult, &str); 8] = [
    (RebootResult::Done, "Done"),
    (RebootResult::DrainTimedOut, "DrainTimedOut"),
    (RebootResult::Expired, "Expired"),
    (RebootResult::NotClaimed, "NotClaimed"),
    (RebootResult::Refused, "Refused"),
    (RebootResult::Withdrawn, "Withdrawn"),
    (RebootResult::Revoked, "Revoked"),
    (RebootResult::Released, "Released"),
];

impl RebootResult {
    /// Whether the node still needs the reboot.
    pub(crate) fn is_failure(self) -> bool {
        matches!(
            self,
            Self::DrainTimedOut | Self::Expired | Self::NotClaimed | Self::Refused
        )
    }

    pub(crate) fn as_str(self) -> &'static str {
        RESULTS
            .iter()
            .find(|(result, _)| *result == self)
            .map_or("", |(_, text)| text)
    }
}

/// The value of [`LAST`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastReboot {
    pub(crate) id: GrantId,
    pub(crate) result: RebootResult,
    pub(crate) at: Timestamp,
    /// The number of consecutive failed grants.
    pub(crate) failures: u32,
}

/// Why a node with a request does not reboot yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum WaitReason {
    NoSlot,
    OutsideWindow,
    Paused,
    MinimumGap,
    BackingOff,
    BreakerOpen,
    NodeNotReady,
    NoBootId,
    ControlPlaneBusy,
    BlockedByPods,
    BlockedByAlerts,
    BlockedByPdb,
    PolicyInvalid,
    InProgress,
    DryRun,
}

/// Every reason, with its text form and a message.
pub(crate) const WAIT_REASONS: [(WaitReason, &str, &str); 15] = [
    (
        WaitReason::NoSlot,
        "NoSlot",
        "the maximum number of nodes is unavailable",
    ),
    (
        WaitReason::OutsideWindow,
        "OutsideWindow",
        "no maintenance window is open",
    ),
    (WaitReason::Paused, "Paused", "reboots are paused"),
    (
        WaitReason::MinimumGap,
        "MinimumGap",
        "the minimum gap since the last grant has not passed",
    ),
    (
        WaitReason::BackingOff,
        "BackingOff",
        "the last attempt failed, and the back-off has not passed",
    ),
    (
        WaitReason::BreakerOpen,
        "BreakerOpen",
        "too many nodes did not come back; inspect them, then release their slots",
    ),
    (
        WaitReason::NodeNotReady,
        "NodeNotReady",
        "the node is not Ready",
    ),
    (
        WaitReason::NoBootId,
        "NoBootId",
        "the status of the node has no boot ID",
    ),
    (
        WaitReason::ControlPlaneBusy,
        "ControlPlaneBusy",
        "another control-plane node is unavailable",
    ),
    (
        WaitReason::BlockedByPods,
        "BlockedByPods",
        "pods on the node block its reboot",
    ),
    (
        WaitReason::BlockedByAlerts,
        "BlockedByAlerts",
        "alerts are firing, or Prometheus cannot be queried",
    ),
    (
        WaitReason::BlockedByPdb,
        "BlockedByPDB",
        "a PodDisruptionBudget prevents an eviction",
    ),
    (
        WaitReason::PolicyInvalid,
        "PolicyInvalid",
        "its RebootPolicy is invalid",
    ),
    (
        WaitReason::InProgress,
        "InProgress",
        "a reboot without a grant in the ledger is in progress",
    ),
    (
        WaitReason::DryRun,
        "DryRun",
        "the node would reboot now, but its RebootPolicy is a dry run",
    ),
];

impl WaitReason {
    pub(crate) fn as_str(self) -> &'static str {
        WAIT_REASONS
            .iter()
            .find(|(reason, ..)| *reason == self)
            .map_or("", |(_, text, _)| text)
    }

    pub(crate) fn message(self) -> &'static str {
        WAIT_REASONS
            .iter()
            .find(|(reason, ..)| *reason == self)
            .map_or("", |(.., message)| message)
    }
}

/// The value of [`WAITING`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) reason: WaitReason,
    /// When the controller first observed the request. It is kept across windows and restarts.
    pub(crate) since: Timestamp,
}

impl fmt::Display for RebootOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id={} expires={}", self.id, self.expires)
    }
}

impl fmt::Display for RebootProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Draining => "Draining",
            Stage::Rebooting => "Rebooting",
        };
        write!(
            f,
            "id={} boot={} since={} stage={stage}",
            self.id, self.boot, self.since
        )
    }
}

impl fmt::Display for LastReboot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "id={} result={} at={} failures={}",
            self.id,
            self.result.as_str(),
            self.at,
            self.failures
        )
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reason={} since={}", self.reason.as_str(), self.since)
    }
}

/// The value of an annotation cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidAnnotation;

impl FromStr for RebootOrder {
    type Err = InvalidAnnotation;

    fn from_str(text: &str) -> Result<Self, InvalidAnnotation> {
        let [id, expires] = parse_fields(text, ["id", "expires"])?;
        Ok(Self {
            id: parse_id(id)?,
            expires: parse_time(expires)?,
        })
    }
}

impl FromStr for RebootProgress {
    type Err = InvalidAnnotation;

    fn from_str(text: &str) -> Result<Self, InvalidAnnotation> {
        let [id, boot, since, stage] = parse_fields(text, ["id", "boot", "since", "stage"])?;
        let stage = match stage {
            "Draining" => Stage::Draining,
            "Rebooting" => Stage::Rebooting,
            _ => return Err(InvalidAnnotation),
        };
        Ok(Self {
            id: parse_id(id)?,
            boot: parse_boot_id(boot).ok_or(InvalidAnnotation)?,
            since: parse_time(since)?,
            stage,
        })
    }
}

impl FromStr for LastReboot {
    type Err = InvalidAnnotation;

    fn from_str(text: &str) -> Result<Self, InvalidAnnotation> {
        let [id, result, at, failures] = parse_fields(text, ["id", "result", "at", "failures"])?;
        let (result, _) = RESULTS
            .iter()
            .find(|(_, name)| *name == result)
            .ok_or(InvalidAnnotation)?;
        Ok(Self {
            id: parse_id(id)?,
            result: *result,
            at: parse_time(at)?,
            failures: failures.parse().map_err(|_| InvalidAnnotation)?,
        })
    }
}

impl FromStr for Waiting {
    type Err = InvalidAnnotation;

    fn from_str(text: &str) -> Result<Self, InvalidAnnotation> {
        let [reason, since] = parse_fields(text, ["reason", "since"])?;
        let (reason, ..) = WAIT_REASONS
            .iter()
            .find(|(_, name, _)| *name == reason)
            .ok_or(InvalidAnnotation)?;
        Ok(Self {
            reason: *reason,
            since: parse_time(since)?,
        })
    }
}

/// Parses the boot ID of a Node or a kernel: 1 to 64 lower-case letters, digits and hyphens, which
/// includes every UUID.
pub(crate) fn parse_boot_id(text: &str) -> Option<String> {
    let text = text.trim();
    is_identifier(text).then(|| text.to_owned())
}

/// A reason without control characters, truncated to [`REASON_MAX`] characters.
pub(crate) fn sanitize_reason(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(REASON_MAX)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// The boot ID in the status of a Node.
pub(crate) fn boot_id_of(node: &Node) -> Option<String> {
    parse_boot_id(&node.status.as_ref()?.node_info.as_ref()?.boot_id)
}

/// The operator's annotations of a Node, by their constants.
pub(crate) fn annotations_of(
    node: &Node,
    prefix: &AnnotationPrefix,
) -> impl Iterator<Item = (&'static str, String)> {
    let annotations = node.annotations();
    ALL.into_iter().filter_map(|name| {
        let value = annotations.get(&prefix.key(name))?;
        Some((name, value.clone()))
    })
}

/// A time without its fraction of a second. Times in annotations and in the ledger have none.
pub(crate) fn truncate_to_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Parses `name=value` pairs: exactly these names, in this order, separated by single spaces.
fn parse_fields<'a, const N: usize>(
    text: &'a str,
    names: [&str; N],
) -> Result<[&'a str; N], InvalidAnnotation> {
    // Before anything is parsed: any user may have written the value.
    if text.len() > LENGTH_MAX {
        return Err(InvalidAnnotation);
    }
    let mut values = [""; N];
    let mut pairs = text.split(' ');
    for (value, name) in values.iter_mut().zip(names) {
        let pair = pairs.next().ok_or(InvalidAnnotation)?;
        *value = pair
            .strip_prefix(name)
            .and_then(|pair| pair.strip_prefix('='))
            .filter(|value| !value.is_empty())
            .ok_or(InvalidAnnotation)?;
    }
    // Rejected, not ignored: a later version may have added a restriction.
    if pairs.next().is_some() {
        return Err(InvalidAnnotation);
    }
    Ok(values)
}

fn is_identifier(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn parse_id(text: &str) -> Result<GrantId, InvalidAnnotation> {
    GrantId::parse(text).ok_or(InvalidAnnotation)
}

fn parse_time(text: &str) -> Result<Timestamp, InvalidAnnotation> {
    text.parse().map_err(|_| InvalidAnnotation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn printed_values_parse_to_themselves() {
        let id = GrantId::parse("3f2a91c0-17").expect("an ID");
        let order = RebootOrder {
            id: id.clone(),
            expires: at(99),
        };
        assert_eq!(
            order.to_string(),
            "id=3f2a91c0-17 expires=1970-01-01T00:01:39Z"
        );
        assert_eq!(order.to_string().parse(), Ok(order));
        for stage in [Stage::Draining, Stage::Rebooting] {
            let progress = RebootProgress {
                id: id.clone(),
                boot: "b-1".into(),
                since: at(5),
                stage,
            };
            assert_eq!(progress.to_string().parse(), Ok(progress));
        }
        for (result, text) in RESULTS {
            let last = LastReboot {
                id: id.clone(),
                result,
                at: at(7),
                failures: 3,
            };
            assert!(last.to_string().contains(text));
            assert_eq!(last.to_string().parse(), Ok(last));
        }
        for (reason, ..) in WAIT_REASONS {
            let waiting = Waiting {
                reason,
                since: at(7),
            };
            assert_eq!(waiting.to_string().parse(), Ok(waiting));
        }
    }

    #[test]
    fn prefix_is_a_dns_subdomain() {
        let other = AnnotationPrefix::parse("maintenance.example.com").expect("a prefix");
        assert_eq!(other.key(NEEDED), "maintenance.example.com/reboot-needed");
        assert_eq!(AnnotationPrefix::default().key(NOW), NOW);
        for invalid in [
            "",
            "a/b",
            "A.com",
            ".com",
            "a..b",
            "-a",
            "a-",
            "a b",
            &"a".repeat(254),
        ] {
            assert_eq!(AnnotationPrefix::parse(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn malformed_values_are_rejected() {
        let long = format!("id={} expires=1970-01-01T00:01:39Z", "a".repeat(600));
        for text in [
            "",
            "yes",
            "true",
            "id=",
            "id=a",
            "id= expires=1970-01-01T00:01:39Z",
            "id=a expires=never",
            "id=a expires=1970-01-01T00:01:39Z more=1",
            "id=a  expires=1970-01-01T00:01:39Z",
            "expires=1970-01-01T00:01:39Z id=a",
            "id=A expires=1970-01-01T00:01:39Z",
            "id=a\n expires=1970-01-01T00:01:39Z",
            "id=../x expires=1970-01-01T00:01:39Z",
            "id=a expires=99999999999999999999",
            &long,
        ] {
            assert_eq!(
                text.parse::<RebootOrder>(),
                Err(InvalidAnnotation),
                "{text:?}"
            );
        }
        for text in [
            "id=a boot=x y since=1970-01-01T00:00:05Z stage=Draining",
            "id=a boot=b since=1970-01-01T00:00:05Z stage=Done",
        ] {
            assert_eq!(
                text.parse::<RebootProgress>(),
                Err(InvalidAnnotation),
                "{text:?}"
            );
        }
        assert_eq!(
            "id=a result=Done at=1970-01-01T00:00:05Z failures=-1".parse::<LastReboot>(),
            Err(InvalidAnnotation)
        );
        assert_eq!(
            "reason=Because since=1970-01-01T00:00:05Z".parse::<Waiting>(),
            Err(InvalidAnnotation)
        );
        assert_eq!(parse_boot_id("not a boot ID"), None);
    }

    #[test]
    fn reason_is_truncated_and_trimmed() {
        let reason = sanitize_reason(&format!(" kernel\n{}", "x".repeat(9999)));
        assert_eq!(reason.len(), REASON_MAX - 1);
    }
}
