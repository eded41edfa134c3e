//! Several members as processes.

use std::{fs, time::Duration};

use bellerophon_store::api::{
    ChangeMembershipRequest, ClusterId, InitializeRequest, MemberId, MemberState, Role, Status,
};
use bellerophon_store_client::{Client, ClientError, ClientOptions, ClientTls, Endpoint, Token};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{
    certificates::Authority,
    process::{Addresses, MemberProcess, MemberSetup},
};

pub(crate) const ADMIN_TOKEN: &str = "token-of-administrators";
pub(crate) const CLIENT_TOKEN: &str = "token-of-clients";

/// How long a condition may take. Far more than elections need.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Members of one cluster in a temporary directory.
pub(crate) struct Cluster {
    pub(crate) id: ClusterId,
    pub(crate) directory: TempDir,
    pub(crate) authority: Authority,
    pub(crate) members: Vec<ClusterMember>,
}

pub(crate) struct ClusterMember {
    pub(crate) id: MemberId,
    pub(crate) setup: MemberSetup,
    pub(crate) process: Option<MemberProcess>,
}

impl Cluster {
    /// A cluster of N voters.
    pub(crate) async fn start(count: usize, extra: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new(directory.path().join("certificates"));
        fs::write(directory.path().join("admin-token"), ADMIN_TOKEN).unwrap();
        fs::write(directory.path().join("client-token"), CLIENT_TOKEN).unwrap();
        let mut cluster = Self {
            id: "test-cluster".parse().unwrap(),
            directory,
            authority,
            members: Vec::new(),
        };
        cluster.start_seed(extra).await;
        for _ in 1..count {
            cluster.join(extra).await;
        }
        cluster
    }

    /// How a member of this cluster is started.
    pub(crate) fn setup(&self, name: &str, id: MemberId, extra: &[&str]) -> MemberSetup {
        MemberSetup {
            data: self.directory.path().join(format!("data-{name}")),
            tls: self.authority.issue(name, &self.id, id),
            admin_token: self.directory.path().join("admin-token"),
            client_token: self.directory.path().join("client-token"),
            addresses: None,
            extra: extra.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    async fn start_seed(&mut self, extra: &[&str]) {
        let mut setup = self.setup("1", 1, extra);
        let process = setup.start().await;
        let request = InitializeRequest {
            cluster_id: self.id.clone(),
            member_id: 1,
            address: process.addresses.peer.to_string(),
        };
        let admin = self.admin_of(process.addresses);
        admin.initialize(&request).await.unwrap();
        self.members.push(ClusterMember {
            id: 1,
            setup,
            process: Some(process),
        });
        self.wait_for_leader().await;
    }

    /// Adds a member and makes it a voter.
    pub(crate) async fn join(&mut self, extra: &[&str]) -> MemberId {
        let admin = self.admin();
        let id = admin.allocate_member_id().await.unwrap();
        let mut setup = self.setup(&id.to_string(), id, extra);
        let process = setup.start().await;
        let addresses = process.addresses;
        let joining = self.admin_of(addresses);
        joining.format(self.id.clone(), id).await.unwrap();
        admin
            .add_learner(id, &addresses.peer.to_string())
            .await
            .unwrap();
        self.members.push(ClusterMember {
            id,
            setup,
            process: Some(process),
        });
        let applied = self.wait_for_leader().await.applied_index;
        eventually("the learner catches up", async || {
            joining
                .status()
                .await
                .is_ok_and(|status| status.applied_index >= applied)
        })
        .await;
        self.promote(id).await;
        id
    }

    async fn promote(&self, id: MemberId) {
        eventually("the learner is a voter", async || {
            let Some(status) = self.leader_status().await else {
                return false;
            };
            let mut voters = status.membership.voters.clone();
            if !voters.insert(id) && !status.membership.is_joint {
                return true;
            }
            let mut learners = status.membership.learners.clone();
            learners.remove(&id);
            let request = ChangeMembershipRequest {
                voters,
                learners,
                expected_membership_index: status.membership.index,
            };
            self.admin().change_membership(&request).await.is_ok()
        })
        .await;
    }

    pub(crate) fn endpoint(addresses: Addresses) -> Endpoint {
        format!("https://{}", addresses.client).parse().unwrap()
    }

    fn options(&self, endpoints: Vec<Endpoint>, token: &str) -> ClientOptions {
        let mut options = ClientOptions::new(endpoints);
        options.tls = Some(ClientTls::with_ca(self.authority.ca_pem().as_bytes()).unwrap());
        options.token = Some(Token::new(token));
        options
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let addresses = self
            .members
            .iter()
            .filter_map(|member| member.setup.addresses);
        addresses.map(Self::endpoint).collect()
    }

    /// A client of all members, with the token of clients.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.client_options())
    }

    /// Options of a client of all members.
    pub(crate) fn client_options(&self) -> ClientOptions {
        self.options(self.endpoints(), CLIENT_TOKEN)
    }

    /// A client of all members, with the token of administrators.
    pub(crate) fn admin(&self) -> Client {
        Client::new(self.options(self.endpoints(), ADMIN_TOKEN))
    }

    /// The options of administrators, with another endpoint before those of the members.
    pub(crate) fn admin_options_after(&self, endpoint: Endpoint) -> ClientOptions {
        let endpoints = std::iter::once(endpoint).chain(self.endpoints());
        self.options(endpoints.collect(), ADMIN_TOKEN)
    }

    /// An administrator of one member.
    pub(crate) fn admin_of(&self, addresses: Addresses) -> Client {
        Client::new(self.options(vec![Self::endpoint(addresses)], ADMIN_TOKEN))
    }

    /// An administrator of one member whose requests have less time than by default.
    pub(crate) fn admin_within(&self, time: Duration, addresses: Addresses) -> Client {
        let mut options = self.options(vec![Self::endpoint(addresses)], ADMIN_TOKEN);
        options.request_timeout = time;
        Client::new(options)
    }

    /// A client of one member with any token.
    pub(crate) fn client_with(&self, addresses: Addresses, token: &str) -> Client {
        Client::new(self.options(vec![Self::endpoint(addresses)], token))
    }

    /// The status of a member that runs.
    pub(crate) async fn status_of(&self, index: usize) -> Result<Status, ClientError> {
        let addresses = self.members[index]
            .setup
            .addresses
            .expect("the member was started");
        let member = self.admin_within(Duration::from_secs(2), addresses);
        member.status().await
    }

    /// The status of the leader, if one of the running members is.
    pub(crate) async fn leader_status(&self) -> Option<Status> {
        let mut newest: Option<Status> = None;
        for index in 0..self.members.len() {
            if self.members[index].process.is_none() {
                continue;
            }
            if let Ok(status) = self.status_of(index).await
                && status.role == Some(Role::Leader)
                && newest
                    .as_ref()
                    .is_none_or(|newest| newest.term < status.term)
            {
                newest = Some(status);
            }
        }
        newest
    }

    /// Waits until a member is the leader.
    pub(crate) async fn wait_for_leader(&self) -> Status {
        let start = Instant::now();
        loop {
            if let Some(status) = self.leader_status().await {
                return status;
            }
            assert!(start.elapsed() < CONDITION_TIMEOUT, "no leader");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The index of the leader in `members`.
    pub(crate) async fn leader_index(&self) -> usize {
        let leader = self.wait_for_leader().await.member_id;
        let mut members = self.members.iter();
        members
            .position(|member| Some(member.id) == leader)
            .expect("the leader is a member")
    }

    /// Starts a member again and waits until it follows the leader.
    pub(crate) async fn restart(&mut self, index: usize) {
        let process = self.members[index].setup.start().await;
        self.members[index].process = Some(process);
    }

    /// Waits until all running members have applied what the leader had.
    pub(crate) async fn wait_for_parity(&self) {
        let applied = self.wait_for_leader().await.applied_index;
        for index in 0..self.members.len() {
            if self.members[index].process.is_none() {
                continue;
            }
            eventually("the member has applied all entries", async || {
                self.status_of(index).await.is_ok_and(|status| {
                    status.state == MemberState::Running
                        && status.leader.is_some()
                        && status.applied_index >= applied
                })
            })
            .await;
        }
    }
}

/// Waits for a condition.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < CONDITION_TIMEOUT, "not in time: {what}");
        sleep(POLL_INTERVAL).await;
    }
}
