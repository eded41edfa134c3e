//! The writes that are measured: one after another on one connection, paced.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::{
    accounts::OTHER,
    common::{
        BenchError,
        client::{Connection, config_map},
        process::now,
    },
};

/// The time between two writes, if the first takes no longer.
const INTERVAL: Duration = Duration::from_millis(2);

const DURATION: Duration = Duration::from_secs(6);

/// Writes before the first measured one.
const WARM_UP: usize = 500;

/// Latencies in milliseconds.
pub(crate) struct Latencies {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// Writes without a pause.
pub(crate) async fn warm_up(connection: &mut Connection) -> Result<(), BenchError> {
    for number in 0..WARM_UP {
        write(connection, &format!("warm-up-{number}")).await?;
    }
    Ok(())
}

/// Measures writes, each from its first byte sent to the last byte of its response.
pub(crate) async fn measure(connection: &mut Connection) -> Result<Latencies, BenchError> {
    let started = now();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut latencies = Vec::new();
    while started.elapsed() < DURATION {
        ticks.tick().await;
        let sent = now();
        write(connection, &format!("measured-{}", latencies.len())).await?;
        latencies.push(sent.elapsed());
    }
    latencies.sort();
    let ms = |index: usize| latencies[index].as_secs_f64() * 1e3;
    Ok(Latencies {
        p50: ms(latencies.len() / 2),
        p99: ms(latencies.len() * 99 / 100),
        max: ms(latencies.len() - 1),
    })
}

async fn write(connection: &mut Connection, name: &str) -> Result<(), BenchError> {
    let path = format!("/api/v1/namespaces/{OTHER}/configmaps");
    connection.call("POST", &path, &config_map(name, 0)).await?;
    Ok(())
}
