//! The record in a Lease: who holds it, since when this process knows, and what may be done about it.
//!
//! In: the lease as read, and local time. Out: wait, or the record to write.
//! Holds: a foreign record is left alone for its whole duration after this process saw it change last.
//!
//! Pure: times are passed in.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::LeaderOptions;

/// The lease, and when this process saw it change last.
#[derive(Debug)]
pub(super) struct Observed {
    lease: Lease,
    at: Instant,
}

/// What a candidate may do.
#[derive(Debug)]
pub(super) enum Step {
    /// Somebody else leads, or did until a moment ago.
    Wait,
    /// Write this.
    Take(Box<LeaseSpec>),
}

/// The record of a new lease.
pub(super) fn first(options: &LeaderOptions, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(options.identity.clone()),
        lease_duration_seconds: Some(seconds(options.lease_duration)),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(0),
        ..LeaseSpec::default()
    }
}

impl Observed {
    pub(super) fn new(lease: Lease, at: Instant) -> Self {
        Self { lease, at }
    }

    /// A lease read again: if nothing changed, it is as old as before.
    pub(super) fn after(before: Option<Self>, lease: Lease, now: Instant) -> Self {
        match before {
            Some(before) if before.lease.spec == lease.spec => Self {
                lease,
                at: before.at,
            },
            _ => Self { lease, at: now },
        }
    }

    pub(super) fn transitions(&self) -> i32 {
        self.spec().lease_transitions.unwrap_or(0)
    }

    pub(super) fn is_held_by(&self, identity: &str) -> bool {
        self.holder() == identity
    }

    pub(super) fn step(&self, options: &LeaderOptions, now: Instant, wall: Timestamp) -> Step {
        if self.is_held_by(&options.identity) {
            return Step::Take(Box::new(self.renewed(options, wall)));
        }
        let duration = self
            .spec()
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(0);
        if !self.holder().is_empty() && now < self.at + Duration::from_secs(duration) {
            return Step::Wait;
        }
        Step::Take(Box::new(LeaseSpec {
            lease_transitions: Some(self.transitions() + 1),
            ..first(options, wall)
        }))
    }

    /// The same holder, a little later.
    pub(super) fn renewed(&self, options: &LeaderOptions, wall: Timestamp) -> LeaseSpec {
        let lease_duration_seconds = Some(seconds(options.lease_duration));
        LeaseSpec {
            renew_time: Some(MicroTime(wall)),
            lease_duration_seconds,
            ..self.spec()
        }
    }

    /// Nobody, and free at once.
    pub(super) fn released(&self, wall: Timestamp) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(MicroTime(wall)),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: self.spec().lease_transitions,
            ..LeaseSpec::default()
        }
    }

    /// The lease with another record, to be written over this one and no other.
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
    async fn foreign_record_is_left_alone_for_its_duration_as_observed_here() {
        let options = LeaderOptions::new("kube-system", "lock", "me");
        let start = Instant::now();
        // The times in the record are years old, or years ahead: they do not count.
        for (holder, read_again_at, renewed_again, asked_at, takes) in [
            ("other", 0, 100, 14, false),
            ("other", 0, 100, 15, true),
            ("other", 10, 100, 16, true),
            ("other", 10, 101, 16, false),
            ("other", 10, 101, 25, true),
            ("", 0, 100, 0, true),
            ("me", 0, 100, 0, true),
        ] {
            let first = Observed::new(lease(holder, 15, 100), start);
            let read = Observed::after(
                Some(first),
                lease(holder, 15, renewed_again),
                start + Duration::from_secs(read_again_at),
            );
            let step = read.step(
                &options,
                start + Duration::from_secs(asked_at),
                Timestamp::UNIX_EPOCH,
            );
            assert_eq!(
                matches!(step, Step::Take(_)),
                takes,
                "{holder:?} read again at {read_again_at} asked at {asked_at}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn takeover_counts_a_transition_and_renewal_does_not() {
        let options = LeaderOptions::new("kube-system", "lock", "me");
        for (holder, transitions) in [("", 4), ("me", 3)] {
            let observed = Observed::new(lease(holder, 15, 100), Instant::now());
            let Step::Take(spec) = observed.step(&options, Instant::now(), Timestamp::UNIX_EPOCH)
            else {
                panic!("{holder:?} leads nothing")
            };
            assert_eq!(spec.lease_transitions, Some(transitions), "from {holder:?}");
        }
    }
}
