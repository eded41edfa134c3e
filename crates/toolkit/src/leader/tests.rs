//! Promises of leader election, on the embedded server in paused time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bellerophon_apiserver::ApiServer;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::*;

/// A client that can be cut off from the server.
fn cuttable(server: &ApiServer) -> (kube::Client, Arc<AtomicBool>) {
    let cut = Arc::new(AtomicBool::new(false));
    let (service, flag) = (server.service(), cut.clone());
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (service, flag) = (service.clone(), flag.clone());
        async move {
            if flag.load(Ordering::SeqCst) {
                return Err(Box::<dyn std::error::Error + Send + Sync>::from("cut off"));
            }
            service.oneshot(request).await.map_err(Into::into)
        }
    });
    (kube::Client::new(service, "default"), cut)
}

/// Who led from when to when, in seconds since the start.
type History = Arc<Mutex<Vec<(&'static str, f32, Option<f32>)>>>;

struct Candidate {
    stop: CancellationToken,
    cut: Arc<AtomicBool>,
    task: JoinHandle<Result<Option<()>, LeaderError>>,
}

struct Leading(History, usize, Instant);

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.lock().unwrap()[self.1].2 = Some(self.2.elapsed().as_secs_f32());
    }
}

fn candidate(
    server: &ApiServer,
    name: &'static str,
    history: &History,
    start: Instant,
) -> Candidate {
    let (client, cut) = cuttable(server);
    let clock = WallClock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap());
    let options = LeaderOptions::new("default", "lock", name);
    let elector =
        LeaderElector::new(client, options, clock, Entropy::seeded(1), Metrics::new()).unwrap();
    let (stop, history) = (CancellationToken::new(), history.clone());
    let work = {
        let stop = stop.clone();
        move |_| async move {
            let leading = {
                let mut all = history.lock().unwrap();
                all.push((name, start.elapsed().as_secs_f32(), None));
                Leading(history.clone(), all.len() - 1, start)
            };
            stop.cancelled().await;
            drop(leading);
        }
    };
    Candidate {
        task: tokio::spawn(elector.run(stop.clone(), work)),
        stop,
        cut,
    }
}

async fn until(history: &History, count: usize) {
    while history.lock().unwrap().len() < count {
        sleep(Duration::from_millis(100)).await;
    }
}

/// The time between the end of the first leader and the start of the second.
async fn gap(end: impl FnOnce(&Candidate)) -> (f32, Candidate, Candidate) {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (history, start) = (History::default(), Instant::now());
    let first = candidate(&server, "first", &history, start);
    until(&history, 1).await;
    let second = candidate(&server, "second", &history, start);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        history.lock().unwrap().len(),
        1,
        "a lease that is renewed is left alone"
    );
    end(&first);
    until(&history, 2).await;
    let all = history.lock().unwrap().clone();
    assert_eq!((all[0].0, all[1].0), ("first", "second"));
    (
        all[1].1 - all[0].2.expect("the first stopped before the second began"),
        first,
        second,
    )
}

#[tokio::test(start_paused = true)]
async fn stopped_leader_hands_over_within_a_few_seconds() {
    let (gap, first, _second) = gap(|first| first.stop.cancel()).await;
    assert!(gap < 4.5, "{gap} s");
    assert!(matches!(first.task.await.unwrap(), Ok(Some(()))));
}

#[tokio::test(start_paused = true)]
async fn leader_that_is_cut_off_stops_before_another_starts() {
    let (gap, first, _second) = gap(|first| first.cut.store(true, Ordering::SeqCst)).await;
    assert!(gap > 3.0, "work ended {gap} s before the next leader");
    assert!(matches!(
        first.task.await.unwrap(),
        Err(LeaderError::Lost(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn crashed_leader_is_replaced_after_its_lease() {
    let (gap, _first, _second) = gap(|first| first.task.abort()).await;
    assert!((10.0..20.0).contains(&gap), "{gap} s");
}

#[tokio::test(start_paused = true)]
async fn leader_whose_lease_was_taken_stops_at_once() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (history, start) = (History::default(), Instant::now());
    let first = candidate(&server, "first", &history, start);
    until(&history, 1).await;
    let leases: Api<Lease> = Api::namespaced(server.client(), "default");
    let mut lease = leases.get("lock").await.unwrap();
    let term = Term {
        number: 0,
        holder: "first".into(),
    };
    assert!(term.is_current(&leases, "lock").await.unwrap());
    lease.spec.get_or_insert_default().holder_identity = Some("thief".into());
    lease.spec.get_or_insert_default().lease_transitions = Some(1);
    leases
        .replace("lock", &PostParams::default(), &lease)
        .await
        .unwrap();
    assert!(!term.is_current(&leases, "lock").await.unwrap());
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

/// A deleted lease used to start again at term 0, and whoever came first led, also while the leader still worked.
#[tokio::test(start_paused = true)]
async fn deleted_lease_is_made_again_in_its_term() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (history, start) = (History::default(), Instant::now());
    let first = candidate(&server, "first", &history, start);
    until(&history, 1).await;
    first.stop.cancel();
    let _second = candidate(&server, "second", &history, start);
    until(&history, 2).await;
    let (leases, term) = (
        Api::<Lease>::namespaced(server.client(), "default"),
        Term {
            number: 1,
            holder: "second".into(),
        },
    );
    let _third = candidate(&server, "third", &history, start);
    for _ in 0..20 {
        sleep(Duration::from_millis(4700)).await;
        leases.delete("lock", &Default::default()).await.unwrap();
    }
    sleep(Duration::from_secs(3)).await;
    assert!(term.is_current(&leases, "lock").await.unwrap());
    assert_eq!(
        history.lock().unwrap().len(),
        2,
        "who saw the lease leaves its holder time"
    );
}

/// A renewal that the server took while the work ended used to keep the lease for its whole duration.
#[tokio::test(start_paused = true)]
async fn lease_is_given_back_also_while_it_is_renewed() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let service = server.service();
    let slow_to_answer = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (service, writes) = (service.clone(), request.method() == http::Method::PUT);
        async move {
            let answer = service.oneshot(request).await;
            sleep(Duration::from_secs(u64::from(writes))).await;
            answer
        }
    });
    let clock = WallClock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap());
    let (options, client) = (
        LeaderOptions::new("default", "lock", "me"),
        kube::Client::new(slow_to_answer, "default"),
    );
    let elector =
        LeaderElector::new(client, options, clock, Entropy::seeded(1), Metrics::new()).unwrap();
    let work = |_| sleep(Duration::from_millis(2500));
    assert!(matches!(
        elector.run(CancellationToken::new(), work).await,
        Ok(Some(()))
    ));
    let lease = Api::<Lease>::namespaced(server.client(), "default")
        .get("lock")
        .await
        .unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

/// What a store that knows terms does: it refuses writes of an earlier one than it has seen.
#[derive(Default)]
struct Fenced {
    newest: i32,
    refused: Vec<i32>,
}

impl Fenced {
    fn write(&mut self, term: &Term) -> bool {
        let current = term.number >= self.newest;
        if current {
            self.newest = term.number
        } else {
            self.refused.push(term.number)
        }
        current
    }
}

/// A leader that slept through its lease, such as a suspended machine, still believes in its term.
#[tokio::test(start_paused = true)]
async fn late_write_of_an_earlier_term_is_told_apart() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let leases: Api<Lease> = Api::namespaced(server.client(), "default");
    let (mut store, mut terms) = (Fenced::default(), Vec::<Term>::new());
    for who in ["first", "second", "first"] {
        let clock = WallClock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap());
        let options = LeaderOptions::new("default", "lock", who);
        let elector = LeaderElector::new(
            server.client(),
            options,
            clock,
            Entropy::seeded(1),
            Metrics::new(),
        )
        .unwrap();
        let (told, leading) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(elector.run(CancellationToken::new(), |term| async move {
            told.send(term).expect("somebody listens");
            std::future::pending::<()>().await
        }));
        let term = leading.await.unwrap();
        // It vanishes without giving the lease back.
        task.abort();
        assert!(term.is_current(&leases, "lock").await.unwrap());
        assert!(store.write(&term));
        for earlier in &terms {
            assert!(
                !earlier.is_current(&leases, "lock").await.unwrap(),
                "{earlier:?} after {term:?}"
            );
            assert!(!store.write(earlier));
        }
        terms.push(term);
    }
    assert_eq!(
        terms.iter().map(|term| term.number).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(
        store.refused,
        [0, 0, 1],
        "also the earlier term of the process that leads again"
    );
    let gone = terms[2].is_current(&leases, "no-such-lease").await;
    assert!(matches!(gone, Err(kube::Error::Api(status)) if status.code == 404));
}

#[test]
fn times_that_contradict_each_other_are_refused() {
    let check = |change: fn(&mut LeaderOptions)| {
        let mut options = LeaderOptions::new("default", "lock", "me");
        change(&mut options);
        options.check().is_ok()
    };
    assert!(check(|_| {}));
    assert!(!check(
        |options| options.lease_duration = Duration::from_secs(10)
    ));
    assert!(!check(
        |options| options.renew_deadline = Duration::from_secs(2)
    ));
    assert!(!check(|options| options.retry_period = Duration::ZERO));
    assert!(!check(|options| options.identity.clear()));
}
