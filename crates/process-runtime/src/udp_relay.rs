//! Userspace relay of UDP Services: datagrams of a client go to one ready endpoint, and its answers
//! back to the client.
//!
//! In: a table of Services, sockets at their addresses, a dialer. Out: datagrams to endpoints.
//! Guarantees: the datagrams of one client address and port go to the same endpoint, until none has
//! been sent for a minute; a client that sends faster than its endpoint reads loses datagrams.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::relay::{Backends, RelayGuard, ServicePort};

/// How long a flow lasts without datagrams.
const FLOW_TIMEOUT: Duration = Duration::from_secs(60);
/// Flows of one socket. Datagrams of further clients are dropped.
const FLOWS_MAX: usize = 1024;
/// Datagrams of a flow that wait for its endpoint. Further ones are dropped.
const QUEUE_MAX: usize = 64;
/// The largest datagram.
const DATAGRAM_MAX: usize = 65_535;

/// A socket that is connected to an endpoint.
pub type UdpDialing = Pin<Box<dyn Future<Output = io::Result<UdpSocket>> + Send>>;

type DialUdp = dyn Fn(SocketAddr, IpAddr) -> UdpDialing + Send + Sync;

/// The UDP Services of a cluster and how their endpoints are reached. Clones share it.
#[derive(Clone)]
pub struct UdpRelay {
    services: Arc<Mutex<HashMap<SocketAddr, ServicePort>>>,
    dial: Arc<DialUdp>,
}

impl UdpRelay {
    /// A relay without Services, which reaches endpoints on behalf of a client by this function.
    pub fn new(dial: impl Fn(SocketAddr, IpAddr) -> UdpDialing + Send + Sync + 'static) -> Self {
        Self {
            services: Arc::default(),
            dial: Arc::new(dial),
        }
    }

    fn services(&self) -> MutexGuard<'_, HashMap<SocketAddr, ServicePort>> {
        let services = self.services.lock();
        services.unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the table of Service ports. Those that stay keep their affinities.
    pub fn set_all(&self, table: HashMap<SocketAddr, Backends>) {
        ServicePort::set_all(&mut self.services(), table);
    }

    /// Relays the datagrams of a socket at the address of a Service port, until the guard is dropped.
    pub fn serve(&self, socket: UdpSocket) -> RelayGuard {
        let relay = self.clone();
        RelayGuard::spawn(async move {
            if let Err(error) = relay.receive(Arc::new(socket)).await {
                tracing::warn!(%error, "datagrams of a Service are no longer relayed");
            }
        })
    }

    async fn receive(self, socket: Arc<UdpSocket>) -> io::Result<()> {
        let service = socket.local_addr()?;
        let mut flows: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>> = HashMap::new();
        let mut tasks = JoinSet::new();
        let mut buffer = vec![0; DATAGRAM_MAX];
        loop {
            tokio::select! {
                received = socket.recv_from(&mut buffer) => {
                    // A client that has closed its socket is an error of an earlier answer.
                    let Ok((len, client)) = received else { continue };
                    let datagram = buffer[..len].to_vec();
                    let flow = flows.get(&client);
                    let sent = flow.map(|flow| flow.try_send(datagram.clone()));
                    let is_open = matches!(sent, Some(Ok(()) | Err(mpsc::error::TrySendError::Full(_))));
                    if is_open || (flow.is_none() && flows.len() >= FLOWS_MAX) {
                        continue;
                    }
                    let (sender, datagrams) = mpsc::channel(QUEUE_MAX);
                    // The queue is empty.
                    let _ = sender.try_send(datagram);
                    flows.insert(client, sender);
                    let flow = self.clone().relay(service, client, socket.clone(), datagrams);
                    tasks.spawn(async move {
                        if let Err(error) = flow.await {
                            tracing::debug!(%client, %error, "relayed datagrams failed");
                        }
                        client
                    });
                }
                Some(ended) = tasks.join_next() => {
                    // A flow of the same client that has begun since has an open channel.
                    if let Ok(client) = ended && flows.get(&client).is_some_and(mpsc::Sender::is_closed) {
                        flows.remove(&client);
                    }
                }
            }
        }
    }

    /// Relays the datagrams of one client until there are none for some time.
    async fn relay(
        self,
        service: SocketAddr,
        client: SocketAddr,
        socket: Arc<UdpSocket>,
        mut datagrams: mpsc::Receiver<Vec<u8>>,
    ) -> io::Result<()> {
        let endpoint = self.endpoint(service, client.ip())?;
        let dialed = (self.dial)(endpoint, client.ip()).await?;
        let mut buffer = vec![0; DATAGRAM_MAX];
        loop {
            let next = async {
                tokio::select! {
                    datagram = datagrams.recv() => match datagram {
                        Some(datagram) => dialed.send(&datagram).await.map(drop),
                        None => Err(io::ErrorKind::BrokenPipe.into()),
                    },
                    received = dialed.recv(&mut buffer) => {
                        socket.send_to(&buffer[..received?], client).await.map(drop)
                    }
                }
            };
            match timeout(FLOW_TIMEOUT, next).await {
                Ok(result) => result?,
                Err(_) => return Ok(()),
            }
        }
    }

    fn endpoint(&self, service: SocketAddr, client: IpAddr) -> io::Result<SocketAddr> {
        let now = Instant::now();
        let mut services = self.services();
        let port = services.get_mut(&service);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let port = port.ok_or_else(refused)?;
        let endpoint = port.candidates(client, now).into_iter().next();
        let endpoint = endpoint.ok_or_else(refused)?;
        port.connected(client, endpoint, now);
        Ok(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bind() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").await.unwrap()
    }

    /// An endpoint that answers with its name and what it received.
    async fn endpoint(name: &'static str) -> SocketAddr {
        let socket = bind().await;
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 100];
            loop {
                let (len, client) = socket.recv_from(&mut buffer).await.unwrap();
                let answer = [name.as_bytes(), &buffer[..len]].concat();
                socket.send_to(&answer, client).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn datagrams_of_a_client_reach_one_endpoint() {
        let relay = UdpRelay::new(|endpoint, _| {
            Box::pin(async move {
                let socket = UdpSocket::bind("127.0.0.1:0").await?;
                socket.connect(endpoint).await?;
                Ok(socket)
            })
        });
        let listener = bind().await;
        let service = listener.local_addr().unwrap();
        let backends = Backends {
            endpoints: vec![endpoint("a").await, endpoint("b").await],
            affinity: None,
        };
        relay.set_all(HashMap::from([(service, backends)]));
        let _guard = relay.serve(listener);
        let mut names = Vec::new();
        for _ in 0..2 {
            let client = bind().await;
            client.connect(service).await.unwrap();
            let mut answers = Vec::new();
            for text in ["1", "2"] {
                client.send(text.as_bytes()).await.unwrap();
                let mut buffer = [0; 100];
                let len = client.recv(&mut buffer).await.unwrap();
                answers.push(String::from_utf8(buffer[..len].to_vec()).unwrap());
            }
            let name = answers[0].chars().next().unwrap();
            assert_eq!(answers, [format!("{name}1"), format!("{name}2")]);
            names.push(name);
        }
        names.sort_unstable();
        assert_eq!(names, ['a', 'b']);
    }
}
