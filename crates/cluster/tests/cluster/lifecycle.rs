//! Start, stop and restart of the cluster.

use bellerophon_testkit::World;

#[tokio::test(start_paused = true)]
async fn cluster_can_be_stopped_and_restarted() {
    let mut cluster = World::core().await;
    cluster.restart().await;
    cluster.pause().await;
    cluster.resume().await;
    cluster.stop().await;
}
