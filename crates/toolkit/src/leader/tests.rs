//! Leader election on the embedded server in paused time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon_apiserver::ApiServer;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::*;

const LEASE: &str = "lock";

fn elector(client: kube::Client, identity: &str) -> LeaderElector {
    let options = LeaderElectionOptions {
        lease_namespace: "default".into(),
        identity: Some(identity.into()),
        ..LeaderElectionOptions::new(LEASE)
    };
    let clock = Clock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap());
    LeaderElector::new(client, options, clock, Rng::seeded(1), Metrics::new()).unwrap()
}

fn leases(server: &ApiServer) -> Api<Lease> {
    Api::namespaced(server.client(), "default")
}

fn term(server: &ApiServer, number: i32, holder: &str) -> Term {
    Term::new(number, holder.into(), leases(server), LEASE.into())
}

/// A client that can be disconnected from the server.
fn disconnectable(server: &ApiServer) -> (kube::Client, Arc<AtomicBool>) {
    let disconnected = Arc::new(AtomicBool::new(false));
    let flag = disconnected.clone();
    let service = server.service();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let service = service.clone();
        let flag = flag.clone();
        async move {
            if flag.load(Ordering::SeqCst) {
                let error = "disconnected";
                return Err(Box::<dyn std::error::Error + Send + Sync>::from(error));
            }
            service.oneshot(request).await.map_err(Into::into)
        }
    });
    (kube::Client::new(service, "default"), disconnected)
}

/// One time of leading, in seconds since the start of the test.
#[derive(Clone)]
struct Led {
    name: &'static str,
    from: f32,
    until: Option<f32>,
}

/// In the order in which leaders were elected.
type History = Arc<Mutex<Vec<Led>>>;

struct Replica {
    stop: CancellationToken,
    disconnected: Arc<AtomicBool>,
    task: JoinHandle<Result<Option<()>, LeaderError>>,
}

/// Records the end of leading when dropped.
struct Leading {
    history: History,
    index: usize,
    start: Instant,
}

impl Drop for Leading {
    fn drop(&mut self) {
        let until = self.start.elapsed().as_secs_f32();
        self.history.lock().unwrap()[self.index].until = Some(until);
    }
}

fn replica(server: &ApiServer, name: &'static str, history: &History, start: Instant) -> Replica {
    let (client, disconnected) = disconnectable(server);
    let stop = CancellationToken::new();
    let work = {
        let stop = stop.clone();
        let history = history.clone();
        move |_| async move {
            let leading = {
                let mut all = history.lock().unwrap();
                all.push(Led {
                    name,
                    from: start.elapsed().as_secs_f32(),
                    until: None,
                });
                Leading {
                    history: history.clone(),
                    index: all.len() - 1,
                    start,
                }
            };
            stop.cancelled().await;
            drop(leading);
        }
    };
    Replica {
        task: tokio::spawn(elector(client, name).run(stop.clone(), work)),
        stop,
        disconnected,
    }
}

async fn until_elected(history: &History, count: usize) {
    while history.lock().unwrap().len() < count {
        sleep(Duration::from_millis(100)).await;
    }
}

/// The time between the end of the first leader and the start of the second.
async fn gap(end: impl FnOnce(&Replica)) -> (f32, Replica, Replica) {
    gap_between(["first", "second"], end).await
}

/// The same with these identities.
async fn gap_between(
    identities: [&'static str; 2],
    end: impl FnOnce(&Replica),
) -> (f32, Replica, Replica) {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let history = History::default();
    let start = Instant::now();
    let first = replica(&server, identities[0], &history, start);
    until_elected(&history, 1).await;
    let second = replica(&server, identities[1], &history, start);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        history.lock().unwrap().len(),
        1,
        "a lease that is renewed is not taken over"
    );
    end(&first);
    until_elected(&history, 2).await;
    let all = history.lock().unwrap().clone();
    assert_eq!(all[0].name, identities[0]);
    assert_eq!(all[1].name, identities[1]);
    let lease = leases(&server).get(LEASE).await.unwrap();
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(1));
    let ended = all[0]
        .until
        .expect("the first stopped before the second began");
    (all[1].from - ended, first, second)
}

#[tokio::test(start_paused = true)]
async fn stopped_leader_hands_over_within_a_few_seconds() {
    let (gap, first, _second) = gap(|first| first.stop.cancel()).await;
    assert!(gap < 4.5, "{gap} s");
    assert!(matches!(first.task.await.unwrap(), Ok(Some(()))));
}

#[tokio::test(start_paused = true)]
async fn disconnected_leader_stops_before_another_starts() {
    let (gap, first, _second) = gap(|first| first.disconnected.store(true, Ordering::SeqCst)).await;
    assert!(gap > 3.0, "work ended {gap} s before the next leader");
    assert!(matches!(
        first.task.await.unwrap(),
        Err(LeaderError::Lost(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn crashed_leader_is_replaced_after_its_lease_expired() {
    let (gap, _first, _second) = gap(|first| first.task.abort()).await;
    assert!((10.0..20.0).contains(&gap), "{gap} s");
}

/// A lease whose times are later than `Timestamp` can express could not be decoded, so no candidate
/// led.
#[tokio::test(start_paused = true)]
async fn lease_renewed_in_the_year_9999_is_taken_over() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let late = "9999-12-31T23:59:59.999999Z";
    let lease = serde_json::json!({
        "metadata": {"name": LEASE},
        "spec": {"holderIdentity": "old", "leaseDurationSeconds": 15, "renewTime": late},
    });
    let request = http::Request::post("/apis/coordination.k8s.io/v1/namespaces/default/leases")
        .header("content-type", "application/json")
        .body(lease.to_string().into_bytes());
    let created = server.client().request_text(request.unwrap()).await;
    assert!(created.unwrap().contains(late));
    let history = History::default();
    let start = Instant::now();
    let _replica = replica(&server, "new", &history, start);
    until_elected(&history, 1).await;
    assert!(
        start.elapsed() > Duration::from_secs(15),
        "the lease expired"
    );
}

#[tokio::test(start_paused = true)]
async fn leader_whose_lease_was_taken_stops_immediately() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let history = History::default();
    let start = Instant::now();
    let first = replica(&server, "first", &history, start);
    until_elected(&history, 1).await;
    let leases = leases(&server);
    let mut lease = leases.get(LEASE).await.unwrap();
    let term = term(&server, 0, "first");
    assert!(term.is_current().await.unwrap());
    lease.spec.get_or_insert_default().holder_identity = Some("thief".into());
    lease.spec.get_or_insert_default().lease_transitions = Some(1);
    leases
        .replace(LEASE, &PostParams::default(), &lease)
        .await
        .unwrap();
    assert!(!term.is_current().await.unwrap());
    assert!(matches!(
        first.task.await.unwrap(),
        Err(LeaderError::Lost(_))
    ));
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

/// A deleted lease used to start again at term 0, and the first candidate to create it led, even
/// while the previous leader still worked.
#[tokio::test(start_paused = true)]
async fn deleted_lease_is_recreated_in_its_term() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let history = History::default();
    let start = Instant::now();
    let first = replica(&server, "first", &history, start);
    until_elected(&history, 1).await;
    first.stop.cancel();
    let _second = replica(&server, "second", &history, start);
    until_elected(&history, 2).await;
    let leases = leases(&server);
    let term = term(&server, 1, "second");
    let _third = replica(&server, "third", &history, start);
    for _ in 0..20 {
        sleep(Duration::from_millis(4700)).await;
        leases.delete(LEASE, &Default::default()).await.unwrap();
    }
    sleep(Duration::from_secs(3)).await;
    assert!(term.is_current().await.unwrap());
    assert_eq!(
        history.lock().unwrap().len(),
        2,
        "a candidate that observed the lease waits for its duration"
    );
}

/// A renewal that was stored while the work ended used to hold the lease for its whole duration.
#[tokio::test(start_paused = true)]
async fn lease_is_released_also_during_a_renewal() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let service = server.service();
    let slow_responses = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let service = service.clone();
        let writes = request.method() == http::Method::PUT;
        async move {
            let response = service.oneshot(request).await;
            sleep(Duration::from_secs(u64::from(writes))).await;
            response
        }
    });
    let elector = elector(kube::Client::new(slow_responses, "default"), "me");
    let work = |_| sleep(Duration::from_millis(2500));
    assert!(matches!(
        elector.run(CancellationToken::new(), work).await,
        Ok(Some(()))
    ));
    let lease = leases(&server).get(LEASE).await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

/// Two processes with one identity used to renew one lease, in one term.
#[tokio::test(start_paused = true)]
async fn processes_with_one_identity_lead_one_after_the_other() {
    let (gap, first, _second) = gap_between(["same", "same"], |first| {
        first.disconnected.store(true, Ordering::SeqCst);
    })
    .await;
    assert!(gap > 3.0, "work ended {gap} s before the next leader");
    assert!(matches!(
        first.task.await.unwrap(),
        Err(LeaderError::Lost(_))
    ));
}

/// The response to the request that acquired the lease is lost.
#[tokio::test(start_paused = true)]
async fn candidate_recognizes_its_acquisition_after_a_lost_response() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let service = server.service();
    let is_lost = Arc::new(AtomicBool::new(true));
    let lossy = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let service = service.clone();
        let is_post = request.method() == http::Method::POST;
        let is_lost = is_lost.clone();
        async move {
            let response = service.oneshot(request).await;
            if is_post && is_lost.swap(false, Ordering::SeqCst) {
                let error = "connection reset";
                return Err(Box::<dyn std::error::Error + Send + Sync>::from(error));
            }
            response.map_err(Into::into)
        }
    });
    let elector = elector(kube::Client::new(lossy, "default"), "me");
    let start = Instant::now();
    let term = elector.run(CancellationToken::new(), |term| async move { term.number });
    assert_eq!(term.await.unwrap(), Some(0));
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn leadership_reports_the_term_while_leading() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let elector = elector(server.client(), "me");
    let leadership = elector.leadership();
    assert_eq!(leadership.term(), None);
    let stop = CancellationToken::new();
    let task = tokio::spawn({
        let stop = stop.clone();
        elector.run(stop.clone(), |_| stop.cancelled_owned())
    });
    leadership.elected().await;
    assert_eq!(leadership.term(), Some(term(&server, 0, "me")));
    stop.cancel();
    assert!(matches!(task.await.unwrap(), Ok(Some(()))));
    assert_eq!(leadership.term(), None);
}

/// A store that knows terms: it rejects writes of an earlier term than it has seen.
#[derive(Default)]
struct FencedStore {
    newest: i32,
    rejected: Vec<i32>,
}

impl FencedStore {
    fn write(&mut self, term: &Term) -> bool {
        let current = term.number >= self.newest;
        if current {
            self.newest = term.number;
        } else {
            self.rejected.push(term.number);
        }
        current
    }
}

/// A leader that was suspended past the end of its lease still acts in its old term.
#[tokio::test(start_paused = true)]
async fn late_write_of_an_earlier_term_is_rejected() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let mut store = FencedStore::default();
    let mut terms = Vec::<Term>::new();
    for identity in ["first", "second", "first"] {
        let elector = elector(server.client(), identity);
        let (sender, elected) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(elector.run(CancellationToken::new(), |term| async move {
            sender.send(term).expect("the test waits for the term");
            std::future::pending::<()>().await
        }));
        let term = elected.await.unwrap();
        // It ends without releasing the lease.
        task.abort();
        assert!(term.is_current().await.unwrap());
        assert!(store.write(&term));
        for earlier in &terms {
            assert!(
                !earlier.is_current().await.unwrap(),
                "{earlier:?} after {term:?}"
            );
            assert!(!store.write(earlier));
        }
        terms.push(term);
    }
    let numbers: Vec<_> = terms.iter().map(|term| term.number).collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert_eq!(
        store.rejected,
        [0, 0, 1],
        "also the earlier term of the process that leads again"
    );
    leases(&server)
        .delete(LEASE, &Default::default())
        .await
        .unwrap();
    let deleted = terms[2].is_current().await;
    assert!(matches!(deleted, Err(kube::Error::Api(status)) if status.code == 404));
}
