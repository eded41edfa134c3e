//! The client: requests with fail-over between endpoints.
//!
//! In: a method, a path and a body. Out: the response of the first endpoint that can answer.
//! Guarantees: reads are repeated on any failure. A write is repeated only if it certainly had no
//! effect: it was not sent, or the store refused it for the time being. All attempts together are
//! bounded in time, and so is each response in size.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    api::Reason,
    call::{Answer, Call, Repeat},
    connection::{Connection, RequestBody, SendError},
    endpoint::Endpoint,
    error::ClientError,
    options::ClientOptions,
    response,
};

/// A response in memory: a page of a list has at most 4 MiB of values, in base64 with metadata.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Pauses between two rounds over all endpoints.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// A client of the store. Clones share connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Vec<Arc<Connection>>,
    /// The index of the endpoint that answered last.
    preferred: AtomicUsize,
    options: ClientOptions,
}

/// One failed attempt.
enum Failed {
    /// Another attempt may succeed.
    Retry(ClientError),
    Final(ClientError),
}

impl Client {
    /// A client. Nothing is dialed before the first request.
    ///
    /// # Panics
    /// If there is no endpoint.
    pub fn new(options: ClientOptions) -> Self {
        assert!(!options.endpoints.is_empty(), "a client has an endpoint");
        let endpoints = options.endpoints.iter().cloned();
        Self {
            inner: Arc::new(Inner {
                connections: endpoints.map(Connection::new).collect(),
                preferred: AtomicUsize::new(0),
                options,
            }),
        }
    }

    /// A client for one endpoint with the same options. It opens its own connection.
    #[must_use]
    pub fn with_endpoint(&self, endpoint: Endpoint) -> Self {
        Self::new(ClientOptions {
            endpoints: vec![endpoint],
            ..self.inner.options.clone()
        })
    }

    /// The endpoints.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.inner.options.endpoints
    }

    /// Sends a request until an endpoint answers it, or the time is over.
    pub(crate) async fn call(&self, call: &Call) -> Result<Answer, ClientError> {
        let mut attempts = self.attempts(call);
        loop {
            let connection = attempts.connection();
            let limit = attempts.limit();
            let result = timeout(limit, self.attempt(&connection, call)).await;
            match result.unwrap_or_else(|_| Err(too_late(&connection, call, limit))) {
                Ok(answer) => {
                    self.prefer(&connection);
                    return Ok(answer);
                }
                Err(failed) => attempts.next(failed).await?,
            }
        }
    }

    /// Sends a request until an endpoint begins to answer it. The body is the caller's to bound.
    pub(crate) async fn stream(
        &self,
        call: &Call,
    ) -> Result<(Endpoint, Response<Incoming>), ClientError> {
        let mut attempts = self.attempts(call);
        loop {
            let connection = attempts.connection();
            let limit = attempts.limit();
            let result = timeout(limit, self.successful_head(&connection, call)).await;
            match result.unwrap_or_else(|_| Err(too_late(&connection, call, limit))) {
                Ok(response) => {
                    self.prefer(&connection);
                    return Ok((connection.endpoint.clone(), response));
                }
                Err(failed) => attempts.next(failed).await?,
            }
        }
    }

    fn attempts<'a>(&'a self, call: &'a Call) -> Attempts<'a> {
        Attempts {
            client: self,
            call,
            deadline: Instant::now() + self.inner.options.request_timeout,
            offset: 0,
            backoff: BACKOFF_FIRST,
        }
    }

    /// Sends a request with a streamed body to the preferred endpoint, once.
    pub(crate) async fn upload(
        &self,
        path: &str,
        body: RequestBody,
        limit: Duration,
    ) -> Result<Answer, ClientError> {
        let call = Call::write(Method::POST, path.to_owned(), Bytes::new());
        let connection = self.connection(0);
        let attempt = async {
            let request = self.request(&connection.endpoint, &call, body);
            let response = connection
                .send(&self.inner.options, request)
                .await
                .map_err(|error| failed(&connection, &call, error))?;
            let answer = self.collect(&connection, &call, response).await?;
            if answer.status.is_success() {
                Ok(answer)
            } else {
                Err(refused(&connection, &call, answer))
            }
        };
        let result = timeout(limit, attempt).await;
        let result = result.unwrap_or_else(|_| Err(too_late(&connection, &call, limit)));
        result.map_err(Failed::into_error)
    }

    async fn attempt(&self, connection: &Connection, call: &Call) -> Result<Answer, Failed> {
        let response = self.head(connection, call).await?;
        let answer = self.collect(connection, call, response).await?;
        if answer.status.is_success() || answer.status == StatusCode::NOT_FOUND {
            return Ok(answer);
        }
        Err(refused(connection, call, answer))
    }

    async fn successful_head(
        &self,
        connection: &Connection,
        call: &Call,
    ) -> Result<Response<Incoming>, Failed> {
        let response = self.head(connection, call).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let answer = self.collect(connection, call, response).await?;
        Err(refused(connection, call, answer))
    }

    async fn head(
        &self,
        connection: &Connection,
        call: &Call,
    ) -> Result<Response<Incoming>, Failed> {
        let body = Full::new(call.body.clone()).map_err(|never| match never {});
        let request = self.request(&connection.endpoint, call, UnsyncBoxBody::new(body));
        connection
            .send(&self.inner.options, request)
            .await
            .map_err(|error| failed(connection, call, error))
    }

    async fn collect(
        &self,
        connection: &Connection,
        call: &Call,
        response: Response<Incoming>,
    ) -> Result<Answer, Failed> {
        let (head, body) = response.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES_MAX);
        let body = body
            .collect()
            .await
            .map_err(|error| sent(connection, call, error.to_string()))?;
        Ok(Answer {
            endpoint: connection.endpoint.clone(),
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
        })
    }

    fn request(&self, endpoint: &Endpoint, call: &Call, body: RequestBody) -> Request<RequestBody> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{endpoint}{}", call.path));
        if let Some(token) = &self.inner.options.token {
            request = request.header(header::AUTHORIZATION, token.authorization());
        }
        request
            .body(body)
            .expect("paths are percent-encoded and tokens are read from a line of text")
    }

    fn connection(&self, offset: usize) -> Arc<Connection> {
        let connections = &self.inner.connections;
        let first = self.inner.preferred.load(Ordering::Relaxed);
        connections[(first + offset) % connections.len()].clone()
    }

    fn prefer(&self, connection: &Arc<Connection>) {
        let mut connections = self.inner.connections.iter();
        if let Some(index) = connections.position(|other| Arc::ptr_eq(other, connection)) {
            self.inner.preferred.store(index, Ordering::Relaxed);
        }
    }
}

/// The attempts of one request: one endpoint after another, from the preferred one on.
struct Attempts<'a> {
    client: &'a Client,
    call: &'a Call,
    deadline: Instant,
    offset: usize,
    backoff: Duration,
}

impl Attempts<'_> {
    fn connection(&self) -> Arc<Connection> {
        self.client.connection(self.offset)
    }

    /// The time for the next attempt.
    fn limit(&self) -> Duration {
        let rest = self.deadline.saturating_duration_since(Instant::now());
        self.client.inner.options.attempt_timeout.min(rest)
    }

    /// Waits until the next attempt, or returns the error of the last one.
    async fn next(&mut self, failed: Failed) -> Result<(), ClientError> {
        let error = match failed {
            Failed::Final(error) => return Err(error),
            Failed::Retry(error) => error,
        };
        self.offset += 1;
        let endpoints = self.client.inner.connections.len();
        let is_round_over = self.offset.is_multiple_of(endpoints);
        let pause = if is_round_over {
            self.backoff
        } else {
            Duration::ZERO
        };
        if Instant::now() + pause >= self.deadline {
            return Err(error);
        }
        tracing::debug!(request = self.call.description(), %error, "retrying");
        if is_round_over {
            sleep(pause).await;
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        }
        // The pause may have taken longer. An attempt without time would be sent and not awaited:
        // its outcome would be unknown.
        if Instant::now() >= self.deadline {
            return Err(error);
        }
        Ok(())
    }
}

impl Failed {
    fn into_error(self) -> ClientError {
        match self {
            Self::Retry(error) | Self::Final(error) => error,
        }
    }
}

/// A request without a response.
fn failed(connection: &Connection, call: &Call, error: SendError) -> Failed {
    match error {
        SendError::NotSent(cause) => Failed::Retry(ClientError::Unavailable {
            endpoint: connection.endpoint.to_string(),
            cause,
        }),
        SendError::Sent(cause) => sent(connection, call, cause),
    }
}

/// A request that may have been processed.
fn sent(connection: &Connection, call: &Call, cause: String) -> Failed {
    let endpoint = connection.endpoint.to_string();
    match call.repeat {
        Repeat::Always => Failed::Retry(ClientError::Unavailable { endpoint, cause }),
        Repeat::WithoutEffect => Failed::Final(ClientError::OutcomeUnknown {
            request: call.description(),
            endpoint,
            cause,
        }),
    }
}

/// A request without a response in time.
fn too_late(connection: &Connection, call: &Call, limit: Duration) -> Failed {
    sent(connection, call, format!("no response within {limit:?}"))
}

/// A response with an error.
fn refused(connection: &Connection, call: &Call, answer: Answer) -> Failed {
    let error = response::error(call, &answer);
    let Some(reason) = error.reason() else {
        return Failed::Final(error);
    };
    let is_of_this_member = reason == Reason::Unformatted && call.path.starts_with("/v1/");
    let is_failed_read =
        call.repeat == Repeat::Always && matches!(reason, Reason::Unknown | Reason::StorageFailed);
    if reason.is_retryable() || is_of_this_member || is_failed_read {
        tracing::debug!(endpoint = %connection.endpoint, ?reason, "request refused");
        Failed::Retry(error)
    } else {
        Failed::Final(error)
    }
}
