//! Watches of the controllers and operators of this process, which the live page may cut.
//!
//! In: requests of their clients. Out: the same responses; the body of a watch ends when the watch
//! is cut, as if the connection was lost.
//! Guarantees: only watches of these clients are cut; without `--page-may-act` nothing is recorded.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellerophon_apiserver::ApiService;
use futures_util::StreamExt as _;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use kube::client::Body;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

/// The open watches. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Watches(Option<Arc<Mutex<Open>>>);

/// For each resource, what ends its watches. A token whose watch has ended is cancelled.
type Open = BTreeMap<String, Vec<CancellationToken>>;

impl Watches {
    /// Watches that can be cut, or not.
    pub(crate) fn new(can_cut: bool) -> Self {
        Self(can_cut.then(Arc::default))
    }

    /// A client whose watches are recorded.
    pub(crate) fn client(&self, service: ApiService) -> kube::Client {
        let Some(open) = self.0.clone() else {
            return kube::Client::new(service, "default");
        };
        let recorded = tower::service_fn(move |request: Request<Body>| {
            let token = watched(request.method(), request.uri()).map(|name| add(&open, name));
            let mut service = service.clone();
            async move {
                let response = service.call(request).await?;
                Ok::<_, Infallible>(response.map(|body| match token {
                    None => body.boxed_unsync(),
                    Some(token) => {
                        let ended = token.clone().cancelled_owned();
                        // Cancels the token when the client drops the watch.
                        let guard = token.drop_guard();
                        let frames = BodyStream::new(body).take_until(ended);
                        let frames = frames.map(move |frame| {
                            let _kept = &guard;
                            frame
                        });
                        StreamBody::new(frames).boxed_unsync()
                    }
                }))
            }
        });
        kube::Client::new(recorded, "default")
    }

    /// The resources with open watches: `pods`, `deployments.apps`.
    pub(crate) fn resources(&self) -> Vec<String> {
        let Some(open) = &self.0 else {
            return Vec::new();
        };
        let mut open = lock(open);
        open.retain(|_, tokens| {
            tokens.retain(|token| !token.is_cancelled());
            !tokens.is_empty()
        });
        open.keys().cloned().collect()
    }

    /// Ends the watches of a resource, and returns their number.
    pub(crate) fn cut(&self, resource: &str) -> usize {
        let tokens = self
            .0
            .as_ref()
            .and_then(|open| lock(open).remove(resource))
            .unwrap_or_default();
        let open = tokens.iter().filter(|token| !token.is_cancelled());
        open.map(CancellationToken::cancel).count()
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(open: &Mutex<Open>, resource: String) -> CancellationToken {
    let token = CancellationToken::new();
    let mut open = lock(open);
    let tokens = open.entry(resource).or_default();
    tokens.retain(|token| !token.is_cancelled());
    tokens.push(token.clone());
    token
}

/// The resource that a request watches.
fn watched(method: &Method, uri: &Uri) -> Option<String> {
    let mut query = uri.query().unwrap_or_default().split('&');
    let is_watch = query.any(|pair| matches!(pair, "watch=true" | "watch=1"));
    if *method != Method::GET || !is_watch {
        return None;
    }
    let segments: Vec<&str> = uri.path().split('/').skip(1).collect();
    let (group, rest) = match segments.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let resource = match rest {
        ["namespaces", _, resource, ..] | [resource, ..] => *resource,
        [] => return None,
    };
    Some(match group {
        "" => resource.to_owned(),
        group => format!("{resource}.{group}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_named_by_resource_and_group() {
        for (path, expected) in [
            ("/api/v1/pods?watch=true", Some("pods")),
            ("/api/v1/namespaces/a/pods?limit=5&watch=1", Some("pods")),
            ("/api/v1/namespaces?watch=true", Some("namespaces")),
            (
                "/apis/apps/v1/deployments?watch=true&allowWatchBookmarks=true",
                Some("deployments.apps"),
            ),
            ("/api/v1/pods", None),
            ("/api/v1/pods?watch=false", None),
            ("/openapi/v2?watch=true", None),
        ] {
            let uri: Uri = path.parse().expect("a URI");
            assert_eq!(watched(&Method::GET, &uri).as_deref(), expected, "{path}");
            assert_eq!(watched(&Method::POST, &uri), None, "{path}");
        }
    }

    #[test]
    fn only_open_watches_of_the_resource_are_cut() {
        let watches = Watches::new(true);
        let open = watches.0.clone().expect("recorded");
        let pods = add(&open, "pods".to_owned());
        let ended = add(&open, "pods".to_owned());
        let nodes = add(&open, "nodes".to_owned());
        ended.cancel();
        assert_eq!(watches.resources(), ["nodes", "pods"]);
        assert_eq!(watches.cut("pods"), 1);
        assert!(pods.is_cancelled());
        assert!(!nodes.is_cancelled());
        assert_eq!(watches.cut("pods"), 0);
        assert_eq!(Watches::new(false).cut("pods"), 0);
    }
}
