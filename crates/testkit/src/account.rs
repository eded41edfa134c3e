//! A service account with exactly the permissions it was given, and its recorded requests.

use std::time::Duration;

use bellerophon::{client::ReconcileClient, clock::Clock, kinds::Kind};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, header};
use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::service_fn;

use crate::{
    external::is_selected,
    faults::{Fault, FaultInjector},
    request_log::{RecordedRequest, RequestLog},
    test_cluster::TestCluster,
};

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// The namespace of service accounts.
const NAMESPACE: &str = "default";

/// How long tokens of accounts are valid: longer than the virtual time of most tests.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// A service account: its client may do what its RBAC rules allow, in every namespace, and nothing
/// else. All its requests are recorded, and faults can be injected into them.
///
/// # Example
/// ```
/// use bellerophon_testkit::TestCluster;
/// use k8s_openapi::api::{core::v1::Pod, rbac::v1::PolicyRule};
/// use kube::Api;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let rules = [PolicyRule {
///     api_groups: Some(vec![String::new()]),
///     resources: Some(vec!["pods".into()]),
///     verbs: vec!["get".into(), "list".into()],
///     ..PolicyRule::default()
/// }];
/// let cluster = TestCluster::api_server_only().await;
/// let account = cluster.service_account("reader", &rules).await;
/// let pods = Api::<Pod>::namespaced(account.client.clone(), "default");
/// assert!(pods.list(&Default::default()).await.is_ok());
/// assert!(pods.delete("web", &Default::default()).await.is_err());
/// assert_eq!(account.requests.forbidden().len(), 1);
/// assert_eq!(account.requests.unused_permissions(&rules), ["get /pods"]);
/// cluster.stop().await;
/// # }
/// ```
pub struct Account {
    /// A client that authenticates as this account.
    pub client: Client,
    /// The requests of the client.
    pub requests: RequestLog,
    pub(crate) name: String,
    /// The clock of its test cluster.
    pub(crate) clock: Clock,
    /// The number of successful writes. See [`RequestLog::writes`] for what counts.
    pub(crate) write_count: watch::Receiver<usize>,
    writes: WriteCounter,
    faults: FaultInjector,
}

/// Counts the writes of an account. Clones share the count.
#[derive(Clone, Debug)]
pub struct WriteCounter(watch::Sender<usize>);

impl WriteCounter {
    /// Counts a write, and lets a test that waits for it continue first.
    ///
    /// An operator that is killed after this write is killed before it receives the response.
    pub async fn count(&self) {
        self.0.send_modify(|count| *count += 1);
        tokio::task::yield_now().await;
    }
}

impl Account {
    /// Injects a fault from now on; `None` ends it.
    pub fn inject(&self, fault: Option<Fault>) {
        self.faults.set(fault);
    }

    /// Closes the account's watches, and refuses its connections for a time.
    pub fn disconnect(&self, time: Duration) {
        self.faults.disconnect(time);
    }

    /// The counter of writes. A model of an external system counts the writes of the operator to
    /// that system, so that crashes follow these, too.
    pub fn write_counter(&self) -> WriteCounter {
        self.writes.clone()
    }

    /// Waits until the account has made `count` successful writes. See [`RequestLog::writes`] for
    /// what counts.
    pub async fn wait_for_writes(&self, count: usize) {
        let mut write_count = self.write_count.clone();
        // Cannot fail: the sender lives as long as the client of this account.
        _ = write_count.wait_for(|current| *current >= count).await;
    }
}

impl TestCluster {
    /// Creates a service account in `default` with a ClusterRole of these rules.
    ///
    /// # Panics
    /// The server refuses to create it.
    pub fn service_account<'a>(
        &'a self,
        name: &'a str,
        rules: &'a [PolicyRule],
    ) -> BoxFuture<'a, Account> {
        Box::pin(async move {
            let metadata = ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            };
            self.apply_typed(&ServiceAccount {
                metadata: ObjectMeta {
                    namespace: Some(NAMESPACE.to_owned()),
                    ..metadata.clone()
                },
                ..ServiceAccount::default()
            })
            .await;
            self.apply_typed(&ClusterRole {
                metadata: metadata.clone(),
                rules: Some(rules.to_vec()),
                ..ClusterRole::default()
            })
            .await;
            self.apply_typed(&ClusterRoleBinding {
                metadata,
                role_ref: RoleRef {
                    api_group: Some(RBAC_GROUP.to_owned()),
                    kind: "ClusterRole".to_owned(),
                    name: name.to_owned(),
                },
                subjects: Some(vec![Subject {
                    kind: "ServiceAccount".to_owned(),
                    name: name.to_owned(),
                    namespace: Some(NAMESPACE.to_owned()),
                    ..Subject::default()
                }]),
            })
            .await;
            let token = self.request_token(name).await;
            self.account_with_token(name, &token)
        })
    }

    /// Applies an object, as a test does.
    async fn apply_typed<K: Kind>(&self, object: &K) {
        let client = ReconcileClient::new(self.client.clone(), "test");
        client.apply(object).await.expect("the server accepts it");
    }

    /// Requests a token of a service account.
    async fn request_token(&self, name: &str) -> String {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token");
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": TOKEN_SECONDS},
        });
        let request = Request::post(path)
            .body(body.to_string().into_bytes())
            .expect("a request");
        let response: Value = self
            .client
            .request(request)
            .await
            .expect("the server issues a token");
        let token = response["status"]["token"].as_str();
        token.expect("the response has a token").to_owned()
    }

    /// An account whose client sends a bearer token.
    fn account_with_token(&self, name: &str, token: &str) -> Account {
        let bearer =
            HeaderValue::try_from(format!("Bearer {token}")).expect("a token is visible ASCII");
        let requests = RequestLog::default();
        let faults = FaultInjector::default();
        let (writes, write_count) = watch::channel(0);
        let handler = RequestHandler {
            inner: self.client_without_credentials(),
            requests: requests.clone(),
            faults: faults.clone(),
            writes: writes.clone(),
        };
        // A service around the client of the cluster instead of a separate connection: requests
        // stay in the process and in virtual time.
        let service = service_fn(move |mut request: Request<Body>| {
            let headers = request.headers_mut();
            headers.insert(header::AUTHORIZATION, bearer.clone());
            handler.clone().send_to_the_end(request)
        });
        Account {
            client: Client::new(service, "default"),
            requests,
            name: name.to_owned(),
            clock: self.clock,
            write_count,
            writes: WriteCounter(writes),
            faults,
        }
    }
}

/// Handles each request of an account.
#[derive(Clone)]
struct RequestHandler {
    inner: Client,
    requests: RequestLog,
    faults: FaultInjector,
    writes: watch::Sender<usize>,
}

impl RequestHandler {
    /// As [`send`](Self::send). Another process completes and counts a request whose client is
    /// killed: without a task of its own, the request would not be recorded.
    async fn send_to_the_end(
        self,
        request: Request<Body>,
    ) -> Result<crate::faults::FaultyResponse, tower::BoxError> {
        match is_selected() {
            true => tokio::spawn(self.send(request)).await?,
            false => self.send(request).await,
        }
    }

    /// Injects faults, sends the request, and records it with its response.
    async fn send(
        self,
        request: Request<Body>,
    ) -> Result<crate::faults::FaultyResponse, tower::BoxError> {
        // Parsed before the request is sent, because sending consumes it.
        let recorded = RecordedRequest::parse(&request);
        // A request that never reaches the server is not recorded: it neither uses a permission nor
        // writes.
        if let Some(fault) = self.faults.intercept(recorded.as_ref()) {
            return fault;
        }
        let response = self.inner.send(request).await?;
        let response = self.faults.response(recorded.as_ref(), response);
        if let Some(mut recorded) = recorded {
            recorded.code = response.status().as_u16();
            if recorded.is_counted_write() && response.status().is_success() {
                // Before the counter: a test that waits for this write finds its fault in effect.
                self.faults.after_write();
                self.writes.send_modify(|count| *count += 1);
            }
            self.requests.push(recorded);
        }
        Ok(response)
    }
}
