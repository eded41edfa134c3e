//! Requests of the admin API.

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http::{Method, StatusCode};
use serde::Serialize;
use tokio::io::AsyncRead;

use crate::{
    api::{
        AddLearnerRequest, AllocateResponse, ChangeMembershipRequest, ClusterId, FormatRequest,
        Identity, InitializeRequest, MemberId, RaiseFormatLevelRequest, RestoreResult, Revision,
        Role, Status, TransferLeaderRequest,
    },
    call::{Answer, Call, Repeat},
    client::Client,
    error::ClientError,
    keys::Query,
    response::{self, json},
    snapshot,
};

/// Where and how a snapshot is restored.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// The identity of the new cluster and its first member.
    pub identity: Identity,
    /// `host:port` of the member's peer listener.
    pub address: String,
    /// SHA-256 of the snapshot in hexadecimal, if it is known.
    pub checksum: Option<String>,
    /// The restored store begins after this revision.
    pub min_revision: Revision,
}

impl Client {
    /// The status of the member at the preferred endpoint.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn status(&self) -> Result<Status, ClientError> {
        let call = Call::read("/admin/v1/status".to_owned());
        json(&call, &self.admin(&call).await?)
    }

    /// A client for the endpoint whose member is the leader, if one is. All endpoints are requested
    /// concurrently: one that does not respond delays nothing if another one is the leader.
    ///
    /// # Errors
    /// See [`ClientError`]: if no endpoint responds.
    pub async fn leader(&self) -> Result<Option<Self>, ClientError> {
        let mut statuses: FuturesUnordered<_> = self
            .endpoints()
            .iter()
            .map(|endpoint| async {
                let client = self.with_endpoint(endpoint.clone());
                let status = client.status().await;
                (client, status)
            })
            .collect();
        let mut failure = None;
        let mut has_answer = false;
        while let Some((client, status)) = statuses.next().await {
            match status {
                Ok(status) if status.role == Some(Role::Leader) => return Ok(Some(client)),
                Ok(_) => has_answer = true,
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if !has_answer => Err(error),
            _ => Ok(None),
        }
    }

    /// Formats the member as the only voter of a new cluster. The same request again succeeds.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn initialize(&self, request: &InitializeRequest) -> Result<(), ClientError> {
        self.idempotent(Method::POST, "/admin/v1/initialize", request)
            .await
    }

    /// Formats the member, which waits to be added as a learner. The same request again succeeds.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn format(&self, cluster: ClusterId, member: MemberId) -> Result<(), ClientError> {
        let request = FormatRequest {
            cluster_id: cluster,
            member_id: member,
        };
        self.idempotent(Method::POST, "/admin/v1/format", &request)
            .await
    }

    /// A member id that no member had.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn allocate_member_id(&self) -> Result<MemberId, ClientError> {
        let path = "/admin/v1/members:allocate".to_owned();
        // An id that is allocated and not used is harmless.
        let call = Call {
            repeat: Repeat::Always,
            ..Call::write(Method::POST, path, Bytes::new())
        };
        let response: AllocateResponse = json(&call, &self.admin(&call).await?)?;
        Ok(response.member_id)
    }

    /// Adds a learner, without waiting until it has caught up.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn add_learner(&self, id: MemberId, address: &str) -> Result<(), ClientError> {
        let request = AddLearnerRequest {
            id,
            address: address.to_owned(),
        };
        self.idempotent(Method::POST, "/admin/v1/members", &request)
            .await
    }

    /// Changes voters and learners. Returns when the new configuration is committed.
    ///
    /// # Errors
    /// See [`ClientError`]. If the membership is not the expected one,
    /// [`Reason::ConditionFailed`](crate::api::Reason::ConditionFailed).
    pub async fn change_membership(
        &self,
        request: &ChangeMembershipRequest,
    ) -> Result<(), ClientError> {
        let body = encode(request);
        let call = Call::write(Method::PUT, "/admin/v1/membership".to_owned(), body);
        self.admin(&call).await.map(drop)
    }

    /// Hands leadership over to a voter.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn transfer_leader(&self, to: MemberId) -> Result<(), ClientError> {
        let request = TransferLeaderRequest { to };
        self.idempotent(Method::POST, "/admin/v1/leader:transfer", &request)
            .await
    }

    /// Raises the format level of the data.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn raise_format_level(&self, level: u32) -> Result<(), ClientError> {
        let request = RaiseFormatLevelRequest { level };
        self.idempotent(Method::POST, "/admin/v1/format-level:raise", &request)
            .await
    }

    /// Takes a snapshot and drops the log before it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn compact(&self) -> Result<(), ClientError> {
        self.idempotent(Method::POST, "/admin/v1/compact", &())
            .await
    }

    /// Restores a snapshot into an unformatted member, which becomes the only voter.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn restore(
        &self,
        request: &RestoreRequest,
        file: impl AsyncRead + Send + 'static,
    ) -> Result<RestoreResult, ClientError> {
        let mut query = Query::new("/admin/v1/restore");
        query.add("clusterId", request.identity.cluster_id.as_str());
        query.add("memberId", &request.identity.member_id.to_string());
        query.add("address", &request.address);
        query.add("minRevision", &request.min_revision.to_string());
        if let Some(checksum) = &request.checksum {
            query.add("checksum", checksum);
        }
        let body = snapshot::upload_body(file);
        let answer = self
            .upload(&query.text, body, snapshot::TRANSFER_TIMEOUT)
            .await?;
        json(&Call::read("/admin/v1/restore".to_owned()), &answer)
    }

    /// A request that has the same effect if it is repeated.
    async fn idempotent(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(), ClientError> {
        let call = Call {
            repeat: Repeat::Always,
            ..Call::write(method, path.to_owned(), encode(body))
        };
        self.admin(&call).await.map(drop)
    }

    /// Unlike for keys, 404 is an error of the admin API.
    async fn admin(&self, call: &Call) -> Result<Answer, ClientError> {
        let answer = self.call(call).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Err(response::error(call, &answer));
        }
        Ok(answer)
    }
}

fn encode(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body)
        .expect("requests of the admin API have only text keys")
        .into()
}
