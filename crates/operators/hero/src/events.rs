//! Events: what users should know about a step.
//!
//! Guarantee: changes of members are derived from the status that was written, so each is reported
//! once, by the replica that wrote it.

use bellerophon::{
    conditions::{find_status_condition, is_status_condition_true},
    events::Event,
};

use crate::{
    crd::{BellerophonStatus, MemberPhase, MemberRole, MemberStatus},
    observed::Observed,
    plan::conditions::{ANOMALY, QUORUM_LOST, UPGRADE_REFUSED},
    step::Step,
};

/// The events of a mutation.
pub(crate) fn of_step(step: &Step, observed: &Observed) -> Vec<Event> {
    let event = match step {
        Step::TransferLeader { to, reason } => Event::normal(
            "HandedOver",
            "TransferLeader",
            format!("{reason}; the next leader is {to}"),
        ),
        Step::DeletePod { pod, reason } if is_upgrade(pod, observed) => {
            Event::normal("UpgradeStep", "DeletePod", format!("{pod}: {reason}"))
        }
        Step::DeletePod { pod, reason } => {
            Event::normal("PodDeleted", "DeletePod", format!("{pod}: {reason}"))
        }
        Step::RaiseFormatLevel { level } => {
            let note = format!("the format level is {level}; earlier versions are refused");
            Event::normal("FormatLevelRaised", "RaiseFormatLevel", note)
        }
        Step::Compact { member } => Event::normal(
            "Compacted",
            "Compact",
            format!("the log of {member} was too large"),
        ),
        Step::RetireClaim { member } => Event::normal(
            "ClaimRetired",
            "RetireClaim",
            format!("claim {member} is kept and not used again"),
        ),
        _ => return Vec::new(),
    };
    vec![event]
}

/// Whether the Pod of an active member is deleted because it is outdated.
fn is_upgrade(pod: &str, observed: &Observed) -> bool {
    let Some(status) = &observed.hero.status else {
        return false;
    };
    let desired = crate::objects::revision(&observed.hero, status);
    let is_active = status
        .member(pod)
        .is_some_and(|member| member.phase == MemberPhase::Active);
    is_active
        && observed
            .pods
            .get(pod)
            .is_some_and(|pod| pod.revision != desired)
}

/// The events of a change of the status.
pub(crate) fn of_status(old: &BellerophonStatus, new: &BellerophonStatus) -> Vec<Event> {
    let mut events = Vec::new();
    for member in &new.members {
        events.extend(of_member(old.member(&member.name), member));
    }
    for member in old
        .members
        .iter()
        .filter(|member| new.member(&member.name).is_none())
    {
        events.push(of_removal(member));
    }
    if new.bootstrapped && !old.bootstrapped {
        let note = "the first member is initialized".to_owned();
        events.push(Event::normal("Bootstrapped", "Initialize", note));
    }
    if new.version != old.version && old.version.is_some() {
        let note = format!(
            "all members have version {}",
            new.version.as_deref().unwrap_or("?")
        );
        events.push(Event::normal("Upgraded", "Upgrade", note));
    }
    if new.autopilot.readers != old.autopilot.readers {
        let note = format!("{} readers are desired", new.autopilot.readers);
        events.push(Event::normal("ReadersScaled", "Scale", note));
    }
    for type_ in [QUORUM_LOST, UPGRADE_REFUSED, ANOMALY] {
        let is_new = !is_status_condition_true(&old.conditions, type_);
        if is_new
            && let Some(condition) = find_status_condition(&new.conditions, type_)
            && condition.status == "True"
        {
            let note = format!("{}: {}", condition.reason, condition.message);
            events.push(Event::warning(type_, "Observe", note));
        }
    }
    events
}

fn of_member(old: Option<&MemberStatus>, new: &MemberStatus) -> Option<Event> {
    let old_phase = old.map(|member| member.phase);
    if new.phase == MemberPhase::Active && old_phase != Some(MemberPhase::Active) {
        let role = match new.role {
            MemberRole::Voter => "a voter",
            MemberRole::Reader => "a reader",
        };
        let note = format!("{} (member {}) is {role}", new.name, new.id);
        return Some(Event::normal("ScaledUp", "Join", note));
    }
    let is_restarted =
        old.is_some_and(|old| old.restarted_at.is_none()) && new.restarted_at.is_some();
    is_restarted.then(|| {
        let note = format!("{} has been unhealthy for too long", new.name);
        Event::warning("MemberRestarted", "Restart", note)
    })
}

fn of_removal(member: &MemberStatus) -> Event {
    let reason = member.removal_reason.as_deref().unwrap_or("unknown");
    let note = format!(
        "{} (member {}) was removed: {reason}",
        member.name, member.id
    );
    if reason == crate::plan::SCALE_DOWN_REASON {
        Event::normal("ScaledDown", "Remove", note)
    } else {
        Event::warning("MemberReplaced", "Remove", note)
    }
}
