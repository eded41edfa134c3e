//! Steps that are requests to members.
//!
//! Guarantee: requests that change the cluster go to the leader that was observed; a follower or an
//! older leader refuses them.

use bellerophon::events::Event;
use bellerophon_store_client::api::{
    AddLearnerRequest, ChangeMembershipRequest, ClusterId, FormatRequest, InitializeRequest,
    InvalidClusterId, RaiseFormatLevelRequest, TransferLeaderRequest,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Applier, ApplyError};
use crate::{
    crd::MemberStatus,
    events,
    member_api::{AdminRequest, AdminResponse},
    names,
    step::Step,
};

impl Applier<'_> {
    /// Steps that are requests to a member.
    pub(super) async fn send(&self, step: &Step) -> Result<Vec<Event>, ApplyError> {
        let mut status = self.status();
        match step {
            Step::Initialize { member } => {
                let request = InitializeRequest {
                    cluster_id: self.parsed_cluster_id()?,
                    member_id: self.entry(member)?.id,
                    address: names::peer_address(self.hero(), member),
                };
                self.request(member, AdminRequest::Initialize(request))
                    .await?;
            }
            Step::Format { member } => {
                let request = FormatRequest {
                    cluster_id: self.parsed_cluster_id()?,
                    member_id: self.entry(member)?.id,
                };
                self.request(member, AdminRequest::Format(request)).await?;
            }
            Step::Allocate { name, role } => {
                let AdminResponse::Allocated(id) =
                    self.request_leader(AdminRequest::Allocate).await?
                else {
                    return Err(ApplyError::Gone("the leader allocated no id".to_owned()));
                };
                status.members.push(MemberStatus {
                    name: name.clone(),
                    id,
                    role: *role,
                    ..MemberStatus::default()
                });
                return self.write_status(&status).await;
            }
            Step::AddLearner { member } => {
                let request = AddLearnerRequest {
                    id: self.entry(member)?.id,
                    address: names::peer_address(self.hero(), member),
                };
                self.request_leader(AdminRequest::AddLearner(request))
                    .await?;
            }
            Step::ChangeMembership {
                voters,
                learners,
                expected_index,
            } => {
                let request = ChangeMembershipRequest {
                    voters: voters.clone(),
                    learners: learners.clone(),
                    expected_membership_index: *expected_index,
                };
                self.request_leader(AdminRequest::ChangeMembership(request))
                    .await?;
            }
            Step::TransferLeader { to, .. } => {
                let to = self.entry(to)?.id;
                let request = AdminRequest::TransferLeader(TransferLeaderRequest { to });
                self.request_leader(request).await?;
            }
            Step::RaiseFormatLevel { level } => {
                let request = RaiseFormatLevelRequest { level: *level };
                self.request_leader(AdminRequest::RaiseFormatLevel(request))
                    .await?;
            }
            Step::Compact { member } => {
                self.request(member, AdminRequest::Compact).await?;
                // Afterwards: a compaction that is repeated after a crash does no harm.
                status.autopilot.compacted_at = Some(Time(self.observed.now));
                self.write_status(&status).await?;
            }
            other => {
                return Err(ApplyError::Gone(format!(
                    "{other:?} is not a request to a member"
                )));
            }
        }
        Ok(events::of_step(step, self.observed))
    }

    fn parsed_cluster_id(&self) -> Result<ClusterId, InvalidClusterId> {
        self.cluster_id().parse()
    }

    async fn request_leader(&self, request: AdminRequest) -> Result<AdminResponse, ApplyError> {
        let status = self.hero().status.as_ref();
        let leader = status.and_then(|status| status.leader.as_deref());
        let leader = leader.ok_or_else(|| ApplyError::Gone("there is no leader".to_owned()))?;
        self.request(leader, request).await
    }

    async fn request(
        &self,
        member: &str,
        request: AdminRequest,
    ) -> Result<AdminResponse, ApplyError> {
        let target = self.objects.target(member);
        let target =
            target.ok_or_else(|| ApplyError::Gone(format!("member {member} does not run")))?;
        Ok(self.members.send(&target, request).await?)
    }
}
