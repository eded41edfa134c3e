//! A client with exactly the rights it was given, and a record of what it did.

use http::{HeaderValue, Request, Response, header};
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
    world::World,
};

/// A service account: its client may do what its rules say, in every namespace, and nothing else.
pub struct Account {
    /// Its client.
    pub client: Client,
    /// What it did.
    pub record: Record,
    pub(crate) written: watch::Receiver<usize>,
}

impl World {
    /// A service account of this name in `default`, with these rights.
    ///
    /// # Panics
    /// The server refuses to make it.
    pub async fn account(&self, name: &str, rules: &[PolicyRule]) -> Account {
        self.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})).await;
        let rbac = "rbac.authorization.k8s.io";
        self.apply(json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})).await;
        self.apply(json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        }))
        .await;
        let request = TokenRequest {
            spec: Some(TokenRequestSpec { expiration_seconds: Some(24 * 3600), ..Default::default() }),
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
        let noted = record.clone();
        let service = service_fn(move |mut request: Request<Body>| {
            let (inner, noted, count) = (inner.clone(), noted.clone(), count.clone());
            request.headers_mut().insert(header::AUTHORIZATION, bearer.clone());
            async move {
                let asked = Request::from_parts(parts_of(&request), ());
                let answer: Response<Body> = inner.send(request).await?;
                if let Some(seen) = Seen::of(&asked, answer.status().as_u16()) {
                    let counts = seen.is_write() && answer.status().is_success();
                    noted.note(seen);
                    count.send_modify(|written| *written += usize::from(counts));
                }
                Ok::<_, tower::BoxError>(answer)
            }
        });
        Account { client: Client::new(service, "default"), record, written }
    }
}

/// Method and address of a request, without what it carries.
fn parts_of<B>(request: &Request<B>) -> http::request::Parts {
    let bare = Request::builder().method(request.method().clone()).uri(request.uri().clone()).body(());
    bare.expect("it was one before").into_parts().0
}
