//! A disk that measures the syncs of the log.

use std::io;

use futures_util::future::BoxFuture;
use prometheus_client::{metrics::histogram::Histogram, registry::Unit};
use redb::StorageBackend;
use tokio::time::Instant;

use crate::{
    disk::{Disk, FileDisk, Job, Lane},
    http::Metrics,
    log,
};

/// Bounds in seconds: from a disk with a write cache to one that is overloaded.
const SYNC_BUCKETS: [f64; 12] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.064, 0.256, 1.024, 4.096,
];

/// Files whose syncs of log segments are measured.
pub(crate) struct MeteredDisk {
    disk: FileDisk,
    syncs: Histogram,
}

impl MeteredDisk {
    pub(crate) fn new(disk: FileDisk, metrics: &mut Metrics) -> Self {
        let syncs = Histogram::new(SYNC_BUCKETS);
        metrics.registry().register_with_unit(
            "wal_fsync_duration",
            "Syncs of the log, each of which covers all writes that were waiting",
            Unit::Seconds,
            syncs.clone(),
        );
        Self { disk, syncs }
    }
}

impl Disk for MeteredDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.disk.read(name)
    }

    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.disk.read_at(name, offset, length)
    }

    fn create(&self, name: &str, reserve: u64) -> io::Result<()> {
        self.disk.create(name, reserve)
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.write_at(name, offset, bytes)
    }

    fn set_len(&self, name: &str, length: u64) -> io::Result<()> {
        self.disk.set_len(name, length)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let started = Instant::now();
        self.disk.sync(name)?;
        if log::is_segment(name) {
            self.syncs.observe(started.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }

    fn open_state(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        self.disk.open_state(name)
    }

    fn run(&self, lane: Lane, job: Job) -> BoxFuture<'static, io::Result<()>> {
        self.disk.run(lane, job)
    }
}
