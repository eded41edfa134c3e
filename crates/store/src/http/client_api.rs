//! The client API: keys, lists and watches.
//!
//! In: requests of the client listener. Out: calls of the member.
//! Guarantees: the number of concurrent requests and of watches is bounded; further ones get
//! `Busy`. A write that does not end in time gets `Unknown`.

use std::{future::Future, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    admin_api::AdminApi,
    auth::{Scope, Tokens},
    body::{self, Body},
    listener::{Handler, PeerCertificate},
    metrics::{Metrics, Operation},
    query::{self, Query},
    respond, watch,
};
use crate::{
    Member, Range, ReadResult, Write,
    api::{LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX, Reason, StoreError, VALUE_BYTES_MAX},
};

/// Concurrent requests. Each may hold a value of 1 MiB.
const REQUESTS_MAX: usize = 1024;

/// A request, from its body to its result: longer than two elections.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);

/// The path of lists, and what the paths of keys begin with.
const KEYS: &str = "/v1/keys";

/// What the client API and the admin API need.
pub(crate) struct Api {
    pub(crate) member: Member,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) watches: watch::Watches,
    requests: Semaphore,
    stop: CancellationToken,
}

impl Api {
    /// The API of a member. After `stop`, requests are refused and watches end.
    pub(crate) fn new(
        member: Member,
        tokens: Arc<Tokens>,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            member,
            tokens,
            watches: watch::Watches::new(metrics.clone(), stop.clone()),
            metrics,
            requests: Semaphore::new(REQUESTS_MAX),
            stop,
        }
    }

    fn permit(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        self.requests.try_acquire().map_err(|_| {
            StoreError::new(
                Reason::Busy,
                format!("{REQUESTS_MAX} requests are in progress; retry later"),
            )
        })
    }

    async fn serve(
        self: &Arc<Self>,
        operation: Operation,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, StoreError> {
        if self.stop.is_cancelled() {
            return Err(StoreError::new(
                Reason::NotReady,
                "the member is stopping; use another member",
            ));
        }
        if operation == Operation::Admin {
            self.tokens.authorize(request.headers(), Scope::Admin)?;
            return AdminApi::new(self.clone()).serve(request).await;
        }
        self.tokens.authorize(request.headers(), Scope::Client)?;
        if operation == Operation::Watch {
            return self.watches.start(&self.member, request.uri());
        }
        let _permit = self.permit()?;
        match operation {
            Operation::Get => within(Reason::NotReady, self.get(request)).await,
            Operation::List => within(Reason::NotReady, self.list(request)).await,
            Operation::Put => within(Reason::Unknown, self.put(request)).await,
            _ => within(Reason::Unknown, self.delete(request)).await,
        }
    }

    async fn get(&self, request: Request<Incoming>) -> Result<Response<Body>, StoreError> {
        let key = query::key(key_path(request.uri().path()))?;
        let mut query = Query::of(request.uri())?;
        let consistency = query.consistency()?;
        query.end()?;
        let found = self.member.read(&key, consistency).await?;
        Ok(item_response(&key, found))
    }

    async fn put(&self, request: Request<Incoming>) -> Result<Response<Body>, StoreError> {
        let key = query::key(key_path(request.uri().path()))?;
        let if_revision = condition(&request)?;
        let value = body::read(request.into_body(), VALUE_BYTES_MAX).await?;
        let write = Write::Put {
            key,
            value,
            if_revision,
        };
        Ok(respond::json(&self.member.write(write).await?))
    }

    async fn delete(&self, request: Request<Incoming>) -> Result<Response<Body>, StoreError> {
        let key = query::key(key_path(request.uri().path()))?;
        let if_revision = condition(&request)?;
        let write = Write::Delete { key, if_revision };
        Ok(respond::json(&self.member.write(write).await?))
    }

    async fn list(&self, request: Request<Incoming>) -> Result<Response<Body>, StoreError> {
        let mut query = Query::of(request.uri())?;
        let range = Range {
            prefix: query.text("prefix").unwrap_or_default(),
            start: query.text("start").unwrap_or_default(),
            limit: query.parsed("limit")?.unwrap_or(LIST_LIMIT_DEFAULT),
        };
        let consistency = query.consistency()?;
        query.end()?;
        if !(1..=LIST_LIMIT_MAX).contains(&range.limit) {
            return Err(query::invalid(format!(
                "parameter limit is {}; use 1 to {LIST_LIMIT_MAX}",
                range.limit
            )));
        }
        Ok(respond::json(&self.member.list(range, consistency).await?))
    }
}

impl Handler for Api {
    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        _certificate: PeerCertificate,
    ) -> Response<Body> {
        let started = Instant::now();
        let Some(operation) = operation(request.method(), request.uri().path()) else {
            let error = respond::unknown_path(request.method(), request.uri().path());
            return respond::error(&error);
        };
        let response = respond::result(self.serve(operation, request).await);
        self.metrics
            .observe(operation, response.status().as_u16(), started);
        response
    }
}

fn operation(method: &Method, path: &str) -> Option<Operation> {
    if path.starts_with("/admin/v1/") {
        return Some(Operation::Admin);
    }
    let is_key = path
        .strip_prefix(KEYS)
        .is_some_and(|rest| rest.starts_with('/'));
    match (method, path) {
        (&Method::GET, "/v1/watch") => Some(Operation::Watch),
        (&Method::GET, KEYS) => Some(Operation::List),
        (&Method::GET, _) if is_key => Some(Operation::Get),
        (&Method::PUT, _) if is_key => Some(Operation::Put),
        (&Method::DELETE, _) if is_key => Some(Operation::Delete),
        _ => None,
    }
}

fn key_path(path: &str) -> &str {
    path.strip_prefix(KEYS)
        .and_then(|rest| rest.strip_prefix('/'))
        .unwrap_or_default()
}

fn condition(request: &Request<Incoming>) -> Result<Option<u64>, StoreError> {
    let mut query = Query::of(request.uri())?;
    let if_revision = query.parsed("if-revision")?;
    query.end()?;
    Ok(if_revision)
}

/// A result in time, or an error with the reason.
async fn within<T>(
    reason: Reason,
    result: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout(REQUEST_TIMEOUT, result).await.unwrap_or_else(|_| {
        let message = match reason {
            Reason::Unknown => {
                "the write was not committed in time and may still be; read the key before you retry"
            }
            _ => "the read did not end in time; retry",
        };
        Err(StoreError::new(reason, message))
    })
}

fn item_response(key: &crate::api::Key, found: ReadResult) -> Response<Body> {
    let Some(item) = found.item else {
        let error = StoreError::new(Reason::NotFound, format!("key {key} does not exist"));
        let mut response = respond::error(&error.with_current(found.revision));
        set_number(&mut response, "store-revision", found.revision);
        return response;
    };
    let mut response = respond::bytes("application/octet-stream", item.value);
    set_number(&mut response, "store-revision", found.revision);
    set_number(&mut response, "store-create-revision", item.create_revision);
    set_number(&mut response, "store-mod-revision", item.mod_revision);
    set_number(&mut response, "store-version", item.version);
    response
}

fn set_number(response: &mut Response<Body>, name: &'static str, value: u64) {
    let name = HeaderName::from_static(name);
    response
        .headers_mut()
        .insert(name, HeaderValue::from(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_operation() {
        let cases = [
            (Method::GET, "/v1/keys", Some(Operation::List)),
            (Method::GET, "/v1/keys/a/b", Some(Operation::Get)),
            (Method::GET, "/v1/keys/", Some(Operation::Get)),
            (Method::PUT, "/v1/keys/a", Some(Operation::Put)),
            (Method::DELETE, "/v1/keys/a", Some(Operation::Delete)),
            (Method::GET, "/v1/watch", Some(Operation::Watch)),
            (Method::POST, "/admin/v1/initialize", Some(Operation::Admin)),
            (Method::PUT, "/v1/keys", None),
            (Method::POST, "/v1/keys/a", None),
            (Method::GET, "/v1/keysa", None),
            (Method::GET, "/", None),
        ];
        for (method, path, expected) in cases {
            assert_eq!(operation(&method, path), expected, "{method} {path}");
        }
    }
}
