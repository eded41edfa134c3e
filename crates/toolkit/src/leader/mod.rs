//! Leader election: of several replicas, one works.
//!
//! In: a Lease that every replica can read and write. Out: the work runs while this process holds
//! the lease, and is cancelled when that is no longer certain.
//! Guarantees: work ends at the renew deadline, counted from the start of the last successful
//! renewal, which is before another candidate may take the lease; only time observed locally
//! counts, never timestamps in the lease; a process holds only a lease that it acquired itself,
//! whatever identity the lease names.
//!
//! Follows client-go's `leaderelection` package.

mod options; // lease, identity, timing
mod record; // the observed lease and the next record to write
mod term; // the term of a leader, and who is informed of it

use std::future::Future;
use std::sync::Arc;

use bellerophon_kinds::decode;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, GetParams, ObjectMeta, PostParams};
use thiserror::Error;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Rng};
use crate::metrics::Metrics;
use options::JITTER_FACTOR;
pub use options::LeaderElectionOptions;
pub(crate) use options::unique_identity;
use record::{Acquisition, Candidate, ObservedLease, Step};
pub(crate) use term::LeadershipSender;
pub use term::{Leadership, Term};

/// Why an election ended although the work had not ended.
///
/// ```
/// use bellerophon::leader::LeaderError;
///
/// let error = LeaderError::Lost("hero-operator".into());
/// assert!(error.to_string().starts_with("leadership of lease hero-operator is lost"));
/// ```
#[derive(Debug, Error)]
pub enum LeaderError {
    /// The options contradict each other.
    #[error("leader election cannot start: {0}")]
    Options(&'static str),
    /// The lease was not renewed in time. The work was cancelled; the process should exit and be
    /// restarted.
    #[error("leadership of lease {0} is lost: not renewed in time; the work was stopped")]
    Lost(String),
}

/// A candidate for one lease.
///
/// A [`Manager`](crate::manager::Manager) with
/// [`LeaderElectionOptions`] runs one; use it directly to elect a leader without a Manager.
///
/// ```no_run
/// use bellerophon::leader::{LeaderElectionOptions, LeaderElector};
/// use bellerophon::clock::{Clock, Rng};
/// use bellerophon::metrics::Metrics;
/// use tokio_util::sync::CancellationToken;
///
/// # async fn example(client: kube::Client) -> Result<(), bellerophon::leader::LeaderError> {
/// let options = LeaderElectionOptions::new("hero-operator");
/// let elector = LeaderElector::new(
///     client,
///     options,
///     Clock::system(),
///     Rng::from_os(),
///     Metrics::new(),
/// )?;
/// let stop = CancellationToken::new();
/// elector
///     .run(stop, async |term| println!("{} leads term {}", term.holder, term.number))
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LeaderElector {
    leases: Api<Lease>,
    options: LeaderElectionOptions,
    candidate: Candidate,
    clock: Clock,
    rng: Rng,
    metrics: Metrics,
    sender: LeadershipSender,
    leadership: Leadership,
    /// The lease as last read or written; `None` before the first request.
    observed: Option<ObservedLease>,
}

impl LeaderElector {
    /// A candidate. No request is sent before [`run`](Self::run).
    ///
    /// # Errors
    /// The options contradict each other.
    pub fn new(
        client: kube::Client,
        options: LeaderElectionOptions,
        clock: Clock,
        rng: Rng,
        metrics: Metrics,
    ) -> Result<Self, LeaderError> {
        options.validate()?;
        metrics.set_leader(&options.lease_name, false);
        let identity = options.identity.clone();
        let candidate = Candidate {
            identity: identity.unwrap_or_else(|| unique_identity(None, &rng)),
            lease_duration: options.lease_duration,
            acquired: None,
        };
        let (sender, leadership) = Leadership::channel();
        Ok(Self {
            leases: Api::namespaced(client, &options.lease_namespace),
            options,
            candidate,
            clock,
            rng,
            metrics,
            sender,
            leadership,
            observed: None,
        })
    }

    /// Reports to handles that were made before this candidate.
    #[must_use]
    pub(crate) fn with_sender(mut self, sender: LeadershipSender, leadership: Leadership) -> Self {
        self.sender = sender;
        self.leadership = leadership;
        self
    }

    /// A handle that reports whether this candidate leads.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Waits until this process leads, then runs the work and renews the lease until the work ends.
    ///
    /// `stop` ends the wait. While leading, the work ends by it; the lease is renewed until then
    /// and released afterwards, so that the next leader need not wait for its expiry. If a renewal
    /// fails until the renew deadline, the work's future is dropped immediately. Returns `None` if
    /// stopped before the election.
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
        let term = self.term();
        let lease = self.options.lease_name.clone();
        tracing::info!(%lease, identity = %term.holder, term = term.number, "acquired the lease");
        self.metrics.set_leader(&lease, true);
        self.sender.lead(Some(term.clone()));
        // Renewal is polled first: when both are ready, losing the lease wins over the end of the
        // work.
        let ended = tokio::select! {
            biased;
            () = self.renew(renewed) => None,
            ended = work(term) => Some(ended),
        };
        self.metrics.set_leader(&lease, false);
        self.sender.end();
        match ended {
            Some(ended) => {
                self.release().await;
                Ok(Some(ended))
            }
            None => Err(LeaderError::Lost(lease)),
        }
    }

    fn term(&self) -> Term {
        Term::new(
            self.observed.as_ref().map_or(0, ObservedLease::transitions),
            self.candidate.identity.clone(),
            self.leases.clone(),
            self.options.lease_name.clone(),
        )
    }

    /// Tries until it holds the lease. Returns when the successful try began.
    async fn acquire(&mut self) -> Instant {
        // Mirrors acquire.
        loop {
            let began = Instant::now();
            let limit = began + self.options.request_timeout();
            match timeout_at(limit, self.try_acquire_or_renew()).await {
                Ok(Ok(true)) => return began,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    let lease = &self.options.lease_name;
                    tracing::warn!(%lease, %error, "failed to acquire the lease, retrying");
                }
                Err(_) => {
                    let lease = &self.options.lease_name;
                    tracing::warn!(%lease, "timed out acquiring the lease, retrying");
                }
            }
            let jitter = JITTER_FACTOR * self.rng.fraction();
            sleep(self.options.retry_period.mul_f64(1.0 + jitter)).await;
        }
    }

    /// Renews until the renew deadline passes or another candidate holds the lease.
    async fn renew(&mut self, mut renewed: Instant) {
        // Mirrors renew.
        loop {
            let mut next = renewed + self.options.retry_period;
            let deadline = renewed + self.options.renew_deadline;
            loop {
                sleep_until(next.min(deadline)).await;
                let began = Instant::now();
                if began >= deadline {
                    return;
                }
                // A request that is answered after the deadline must not extend the term.
                let limit = deadline.min(began + self.options.request_timeout());
                match timeout_at(limit, self.try_acquire_or_renew()).await {
                    Ok(Ok(true)) => {
                        // Counted from before the request: the server may have stored it at any
                        // time after that.
                        renewed = began;
                        break;
                    }
                    Ok(Ok(false)) => {
                        let lease = &self.options.lease_name;
                        tracing::error!(%lease, "the lease is held by another candidate");
                        return;
                    }
                    Ok(Err(error)) => {
                        let lease = &self.options.lease_name;
                        tracing::warn!(%lease, %error, "failed to renew the lease, retrying");
                    }
                    Err(_) => {
                        let lease = &self.options.lease_name;
                        tracing::warn!(%lease, "timed out renewing the lease, retrying");
                    }
                }
                next = began + self.options.retry_period;
            }
        }
    }

    /// One try to take or renew the lease; `false` if another candidate holds it.
    async fn try_acquire_or_renew(&mut self) -> Result<bool, kube::Error> {
        // Mirrors tryAcquireOrRenew: the holder writes over the version it observed last (fast
        // path) and reads the lease only if that fails.
        if let Some(observed) = self.held() {
            let lease = observed.with(observed.renewed(&self.candidate, self.clock.now()));
            if self.write(lease).await.is_ok() {
                return Ok(true);
            }
            self.metrics.count_slowpath(&self.options.lease_name);
        }
        let found = self.read().await?;
        let exists = found.is_some();
        if let Some(lease) = found {
            // The time of observation stays if the record did not change; the clock of the holder
            // is not used.
            let before = self.observed.take();
            self.observed = Some(ObservedLease::after(before, lease, Instant::now()));
        }
        // The holder of a deleted lease may still work, so the last observation still counts, and
        // the terms continue from its number.
        let step = match &self.observed {
            Some(observed) => observed.step(&self.candidate, Instant::now(), self.clock.now()),
            None => Step::Take(Box::new(record::first(&self.candidate, self.clock.now()))),
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

    /// Reads the lease. It is decoded as caches decode objects: a lease whose times are out of range
    /// can still be taken.
    async fn read(&self) -> Result<Option<Lease>, kube::Error> {
        let path = kube::core::Request::new(self.leases.resource_url());
        let request = path.get(&self.options.lease_name, &GetParams::default());
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert("get");
        let client = self.leases.clone().into_client();
        match client.request_text(request).await {
            Ok(text) => {
                let lease = decode::<Lease>(text.as_bytes()).map_err(kube::Error::SerdeError)?;
                Ok(Some(Arc::unwrap_or_clone(lease)))
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The lease as last observed, if this candidate holds it.
    fn held(&self) -> Option<&ObservedLease> {
        self.observed
            .as_ref()
            .filter(|observed| observed.is_held_by(&self.candidate))
    }

    /// The metadata of a lease that does not exist yet.
    fn metadata(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.options.lease_name.clone()),
            namespace: Some(self.options.lease_namespace.clone()),
            ..ObjectMeta::default()
        }
    }

    /// Updates the lease that was read, or creates it. Fails with a conflict if another candidate
    /// wrote first.
    async fn write(&mut self, lease: Lease) -> Result<(), kube::Error> {
        let params = PostParams::default();
        let name = &self.options.lease_name;
        // Both requests are conditional, on the version or on the absence of the lease: of several
        // candidates one succeeds.
        // It is set before the request, whose response may be lost.
        let former = self.candidate.acquired.replace(Acquisition::of(&lease));
        let response = match lease.metadata.resource_version {
            Some(_) => self.leases.replace(name, &params, &lease).await,
            None => self.leases.create(&params, &lease).await,
        };
        match response {
            Ok(stored) => {
                self.observed = Some(ObservedLease::new(stored, Instant::now()));
                Ok(())
            }
            Err(error) => {
                // A write that the server rejected acquired nothing.
                if matches!(&error, kube::Error::Api(status) if status.code < 500) {
                    self.candidate.acquired = former;
                }
                Err(error)
            }
        }
    }

    /// Releases the lease if this candidate still holds it.
    async fn release(&mut self) {
        let limit = Instant::now() + self.options.request_timeout();
        let released = timeout_at(limit, self.try_release()).await;
        let lease = &self.options.lease_name;
        match released {
            Ok(Ok(())) => tracing::info!(%lease, "released the lease"),
            Ok(Err(error)) => {
                tracing::warn!(%lease, %error, "failed to release the lease, it expires");
            }
            Err(_) => tracing::warn!(%lease, "timed out releasing the lease, it expires"),
        }
    }

    async fn try_release(&mut self) -> Result<(), kube::Error> {
        // Mirrors release.
        while let Some(observed) = self.held() {
            let lease = observed.with(observed.released(self.clock.now()));
            match self.write(lease).await {
                // A renewal was stored although the work ended before its response arrived.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let lease = self.read().await?;
                    self.observed = lease.map(|lease| ObservedLease::new(lease, Instant::now()));
                }
                written => return written,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
