//! openraft's own suite for log storage and state machine, on files and on the simulated disk.

use std::{sync::Arc, time::Duration};

use openraft::{
    AsyncRuntime as _, StorageError,
    testing::log::{StoreBuilder, Suite},
};

use super::{log_store::LogStore, runtime::Runtime, state_machine::StateMachine, types::Types};
use crate::{
    api::Identity,
    data_dir::Formatted,
    disk::{Disk, FileDisk, simulated::SimulatedDisk},
    log::{Log, LogOptions, Seed},
    state::{Meta, State, StateOptions},
};

const LOG: LogOptions = LogOptions {
    segment_bytes: 4096,
};

const STATE: StateOptions = StateOptions {
    history_revisions: 100,
    history_bytes: 1 << 20,
    cache_bytes: 1 << 20,
};

async fn build(disk: Arc<dyn Disk>) -> (LogStore, StateMachine) {
    let identity = Identity {
        cluster_id: "suite".parse().unwrap(),
        member_id: 1,
    };
    let meta = Meta::new(identity.cluster_id.clone(), 1);
    State::create(&*disk, STATE, &meta).unwrap();
    Log::create(&*disk, LOG, Seed::default()).unwrap();
    let state = Arc::new(State::open(&*disk, STATE).unwrap());
    let log = Log::open(Arc::clone(&disk), LOG).await.unwrap();
    let machine = StateMachine {
        state,
        log: log.clone(),
        disk,
        formatted: Formatted {
            identity,
            format_level: 1,
        },
    };
    (LogStore { log }, machine)
}

struct Files;

impl StoreBuilder<Types, LogStore, StateMachine, tempfile::TempDir> for Files {
    async fn build(
        &self,
    ) -> Result<(tempfile::TempDir, LogStore, StateMachine), StorageError<Types>> {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(FileDisk::open(directory.path()).unwrap());
        let (log, machine) = build(disk).await;
        Ok((directory, log, machine))
    }
}

struct Simulated;

impl StoreBuilder<Types, LogStore, StateMachine> for Simulated {
    async fn build(&self) -> Result<((), LogStore, StateMachine), StorageError<Types>> {
        let disk = SimulatedDisk::new(1).attach(Duration::ZERO);
        let (log, machine) = build(disk).await;
        Ok(((), log, machine))
    }
}

#[test]
fn files_pass_the_suite_of_openraft() {
    Runtime::run(async { Suite::test_all(Files).await.unwrap() });
}

#[test]
fn simulated_disk_passes_the_suite_of_openraft() {
    Runtime::run(async { Suite::test_all(Simulated).await.unwrap() });
}
