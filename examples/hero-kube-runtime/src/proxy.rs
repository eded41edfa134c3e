//! A TCP proxy between an operator and the API server, with faults.
//!
//! In: connections of the operator. Out: connections to the API server.
//! Guarantee: only the operator is affected; the scenario has its own connection.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{interval_at, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::Failure;

/// Bytes that are copied at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// What happens to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkFault {
    /// Nothing.
    None,
    /// Every message is delayed.
    Latency(Duration),
    /// All connections are cut at this interval.
    Cut(Duration),
    /// In turn, the server can and cannot be reached for this long.
    Outage(Duration),
}

/// A running proxy.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    _accepting: AbortOnDropHandle<()>,
    _failing: AbortOnDropHandle<()>,
}

/// Connections belong to a generation, and are cut when it ends.
#[derive(Clone, Copy)]
struct Network {
    generation: u64,
    is_reachable: bool,
}

impl Proxy {
    pub(crate) async fn start(upstream: SocketAddr, fault: NetworkFault) -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (sender, network) = watch::channel(Network {
            generation: 0,
            is_reachable: true,
        });
        let latency = match fault {
            NetworkFault::Latency(latency) => latency,
            _ => Duration::ZERO,
        };
        let accepting = tokio::spawn(accept(listener, upstream, latency, network));
        let failing = tokio::spawn(fail(sender, fault));
        Ok(Self {
            address,
            _accepting: AbortOnDropHandle::new(accepting),
            _failing: AbortOnDropHandle::new(failing),
        })
    }
}

async fn fail(network: watch::Sender<Network>, fault: NetworkFault) {
    let (period, has_outages) = match fault {
        NetworkFault::Cut(period) => (period, false),
        NetworkFault::Outage(period) => (period, true),
        NetworkFault::None | NetworkFault::Latency(_) => return network.closed().await,
    };
    let mut ticks = interval_at(tokio::time::Instant::now() + period, period);
    loop {
        ticks.tick().await;
        network.send_modify(|network| {
            network.generation += 1;
            if has_outages {
                network.is_reachable = !network.is_reachable;
            }
        });
    }
}

async fn accept(
    listener: TcpListener,
    upstream: SocketAddr,
    latency: Duration,
    network: watch::Receiver<Network>,
) {
    while let Ok((client, _)) = listener.accept().await {
        let mut network = network.clone();
        let current = *network.borrow_and_update();
        if !current.is_reachable {
            continue;
        }
        // It ends with the connection, or with the generation.
        tokio::spawn(async move {
            tokio::select! {
                _ = forward(client, upstream, latency) => {}
                _ = network.wait_for(|network| network.generation != current.generation) => {}
            }
        });
    }
}

async fn forward(
    client: TcpStream,
    upstream: SocketAddr,
    latency: Duration,
) -> std::io::Result<()> {
    let server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    tokio::try_join!(
        copy(client_read, server_write, latency),
        copy(server_read, client_write, latency),
    )?;
    Ok(())
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    latency: Duration,
) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        sleep(latency).await;
        to.write_all(&buffer[..length]).await?;
    }
}
