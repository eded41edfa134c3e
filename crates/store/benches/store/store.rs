//! The store as processes, without TLS on loopback, as etcd next to it.

use std::{
    env, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
};

use bellerophon_store_client::{
    Client, ClientOptions,
    api::{ChangeMembershipRequest, ClusterId, InitializeRequest, MemberId, Role, Status},
};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::{
    processes::Usage,
    target::{BenchError, Target, counter, eventually},
};

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) health: SocketAddr,
}

/// A member as a process. It is killed when it is dropped.
pub(crate) struct StoreMember {
    pub(crate) id: MemberId,
    pub(crate) process: Child,
    pub(crate) addresses: Addresses,
}

pub(crate) struct StoreCluster {
    pub(crate) members: Vec<StoreMember>,
    directory: TempDir,
    leader: Addresses,
}

impl StoreCluster {
    /// A cluster of N voters whose leader is the first member.
    pub(crate) async fn start(count: usize) -> Result<Self, BenchError> {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let seed = StoreMember::start(1, &directory.path().join("1")).await?;
        let leader = seed.addresses;
        let mut cluster = Self {
            members: vec![seed],
            directory,
            leader,
        };
        let request = InitializeRequest {
            cluster_id: cluster_id(),
            member_id: 1,
            address: leader.peer.to_string(),
        };
        cluster.client().initialize(&request).await?;
        cluster.wait_for_leader().await?;
        for _ in 1..count {
            cluster.join().await?;
        }
        Ok(cluster)
    }

    /// A client of the first member.
    pub(crate) fn client(&self) -> Client {
        client(self.leader)
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    async fn wait_for_leader(&self) -> Result<Status, BenchError> {
        let client = self.client();
        eventually("the first member leads", async || {
            let status = client.status().await;
            status.is_ok_and(|status| status.role == Some(Role::Leader))
        })
        .await?;
        Ok(client.status().await?)
    }

    /// Adds a voter.
    pub(crate) async fn join(&mut self) -> Result<MemberId, BenchError> {
        let admin = self.client();
        let id = admin.allocate_member_id().await?;
        let data = self.directory.path().join(id.to_string());
        let member = StoreMember::start(id, &data).await?;
        let joining = client(member.addresses);
        joining.format(cluster_id(), id).await?;
        let address = member.addresses.peer.to_string();
        admin.add_learner(id, &address).await?;
        self.members.push(member);
        let applied = self.wait_for_leader().await?.applied_index;
        eventually("the learner catches up", async || {
            let status = joining.status().await;
            status.is_ok_and(|status| status.applied_index >= applied)
        })
        .await?;
        let membership = admin.status().await?.membership;
        let mut voters = membership.voters;
        voters.insert(id);
        self.change(voters, membership.index).await?;
        Ok(id)
    }

    /// Sets the voters.
    pub(crate) async fn change(
        &self,
        voters: std::collections::BTreeSet<MemberId>,
        expected_membership_index: u64,
    ) -> Result<(), BenchError> {
        let request = ChangeMembershipRequest {
            voters,
            learners: std::collections::BTreeSet::new(),
            expected_membership_index,
        };
        Ok(self.client().change_membership(&request).await?)
    }
}

impl StoreMember {
    async fn start(id: MemberId, data: &Path) -> Result<Self, BenchError> {
        let built = || env!("CARGO_BIN_EXE_bellerophon-store-member").into();
        let program = env::var_os("STORE_MEMBER").unwrap_or_else(built);
        let mut process = Command::new(program)
            .arg("--data")
            .arg(data)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = process.stdout.take().expect("stdout is piped");
        let line = BufReader::new(stdout).lines().next_line().await?;
        let addresses = serde_json::from_str(&line.ok_or("the member ended")?)?;
        Ok(Self {
            id,
            process,
            addresses,
        })
    }
}

fn client(addresses: Addresses) -> Client {
    let endpoint = format!("http://{}", addresses.client);
    let endpoint = endpoint.parse().expect("a socket address is an endpoint");
    Client::new(ClientOptions::new(vec![endpoint]))
}

fn cluster_id() -> ClusterId {
    "bench".parse().expect("the id is a DNS label")
}

impl Target for StoreCluster {
    fn address(&self) -> SocketAddr {
        self.leader.client
    }

    fn put(&self, key: &str, value: &Bytes) -> Request<Full<Bytes>> {
        Request::put(self.uri(key))
            .body(Full::new(value.clone()))
            .expect("the keys of the benchmark need no escapes")
    }

    fn get(&self, key: &str) -> Request<Full<Bytes>> {
        Request::get(self.uri(key))
            .body(Full::default())
            .expect("the keys of the benchmark need no escapes")
    }

    async fn syncs(&self) -> Result<u64, BenchError> {
        counter(self.leader.health, "store_wal_fsync_duration_seconds_count").await
    }

    fn usage(&self) -> io::Result<Usage> {
        Usage::of(self.members.iter().map(|member| &member.process))
    }
}

impl StoreCluster {
    fn uri(&self, key: &str) -> String {
        format!("http://{}/v1/keys/{key}", self.leader.client)
    }
}
