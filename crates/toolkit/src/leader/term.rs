//! The term of a leader, and a handle that reports whether this process leads.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use tokio::sync::watch;

/// One term of leadership.
///
/// A later term has a higher number, so an external store can reject writes of an earlier term
/// (fencing). Two terms are equal if number and holder are.
///
/// ```
/// # use bellerophon::leader::Term;
/// async fn may_write(term: &Term) -> Result<bool, kube::Error> {
///     // The store compares the number; this check only shortens the time window before it.
///     Ok(term.number > 3 && term.is_current().await?)
/// }
/// ```
#[derive(Clone)]
pub struct Term {
    /// `leaseTransitions` of the lease while this process holds it.
    pub number: i32,
    /// The identity of the leader.
    pub holder: String,
    lease: Arc<NamedLease>,
}

/// Where the lease can be read.
struct NamedLease {
    leases: Api<Lease>,
    name: String,
}

impl Term {
    pub(super) fn new(number: i32, holder: String, leases: Api<Lease>, lease_name: String) -> Self {
        let lease = NamedLease {
            leases,
            name: lease_name,
        };
        Self {
            number,
            holder,
            lease: Arc::new(lease),
        }
    }

    /// Reads the lease and returns whether it still names this holder and term.
    ///
    /// `true` is valid for the moment of the read only.
    ///
    /// # Errors
    /// The lease cannot be read.
    pub async fn is_current(&self) -> Result<bool, kube::Error> {
        // A GET without a resource version is a consistent read: a watch cache that lags does not
        // answer it.
        let lease = self.lease.leases.get(&self.lease.name).await?;
        let spec = lease.spec.unwrap_or_default();
        let same_holder = spec.holder_identity.as_deref() == Some(&self.holder);
        Ok(same_holder && spec.lease_transitions.unwrap_or(0) == self.number)
    }
}

impl PartialEq for Term {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && self.holder == other.holder
    }
}

impl Eq for Term {}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("number", &self.number)
            .field("holder", &self.holder)
            .field("lease", &self.lease.name)
            .finish()
    }
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Candidate,
    /// The term is `None` without leader election.
    Leading(Option<Term>),
    /// Leadership was released or lost.
    Ended,
}

/// Whether this process leads. Clones share one state.
///
/// A process that runs without leader election counts as elected, without a term.
///
/// ```
/// # use bellerophon::leader::Leadership;
/// async fn report(leadership: Leadership) {
///     leadership.elected().await;
///     if let Some(term) = leadership.term() {
///         println!("{} leads term {}", term.holder, term.number);
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<State>);

impl Leadership {
    /// A handle and what sets its state.
    pub(crate) fn channel() -> (LeadershipSender, Self) {
        let (sender, receiver) = watch::channel(State::default());
        (LeadershipSender(sender), Self(receiver))
    }

    /// The current term; `None` while this process does not lead, and without leader election.
    pub fn term(&self) -> Option<Term> {
        match &*self.0.borrow() {
            State::Leading(term) => term.clone(),
            State::Candidate | State::Ended => None,
        }
    }

    /// Waits until this process was elected. Returns immediately if that has happened, also if
    /// leadership has ended since.
    pub async fn elected(&self) {
        let mut state = self.0.clone();
        let elected = state.wait_for(|state| !matches!(state, State::Candidate));
        if elected.await.is_err() {
            // The elector ended as a candidate: this process never leads.
            std::future::pending::<()>().await;
        }
    }
}

/// Sets the state that [`Leadership`] reports.
#[derive(Debug)]
pub(crate) struct LeadershipSender(watch::Sender<State>);

impl LeadershipSender {
    /// This process leads: in a term, or without leader election.
    pub(crate) fn lead(&self, term: Option<Term>) {
        self.0.send_replace(State::Leading(term));
    }

    /// Leadership was released or lost.
    pub(crate) fn end(&self) {
        self.0.send_replace(State::Ended);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn elected_returns_from_the_election_on() {
        let (sender, leadership) = Leadership::channel();
        let second = Duration::from_secs(1);
        assert!(timeout(second, leadership.elected()).await.is_err());
        sender.lead(None);
        assert!(timeout(second, leadership.elected()).await.is_ok());
        sender.end();
        assert!(timeout(second, leadership.elected()).await.is_ok());
        assert_eq!(leadership.term(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn elected_never_returns_to_a_candidate_that_gave_up() {
        let (sender, leadership) = Leadership::channel();
        drop(sender);
        let elected = timeout(Duration::from_secs(1), leadership.elected());
        assert!(elected.await.is_err());
    }
}
