//! Random histories: writes, faults, compacted versions and restarts.

use tokio::time::sleep;

use super::*;
use crate::list_watch::ListWatchError;

/// An informer with a handler of objects and one of keys.
fn start(server: &Scripted, initial_list: InitialList, seed: u64) -> (Running, [Recorder; 2]) {
    let options = InformerOptions {
        initial_list: Some(initial_list),
        page_size: Some(2),
        ..InformerOptions::default()
    };
    let source = server.clone();
    let list_watch: ListWatchFn = Arc::new(move |_| Arc::new(source.clone()));
    let informer = seeded_informer(list_watch, options, seed);
    let objects = Recorder::default();
    let keys = Recorder::default();
    informer.add_event_handler(objects.clone());
    let receiver = keys.clone();
    informer.add_key_handler(move |change| receiver.on_key(change));
    (Running::start(informer), [objects, keys])
}

/// The default number of random histories.
const HISTORIES: u64 = 2_500;

/// One random history. Returns the requests that the server received.
async fn history(seed: u64) -> Vec<String> {
    let rng = Rng::seeded(seed);
    let server = Scripted::new("n");
    server.inject_random_faults(Some(rng.clone()));
    let initial_list = match rng.below(4) {
        0 => InitialList::Paged,
        _ => InitialList::Streamed,
    };
    let (mut running, mut recorders) = start(&server, initial_list, seed);
    for _ in 0..12 {
        let name = ["a", "b", "c", "d"][usize::try_from(rng.below(4)).expect("small")];
        match rng.below(16) {
            0..6 => server.apply(name),
            6..9 => server.delete(name),
            9 => server.inject(WatchFault::Ended),
            10 => {
                let reset = ListWatchError::Unreachable("reset".into());
                server.inject(WatchFault::Failed(reset));
            }
            11 => server.inject(WatchFault::Frozen),
            12 => server.compact(),
            13 => server.bookmark(),
            14 => {
                server.delete(name);
                server.apply(name);
            }
            _ => {
                running.stop().await;
                (running, recorders) = start(&server, initial_list, seed);
            }
        }
        if rng.below(2) == 0 {
            sleep(Duration::from_millis(rng.below(3000))).await;
        }
    }
    server.inject_random_faults(None);
    running.synced_despite_errors().await;
    running.caught_up(&server).await;
    for recorder in &recorders {
        recorder.caught_up(&server).await;
        let contradictions = recorder.lock().contradictions.clone();
        assert_eq!(contradictions, [""; 0], "seed {seed}");
    }
    running.stop().await;
    server.requests()
}

#[tokio::test(start_paused = true)]
async fn random_histories_end_with_the_objects_of_the_server() {
    let histories = std::env::var("INFORMER_HISTORIES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(HISTORIES);
    for seed in 0..histories {
        history(seed).await;
    }
}

#[test]
fn same_seed_sends_the_same_requests() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(history(seed))
    };
    for seed in 0..50 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
