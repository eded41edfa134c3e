//! Data directories that a member refuses at its start, with the reason.

use std::{sync::Arc, time::Duration};

use bellerophon_store::Disk;

use crate::{
    cluster::Cluster,
    members::{cluster, identity, put},
    network::address,
};

/// Damages the files of a member that does not run; returns why it does not start.
fn refusal(damage: impl FnOnce(&Cluster, &Arc<dyn Disk>)) -> String {
    let mut cluster = cluster(1);
    put(&mut cluster, 0, "k", "v").unwrap();
    let other = cluster.add_machine(1000);
    let initialized = cluster.call(other, move |member| async move {
        member
            .initialize(identity("cluster-b", 2), address(other))
            .await
    });
    initialized.unwrap();
    cluster.kill(0);
    cluster.kill(other);
    let disk = cluster.machines[&0].disk.attach(Duration::ZERO);
    damage(&cluster, &disk);
    cluster.start(0);
    let refused = cluster.machines[&0].refused.clone();
    refused.expect("the member starts")
}

fn overwrite(disk: &Arc<dyn Disk>, name: &str, content: &[u8]) {
    disk.create(name, 0).unwrap();
    disk.write_at(name, 0, content).unwrap();
}

fn other_file(cluster: &Cluster, name: &str) -> Vec<u8> {
    let disk = cluster.machines[&1].disk.attach(Duration::ZERO);
    disk.read(name).unwrap()
}

#[test]
fn foreign_state_is_refused_at_start() {
    let reason = refusal(|cluster, disk| {
        overwrite(disk, "state.redb", &other_file(cluster, "state.redb"));
    });
    assert!(
        reason.contains("the state is of cluster cluster-b"),
        "{reason}"
    );
}

#[test]
fn newer_format_level_is_refused_at_start() {
    let reason = refusal(|_, disk| {
        let mut identity = disk.read("identity").unwrap();
        // After the magic and the checksum.
        identity[12] = 2;
        let crc = crc32fast::hash(&identity[12..]);
        identity[8..12].copy_from_slice(&crc.to_le_bytes());
        overwrite(disk, "identity", &identity);
    });
    assert!(reason.contains("the data has format level 2"), "{reason}");
}

#[test]
fn damaged_identity_is_refused_at_start() {
    let reason = refusal(|_, disk| {
        let mut identity = disk.read("identity").unwrap();
        identity[20] ^= 1;
        overwrite(disk, "identity", &identity);
    });
    assert!(
        reason.contains("the identity of the data directory is damaged"),
        "{reason}"
    );
}

#[test]
fn lost_identity_is_refused_at_start() {
    let reason = refusal(|_, disk| disk.remove("identity").unwrap());
    assert!(
        reason.contains("the data directory has no identity"),
        "{reason}"
    );
}

#[test]
fn lost_log_is_refused_at_start() {
    let reason = refusal(|_, disk| {
        for name in disk.list().unwrap() {
            if name.starts_with("log-") {
                disk.remove(&name).unwrap();
            }
        }
    });
    assert!(reason.contains("the log has no segment"), "{reason}");
}
