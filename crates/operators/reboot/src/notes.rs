//! Notes: what is written on Nodes, and how it reads.
//!
//! In: the texts of annotations, which anybody may have written. Out: types, or nothing.
//! Holds: what is printed is read back the same; a text that is too long, torn or not of its form is nothing, never a guess.
//!
//! | annotation | written by | says |
//! |---|---|---|
//! | `reboot-needed` | anybody | this node wants a reboot; the value is the reason |
//! | `reboot-now` | controller | the node may reboot: grant and expiry |
//! | `reboot-in-progress` | agent | the node drains or reboots: grant, boot id before, since when, stage |
//! | `cordoned-by-us` | agent | the node was schedulable before; the value is the grant |
//! | `last-reboot` | agent, controller | how the last grant ended: it never starts again |
//! | `reboot-waiting` | controller, agent | why the node does not reboot yet, and since when it wants to |
//! | `reboot-paused` | anybody | the node is not to reboot, whoever wants it to |
//!
//! All under one [`Prefix`]. The constants here have the usual one.

use std::{fmt, str::FromStr, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

/// The annotation by which anybody asks for a reboot.
pub const NEEDED: &str = "reboot.bellerophon.io/reboot-needed";
/// The annotation by which the controller allows one.
pub const NOW: &str = "reboot.bellerophon.io/reboot-now";
/// The annotation by which the agent says that it is at it.
pub const IN_PROGRESS: &str = "reboot.bellerophon.io/reboot-in-progress";
/// The annotation by which the agent remembers that it cordoned the node.
pub const CORDONED: &str = "reboot.bellerophon.io/cordoned-by-us";
/// The annotation that says how the last grant ended.
pub const LAST: &str = "reboot.bellerophon.io/last-reboot";
/// The annotation that says why a node waits.
pub const WAITING: &str = "reboot.bellerophon.io/reboot-waiting";
/// The annotation by which anybody keeps a node from rebooting.
pub const PAUSED: &str = "reboot.bellerophon.io/reboot-paused";

/// All of them.
pub(crate) const ALL: [&str; 7] = [NEEDED, NOW, IN_PROGRESS, CORDONED, LAST, WAITING, PAUSED];

/// What the names of all annotations begin with: `reboot.bellerophon.io`, unless controller, agents and people agree on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(Arc<str>);

/// The usual one.
const USUAL: &str = "reboot.bellerophon.io";

impl Default for Prefix {
    fn default() -> Self {
        Self(USUAL.into())
    }
}

impl Prefix {
    /// Reads a prefix as annotations have it: a DNS subdomain.
    pub fn read(text: &str) -> Option<Self> {
        let is_part = |part: &str| {
            let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            !part.is_empty()
                && part.bytes().all(inner)
                && !part.starts_with('-')
                && !part.ends_with('-')
        };
        (text.len() <= 253 && text.split('.').all(is_part)).then(|| Self(text.into()))
    }

    /// A note under this prefix.
    pub fn key(&self, note: &str) -> String {
        format!("{}{}", self.0, note.strip_prefix(USUAL).unwrap_or(note))
    }
}

/// The longest note that is read; ours are shorter.
const LENGTH_MAX: usize = 512;

/// The longest reason that is kept.
const REASON_MAX: usize = 256;

/// What names a grant, once and for ever.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(String);

impl GrantId {
    /// Reads a name of up to 64 lower-case letters, digits and hyphens.
    pub fn read(text: &str) -> Option<Self> {
        is_word(text).then(|| Self(text.to_owned()))
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Permission to reboot, as the controller writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) id: GrantId,
    /// No reboot is begun after this.
    pub(crate) expires: Timestamp,
}

/// How far an agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Pods go. The slot can still be given back.
    Draining,
    /// The machine was or is about to be told. From here only another boot id, or a person, ends it.
    Rebooting,
}

/// What an agent is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) id: GrantId,
    /// The boot that is to end.
    pub(crate) boot: String,
    pub(crate) since: Timestamp,
    pub(crate) stage: Stage,
}

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    /// The node booted.
    Done,
    /// Pods did not go in time.
    DrainTimedOut,
    /// The permission ran out before the reboot began.
    Expired,
    /// No agent took it.
    NotClaimed,
    /// The machine would not reboot.
    Refused,
    /// The request was taken back before the agent began.
    Withdrawn,
    /// There is no such grant.
    Revoked,
    /// A person ended it.
    Released,
}

const FATES: [(Fate, &str); 8] = [
    (Fate::Done, "Done"),
    (Fate::DrainTimedOut, "DrainTimedOut"),
    (Fate::Expired, "Expired"),
    (Fate::NotClaimed, "NotClaimed"),
    (Fate::Refused, "Refused"),
    (Fate::Withdrawn, "Withdrawn"),
    (Fate::Revoked, "Revoked"),
    (Fate::Released, "Released"),
];

impl Fate {
    /// Whether the node still needs what it asked for.
    pub(crate) fn is_failure(self) -> bool {
        matches!(
            self,
            Self::DrainTimedOut | Self::Expired | Self::NotClaimed | Self::Refused
        )
    }

    pub(crate) fn as_str(self) -> &'static str {
        FATES
            .iter()
            .find(|(result, _)| *result == self)
            .map_or("", |(_, text)| text)
    }
}

/// The end of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: GrantId,
    pub(crate) result: Fate,
    pub(crate) at: Timestamp,
    /// How many grants in a row came to nothing.
    pub(crate) failures: u32,
}

/// Why a node that wants to reboot does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reason {
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

/// Every reason, as written, and in words.
pub(crate) const REASONS: [(Reason, &str, &str); 15] = [
    (
        Reason::NoSlot,
        "NoSlot",
        "as many nodes as allowed are unavailable",
    ),
    (Reason::OutsideWindow, "OutsideWindow", "no window is open"),
    (Reason::Paused, "Paused", "reboots are paused"),
    (
        Reason::MinimumGap,
        "MinimumGap",
        "the last change was not long enough ago",
    ),
    (
        Reason::BackingOff,
        "BackingOff",
        "the last try came to nothing, and the next one comes later",
    ),
    (
        Reason::BreakerOpen,
        "BreakerOpen",
        "too many nodes did not come back; look at them, then release them",
    ),
    (
        Reason::NodeNotReady,
        "NodeNotReady",
        "the node is not Ready",
    ),
    (
        Reason::NoBootId,
        "NoBootId",
        "the kubelet does not tell the node's boot id",
    ),
    (
        Reason::ControlPlaneBusy,
        "ControlPlaneBusy",
        "another node of the control plane is unavailable",
    ),
    (
        Reason::BlockedByPods,
        "BlockedByPods",
        "pods on the node hold it",
    ),
    (
        Reason::BlockedByAlerts,
        "BlockedByAlerts",
        "alerts are firing, or cannot be asked for",
    ),
    (
        Reason::BlockedByPdb,
        "BlockedByPDB",
        "a disruption budget lets no pod go",
    ),
    (
        Reason::PolicyInvalid,
        "PolicyInvalid",
        "its RebootPolicy cannot be read",
    ),
    (
        Reason::InProgress,
        "InProgress",
        "the node is still at a reboot nobody knows of",
    ),
    (
        Reason::DryRun,
        "DryRun",
        "it would reboot now, and its RebootPolicy is a dry run",
    ),
];

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        REASONS
            .iter()
            .find(|(reason, ..)| *reason == self)
            .map_or("", |(_, text, _)| text)
    }

    pub(crate) fn words(self) -> &'static str {
        REASONS
            .iter()
            .find(|(reason, ..)| *reason == self)
            .map_or("", |(.., words)| words)
    }
}

/// That a node waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) reason: Reason,
    /// When the controller first saw the request. It outlives windows and controllers.
    pub(crate) since: Timestamp,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id={} expires={}", self.id, self.expires)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = if self.stage == Stage::Draining {
            "Draining"
        } else {
            "Rebooting"
        };
        write!(
            f,
            "id={} boot={} since={} stage={stage}",
            self.id, self.boot, self.since
        )
    }
}

impl fmt::Display for Ended {
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

/// A note that is not of its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

impl FromStr for Order {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let [id, expires] = fields(text, ["id", "expires"])?;
        Ok(Self {
            id: id_of(id)?,
            expires: time(expires)?,
        })
    }
}

impl FromStr for Progress {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let [id, boot, since, stage] = fields(text, ["id", "boot", "since", "stage"])?;
        let stage = match stage {
            "Draining" => Stage::Draining,
            "Rebooting" => Stage::Rebooting,
            _ => return Err(Unreadable),
        };
        Ok(Self {
            id: id_of(id)?,
            boot: boot_id(boot).ok_or(Unreadable)?,
            since: time(since)?,
            stage,
        })
    }
}

impl FromStr for Ended {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let [id, result, at, failures] = fields(text, ["id", "result", "at", "failures"])?;
        let (result, _) = FATES
            .iter()
            .find(|(_, name)| *name == result)
            .ok_or(Unreadable)?;
        Ok(Self {
            id: id_of(id)?,
            result: *result,
            at: time(at)?,
            failures: failures.parse().map_err(|_| Unreadable)?,
        })
    }
}

impl FromStr for Waiting {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let [reason, since] = fields(text, ["reason", "since"])?;
        let (reason, ..) = REASONS
            .iter()
            .find(|(_, name, _)| *name == reason)
            .ok_or(Unreadable)?;
        Ok(Self {
            reason: *reason,
            since: time(since)?,
        })
    }
}

/// The boot id that a Node or a kernel tells: hexadecimal digits and hyphens, as a uuid has; `None` for anything else.
pub(crate) fn boot_id(text: &str) -> Option<String> {
    let text = text.trim();
    is_word(text).then(|| text.to_owned())
}

/// A reason for people, without what would disturb a line, and not too long.
pub(crate) fn reason(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(REASON_MAX)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// The boot id in the status of a Node.
pub(crate) fn boot_id_of(node: &Node) -> Option<String> {
    boot_id(&node.status.as_ref()?.node_info.as_ref()?.boot_id)
}

/// Our notes on a Node.
pub(crate) fn of(node: &Node, prefix: &Prefix) -> impl Iterator<Item = (&'static str, String)> {
    let found = node.annotations();
    ALL.into_iter().filter_map(|name| {
        found
            .get(&prefix.key(name))
            .map(|text| (name, text.clone()))
    })
}

/// A time in whole seconds, as notes have it.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The values of exactly these fields, in this order.
fn fields<'a, const N: usize>(text: &'a str, names: [&str; N]) -> Result<[&'a str; N], Unreadable> {
    if text.len() > LENGTH_MAX {
        return Err(Unreadable);
    }
    let mut values = [""; N];
    let mut words = text.split(' ');
    for (value, name) in values.iter_mut().zip(names) {
        let word = words.next().ok_or(Unreadable)?;
        *value = word
            .strip_prefix(name)
            .and_then(|word| word.strip_prefix('='))
            .filter(|value| !value.is_empty())
            .ok_or(Unreadable)?;
    }
    if words.next().is_some() {
        Err(Unreadable)
    } else {
        Ok(values)
    }
}

fn is_word(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn id_of(text: &str) -> Result<GrantId, Unreadable> {
    GrantId::read(text).ok_or(Unreadable)
}

fn time(text: &str) -> Result<Timestamp, Unreadable> {
    text.parse().map_err(|_| Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn notes_are_read_as_they_are_written() {
        let id = GrantId::read("3f2a91c0-17").expect("an id");
        let order = Order {
            id: id.clone(),
            expires: at(99),
        };
        assert_eq!(
            order.to_string(),
            "id=3f2a91c0-17 expires=1970-01-01T00:01:39Z"
        );
        assert_eq!(order.to_string().parse(), Ok(order));
        for stage in [Stage::Draining, Stage::Rebooting] {
            let progress = Progress {
                id: id.clone(),
                boot: "b-1".into(),
                since: at(5),
                stage,
            };
            assert_eq!(progress.to_string().parse(), Ok(progress));
        }
        for (result, text) in FATES {
            let ended = Ended {
                id: id.clone(),
                result,
                at: at(7),
                failures: 3,
            };
            assert!(ended.to_string().contains(text));
            assert_eq!(ended.to_string().parse(), Ok(ended));
        }
        for (reason, ..) in REASONS {
            let waiting = Waiting {
                reason,
                since: at(7),
            };
            assert_eq!(waiting.to_string().parse(), Ok(waiting));
        }
    }

    #[test]
    fn prefix_is_that_of_annotations() {
        let other = Prefix::read("maintenance.example.com").expect("a prefix");
        assert_eq!(
            (
                other.key(NEEDED).as_str(),
                Prefix::default().key(NOW).as_str()
            ),
            ("maintenance.example.com/reboot-needed", NOW)
        );
        for wrong in [
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
            assert_eq!(Prefix::read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn hostile_notes_are_nothing() {
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
            assert_eq!(text.parse::<Order>(), Err(Unreadable), "{text:?}");
        }
        assert_eq!(
            "id=a boot=x y since=1970-01-01T00:00:05Z stage=Draining".parse::<Progress>(),
            Err(Unreadable)
        );
        assert_eq!(
            "id=a boot=b since=1970-01-01T00:00:05Z stage=Done".parse::<Progress>(),
            Err(Unreadable)
        );
        assert_eq!(
            "id=a result=Done at=1970-01-01T00:00:05Z failures=-1".parse::<Ended>(),
            Err(Unreadable)
        );
        assert_eq!(
            "reason=Because since=1970-01-01T00:00:05Z".parse::<Waiting>(),
            Err(Unreadable)
        );
        assert_eq!(boot_id("not a boot id"), None);
        assert_eq!(
            reason(&format!(" kernel\n{}", "x".repeat(9999))).len(),
            REASON_MAX - 1
        );
    }
}
