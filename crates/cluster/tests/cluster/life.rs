//! Starting, stopping, starting again.

use bellerophon_testkit::World;

#[tokio::test(start_paused = true)]
async fn cluster_starts_stops_and_starts_again() {
    let mut world = World::core().await;
    world.restart().await;
    world.pause().await;
    world.resume().await;
    world.stop().await;
}
