//! Components: the identities (user agents) of the controllers.
//!
//! Input: the client of the cluster. Output: one client per component, which sets its user agent.
//! Reason: a write without an explicit field manager is attributed to the user agent up to the
//! first slash, as in kube-apiserver.

use http::{HeaderValue, Request, header::USER_AGENT};
use kube::{Client, client::Body};

/// The Kubernetes process whose controllers run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Component {
    ControllerManager,
    Scheduler,
    Kubelet,
}

impl Component {
    /// Name of the process: field manager, prefix of the user agent, reporting component of events.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
        }
    }

    /// A client that sends the user agent of this component.
    pub(crate) fn client(self, client: &Client) -> Client {
        let inner = client.clone();
        let agent = self.user_agent();
        let service = tower::service_fn(move |mut request: Request<Body>| {
            request.headers_mut().insert(USER_AGENT, agent.clone());
            let client = inner.clone();
            async move { client.send(request).await }
        });
        Client::new(service, client.default_namespace())
    }

    fn user_agent(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::ControllerManager => concat!(
                "kube-controller-manager/",
                env!("CARGO_PKG_VERSION"),
                " bellerophon"
            ),
            Self::Scheduler => {
                concat!("kube-scheduler/", env!("CARGO_PKG_VERSION"), " bellerophon")
            }
            Self::Kubelet => concat!("kubelet/", env!("CARGO_PKG_VERSION"), " bellerophon"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_agent_begins_with_the_name() {
        for component in [
            Component::ControllerManager,
            Component::Scheduler,
            Component::Kubelet,
        ] {
            let agent = component.user_agent();
            assert_eq!(
                agent.to_str().unwrap().split('/').next(),
                Some(component.name())
            );
        }
    }
}
