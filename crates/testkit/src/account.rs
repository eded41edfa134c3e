//! A service account with exactly the permissions it was given, and its recorded requests.

use std::time::Duration;

use http::{HeaderValue, Request, header};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
    rbac::v1::PolicyRule,
};
use kube::{Client, client::Body};
use serde_json::json;
use tokio::sync::watch;
use tower::service_fn;

use crate::{
    faults::{Fault, FaultInjector},
    request_log::{RecordedRequest, RequestLog},
    test_cluster::TestCluster,
};

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

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
    /// The number of successful writes. See [`RequestLog::writes`] for what counts.
    pub(crate) write_count: watch::Receiver<usize>,
    faults: FaultInjector,
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
    pub async fn service_account(&self, name: &str, rules: &[PolicyRule]) -> Account {
        self.apply(json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name},
        }))
        .await;
        self.apply(json!({
            "apiVersion": format!("{RBAC_GROUP}/v1"), "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": rules,
        }))
        .await;
        self.apply(json!({
            "apiVersion": format!("{RBAC_GROUP}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        }))
        .await;
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..Default::default()
            }),
            ..Default::default()
        };
        let token = self
            .namespaced::<ServiceAccount>("default")
            .create_token_request(name, &Default::default(), &request)
            .await
            .expect("the server issues a token")
            .status
            .and_then(|status| status.token)
            .expect("the response has a token");
        self.account_with_token(&token)
    }

    /// An account whose client sends a bearer token.
    fn account_with_token(&self, token: &str) -> Account {
        let bearer =
            HeaderValue::try_from(format!("Bearer {token}")).expect("a token is visible ASCII");
        let requests = RequestLog::default();
        let faults = FaultInjector::default();
        let (writes, write_count) = watch::channel(0);
        let handler = RequestHandler {
            inner: self.client.clone(),
            requests: requests.clone(),
            faults: faults.clone(),
            writes,
        };
        let service = service_fn(move |mut request: Request<Body>| {
            let headers = request.headers_mut();
            headers.insert(header::AUTHORIZATION, bearer.clone());
            handler.clone().send(request)
        });
        Account {
            client: Client::new(service, "default"),
            requests,
            write_count,
            faults,
        }
    }
}

/// What happens to each request of an account.
#[derive(Clone)]
struct RequestHandler {
    inner: Client,
    requests: RequestLog,
    faults: FaultInjector,
    writes: watch::Sender<usize>,
}

impl RequestHandler {
    /// Injects faults, sends the request, and records it with its response.
    async fn send(
        self,
        request: Request<Body>,
    ) -> Result<crate::faults::FaultyResponse, tower::BoxError> {
        let recorded = RecordedRequest::parse(&request);
        if let Some(fault) = self.faults.intercept(recorded.as_ref()) {
            return fault;
        }
        let response = self.inner.send(request).await?;
        let response = self.faults.response(recorded.as_ref(), response);
        if let Some(mut recorded) = recorded {
            recorded.code = response.status().as_u16();
            if recorded.is_counted_write() && response.status().is_success() {
                self.faults.after_write();
                self.writes.send_modify(|count| *count += 1);
            }
            self.requests.push(recorded);
        }
        Ok(response)
    }
}
