//! Start, stop and restart of the cluster.

use bellerophon_testkit::TestCluster;

#[tokio::test(start_paused = true)]
async fn cluster_can_be_stopped_and_restarted() {
    let mut cluster = TestCluster::with_core_controllers().await;
    cluster.restart_controllers().await;
    cluster.stop_controllers().await;
    cluster.start_controllers().await;
    cluster.stop().await;
}
