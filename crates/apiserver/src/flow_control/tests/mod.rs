//! Flow control as a whole: seats, borrowing, rejections and changes of the configuration, with
//! paused time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Method;
use tokio::{
    task::JoinHandle,
    time::{Instant, advance},
};

use super::{
    metrics::FlowSchemaMetrics,
    permit::Rejection,
    request::Request,
    seats::BORROWING_PERIOD,
    state::{Start, State},
    upkeep::tests::default_configuration,
    *,
};
use crate::{http::route::Route, listen::TaskSeat};

mod random; // random requests at all levels

/// A request of the state machine.
pub(super) fn request(flow_hash: u64, work: Work, now: Instant) -> Request {
    Request {
        flow_hash,
        work,
        total_work: work.total(),
        arrived: now,
        arrival_r: 0,
        started: None,
        queue: None,
        previous: None,
        next: None,
        processor_seats: 0,
        waiter: None,
        seat: TaskSeat::default(),
        kind: Some(RequestKind::ReadOnly),
        metrics: Arc::new(FlowSchemaMetrics::new("level", "schema")),
        details: Arc::new(RequestDetails {
            user: String::new(),
            request_info: Arc::new(RequestInfo::of_path(&Method::GET, "/")),
            flow_distinguisher: Box::default(),
        }),
    }
}

fn user(name: &str, groups: &[&str]) -> User {
    User {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..User::default()
    }
}

fn ordinary(name: &str) -> User {
    user(name, &["system:authenticated"])
}

fn account(name: &str) -> User {
    User::service_account("team", name, "").authenticated()
}

fn request_info(request: &str) -> Arc<RequestInfo> {
    let (method, path) = request.split_once(' ').expect("method and path");
    let method: Method = method.parse().expect("a method");
    Arc::new(match Route::parse(path) {
        Route::Resource(resource) => {
            RequestInfo::of_resource(&method, &resource, &Query::default())
        }
        _ => RequestInfo::of_path(&method, path),
    })
}

/// Flow control with the objects of a new cluster; its timer runs until the test ends.
fn flow_control(seats: u64, processor_seats: u64) -> Arc<FlowControl> {
    let flow_control = Arc::new(FlowControl::with_seats(seats, processor_seats));
    flow_control.configure(default_configuration());
    tokio::spawn(flow_control.clone().run_timer(CancellationToken::new()));
    flow_control
}

/// Executes a request for this long, in its own task; the outcome is whether it was executed.
fn send(
    flow_control: &Arc<FlowControl>,
    user: &User,
    duration: Duration,
) -> JoinHandle<Result<(), Rejection>> {
    let flow_control = flow_control.clone();
    let user = user.clone();
    tokio::spawn(async move {
        let classified = flow_control
            .classify(&request_info("GET /api/v1/namespaces/team/pods/a"), &user)
            .expect("it is subject to flow control");
        let wait_max = Duration::from_secs(15);
        let permit = flow_control
            .acquire(&classified, Work::ONE, wait_max)
            .await?;
        let handler = async {
            if !duration.is_zero() {
                tokio::time::sleep(duration).await;
            }
        };
        permit.run(handler).await;
        Ok(())
    })
}

/// Lets every task run that can.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

fn limits(flow_control: &FlowControl) -> BTreeMap<String, u64> {
    flow_control.with_state(|state| {
        state.advance(Instant::now());
        let limit = |level: &level::Level| (level.config.name.clone(), level.queues.limit());
        state.levels().map(limit).collect()
    })
}

fn in_use(flow_control: &FlowControl, level: &str) -> u64 {
    flow_control.with_state(|state| {
        let mut levels = state.levels();
        let level = levels.find(|found| found.config.name == level);
        level.expect("the level exists").queues.seats_in_use()
    })
}

fn assert_idle(flow_control: &FlowControl) {
    assert_eq!(flow_control.load(), (Load::default(), Load::default()));
    flow_control.with_state(|state| {
        state.advance(Instant::now());
        assert!(state.levels().all(|level| level.queues.is_idle()));
        assert_eq!(state.next_event(), None);
    });
}

#[tokio::test(start_paused = true)]
async fn requests_are_classified_by_the_default_schemas() {
    let flow_control = flow_control(600, 600);
    let masters = user("admin", &["system:masters", "system:authenticated"]);
    let node = user("system:node:n", &["system:nodes", "system:authenticated"]);
    let scheduler = ordinary("system:kube-scheduler");
    let kube_system = User::service_account("kube-system", "gc", "").authenticated();
    let unprivileged = user("nobody", &[]);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a";
    for (user, request, schema, distinguisher) in [
        (&masters, "GET /api/v1/pods".to_owned(), "exempt", ""),
        (
            &ordinary("alice"),
            "GET /healthz/ping".to_owned(),
            "probes",
            "",
        ),
        (
            &ordinary("alice"),
            "GET /version".to_owned(),
            "global-default",
            "alice",
        ),
        (
            &ordinary("alice"),
            "GET /api/v1/pods".to_owned(),
            "global-default",
            "alice",
        ),
        (&User::anonymous(), "GET /readyz".to_owned(), "probes", ""),
        (
            &kube_system,
            format!("PUT {lease}"),
            "system-leader-election",
            "system:serviceaccount:kube-system:gc",
        ),
        (
            &kube_system,
            format!("PATCH {lease}"),
            "kube-system-service-accounts",
            "kube-system",
        ),
        (
            &scheduler,
            "POST /api/v1/namespaces/a/pods/b/binding".to_owned(),
            "kube-scheduler",
            "a",
        ),
        (
            &node,
            "PATCH /api/v1/nodes/n/status".to_owned(),
            "system-node-high",
            "system:node:n",
        ),
        (
            &node,
            "GET /api/v1/nodes/n/other".to_owned(),
            "system-nodes",
            "system:node:n",
        ),
        (
            &account("x"),
            "GET /api/v1/pods".to_owned(),
            "service-accounts",
            "system:serviceaccount:team:x",
        ),
        (
            &unprivileged,
            "GET /api/v1/pods".to_owned(),
            "catch-all",
            "",
        ),
    ] {
        let classified = flow_control
            .classify(&request_info(&request), user)
            .expect("it is subject to flow control");
        assert_eq!(classified.schema.name, schema, "{} {request}", user.name);
        assert_eq!(
            &*classified.details.flow_distinguisher, distinguisher,
            "{} {request}",
            user.name
        );
    }
    for request in [
        "GET /api/v1/namespaces/a/pods/b/log",
        "POST /api/v1/namespaces/a/pods/b/exec",
    ] {
        let classified = flow_control.classify(&request_info(request), &ordinary("alice"));
        assert!(classified.is_none(), "{request}");
    }
}

#[tokio::test(start_paused = true)]
async fn demand_borrows_seats_and_the_lender_gets_them_back() {
    let flow_control = flow_control(600, 10_000);
    let idle = limits(&flow_control);
    assert_eq!(idle["global-default"], 56);
    assert_eq!(idle["workload-low"], 56);
    assert_eq!(idle["node-high"], 170);
    let minute = Duration::from_secs(60);
    let mut running = Vec::new();
    for name in 0..40 {
        for _ in 0..25 {
            running.push(send(
                &flow_control,
                &ordinary(&format!("user-{name}")),
                minute,
            ));
        }
    }
    settle().await;
    assert_eq!(in_use(&flow_control, "global-default"), 56);
    advance(BORROWING_PERIOD).await;
    settle().await;
    let lent = limits(&flow_control);
    assert_eq!(lent["global-default"], 368);
    assert_eq!(lent["workload-low"], 24);
    assert_eq!(lent["system"], 50);
    assert_eq!(
        in_use(&flow_control, "global-default"),
        368,
        "borrowed seats are used"
    );

    for name in 0..40 {
        for _ in 0..10 {
            running.push(send(
                &flow_control,
                &account(&format!("account-{name}")),
                minute,
            ));
        }
    }
    settle().await;
    assert_eq!(in_use(&flow_control, "workload-low"), 24);
    advance(BORROWING_PERIOD).await;
    settle().await;
    let returned = limits(&flow_control);
    assert!(returned["workload-low"] >= 245, "{returned:?}");
    assert_eq!(
        in_use(&flow_control, "workload-low"),
        returned["workload-low"]
    );
    let total: u64 = returned.values().sum();
    assert!((598..=606).contains(&total), "{returned:?}");
    for task in running {
        let _outcome = task.await.expect("it does not panic");
    }
    assert_idle(&flow_control);
}

#[tokio::test(start_paused = true)]
async fn limits_after_a_quiet_time_are_those_of_periodic_adjustments() {
    let mut periodic = State::new(600, 10_000, Instant::now());
    let levels = default_configuration().levels;
    periodic.configure(levels, Instant::now());
    let global_default = |state: &State| {
        let mut levels = state.levels();
        let level = levels.find(|level| level.config.name == "global-default");
        level.expect("the level exists").handle.id
    };
    let start = Instant::now();
    let mut lazy = State::new(600, 10_000, start);
    lazy.configure(default_configuration().levels, start);
    let mut slots = Vec::new();
    for state in [&mut periodic, &mut lazy] {
        let id = global_default(state);
        for flow in 0..300 {
            match state.start(id, request(flow, Work::ONE, start), start) {
                Start::Executing(slot) | Start::Waiting(slot, _) => slots.push((id, slot)),
                Start::Rejected => panic!("there are places to wait"),
            }
        }
    }
    let later = start + Duration::from_secs(7);
    let (of_periodic, of_lazy) = slots.split_at(300);
    for (id, slot) in of_periodic {
        periodic.end(*id, *slot, later);
    }
    for (id, slot) in of_lazy {
        lazy.end(*id, *slot, later);
    }
    for tick in 1..=1000 {
        periodic.advance(start + BORROWING_PERIOD * tick);
    }
    let end = start + BORROWING_PERIOD * 1000;
    lazy.advance(end);
    for (a, b) in periodic.levels().zip(lazy.levels()) {
        assert_eq!(a.queues.limit(), b.queues.limit(), "{}", a.config.name);
        let difference = (a.demand_stats.smoothed - b.demand_stats.smoothed).abs();
        assert!(difference < 1e-9, "{}", a.config.name);
    }
}

#[tokio::test(start_paused = true)]
async fn administrators_are_served_while_all_levels_are_full() {
    let flow_control = flow_control(600, 16);
    let mut running = Vec::new();
    let minute = Duration::from_secs(60);
    let groups: [fn(usize) -> User; 4] = [
        |n| ordinary(&format!("user-{n}")),
        |n| account(&format!("account-{n}")),
        |n| {
            user(
                &format!("system:node:n{n}"),
                &["system:nodes", "system:authenticated"],
            )
        },
        |_| user("nobody", &[]),
    ];
    for group in groups {
        for n in 0..2000 {
            running.push(send(&flow_control, &group(n % 40), minute));
        }
    }
    settle().await;
    assert!(flow_control.with_state(|state| state.next_event().is_some()));
    let admin = user("admin", &["system:masters", "system:authenticated"]);
    let start = Instant::now();
    for _ in 0..1000 {
        let outcome = send(&flow_control, &admin, Duration::ZERO).await;
        assert_eq!(outcome.expect("it does not panic"), Ok(()));
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "none waited");
    running.into_iter().for_each(|task| task.abort());
    settle().await;
    advance(Duration::from_secs(1)).await;
    assert_idle(&flow_control);
}

#[tokio::test(start_paused = true)]
async fn flood_of_one_user_does_not_delay_another() {
    let flow_control = flow_control(600, 16);
    let served = Arc::new(AtomicUsize::new(0));
    let flood: Vec<_> = (0..10_000)
        .map(|_| {
            let request = send(&flow_control, &ordinary("flood"), Duration::ZERO);
            let served = served.clone();
            tokio::spawn(async move {
                let outcome = request.await.expect("it does not panic");
                served.fetch_add(usize::from(outcome.is_ok()), Ordering::Relaxed);
                outcome
            })
        })
        .collect();
    let other = send(&flow_control, &ordinary("other"), Duration::ZERO);
    assert_eq!(other.await.expect("it does not panic"), Ok(()));
    let before = served.load(Ordering::Relaxed);
    assert!(
        before <= 64,
        "{before} requests of the flood were served before"
    );
    let mut rejected = 0;
    for task in flood {
        rejected += usize::from(task.await.expect("it does not panic").is_err());
    }
    assert!(rejected > 9_000, "{rejected}");
    assert_eq!(served.load(Ordering::Relaxed) + rejected, 10_000);
    assert_idle(&flow_control);
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_a_quarter_of_its_time_limit() {
    let flow_control = flow_control(600, 600);
    let mut configuration = default_configuration();
    for level in &mut configuration.levels {
        if level.name == "global-default" {
            level.shares.lendable_percent = 0;
            level.shares.borrowing_limit_percent = Some(0);
        }
    }
    flow_control.configure(configuration);
    let running: Vec<_> = (0..49)
        .map(|_| send(&flow_control, &ordinary("alice"), Duration::from_secs(60)))
        .collect();
    settle().await;
    let start = Instant::now();
    let waits = send(&flow_control, &ordinary("alice"), Duration::ZERO);
    settle().await;
    let (read_only, _) = flow_control.load();
    assert_eq!(read_only.running, 49);
    assert_eq!(read_only.waiting, 1);
    let outcome = waits.await.expect("it does not panic");
    assert!(outcome.is_err());
    assert_eq!(start.elapsed(), Duration::from_secs(15));
    running.iter().for_each(JoinHandle::abort);
    settle().await;
    assert_idle(&flow_control);
}

#[tokio::test(start_paused = true)]
async fn dropped_requests_give_back_seats_and_places() {
    let flow_control = flow_control(600, 600);
    let tasks: Vec<_> = (0..200)
        .map(|_| send(&flow_control, &ordinary("alice"), Duration::from_secs(5)))
        .collect();
    settle().await;
    let (read_only, _) = flow_control.load();
    assert_eq!(read_only.running, 56);
    assert_eq!(read_only.waiting, 144);
    tasks.into_iter().for_each(|task| task.abort());
    settle().await;
    assert_idle(&flow_control);
}

#[tokio::test(start_paused = true)]
async fn rejected_flow_that_does_not_wait_is_answered_late() {
    let flow_control = flow_control(1, 16);
    let unprivileged = user("nobody", &[]);
    let minute = Duration::from_secs(60);
    let running = [(); 2].map(|()| send(&flow_control, &unprivileged, minute));
    settle().await;
    let timed = async || {
        let start = Instant::now();
        let outcome = send(&flow_control, &unprivileged, Duration::ZERO).await;
        let rejection = outcome
            .expect("it does not panic")
            .expect_err("there are two seats");
        (rejection.retry_after_seconds, start.elapsed())
    };
    assert_eq!(timed().await, (1, Duration::ZERO));
    advance(Duration::from_millis(300)).await;
    assert_eq!(
        timed().await,
        (1, Duration::from_secs(1)),
        "it came back early"
    );
    advance(Duration::from_secs(2)).await;
    assert_eq!(timed().await, (1, Duration::ZERO), "it has waited");
    running.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn configuration_change_under_load_loses_no_request() {
    let flow_control = flow_control(60, 16);
    let mut tasks = Vec::new();
    for round in 0..20 {
        for n in 0..20 {
            let sender = ordinary(&format!("user-{n}"));
            tasks.push(send(&flow_control, &sender, Duration::from_millis(20)));
        }
        settle().await;
        let mut configuration = default_configuration();
        if round % 2 == 0 {
            // The level goes; its schema is dangling, and its requests become those of another.
            configuration
                .levels
                .retain(|level| level.name != "global-default");
            configuration
                .schemas
                .retain(|schema| schema.level != "global-default");
        }
        flow_control.configure(configuration);
        advance(Duration::from_millis(10)).await;
    }
    let mut executed = 0;
    for task in &mut tasks {
        executed += usize::from(task.await.expect("it does not panic").is_ok());
    }
    assert!(executed >= 200, "{executed} of {}", tasks.len());
    flow_control.configure(default_configuration());
    advance(BORROWING_PERIOD * 2).await;
    assert_idle(&flow_control);
    assert_eq!(
        limits(&flow_control).len(),
        8,
        "levels that are gone are forgotten"
    );
}

#[tokio::test(start_paused = true)]
async fn no_timer_runs_without_waiting_requests() {
    let flow_control = flow_control(600, 16);
    let done = send(&flow_control, &ordinary("alice"), Duration::ZERO).await;
    assert_eq!(done.expect("it does not panic"), Ok(()));
    let start = Instant::now();
    // Paused time moves to the next timer; there is no other than this one.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(start.elapsed(), Duration::from_secs(3600));
    assert_eq!(flow_control.with_state(|state| state.next_event()), None);
}
