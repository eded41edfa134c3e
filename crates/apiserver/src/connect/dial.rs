//! Dialers: how the server connects to kubelets, pods and the endpoints of Services.
//! In: an IP address and port. Out: a byte stream, on which the server speaks HTTP/1.1.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

/// A byte stream to a kubelet, a pod or an endpoint.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// The future of a [`Dialer`].
pub type Dialing<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'a>>;

/// Connects the API server to kubelets (`pods/log`, `exec`, `attach`, `portforward`,
/// `nodes/proxy`), pods (`pods/proxy`) and endpoints of Services (`services/proxy`, aggregated API
/// servers).
///
/// A kubelet is dialed at the InternalIP of its Node and at
/// `status.daemonEndpoints.kubeletEndpoint.Port`. The server speaks plain HTTP/1.1 on the stream: a
/// dialer that connects to a kubelet that serves HTTPS performs the TLS handshake itself. On
/// connections to pods and endpoints, the server performs it if the request names the scheme
/// `https`, as in `/api/v1/namespaces/NAMESPACE/pods/https:NAME:PORT/proxy`.
///
/// The stream is closed by dropping it. A request whose address takes longer than 30 seconds to
/// dial fails.
///
/// ```
/// use std::net::SocketAddr;
///
/// use bellerophon_apiserver::{ApiServer, ByteStream, Dialer, Dialing};
///
/// /// Every address is the same local server.
/// #[derive(Debug)]
/// struct Local(SocketAddr);
///
/// impl Dialer for Local {
///     fn dial(&self, _: SocketAddr) -> Dialing<'_> {
///         Box::pin(async {
///             let stream = tokio::net::TcpStream::connect(self.0).await?;
///             Ok(Box::new(stream) as Box<dyn ByteStream>)
///         })
///     }
/// }
///
/// let builder = ApiServer::builder().dialer(Local("127.0.0.1:10250".parse().unwrap()));
/// ```
pub trait Dialer: fmt::Debug + Send + Sync + 'static {
    /// Connects to an address.
    ///
    /// # Errors
    /// The address cannot be reached. Clients see the text of the error.
    fn dial(&self, address: SocketAddr) -> Dialing<'_>;

    /// Whether `pods/proxy` and `nodes/proxy` may connect to this address. The default is the rule
    /// of kube-apiserver: a pod or node that claims a loopback, link-local, multicast or
    /// unspecified address must not give access to what only the API server can reach.
    fn may_proxy_to(&self, ip: IpAddr) -> bool {
        is_global_unicast(ip)
    }
}

/// Mirrors `net.IP.IsGlobalUnicast` of Go.
fn is_global_unicast(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let is_of_one_link = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_of_one_link || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

/// Dials every address by TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDialer;

impl Dialer for TcpDialer {
    fn dial(&self, address: SocketAddr) -> Dialing<'_> {
        Box::pin(connect(address))
    }
}

/// Dials loopback addresses by TCP and refuses others immediately. The default of an
/// [`ApiServer`](crate::ApiServer).
///
/// The addresses of simulated nodes and pods exist nowhere, or belong to another host of the user's
/// network. A Node whose InternalIP is a loopback address is reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopbackDialer;

/// Why an address is not dialed.
const NOT_LOOPBACK: &str = "connect: network is unreachable: only loopback addresses are dialed; \
     a simulated pod listens on no port, and the kubelet of a simulated node is reached only by a \
     dialer that knows it";

impl Dialer for LoopbackDialer {
    fn dial(&self, address: SocketAddr) -> Dialing<'_> {
        if address.ip().to_canonical().is_loopback() {
            return Box::pin(connect(address));
        }
        let refused = io::Error::new(io::ErrorKind::NetworkUnreachable, NOT_LOOPBACK);
        Box::pin(std::future::ready(Err(refused)))
    }
}

/// Connects in process to the addresses for which a function returns a stream, and dials others as
/// [`LoopbackDialer`] does.
///
/// ```
/// use bellerophon_apiserver::{ApiServer, InProcessDialer};
///
/// // The other half is the connection of a server in this process.
/// let dialer = InProcessDialer::new(|address| {
///     (address.port() == 10250).then(|| Ok(tokio::io::duplex(64 << 10).0))
/// });
/// let builder = ApiServer::builder().dialer(dialer);
/// ```
pub struct InProcessDialer<F>(F);

impl<F, S> InProcessDialer<F>
where
    F: Fn(SocketAddr) -> Option<io::Result<S>> + Send + Sync + 'static,
    S: ByteStream + 'static,
{
    /// A dialer with this function.
    pub fn new(connect: F) -> Self {
        Self(connect)
    }
}

impl<F> fmt::Debug for InProcessDialer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InProcessDialer")
    }
}

impl<F, S> Dialer for InProcessDialer<F>
where
    F: Fn(SocketAddr) -> Option<io::Result<S>> + Send + Sync + 'static,
    S: ByteStream + 'static,
{
    fn dial(&self, address: SocketAddr) -> Dialing<'_> {
        match (self.0)(address) {
            Some(stream) => {
                let stream = stream.map(|stream| Box::new(stream) as Box<dyn ByteStream>);
                Box::pin(std::future::ready(stream))
            }
            None => LoopbackDialer.dial(address),
        }
    }
}

async fn connect(address: SocketAddr) -> io::Result<Box<dyn ByteStream>> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                io::Error::new(error.kind(), "connect: connection refused")
            }
            _ => error,
        })?;
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_link_local_addresses_are_not_proxied_to() {
        for (ip, allowed) in [
            ("10.1.2.3", true),
            ("192.0.2.1", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("169.254.1.1", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("0.0.0.0", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("fe80::1", false),
        ] {
            let ip = ip.parse().expect("an address");
            assert_eq!(TcpDialer.may_proxy_to(ip), allowed, "{ip}");
        }
    }

    #[tokio::test]
    async fn addresses_that_are_not_in_process_are_dialed_as_by_default() {
        let in_process =
            |address: SocketAddr| (address.port() == 10250).then(|| Ok(tokio::io::duplex(1).0));
        let dialer = InProcessDialer::new(in_process);
        let kubelet = "10.0.0.1:10250".parse().expect("an address");
        assert!(dialer.dial(kubelet).await.is_ok());
        let other = "10.0.0.1:80".parse().expect("an address");
        let refused = dialer.dial(other).await.err().expect("it is refused");
        assert_eq!(refused.kind(), io::ErrorKind::NetworkUnreachable);
    }

    #[tokio::test]
    async fn default_dialer_refuses_other_hosts() {
        let address = "10.0.0.1:10250".parse().expect("an address");
        let refused = LoopbackDialer.dial(address).await.err();
        let refused = refused.expect("it is refused").to_string();
        assert!(
            refused.contains("a simulated pod listens on no port"),
            "{refused}"
        );
    }
}
