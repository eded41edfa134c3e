//! The work queue, tested by scripts and against a simple model.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};
use tokio::time::{advance, timeout};

use super::*;

fn queue() -> WorkQueue<&'static str> {
    WorkQueue::new(QueueOptions {
        rng: Rng::seeded(1),
        ..QueueOptions::default()
    })
}

/// Runs the steps `add a`, `add a low`, `add a after 5` (ms), `limited a`, `forget a`, `take`,
/// `done a`, `wait 5` (ms) and `stop`, separated by `·`, and compares the keys that were taken,
/// then those that are still ready.
async fn check(script: &'static str, expected: &str) {
    let queue = queue();
    let mut held = BTreeMap::new();
    let mut taken = Vec::new();
    for step in script.split(" · ") {
        match step.split(' ').collect::<Vec<_>>()[..] {
            ["add", key] => queue.add(key),
            ["add", key, "low"] => queue.add_with_opts(
                key,
                AddOpts {
                    priority: Priority::Low,
                    ..AddOpts::default()
                },
            ),
            ["add", key, "high"] => queue.add_with_opts(
                key,
                AddOpts {
                    priority: Priority::High,
                    ..AddOpts::default()
                },
            ),
            ["add", key, "after", ms] => {
                queue.add_after(key, Duration::from_millis(ms.parse().unwrap()))
            }
            ["limited", key] => queue.add_rate_limited(key),
            ["forget", key] => queue.forget(&key),
            ["take"] => match queue.try_get() {
                Some(item) => {
                    taken.push(item.key().to_string());
                    held.insert(*item.key(), item);
                }
                None => taken.push("-".into()),
            },
            ["done", key] => held
                .remove(key)
                .expect("a script gives back what it took")
                .done(),
            ["wait", ms] => advance(Duration::from_millis(ms.parse().unwrap())).await,
            ["stop"] => queue.shut_down(),
            _ => panic!("no such step: {step}"),
        }
    }
    taken.push("|".into());
    let rest: Vec<_> = std::iter::from_fn(|| queue.try_get()).collect();
    taken.extend(rest.iter().map(|item| item.key().to_string()));
    assert_eq!(taken.join(" "), expected, "{script}");
}

#[tokio::test(start_paused = true)]
async fn keys_are_handed_out_as_by_client_go() {
    for (script, expected) in [
        ("add a · add b · add a", "| a b"),
        ("add a · take · add a", "a |"),
        ("add a · take · add a · add a · done a", "a | a"),
        ("add a · take · done a", "a |"),
        ("add a · take · add a · add b · done a", "a | b a"),
        ("add a · take · stop · add b · done a", "a |"),
        ("add a · add b · stop · add c", "| a b"),
        ("add a after 5", "|"),
        ("add a after 5 · wait 5", "| a"),
        ("add a after 0", "| a"),
        ("add a after 9 · add a after 5 · wait 5", "| a"),
        (
            "add a after 5 · add a after 9 · wait 5 · take · done a · wait 9",
            "a |",
        ),
        ("add b after 5 · add a after 5 · wait 5", "| b a"),
        ("add a after 5 · take · add b · take · wait 5", "- b | a"),
        ("add a after 5 · stop · wait 5", "|"),
    ] {
        check(script, expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn add_replaces_a_delayed_one() {
    check("add a after 5 · add a · take · done a · wait 5", "a |").await;
    check("add a · add a after 5 · take · done a · wait 5", "a |").await;
}

#[tokio::test(start_paused = true)]
async fn delayed_add_while_processing_is_kept() {
    check(
        "add a · take · add a after 5 · done a · wait 4 · take · wait 1",
        "a - | a",
    )
    .await;
    check(
        "add a · take · add a after 5 · wait 6 · take · done a",
        "a - | a",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn higher_priority_is_served_first() {
    check("add a low · add b · add c high", "| c b a").await;
    check("add a low · add b low · add a", "| a b").await;
    check("add a · add b · add a low", "| a b").await;
    check("add a low · take · add a · add b low · done a", "a | a b").await;
}

#[tokio::test(start_paused = true)]
async fn delay_of_a_failing_key_doubles() {
    check("limited a · wait 4 · take · wait 1 · take", "- a |").await;
    check(
        "limited a · wait 5 · take · limited a · done a · wait 9 · take · wait 1",
        "a - | a",
    )
    .await;
    check(
        "limited a · wait 5 · take · forget a · limited a · done a · wait 5",
        "a | a",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn num_requeues_counts_until_forgotten() {
    let queue = queue();
    queue.add_rate_limited("a");
    queue.add_rate_limited("a");
    assert_eq!(queue.num_requeues(&"a"), 2);
    assert_eq!(queue.num_requeues(&"b"), 0);
    queue.forget(&"a");
    assert_eq!(queue.num_requeues(&"a"), 0);
}

#[tokio::test(start_paused = true)]
async fn shorter_of_delay_and_rate_limit_applies() {
    let queue = queue();
    queue.add_with_opts(
        "a",
        AddOpts {
            rate_limited: true,
            after: Some(Duration::from_millis(2)),
            ..AddOpts::default()
        },
    );
    advance(Duration::from_millis(2)).await;
    assert_eq!(queue.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn delay_beyond_the_clock_is_bounded() {
    let queue = queue();
    queue.add_after("a", Duration::MAX);
    advance(Duration::from_secs(10 * 365 * 24 * 3600)).await;
    assert_eq!(queue.len(), 0);
    assert_eq!(queue.stats().delayed, 1);
    queue.add("a");
    assert_eq!(queue.len(), 1);
    assert_eq!(queue.stats().delayed, 0);
}

#[tokio::test(start_paused = true)]
async fn flows_are_served_round_robin_within_a_priority() {
    let queue = queue();
    let add = |key: &'static str, flow: Flow| {
        queue.add_with_opts(
            key,
            AddOpts {
                flow,
                ..AddOpts::default()
            },
        )
    };
    let busy = Flow::of("team-a");
    let quiet = Flow::of("team-b");
    assert_ne!(busy, quiet);
    ["a1", "a2", "a3", "a4"]
        .into_iter()
        .for_each(|key| add(key, busy));
    add("b1", quiet);
    // A ready key that is added again keeps its position, also without a flow.
    add("a1", quiet);
    queue.add("a2");
    let order: Vec<_> = std::iter::from_fn(|| queue.try_get())
        .map(|item| *item.key())
        .collect();
    let position = order.iter().position(|key| *key == "b1").unwrap();
    assert!(position <= 1, "{order:?}");
    assert_eq!(
        order
            .into_iter()
            .filter(|key| key.starts_with('a'))
            .collect::<Vec<_>>(),
        ["a1", "a2", "a3", "a4"]
    );
}

#[tokio::test(start_paused = true)]
async fn waiting_worker_gets_a_delayed_key_when_due() {
    let queue = queue();
    let started = Instant::now();
    queue.add_after("late", Duration::from_secs(60));
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await.map(|item| *item.key()) }
    });
    tokio::task::yield_now().await;
    queue.add_after("early", Duration::from_secs(3));
    assert_eq!(worker.await.unwrap(), Some("early"));
    assert_eq!(started.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn each_waiting_worker_is_notified_of_its_key() {
    let queue = queue();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let item = queue.get().await.expect("three keys for three workers");
                // Never done: only the other workers can take the other keys.
                std::mem::forget(item);
            })
        })
        .collect();
    ["a", "b", "c"].into_iter().for_each(|key| queue.add(key));
    for worker in workers {
        timeout(Duration::from_secs(1), worker)
            .await
            .expect("notified")
            .unwrap();
    }
}

/// The cancelled worker was the only one that waited for the earlier time.
#[tokio::test(start_paused = true)]
async fn cancelled_worker_passes_its_timer_to_another() {
    let queue = queue();
    let started = Instant::now();
    let spawn = || {
        let queue = queue.clone();
        tokio::spawn(async move { queue.get().await.map(|item| *item.key()) })
    };
    let first = spawn();
    let second = spawn();
    tokio::task::yield_now().await;
    queue.add_after("a", Duration::from_secs(5));
    tokio::task::yield_now().await;
    first.abort();
    let second = timeout(Duration::from_secs(60), second)
        .await
        .expect("the other worker waits for the due time");
    assert_eq!(second.unwrap(), Some("a"));
    assert_eq!(started.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn shutdown_notifies_waiting_workers() {
    let queue = queue();
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await.is_none() }
    });
    tokio::task::yield_now().await;
    queue.shut_down();
    assert!(worker.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_ready_and_processed_keys() {
    let queue = queue();
    ["a", "b"].into_iter().for_each(|key| queue.add(key));
    let a = queue.try_get().unwrap();
    let mut drain = tokio::spawn({
        let queue = queue.clone();
        async move { queue.shut_down_with_drain().await }
    });
    let second = Duration::from_secs(1);
    a.done();
    assert!(
        timeout(second, &mut drain).await.is_err(),
        "b is still ready"
    );
    let b = queue.get().await.unwrap();
    assert!(
        timeout(second, &mut drain).await.is_err(),
        "b is still processed"
    );
    b.done();
    timeout(second, drain).await.expect("drained").unwrap();
}

#[tokio::test(start_paused = true)]
async fn key_of_a_panicking_worker_is_done() {
    let queue = queue();
    queue.add("a");
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            let item = queue.get().await.unwrap();
            queue.add("a");
            panic!("while processing {}", item.key());
        }
    });
    assert!(worker.await.is_err());
    assert_eq!(queue.try_get().map(|item| *item.key()), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn causes_are_merged_and_handed_out_once() {
    let queue = queue();
    let cause = |event| AddOpts {
        cause: Some(Cause {
            kind: "Pod".into(),
            key: ObjectKey::cluster("x"),
            resource_version: None,
            event,
            at: Instant::now(),
            reason: None,
        }),
        ..AddOpts::default()
    };
    queue.add_with_opts("a", cause(CauseEvent::Added));
    queue.add_with_opts("a", cause(CauseEvent::Updated));
    let item = queue.try_get().unwrap();
    assert_eq!(item.causes().to_string(), "Pod x added, Pod x updated");
    queue.add_with_opts("a", cause(CauseEvent::Deleted));
    item.done();
    assert_eq!(
        queue.try_get().unwrap().causes().to_string(),
        "Pod x deleted"
    );
}

/// Each of its causes used to count as another retry.
#[tokio::test(start_paused = true)]
async fn key_put_back_keeps_its_causes_and_counts_once() {
    let queue = queue();
    for name in ["x", "y"] {
        let cause = Cause {
            kind: "Pod".into(),
            key: ObjectKey::cluster(name),
            resource_version: None,
            event: CauseEvent::Added,
            at: Instant::now(),
            reason: None,
        };
        queue.add_with_opts(
            "a",
            AddOpts {
                cause: Some(cause),
                ..AddOpts::default()
            },
        );
    }
    let item = queue.try_get().unwrap();
    queue.put_back(&item, Duration::from_secs(1), Flow::default());
    item.done();
    advance(Duration::from_secs(1)).await;
    assert_eq!(queue.stats().retries_total, 1);
    assert_eq!(
        queue.try_get().unwrap().causes().to_string(),
        "Pod x added, Pod y added"
    );
}

#[tokio::test(start_paused = true)]
async fn slots_of_unneeded_keys_are_released() {
    let queue: WorkQueue<u32> = WorkQueue::default();
    for key in 0..10_000 {
        queue.add(key);
        queue.try_get().unwrap().done();
        queue.add_rate_limited(key);
        advance(Duration::from_secs(2000)).await;
        queue.forget(&key);
        queue.try_get().unwrap().done();
    }
    assert_eq!(
        queue.0.shared.with(|contents| contents.state.keys_known()),
        0
    );
}

/// client-go's queue in its simplest form: sets, a list, and a map of times.
#[derive(Default)]
struct Model {
    dirty: BTreeSet<u8>,
    processing: BTreeSet<u8>,
    queue: VecDeque<u8>,
    due: BTreeMap<u8, (u64, usize)>,
    now: u64,
    delayed_adds: usize,
}

impl Model {
    fn add(&mut self, key: u8) {
        self.due.remove(&key);
        if self.dirty.insert(key) && !self.processing.contains(&key) {
            self.queue.push_back(key);
        }
    }

    fn add_after(&mut self, key: u8, ms: u64) {
        let at = self.now + ms;
        self.delayed_adds += 1;
        if !self.dirty.contains(&key) && self.due.get(&key).is_none_or(|(known, _)| at < *known) {
            self.due.insert(key, (at, self.delayed_adds));
        }
    }

    fn take(&mut self) -> Option<u8> {
        let mut ready: Vec<_> = self
            .due
            .iter()
            .filter(|(_, (at, _))| *at <= self.now)
            .map(|(key, due)| (*due, *key))
            .collect();
        ready.sort_unstable();
        ready.into_iter().for_each(|(_, key)| self.add(key));
        let key = self.queue.pop_front()?;
        self.dirty.remove(&key);
        self.processing.insert(key);
        Some(key)
    }

    fn done(&mut self, key: u8) {
        self.processing.remove(&key);
        if self.dirty.contains(&key) {
            self.queue.push_back(key);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8),
    AddAfter(u8, u64),
    Take,
    Done(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..6u8).prop_map(Step::Add),
        2 => (0..6u8, 1..20u64).prop_map(|(key, ms)| Step::AddAfter(key, ms)),
        3 => Just(Step::Take),
        3 => (0..6usize).prop_map(Step::Done),
        1 => (1..10u64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn random_histories_agree_with_the_model(history in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let queue = WorkQueue::<u8>::default();
            let mut model = Model::default();
            let mut held: Vec<Item<'_, u8>> = Vec::new();
            for step in history {
                match step {
                    Step::Add(key) => {
                        queue.add(key);
                        model.add(key);
                    }
                    Step::AddAfter(key, ms) => {
                        queue.add_after(key, Duration::from_millis(ms));
                        model.add_after(key, ms);
                    }
                    Step::Take => {
                        let item = queue.try_get();
                        assert_eq!(item.as_ref().map(|item| *item.key()), model.take());
                        held.extend(item);
                    }
                    Step::Done(which) if !held.is_empty() => {
                        let item = held.swap_remove(which % held.len());
                        model.done(*item.key());
                        item.done();
                    }
                    Step::Done(_) => {}
                    Step::Wait(ms) => {
                        advance(Duration::from_millis(ms)).await;
                        model.now += ms;
                    }
                }
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn key_is_processed_by_at_most_one_worker() {
    let queue: WorkQueue<usize> = WorkQueue::default();
    let busy: Arc<Vec<std::sync::atomic::AtomicBool>> =
        Arc::new((0..16).map(|_| false.into()).collect());
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            let busy = busy.clone();
            tokio::spawn(async move {
                let mut handled = 0u32;
                while let Some(item) = queue.get().await {
                    let flag = &busy[*item.key()];
                    assert!(
                        !flag.swap(true, std::sync::atomic::Ordering::SeqCst),
                        "two workers process {}",
                        item.key()
                    );
                    tokio::task::yield_now().await;
                    flag.store(false, std::sync::atomic::Ordering::SeqCst);
                    handled += 1;
                }
                handled
            })
        })
        .collect();
    for round in 0..20_000 {
        queue.add(round % 16);
        if round % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    timeout(Duration::from_secs(30), queue.shut_down_with_drain())
        .await
        .expect("drained");
    let mut handled = 0;
    for worker in workers {
        handled += worker.await.unwrap();
    }
    assert!(handled >= 16, "every key was handed out, {handled} in all");
}
