//! A client with exactly the rights it was given, and a record of what it did.

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
    record::{Record, Seen},
    weather::{Fault, Weather},
    world::World,
};

/// A service account: its client may do what its rules say, in every namespace, and nothing else.
pub struct Account {
    /// Its client.
    pub client: Client,
    /// What it did.
    pub record: Record,
    pub(crate) written: watch::Receiver<usize>,
    weather: Weather,
}

impl Account {
    /// Lets a fault happen from now on; `None` ends it.
    pub fn suffer(&self, fault: Option<Fault>) {
        self.weather.set(fault);
    }

    /// Cuts its watches, and lets nothing through for so long.
    pub fn lose_server(&self, time: Duration) {
        self.weather.lose_server(time);
    }

    /// Resolves when so many writes of this account have succeeded.
    pub async fn wrote(&self, writes: usize) {
        let mut written = self.written.clone();
        // The sender lives in the client.
        _ = written.wait_for(|so_far| *so_far >= writes).await;
    }
}

impl World {
    /// A service account of this name in `default`, with these rights.
    ///
    /// # Panics
    /// The server refuses to make it.
    pub async fn account(&self, name: &str, rules: &[PolicyRule]) -> Account {
        self.apply(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}),
        )
        .await;
        let rbac = "rbac.authorization.k8s.io";
        self.apply(json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})).await;
        self.apply(json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        }))
        .await;
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(24 * 3600),
                ..Default::default()
            }),
            ..Default::default()
        };
        let accounts = self.within::<ServiceAccount>("default");
        let token = accounts
            .create_token_request(name, &Default::default(), &request)
            .await
            .expect("an answer")
            .status
            .and_then(|status| status.token)
            .expect("a token");
        self.client_of(&token)
    }

    /// A client with a token, whose requests are recorded.
    fn client_of(&self, token: &str) -> Account {
        let bearer = HeaderValue::try_from(format!("Bearer {token}")).expect("a token is a word");
        let (record, inner) = (Record::default(), self.client.clone());
        let (count, written) = watch::channel(0);
        let weather = Weather::default();
        let (noted, met) = (record.clone(), weather.clone());
        let service = service_fn(move |mut request: Request<Body>| {
            let (inner, noted, count, weather) =
                (inner.clone(), noted.clone(), count.clone(), met.clone());
            request
                .headers_mut()
                .insert(header::AUTHORIZATION, bearer.clone());
            async move {
                let seen = Seen::of(&request);
                if let Some(fault) = weather.meet(seen.as_ref()) {
                    return fault;
                }
                let answer = weather.answered(seen.as_ref(), inner.send(request).await?);
                if let Some(seen) = seen.map(|seen| Seen {
                    code: answer.status().as_u16(),
                    ..seen
                }) {
                    if seen.counts() && answer.status().is_success() {
                        weather.wrote();
                        count.send_modify(|written| *written += 1);
                    }
                    noted.note(seen);
                }
                Ok::<_, tower::BoxError>(answer)
            }
        });
        Account {
            client: Client::new(service, "default"),
            record,
            written,
            weather,
        }
    }
}
