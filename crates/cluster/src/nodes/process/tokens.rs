//! Service account tokens of projected volumes.
//!
//! Guarantees: a token is bound to its pod and renewed after 80 % of its life or 24 hours. Mirrors
//! the kubelet's token manager.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bellerophon::client::ReconcileClient;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use kube::Api;
use kube::api::PostParams;

use super::super::time::after;

/// The default of `expirationSeconds`.
const LIFE_SECONDS: i64 = 3600;
/// A token is renewed after this time, however long it is valid.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The tokens of a pod, by audience and life.
#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<(Option<String>, i64), Token>>);

/// A token and when it is renewed.
#[derive(Clone)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) renew_at: Timestamp,
}

impl Tokens {
    /// A token that is not due for renewal.
    pub(super) async fn get(
        &self,
        client: &ReconcileClient,
        pod: &Pod,
        projection: &ServiceAccountTokenProjection,
        now: Timestamp,
    ) -> Result<Token, String> {
        let life = projection.expiration_seconds.unwrap_or(LIFE_SECONDS);
        let key = (projection.audience.clone(), life);
        let known = self.lock().get(&key).cloned();
        if let Some(token) = known.filter(|token| now < token.renew_at) {
            return Ok(token);
        }
        let token = request(client, pod, projection, life, now).await?;
        self.lock().insert(key, token.clone());
        Ok(token)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(Option<String>, i64), Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn request(
    client: &ReconcileClient,
    pod: &Pod,
    projection: &ServiceAccountTokenProjection,
    life: i64,
    now: Timestamp,
) -> Result<Token, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.as_deref())
        .unwrap_or("default");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(projection.audience.iter().cloned().collect()),
            expiration_seconds: Some(life),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        }),
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.kube().clone(), namespace);
    let params = PostParams::default();
    let answer: TokenRequest = accounts
        .create_subresource("token", account, &params, &request)
        .await
        .map_err(|error| format!("failed to fetch token: {error}"))?;
    let status = answer.status.unwrap_or_default();
    let text = status
        .token
        .ok_or_else(|| "failed to fetch token: no token in the response".to_owned())?;
    let expiration = status.expiration_timestamp.map_or(now, |time| time.0);
    Ok(Token {
        text,
        renew_at: renewal(now, expiration),
    })
}

/// When a token that was issued now is renewed.
fn renewal(now: Timestamp, expiration: Timestamp) -> Timestamp {
    let life = Duration::try_from(expiration.duration_since(now)).unwrap_or_default();
    after(now, life.mul_f64(0.8).min(AGE_MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_renewed_at_80_percent_or_after_a_day() {
        let now = Timestamp::UNIX_EPOCH;
        for (life, expected) in [(3600, 2880), (600, 480), (1_000_000, 86_400)] {
            let expiration = after(now, Duration::from_secs(life));
            assert_eq!(renewal(now, expiration).as_second(), expected, "{life}");
        }
    }

    #[tokio::test]
    async fn token_is_requested_again_when_it_is_due() {
        let server = bellerophon_apiserver::ApiServer::builder().start();
        let server = server.await.unwrap();
        let client = ReconcileClient::new(server.client(), "kubelet");
        let accounts: Api<ServiceAccount> = Api::namespaced(server.client(), "default");
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        let created = accounts.create(&PostParams::default(), &account).await;
        created.unwrap();
        let pod = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "app", "image": "i"}]},
        });
        let pods: Api<Pod> = Api::namespaced(server.client(), "default");
        let pod = serde_json::from_value(pod).unwrap();
        let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
        let projection = ServiceAccountTokenProjection {
            expiration_seconds: Some(600),
            path: "token".to_owned(),
            ..ServiceAccountTokenProjection::default()
        };
        let tokens = Tokens::default();
        let start = bellerophon::clock::Clock::system().now();
        let at = async |seconds: u64| {
            let now = after(start, Duration::from_secs(seconds));
            let token = tokens.get(&client, &pod, &projection, now).await;
            token.unwrap().text
        };
        let first = at(0).await;
        assert_eq!(at(470).await, first, "80 % of 600 s are not over");
        let second = at(490).await;
        assert_ne!(second, first);
        assert_eq!(at(491).await, second);
        server.shutdown().await;
    }
}
