//! Userspace relay of Services: accepts connections to a Service and forwards each to a ready
//! endpoint; connections to other addresses are forwarded to these.
//!
//! In: a table of Services, listeners, a dialer. Out: connections to endpoints.
//! Guarantees: endpoints are used round-robin; with `ClientIP` affinity, a client keeps its endpoint
//! as long as it is ready and the timeout has not passed. If an endpoint cannot be reached, the
//! others are tried. Existing connections are not affected by changes of the table.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// How long a connection to an endpoint may take before the next one is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a listener waits after an error of accept, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Connections of one listener. Further clients wait in the backlog.
const CONNECTIONS_MAX: usize = 1024;
/// Clients with affinity of one Service port; the oldest are forgotten.
const AFFINITIES_MAX: usize = 4096;

/// The backends of one Service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    /// The ready endpoints.
    pub endpoints: Vec<SocketAddr>,
    /// The timeout of `sessionAffinity: ClientIP`.
    pub affinity: Option<Duration>,
}

/// A connection to an endpoint.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Connects to an endpoint, on behalf of a client.
pub trait Dial: Send + Sync + 'static {
    /// Connects to an endpoint.
    fn dial(&self, endpoint: SocketAddr, client: IpAddr) -> Dialing;
}

impl<F> Dial for F
where
    F: Fn(SocketAddr, IpAddr) -> Dialing + Send + Sync + 'static,
{
    fn dial(&self, endpoint: SocketAddr, client: IpAddr) -> Dialing {
        self(endpoint, client)
    }
}

/// The Services of a cluster and how their endpoints are reached. Clones share it.
#[derive(Clone)]
pub struct Relay {
    shared: Arc<Shared>,
}

struct Shared {
    services: Mutex<HashMap<SocketAddr, ServicePort>>,
    dialer: Box<dyn Dial>,
}

#[derive(Default)]
pub(crate) struct ServicePort {
    backends: Backends,
    /// The number of the next endpoint.
    next: usize,
    affinities: HashMap<IpAddr, Affinity>,
}

struct Affinity {
    endpoint: SocketAddr,
    last_used: Instant,
}

impl ServicePort {
    /// Replaces a table. Ports that stay keep their affinities.
    pub(crate) fn set_all(
        services: &mut HashMap<SocketAddr, Self>,
        table: HashMap<SocketAddr, Backends>,
    ) {
        services.retain(|service, _| table.contains_key(service));
        for (service, backends) in table {
            services.entry(service).or_default().backends = backends;
        }
    }

    /// The endpoints to try, in order.
    pub(crate) fn candidates(&mut self, client: IpAddr, now: Instant) -> Vec<SocketAddr> {
        let mut endpoints = self.backends.endpoints.clone();
        if endpoints.is_empty() {
            return endpoints;
        }
        let preferred = self.backends.affinity.and_then(|timeout| {
            let affinity = self.affinities.get(&client)?;
            let is_recent = now.duration_since(affinity.last_used) < timeout;
            is_recent.then_some(affinity.endpoint)
        });
        let index = preferred
            .and_then(|endpoint| endpoints.iter().position(|other| *other == endpoint))
            .unwrap_or_else(|| {
                self.next = self.next.wrapping_add(1);
                self.next % endpoints.len()
            });
        endpoints.rotate_left(index);
        endpoints
    }

    pub(crate) fn connected(&mut self, client: IpAddr, endpoint: SocketAddr, now: Instant) {
        let Some(timeout) = self.backends.affinity else {
            return;
        };
        if self.affinities.len() >= AFFINITIES_MAX {
            self.affinities
                .retain(|_, affinity| now.duration_since(affinity.last_used) < timeout);
        }
        if self.affinities.len() >= AFFINITIES_MAX {
            let oldest = self
                .affinities
                .iter()
                .min_by_key(|(_, affinity)| affinity.last_used);
            let oldest = oldest.map(|(client, _)| *client);
            self.affinities.retain(|client, _| Some(*client) != oldest);
        }
        let affinity = Affinity {
            endpoint,
            last_used: now,
        };
        self.affinities.insert(client, affinity);
    }
}

impl Relay {
    /// A relay without Services.
    pub fn new(dialer: impl Dial) -> Self {
        Self {
            shared: Arc::new(Shared {
                services: Mutex::default(),
                dialer: Box::new(dialer),
            }),
        }
    }

    fn services(&self) -> MutexGuard<'_, HashMap<SocketAddr, ServicePort>> {
        let services = self.shared.services.lock();
        services.unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the table of Service ports. Those that stay keep their affinities.
    pub fn set_all(&self, table: HashMap<SocketAddr, Backends>) {
        ServicePort::set_all(&mut self.services(), table);
    }

    /// Connects to a ready endpoint of a Service port, or to an address that is none.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if no endpoint is ready, otherwise the error of the last endpoint.
    pub async fn connect(&self, service: SocketAddr, client: IpAddr) -> io::Result<TcpStream> {
        let candidates = match self.services().get_mut(&service) {
            Some(port) => port.candidates(client, Instant::now()),
            None => vec![service],
        };
        let mut last_error = io::Error::new(
            io::ErrorKind::ConnectionRefused,
            format!("service {service} has no ready endpoints"),
        );
        for endpoint in candidates {
            let dialing = self.shared.dialer.dial(endpoint, client);
            match tokio::time::timeout(CONNECT_TIMEOUT, dialing).await {
                Ok(Ok(stream)) => {
                    if let Some(port) = self.services().get_mut(&service) {
                        port.connected(client, endpoint, Instant::now());
                    }
                    return Ok(stream);
                }
                Ok(Err(error)) => last_error = error,
                Err(_) => last_error = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last_error)
    }

    /// Forwards the connections of a listener, until the guard is dropped. A wildcard listener
    /// serves all addresses.
    pub fn serve(&self, listener: TcpListener) -> RelayGuard {
        let relay = self.clone();
        RelayGuard::spawn(relay.accept(listener))
    }

    async fn accept(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            while connections.len() >= CONNECTIONS_MAX {
                connections.join_next().await;
            }
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, client)) => {
                        let relay = self.clone();
                        connections.spawn(relay.forward(stream, client.ip()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection to a Service, retrying");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn forward(self, mut stream: TcpStream, client: IpAddr) {
        let result = async {
            let service = stream.local_addr()?;
            match self.connect(service, client).await {
                Ok(mut endpoint) => {
                    stream.set_nodelay(true)?;
                    endpoint.set_nodelay(true)?;
                    copy_bidirectional(&mut stream, &mut endpoint).await
                }
                Err(error) => {
                    // A reset is as close to a refused connection as an accepted one can be.
                    stream.set_zero_linger()?;
                    Err(error)
                }
            }
        };
        if let Err(error) = result.await {
            tracing::debug!(%client, %error, "relayed connection failed");
        }
    }
}

/// Forwards connections until it is dropped.
pub struct RelayGuard(JoinHandle<()>);

impl RelayGuard {
    pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }
}

impl Drop for RelayGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(affinity: Option<Duration>) -> ServicePort {
        ServicePort {
            backends: Backends {
                endpoints: (1..=3)
                    .map(|n| SocketAddr::from(([10, 0, 0, n], 80)))
                    .collect(),
                affinity,
            },
            ..ServicePort::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_are_used_in_turn() {
        let mut port = port(None);
        let client = IpAddr::from([10, 1, 0, 1]);
        let mut first = || port.candidates(client, Instant::now())[0].ip().to_string();
        let used = [first(), first(), first(), first()];
        assert_eq!(used, ["10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn client_keeps_its_endpoint_until_the_timeout() {
        let mut port = port(Some(Duration::from_secs(60)));
        let client = IpAddr::from([10, 1, 0, 1]);
        let chosen = port.candidates(client, Instant::now())[0];
        port.connected(client, chosen, Instant::now());
        for _ in 0..5 {
            tokio::time::advance(Duration::from_secs(50)).await;
            assert_eq!(port.candidates(client, Instant::now())[0], chosen);
            port.connected(client, chosen, Instant::now());
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_ne!(port.candidates(client, Instant::now())[0], chosen);
    }

    #[tokio::test(start_paused = true)]
    async fn client_leaves_an_endpoint_that_is_not_ready() {
        let mut port = port(Some(Duration::from_secs(60)));
        let client = IpAddr::from([10, 1, 0, 1]);
        let chosen = port.candidates(client, Instant::now())[0];
        port.connected(client, chosen, Instant::now());
        port.backends
            .endpoints
            .retain(|endpoint| *endpoint != chosen);
        assert_ne!(port.candidates(client, Instant::now())[0], chosen);
    }

    #[test]
    fn number_of_affinities_is_limited() {
        let mut port = port(Some(Duration::from_secs(60)));
        let endpoint = port.backends.endpoints[0];
        let start = Instant::now();
        for number in 0..(AFFINITIES_MAX as u32 + 10) {
            let client = IpAddr::from(number.to_be_bytes());
            let now = start + Duration::from_micros(number.into());
            port.connected(client, endpoint, now);
        }
        assert_eq!(port.affinities.len(), AFFINITIES_MAX);
        assert!(!port.affinities.contains_key(&IpAddr::from([0, 0, 0, 0])));
    }
}
