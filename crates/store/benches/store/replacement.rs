//! The time to replace a lost member with 1 GB of data.

use std::collections::BTreeSet;

use bytes::Bytes;
use tokio::{task::JoinSet, time::Instant};

use crate::{store::StoreCluster, target::BenchError};

/// Values of 100 KB, 10,000 of them.
const VALUE_BYTES: usize = 100_000;
const VALUES: usize = 10_000;
const WRITERS: usize = 16;

/// Fills a cluster of three members, kills one and its data, and measures until a new one is a
/// voter with all data.
pub(crate) async fn measure(print: &impl Fn(&str)) -> Result<(), BenchError> {
    let mut cluster = StoreCluster::start(3).await?;
    fill(&cluster).await?;
    let mut lost = cluster.members.pop().ok_or("the cluster has members")?;
    let start = Instant::now();
    lost.process.kill().await?;
    std::fs::remove_dir_all(cluster.directory().join(lost.id.to_string()))?;
    let membership = cluster.client().status().await?.membership;
    let voters: BTreeSet<u64> = membership
        .voters
        .into_iter()
        .filter(|id| *id != lost.id)
        .collect();
    cluster.change(voters, membership.index).await?;
    cluster.join().await?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = cluster.client().status().await?.data_bytes;
    print(&format!(
        "A member with {:.2} GB is replaced in {seconds:.1} s: {:.0} MB/s\n",
        bytes as f64 / 1e9,
        bytes as f64 / 1e6 / seconds
    ));
    Ok(())
}

async fn fill(cluster: &StoreCluster) -> Result<(), BenchError> {
    let client = cluster.client();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let client = client.clone();
        writers.spawn(async move {
            for number in (writer..VALUES).step_by(WRITERS) {
                let key = format!("fill/{number}").parse().expect("the key is short");
                let value = Bytes::from(vec![number as u8; VALUE_BYTES]);
                client.put(&key, value, None).await?;
            }
            Ok::<_, BenchError>(())
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(())
}
