//! Components: who the loops are to the server.
//!
//! In: the client of a cluster. Out: a client of a component, which names it in its user agent.
//! Holds: the server attributes fields written without a manager to the first word of the user agent, as upstream.

use http::{HeaderValue, Request, header::USER_AGENT};
use kube::{Client, client::Body};

/// A process of a Kubernetes control plane whose duties a loop has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Component {
    ControllerManager,
    Scheduler,
    Kubelet,
}

impl Component {
    /// Its name: field manager, first word of the user agent, and where events come from.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
        }
    }

    /// A client whose requests come from this component.
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
