//! Statistics of an informer, and its metrics.

use tokio::time::sleep;

use super::*;
use crate::metrics::Metrics;

#[tokio::test(start_paused = true)]
async fn metrics_report_an_informer_while_it_exists() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    server.send_undecodable("a");
    server.apply("c");
    running.caught_up(&server).await;
    let metrics = Metrics::new();
    let other = Running::on(&server).await;
    for informer in [&running.informer, &other.informer] {
        let informer = &informer.handle.informer;
        metrics.track_informer(&informer.core.name, informer.stats_while_alive());
    }
    sleep(Duration::from_secs(5)).await;
    let text = metrics.encode();
    for line in [
        "bellerophon_informer_objects{name=\"configmaps\"} 6",
        "bellerophon_informer_undecodable_total{name=\"configmaps\"} 1",
        "bellerophon_informer_lag_seconds{name=\"configmaps\"} 0.0",
        "bellerophon_informer_silence_seconds{name=\"configmaps\"} 5.",
    ] {
        assert_eq!(
            text.matches(line).count(),
            1,
            "{line} is not once in {text}"
        );
    }
    running.stop().await;
    other.stop().await;
    assert!(!metrics.encode().contains("configmaps"));
}

#[tokio::test(start_paused = true)]
async fn lag_is_the_age_of_the_oldest_pending_notification() {
    let server = server_with("ab");
    let running = Running::on(&server).await;
    assert_eq!(running.informer.stats().lag, Duration::ZERO);
    // No task serves handlers of an informer that has stopped.
    let stopped = running.informer.clone();
    running.stop().await;
    stopped.add_event_handler(Recorder::default());
    sleep(Duration::from_secs(7)).await;
    let InformerStats { lag, backlog, .. } = stopped.stats();
    assert_eq!(lag, Duration::from_secs(7));
    assert_eq!(backlog, 2);
}
