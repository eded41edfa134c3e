//! Records one request in the audit log, from its authentication to the end of its response.
//! Mirrors the filters `WithAudit`, `WithFailedAuthenticationAudit` and what `WithAuthorization` and
//! `WithImpersonation` add to the event.

use std::sync::Arc;

use bellerophon_apimachinery::error::ApiError;
use http::{Response, header, request::Parts};
use serde_json::Value;

use super::{AuditLog, Record, RecordDetails, event::ResponseStatus};
use crate::{
    auth::{Decision, User},
    clock::Clock,
    http::{body::Body, negotiate, request_info::RequestInfo},
};

/// Longer user agents are cut.
const USER_AGENT_BYTES_MAX: usize = 1024;

/// The record of one request.
pub(crate) struct Recorder<'a> {
    /// `None` without an audit log.
    log: Option<&'a Arc<AuditLog>>,
    clock: &'a Clock,
    /// The `Audit-Id` of the response.
    pub(crate) audit_id: String,
    /// `None` until the user is known, and if the policy does not record the request.
    record: Option<Record>,
}

impl<'a> Recorder<'a> {
    /// A recorder of a request that nothing is known of.
    pub(crate) fn new(log: Option<&'a Arc<AuditLog>>, clock: &'a Clock, audit_id: String) -> Self {
        Self {
            log,
            clock,
            audit_id,
            record: None,
        }
    }

    /// Records a request of an authenticated user.
    pub(crate) async fn received(
        &mut self,
        head: &Parts,
        request: &RequestInfo,
        user: &User,
        source_ip: Option<String>,
    ) {
        let Some(log) = self.log else {
            return;
        };
        self.record = self.record_of(log, head, request, user, source_ip);
        if let Some(record) = &self.record {
            log.received(record).await;
        }
    }

    /// Records a request whose authentication failed: one event, without a user.
    pub(crate) async fn unauthenticated(
        &mut self,
        head: &Parts,
        request: &RequestInfo,
        error: &ApiError,
        source_ip: Option<String>,
    ) {
        let Some(log) = self.log else {
            return;
        };
        let unauthenticated = User::default();
        if let Some(mut record) = self.record_of(log, head, request, &unauthenticated, source_ip) {
            record.response_status = Some(ResponseStatus::of_error(error));
            log.started(&record, self.clock.timestamp()).await;
        }
    }

    /// Records the user that the request is made as.
    pub(crate) fn impersonates(&mut self, user: &User) {
        if let Some(record) = &mut self.record {
            record.impersonated_user = Some(user.clone());
        }
    }

    /// Records the decision of the authorizer.
    pub(crate) fn authorized(&mut self, decision: &Decision) {
        if let Some(record) = &mut self.record {
            record.authorization = Some(decision.clone());
        }
    }

    /// Records that the request failed.
    pub(crate) fn failed(&mut self, error: &ApiError) {
        if let Some(record) = &mut self.record {
            record.response_status = Some(ResponseStatus::of_error(error));
        }
    }

    /// The record, for the body of the request; `None` if the request is not recorded.
    pub(crate) fn record(&mut self) -> Option<&mut Record> {
        self.record.as_mut()
    }

    /// Records the response. That of a watch or connection is complete when its body is dropped.
    pub(crate) async fn finish(self, response: Response<Body>) -> Response<Body> {
        let (Some(log), Some(mut record)) = (self.log, self.record) else {
            return response;
        };
        let code = response.status().as_u16();
        if response.body().is_stream() {
            record.response_status.get_or_insert_default().code = code;
            log.started(&record, self.clock.timestamp()).await;
            let ended = Ended {
                log: log.clone(),
                record,
                clock: self.clock.clone(),
            };
            return response.map(|body| body.with_guard(ended));
        }
        let bytes = response.body().bytes();
        if record.response_status.is_none() {
            record.response_status = bytes.and_then(|bytes| ResponseStatus::of_body(bytes));
        }
        record.response_status.get_or_insert_default().code = code;
        if record.has_response_object() {
            let object: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(bytes).ok());
            record.response_object = object.map(|object| record.shown(object));
        }
        log.complete(&record, self.clock.timestamp()).await;
        response
    }

    fn record_of(
        &self,
        log: &AuditLog,
        head: &Parts,
        request: &RequestInfo,
        user: &User,
        source_ip: Option<String>,
    ) -> Option<Record> {
        let start = log.begin(request, user)?;
        let user_agent = negotiate::joined(&head.headers, &header::USER_AGENT).unwrap_or_default();
        Some(start.record(RecordDetails {
            audit_id: self.audit_id.clone(),
            request_uri: head.uri.to_string(),
            request: request.clone(),
            user: user.clone(),
            source_ip,
            user_agent: cut(user_agent),
            received: self.clock.timestamp(),
        }))
    }
}

/// Mirrors `maybeTruncateUserAgent`.
fn cut(mut user_agent: String) -> String {
    if user_agent.len() > USER_AGENT_BYTES_MAX {
        let mut end = USER_AGENT_BYTES_MAX;
        while !user_agent.is_char_boundary(end) {
            end -= 1;
        }
        user_agent.truncate(end);
        user_agent.push_str("...TRUNCATED");
    }
    user_agent
}

/// Records the end of a response that is a stream.
struct Ended {
    log: Arc<AuditLog>,
    record: Record,
    clock: Clock,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.log
            .complete_later(&self.record, self.clock.timestamp());
    }
}
