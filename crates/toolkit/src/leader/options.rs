//! Options of leader election: which lease, which candidate, which timing.

use std::time::Duration;

use super::LeaderError;
use crate::clock::Rng;

/// client-go's `JitterFactor`: the share of the retry period that a candidate adds at random.
pub(super) const JITTER_FACTOR: f64 = 1.2;

/// The namespace of the pod's service account, mounted into every pod that has one.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Options of leader election.
///
/// Every replica of an operator uses the same lease and its own identity.
///
/// ```
/// use std::time::Duration;
///
/// use bellerophon::leader::LeaderElectionOptions;
///
/// let options = LeaderElectionOptions {
///     lease_namespace: "operators".into(),
///     ..LeaderElectionOptions::new("hero-operator")
/// };
/// assert_eq!(options.lease_name, "hero-operator");
/// assert_eq!(options.lease_duration, Duration::from_secs(15));
/// ```
#[derive(Clone, Debug)]
pub struct LeaderElectionOptions {
    /// The name of the lease.
    pub lease_name: String,
    /// The namespace of the lease. Default: the pod's namespace; outside a cluster, `default`.
    pub lease_namespace: String,
    /// The candidate, as written to the lease. Default: the identity in the options of the Manager,
    /// else the host name, and a random suffix.
    ///
    /// It should be unique to this process, which the name of a pod is not: a pod of a StatefulSet
    /// that is force deleted may still run when its successor starts. Two processes with one
    /// identity still never lead in one term: a process does not renew a lease that it did not
    /// acquire, it waits until the lease expires. After a restart that includes its own.
    pub identity: Option<String>,
    /// How long other candidates wait before they take over a lease that is not renewed.
    /// Default: 15 s.
    pub lease_duration: Duration,
    /// How long the leader works without a successful renewal. Default: 10 s.
    pub renew_deadline: Duration,
    /// How long leader and candidates wait between two tries. Default: 2 s.
    pub retry_period: Duration,
}

impl LeaderElectionOptions {
    /// Options for the lease named `id`, with client-go's timing: 15 s, 10 s, 2 s.
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            lease_name: id.into(),
            lease_namespace: in_cluster_namespace().unwrap_or_else(|| "default".into()),
            identity: None,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    // Mirrors the checks of leaderelection.NewLeaderElector.
    pub(super) fn validate(&self) -> Result<(), LeaderError> {
        if self.lease_duration.as_secs() == 0 || self.lease_duration <= self.renew_deadline {
            return Err(LeaderError::Options(
                "lease_duration must be a second or more, and longer than renew_deadline",
            ));
        }
        let retry_max = JITTER_FACTOR * self.retry_period.as_secs_f64();
        if self.renew_deadline.as_secs_f64() <= retry_max || self.retry_period.is_zero() {
            return Err(LeaderError::Options(
                "renew_deadline must be longer than 1.2 times retry_period, which must not be zero",
            ));
        }
        if self.identity.as_ref().is_some_and(String::is_empty) {
            return Err(LeaderError::Options("identity must not be empty"));
        }
        Ok(())
    }

    /// The limit of one request, so that a renewal can be tried at least twice.
    pub(super) fn request_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }
}

fn in_cluster_namespace() -> Option<String> {
    let namespace = std::fs::read_to_string(NAMESPACE_FILE).ok()?;
    let namespace = namespace.trim();
    (!namespace.is_empty()).then(|| namespace.to_owned())
}

/// The name of the process and a random suffix, as controller-runtime names a candidate. Default of
/// the name: the host name.
pub(crate) fn unique_identity(name: Option<&str>, rng: &Rng) -> String {
    let name = name.map_or_else(host_name, str::to_owned);
    format!("{name}_{:016x}", rng.below(u64::MAX))
}

fn host_name() -> String {
    let host = std::env::var("HOSTNAME")
        .or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"))
        .unwrap_or_default();
    match host.trim() {
        "" => "unknown".to_owned(),
        host => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradicting_options_are_rejected() {
        let is_valid = |change: fn(&mut LeaderElectionOptions)| {
            let mut options = LeaderElectionOptions::new("lock");
            change(&mut options);
            options.validate().is_ok()
        };
        assert!(is_valid(|_| {}));
        assert!(!is_valid(
            |options| options.lease_duration = Duration::from_secs(10)
        ));
        assert!(!is_valid(
            |options| options.renew_deadline = Duration::from_secs(2)
        ));
        assert!(!is_valid(|options| options.retry_period = Duration::ZERO));
        assert!(!is_valid(|options| options.identity = Some(String::new())));
    }

    #[test]
    fn identities_of_one_name_differ() {
        let rng = Rng::seeded(1);
        for name in [None, Some("op-0")] {
            let first = unique_identity(name, &rng);
            assert_ne!(first, unique_identity(name, &rng));
            assert!(first.starts_with(name.unwrap_or_default()), "{first}");
        }
    }
}
