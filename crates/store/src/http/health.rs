//! Liveness, readiness and metrics, over plain HTTP without authentication.
//!
//! In: the status of the member. Out: 200 or 503 with the reason.
//! Guarantees: a member is ready if it is part of a cluster, knows a leader and has applied what
//! it knows to be committed, up to a bound. It is live unless its storage failed.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::{
    body::{Body, full},
    listener::{Handler, PeerCertificate},
    metrics::Metrics,
    respond,
};
use crate::{
    Member,
    api::{MemberState, Status},
};

/// Committed entries that a ready member may not have applied yet: about a second of writes.
const READY_LAG_MAX: u64 = 10_000;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The endpoints of health and metrics.
pub(crate) struct HealthApi {
    member: Member,
    metrics: Arc<Metrics>,
}

impl HealthApi {
    pub(crate) fn new(member: Member, metrics: Arc<Metrics>) -> Self {
        Self { member, metrics }
    }
}

impl Handler for HealthApi {
    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        _certificate: PeerCertificate,
    ) -> Response<Body> {
        let path = request.uri().path();
        if request.method() != Method::GET {
            return respond::error(&respond::unknown_path(request.method(), path));
        }
        let status = self.member.status().await;
        match path {
            "/livez" | "/healthz" => text(liveness(&status)),
            "/readyz" => text(readiness(&status)),
            "/metrics" => respond::bytes(METRICS_TYPE, self.metrics.encode(&status)),
            _ => respond::error(&respond::unknown_path(request.method(), path)),
        }
    }
}

fn text(result: Result<(), String>) -> Response<Body> {
    match result {
        Ok(()) => respond::bytes("text/plain", "ok\n"),
        Err(reason) => {
            let mut response = respond::bytes("text/plain", "");
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            *response.body_mut() = full(format!("{reason}\n"));
            response
        }
    }
}

fn liveness(status: &Status) -> Result<(), String> {
    match status.state {
        MemberState::Failed => Err(format!("the storage failed: {}", status.message)),
        MemberState::Unformatted | MemberState::Joining | MemberState::Running => Ok(()),
    }
}

fn readiness(status: &Status) -> Result<(), String> {
    liveness(status)?;
    match status.state {
        MemberState::Unformatted => Err("the data directory belongs to no cluster".to_owned()),
        MemberState::Joining => Err("the member is not part of the membership yet".to_owned()),
        _ if status.leader.is_none() => Err("no leader is known".to_owned()),
        _ => {
            let lag = status.committed_index.saturating_sub(status.applied_index);
            if lag > READY_LAG_MAX {
                Err(format!("{lag} committed entries are not applied yet"))
            } else {
                Ok(())
            }
        }
    }
}
