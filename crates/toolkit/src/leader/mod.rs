//! Leader election: of several processes, one works.
//!
//! In: a Lease that all of them see. Out: the work runs while this process leads, and is cancelled when that is in doubt.
//! Holds: work ends at the renew deadline, counted from the start of the last renewal that succeeded, which is before
//! anybody else may take the lease; only time observed here counts, never the times others wrote.

mod record; // who holds the lease, and what may be done about it

use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ObjectMeta, PostParams};
use thiserror::Error;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{Entropy, Metrics, WallClock};
use record::{Observed, Step};

/// How much of the retry period is added at random while trying to become the leader, as client-go has it.
const JITTER_FACTOR: f64 = 1.2;

/// Which lease, who asks, and how fast.
#[derive(Clone, Debug)]
pub struct LeaderOptions {
    /// The namespace of the lease.
    pub namespace: String,
    /// The name of the lease.
    pub name: String,
    /// Who asks; different for every process, such as host name and a random part.
    pub identity: String,
    /// How long others leave a lease alone that is not renewed.
    pub lease_duration: Duration,
    /// How long the leader goes on without a renewal.
    pub renew_deadline: Duration,
    /// How often both sides try.
    pub retry_period: Duration,
}

impl LeaderOptions {
    /// client-go's times: 15 s, 10 s, 2 s.
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
        identity: impl Into<String>,
    ) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    fn check(&self) -> Result<(), LeaderError> {
        if self.lease_duration.as_secs() == 0 || self.lease_duration <= self.renew_deadline {
            return Err(LeaderError::Options(
                "lease_duration must be a second or more, and longer than renew_deadline",
            ));
        }
        if self.renew_deadline.as_secs_f64() <= JITTER_FACTOR * self.retry_period.as_secs_f64()
            || self.retry_period.is_zero()
        {
            return Err(LeaderError::Options(
                "renew_deadline must be longer than 1.2 times retry_period, which must not be zero",
            ));
        }
        if self.identity.is_empty() {
            return Err(LeaderError::Options("identity must not be empty"));
        }
        Ok(())
    }

    /// No request may eat up the time for the next one.
    fn request_time_max(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }
}

/// Why an election ended without the work having ended by itself.
#[derive(Debug, Error)]
pub enum LeaderError {
    /// The times contradict each other.
    #[error("leader election cannot start: {0}")]
    Options(&'static str),
    /// The lease could not be renewed in time. The work was cancelled; the process should exit and start afresh.
    #[error("leadership of lease {0} is lost: not renewed in time; the work was stopped")]
    Lost(String),
}

/// One time of leading. A later term has a higher number, so a store can refuse writes of an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// `leaseTransitions` of the lease while this process holds it.
    pub number: i32,
    /// Who leads.
    pub holder: String,
}

impl Term {
    /// Whether the lease still says so: the fencing check. True only tells of the moment of reading.
    ///
    /// # Errors
    /// The lease cannot be read.
    pub async fn is_current(&self, leases: &Api<Lease>, name: &str) -> Result<bool, kube::Error> {
        let spec = leases.get(name).await?.spec.unwrap_or_default();
        Ok(spec.holder_identity.as_deref() == Some(&self.holder)
            && spec.lease_transitions.unwrap_or(0) == self.number)
    }
}

/// Takes part in the election for one lease.
#[derive(Debug)]
pub struct LeaderElector {
    leases: Api<Lease>,
    options: LeaderOptions,
    clock: WallClock,
    entropy: Entropy,
    metrics: Metrics,
    observed: Option<Observed>,
}

impl LeaderElector {
    /// A candidate that has not asked yet.
    ///
    /// # Errors
    /// The times contradict each other.
    pub fn new(
        client: kube::Client,
        options: LeaderOptions,
        clock: WallClock,
        entropy: Entropy,
        metrics: Metrics,
    ) -> Result<Self, LeaderError> {
        options.check()?;
        metrics.set_leader(&options.name, false);
        Ok(Self {
            leases: Api::namespaced(client, &options.namespace),
            options,
            clock,
            entropy,
            metrics,
            observed: None,
        })
    }

    /// Waits until this process leads, then runs the work and renews the lease beside it until the work ends.
    ///
    /// `stop` ends the waiting; once leading, it is for the work to end by it, and the lease is kept until it has, then
    /// given back, so that the next leader need not wait. If leadership is in doubt, the work's future is dropped at
    /// once. `None` means stopped before ever leading.
    ///
    /// # Errors
    /// Leadership was lost.
    pub async fn run<T, F: Future<Output = T>>(
        mut self,
        stop: CancellationToken,
        work: impl FnOnce(Term) -> F,
    ) -> Result<Option<T>, LeaderError> {
        let Some(renewed) = stop.run_until_cancelled(self.acquire()).await else {
            return Ok(None);
        };
        let term = Term {
            number: self.observed.as_ref().map_or(0, Observed::transitions),
            holder: self.options.identity.clone(),
        };
        tracing::info!(lease = %self.options.name, identity = %self.options.identity, term = term.number, "became the leader");
        self.metrics.set_leader(&self.options.name, true);
        let ended = tokio::select! {
            biased;
            () = self.renew(renewed) => None,
            ended = work(term) => Some(ended),
        };
        self.metrics.set_leader(&self.options.name, false);
        match ended {
            Some(ended) => {
                self.release().await;
                Ok(Some(ended))
            }
            None => Err(LeaderError::Lost(self.options.name)),
        }
    }

    /// Tries until it leads. Returns when the successful try began.
    async fn acquire(&mut self) -> Instant {
        loop {
            let began = Instant::now();
            match timeout_at(began + self.options.request_time_max(), self.try_once()).await {
                Ok(Ok(true)) => return began,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(lease = %self.options.name, %error, "cannot acquire the lease, trying again")
                }
                Err(_) => {
                    tracing::warn!(lease = %self.options.name, "no answer about the lease in time, trying again")
                }
            }
            sleep(
                self.options
                    .retry_period
                    .mul_f64(1.0 + JITTER_FACTOR * self.entropy.fraction()),
            )
            .await;
        }
    }

    /// Renews until it cannot any more.
    async fn renew(&mut self, mut renewed: Instant) {
        loop {
            let mut next = renewed + self.options.retry_period;
            let deadline = renewed + self.options.renew_deadline;
            loop {
                sleep_until(next.min(deadline)).await;
                let began = Instant::now();
                if began >= deadline {
                    return;
                }
                let limit = deadline.min(began + self.options.request_time_max());
                match timeout_at(limit, self.try_once()).await {
                    Ok(Ok(true)) => {
                        renewed = began;
                        break;
                    }
                    Ok(Ok(false)) => {
                        tracing::error!(lease = %self.options.name, "another process holds the lease");
                        return;
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(lease = %self.options.name, %error, "cannot renew the lease, trying again")
                    }
                    Err(_) => {
                        tracing::warn!(lease = %self.options.name, "no answer about the lease in time, trying again")
                    }
                }
                next = began + self.options.retry_period;
            }
        }
    }

    /// One try to take or renew the lease. `false` if somebody else holds it.
    async fn try_once(&mut self) -> Result<bool, kube::Error> {
        if let Some(observed) = self
            .observed
            .as_ref()
            .filter(|observed| observed.is_held_by(&self.options.identity))
        {
            // Nobody writes a lease that another holds, so the version seen last is the current one nearly always.
            let lease = observed.with(observed.renewed(&self.options, self.clock.now()));
            if self.write(lease).await.is_ok() {
                return Ok(true);
            }
            self.metrics.count_slowpath(&self.options.name);
        }
        let found = self.leases.get_opt(&self.options.name).await?;
        let exists = found.is_some();
        if let Some(lease) = found {
            self.observed = Some(Observed::after(self.observed.take(), lease, Instant::now()));
        }
        // Whoever holds a lease that was deleted does not know yet, so what was observed of it still counts; and the
        // numbers of terms go on from there.
        let step = match &self.observed {
            Some(observed) => observed.step(&self.options, Instant::now(), self.clock.now()),
            None => Step::Take(Box::new(record::first(&self.options, self.clock.now()))),
        };
        let Step::Take(spec) = step else {
            return Ok(false);
        };
        let lease = match &self.observed {
            Some(observed) if exists => observed.with(*spec),
            _ => Lease {
                metadata: self.metadata(),
                spec: Some(*spec),
            },
        };
        self.write(lease).await.map(|()| true)
    }

    /// That of a lease which does not exist yet.
    fn metadata(&self) -> ObjectMeta {
        let (name, namespace) = (
            Some(self.options.name.clone()),
            Some(self.options.namespace.clone()),
        );
        ObjectMeta {
            name,
            namespace,
            ..ObjectMeta::default()
        }
    }

    /// Writes over the lease that was read, or makes a new one. Fails if somebody else came first.
    async fn write(&mut self, lease: Lease) -> Result<(), kube::Error> {
        let options = PostParams::default();
        let stored = match lease.metadata.resource_version {
            Some(_) => {
                self.leases
                    .replace(&self.options.name, &options, &lease)
                    .await?
            }
            None => self.leases.create(&options, &lease).await?,
        };
        self.observed = Some(Observed::new(stored, Instant::now()));
        Ok(())
    }

    /// Gives the lease back, if it is still ours.
    async fn release(&mut self) {
        let limit = Instant::now() + self.options.request_time_max();
        match timeout_at(limit, self.try_release()).await {
            Ok(Ok(())) => tracing::info!(lease = %self.options.name, "gave the lease back"),
            Ok(Err(error)) => {
                tracing::warn!(lease = %self.options.name, %error, "cannot give the lease back, it runs out by itself")
            }
            Err(_) => {
                tracing::warn!(lease = %self.options.name, "cannot give the lease back in time, it runs out by itself")
            }
        }
    }

    async fn try_release(&mut self) -> Result<(), kube::Error> {
        while let Some(observed) = self
            .observed
            .as_ref()
            .filter(|observed| observed.is_held_by(&self.options.identity))
        {
            let lease = observed.with(observed.released(self.clock.now()));
            match self.write(lease).await {
                // The server took a renewal that ended with the work, before its answer came.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let lease = self.leases.get(&self.options.name).await?;
                    self.observed = Some(Observed::new(lease, Instant::now()));
                }
                written => return written,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
