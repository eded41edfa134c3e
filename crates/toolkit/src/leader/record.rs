//! The observed lease: its holder, when it last changed, and the next record to write.
//!
//! In: the lease as read, and local time. Out: wait, or the record to write.
//! Guarantees: the record of another holder is left unchanged for its whole duration after this
//! process observed its last change; a record that this process did not write is that of another
//! holder, also if it has the same identity.
//!
//! Pure: times are passed in.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

/// The identity and durations that a candidate writes into a lease.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) identity: String,
    pub(super) lease_duration: Duration,
    /// The last acquisition of this process, or attempt; `None` before the first attempt.
    pub(super) acquired: Option<Acquisition>,
}

/// One acquisition of a lease. Renewals do not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acquisition {
    transitions: i32,
    acquire_time: Option<Timestamp>,
}

impl Acquisition {
    /// The acquisition that a lease records.
    pub(super) fn of(lease: &Lease) -> Self {
        let spec = lease.spec.as_ref();
        let acquire_time = spec.and_then(|spec| spec.acquire_time.as_ref());
        Self {
            transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or(0),
            acquire_time: acquire_time.map(|time| truncate_to_microseconds(time.0)),
        }
    }
}

/// A time as the API server stores a `MicroTime`.
fn truncate_to_microseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

/// The lease, and when this process observed its last change.
// client-go's observedRecord and observedTime.
#[derive(Debug)]
pub(super) struct ObservedLease {
    lease: Lease,
    changed_at: Instant,
}

/// The next step of a candidate.
#[derive(Debug)]
pub(super) enum Step {
    /// The lease of another holder has not expired.
    Wait,
    /// Write this record.
    Take(Box<LeaseSpec>),
}

/// The record of a new lease.
pub(super) fn first(candidate: &Candidate, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(candidate.identity.clone()),
        lease_duration_seconds: Some(seconds(candidate.lease_duration)),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(0),
        ..LeaseSpec::default()
    }
}

impl ObservedLease {
    pub(super) fn new(lease: Lease, changed_at: Instant) -> Self {
        Self { lease, changed_at }
    }

    /// A lease read again; the time of the last change stays if the record is equal.
    pub(super) fn after(before: Option<Self>, lease: Lease, now: Instant) -> Self {
        let changed_at = match before {
            Some(before) if before.lease.spec == lease.spec => before.changed_at,
            _ => now,
        };
        Self { lease, changed_at }
    }

    pub(super) fn transitions(&self) -> i32 {
        self.spec().lease_transitions.unwrap_or(0)
    }

    /// Whether a candidate acquired the lease and no other did since.
    pub(super) fn is_held_by(&self, candidate: &Candidate) -> bool {
        self.holder() == candidate.identity
            && candidate.acquired == Some(Acquisition::of(&self.lease))
    }

    pub(super) fn step(&self, candidate: &Candidate, now: Instant, wall: Timestamp) -> Step {
        if self.is_held_by(candidate) {
            return Step::Take(Box::new(self.renewed(candidate, wall)));
        }
        let duration = self
            .spec()
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(0);
        // The duration in the record is that of its holder, whose options may differ from ours.
        if !self.holder().is_empty() && now < self.changed_at + Duration::from_secs(duration) {
            return Step::Wait;
        }
        Step::Take(Box::new(LeaseSpec {
            lease_transitions: Some(self.transitions() + 1),
            ..first(candidate, wall)
        }))
    }

    /// The record with a later renew time.
    pub(super) fn renewed(&self, candidate: &Candidate, wall: Timestamp) -> LeaseSpec {
        let lease_duration_seconds = Some(seconds(candidate.lease_duration));
        LeaseSpec {
            renew_time: Some(MicroTime(wall)),
            lease_duration_seconds,
            ..self.spec()
        }
    }

    /// A record without a holder, which any candidate may take immediately.
    pub(super) fn released(&self, wall: Timestamp) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(String::new()),
            // As client-go: validation requires a positive duration.
            lease_duration_seconds: Some(1),
            acquire_time: Some(MicroTime(wall)),
            renew_time: Some(MicroTime(wall)),
            // Kept, so that the number of the next term is higher.
            lease_transitions: self.spec().lease_transitions,
            ..LeaseSpec::default()
        }
    }

    /// The lease with another record; its resource version makes the update conditional.
    pub(super) fn with(&self, spec: LeaseSpec) -> Lease {
        Lease {
            spec: Some(spec),
            ..self.lease.clone()
        }
    }

    fn holder(&self) -> &str {
        self.lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_deref())
            .unwrap_or_default()
    }

    fn spec(&self) -> LeaseSpec {
        self.lease.spec.clone().unwrap_or_default()
    }
}

fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate() -> Candidate {
        Candidate {
            identity: "me".into(),
            lease_duration: Duration::from_secs(15),
            acquired: Some(Acquisition {
                transitions: 3,
                acquire_time: None,
            }),
        }
    }

    /// Another process with the same identity.
    fn namesake() -> Candidate {
        Candidate {
            acquired: None,
            ..candidate()
        }
    }

    fn lease(holder: &str, duration: i32, renewed: i64) -> Lease {
        let spec = Some(LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(duration),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        });
        Lease {
            spec,
            ..Lease::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn record_of_another_holder_is_kept_for_its_duration_as_observed_locally() {
        let me = candidate();
        let start = Instant::now();
        // The times in the record are decades in the past: they do not count.
        for (holder, read_again_at, renewed_again, decides_at, takes) in [
            ("other", 0, 100, 14, false),
            ("other", 0, 100, 15, true),
            ("other", 10, 100, 16, true),
            ("other", 10, 101, 16, false),
            ("other", 10, 101, 25, true),
            ("", 0, 100, 0, true),
            ("me", 0, 100, 0, true),
        ] {
            let first = ObservedLease::new(lease(holder, 15, 100), start);
            let read = ObservedLease::after(
                Some(first),
                lease(holder, 15, renewed_again),
                start + Duration::from_secs(read_again_at),
            );
            let step = read.step(
                &me,
                start + Duration::from_secs(decides_at),
                Timestamp::UNIX_EPOCH,
            );
            assert_eq!(
                matches!(step, Step::Take(_)),
                takes,
                "{holder:?} read again at {read_again_at} decides at {decides_at}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn takeover_counts_a_transition_and_renewal_does_not() {
        let me = candidate();
        for (holder, transitions) in [("", 4), ("me", 3)] {
            let observed = ObservedLease::new(lease(holder, 15, 100), Instant::now());
            let Step::Take(spec) = observed.step(&me, Instant::now(), Timestamp::UNIX_EPOCH) else {
                panic!("{holder:?} holds nothing")
            };
            assert_eq!(spec.lease_transitions, Some(transitions), "from {holder:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn record_of_another_process_with_the_same_identity_is_taken_over_when_it_expires() {
        let start = Instant::now();
        let observed = ObservedLease::new(lease("me", 15, 100), start);
        let step_after = |seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            observed.step(&namesake(), now, Timestamp::UNIX_EPOCH)
        };
        assert!(matches!(step_after(14), Step::Wait));
        let Step::Take(spec) = step_after(15) else {
            panic!("the lease has expired")
        };
        assert_eq!(spec.lease_transitions, Some(4));
    }
}
