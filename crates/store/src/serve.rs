//! One member as a program: its runtime, listeners, certificates and tokens, start and stop.
//!
//! In: options of the command line. Out: a serving member until it is stopped.
//! Guarantees: without TLS or tokens, only loopback addresses are served unless `insecure` is set.
//! A stop hands leadership over before connections are closed. A storage error ends the member with
//! an error.

use std::{
    env, future::Future, io, net::SocketAddr, path::PathBuf, sync::Arc, thread, time::Duration,
};

use rand::{Rng as _, rngs::StdRng};
use tokio::{
    runtime::{self, Runtime},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    Member, MemberConfig, OpenError,
    api::{Identity, StoreError},
    disk::FileDisk,
    disk_metrics::MeteredDisk,
    http::{
        Api, HealthApi, HttpTransport, Limits, Listener, Metrics, PeerApi, PeerProof, TlsSource,
        TokenError, TokenFiles, Tokens,
    },
    tls::{Reloaded, Tls, TlsConfigs, TlsError, TlsFiles},
};

/// How often certificate and token files are read again. Kubernetes updates a mounted Secret within
/// about a minute.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// The end of a member: hand-over, flush and close.
const SHUT_DOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// The runtime of a member as a program: one worker thread for two processors.
///
/// A request passes through a chain of short tasks, and each one that continues on another thread
/// costs more than it saves. The syncs of the log, and the members on the same machine, use the
/// other processors. The environment variable `TOKIO_WORKER_THREADS` sets another number.
///
/// # Errors
/// The operating system starts no thread.
pub fn runtime() -> io::Result<Runtime> {
    let mut builder = runtime::Builder::new_multi_thread();
    if env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        builder.worker_threads((processors / 2).max(1));
    }
    builder.enable_all().build()
}

/// Options of a member as a program.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The data directory.
    pub data: PathBuf,
    /// The address of the client API and the admin API.
    pub client_listen: SocketAddr,
    /// The address for other members.
    pub peer_listen: SocketAddr,
    /// The address of health and metrics.
    pub health_listen: SocketAddr,
    /// Certificates; without them, connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// Tokens; without one, an API is open to every client.
    pub tokens: TokenFiles,
    /// The size of the log at which a snapshot is taken.
    pub snapshot_log_bytes: Option<u64>,
    /// The number of revisions from which watches can begin.
    pub history_revisions: Option<u64>,
    /// Formats an empty data directory with this identity.
    pub format_if_empty: Option<Identity>,
    /// Allows addresses that are not loopback without TLS or tokens.
    pub insecure: bool,
}

/// Why a member does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address is not loopback, and TLS or tokens are missing.
    #[error(
        "{address} is not a loopback address, and {missing} missing; configure it, or set --insecure"
    )]
    Insecure {
        /// The address.
        address: SocketAddr,
        /// What is missing.
        missing: &'static str,
    },
    /// A certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The data directory cannot be used.
    #[error("cannot use the data directory: {0}")]
    Directory(io::Error),
    /// The member cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The data directory could not be formatted.
    #[error("cannot format the data directory: {0}")]
    Format(StoreError),
    /// An address cannot be bound.
    #[error(
        "cannot listen on {address}: {cause}; choose another address or stop the other process"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The storage failed while the member was serving.
    #[error("the member stopped: {0}; check the disk, then start it again")]
    Failed(String),
}

/// The addresses of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The client API and the admin API.
    pub client: SocketAddr,
    /// Other members.
    pub peer: SocketAddr,
    /// Health and metrics.
    pub health: SocketAddr,
}

/// A member with bound listeners.
pub struct Server {
    member: Member,
    tls: Option<Arc<Tls>>,
    tokens: Arc<Tokens>,
    metrics: Arc<Metrics>,
    listeners: Listeners,
    addresses: Addresses,
}

struct Listeners {
    client: Listener,
    peer: Listener,
    health: Listener,
}

impl Server {
    /// Opens the data directory and binds the listeners.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn start(options: ServeOptions) -> Result<Self, ServeError> {
        require_security(&options)?;
        let tls = options
            .tls
            .clone()
            .map(Tls::load)
            .transpose()?
            .map(Arc::new);
        let tokens = Arc::new(Tokens::load(options.tokens.clone())?);
        let disk = FileDisk::open(&options.data).map_err(ServeError::Directory)?;
        let listeners = Listeners::bind(&options, tls.as_ref()).await?;
        let addresses = listeners.addresses()?;
        let transport = HttpTransport::new(tls.clone());
        let mut metrics = Metrics::new();
        let disk = MeteredDisk::new(disk, &mut metrics);
        let member = Member::open(config(&options), Arc::new(disk), transport).await?;
        if let Some(identity) = options.format_if_empty {
            format_if_empty(&member, identity).await?;
        }
        Ok(Self {
            member,
            tls,
            tokens,
            metrics: Arc::new(metrics),
            listeners,
            addresses,
        })
    }

    /// Where the member listens.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until `stop` is ready, then hands leadership over and closes.
    ///
    /// # Errors
    /// [`ServeError::Failed`] if the storage fails.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self {
            member,
            tls,
            tokens,
            metrics,
            listeners,
            ..
        } = self;
        let proof = match tls {
            Some(_) => PeerProof::Certificate,
            None => PeerProof::None,
        };
        let stopping = CancellationToken::new();
        let api = Api::new(
            member.clone(),
            tokens.clone(),
            metrics.clone(),
            stopping.clone(),
        );
        let api = Arc::new(api);
        let peer_api = Arc::new(PeerApi::new(member.clone(), proof));
        let health_api = Arc::new(HealthApi::new(member.clone(), metrics));
        let close = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(listeners.client.serve(api, close.clone()));
        tasks.spawn(listeners.peer.serve(peer_api, close.clone()));
        tasks.spawn(listeners.health.serve(health_api, close.clone()));
        tasks.spawn(reload(tls, tokens, close.clone()));
        let failure = tokio::select! {
            () = stop => None,
            failure = member.failed() => Some(failure),
        };
        info!("stopping the member");
        stopping.cancel();
        if timeout(SHUT_DOWN_TIMEOUT, member.shut_down())
            .await
            .is_err()
        {
            warn!("the member did not stop within {SHUT_DOWN_TIMEOUT:?}");
        }
        close.cancel();
        tasks.join_all().await;
        match failure {
            None => Ok(()),
            Some(message) => Err(ServeError::Failed(message)),
        }
    }
}

impl Listeners {
    async fn bind(options: &ServeOptions, tls: Option<&Arc<Tls>>) -> Result<Self, ServeError> {
        let bind = async |address, tls| {
            let listener = Listener::bind(address, tls, Limits::default()).await;
            listener.map_err(|cause| ServeError::Listen { address, cause })
        };
        let source = |choose: fn(&TlsConfigs) -> Arc<rustls::ServerConfig>| {
            tls.map(|tls| {
                let tls = tls.clone();
                Arc::new(move || choose(&tls.configs())) as TlsSource
            })
        };
        let client_tls = source(|configs| configs.client_listener.clone());
        let peer_tls = source(|configs| configs.peer_listener.clone());
        Ok(Self {
            client: bind(options.client_listen, client_tls).await?,
            peer: bind(options.peer_listen, peer_tls).await?,
            health: bind(options.health_listen, None).await?,
        })
    }

    fn addresses(&self) -> Result<Addresses, ServeError> {
        let address = |listener: &Listener| {
            listener.local_addr().map_err(|cause| ServeError::Listen {
                address: SocketAddr::from(([0, 0, 0, 0], 0)),
                cause,
            })
        };
        Ok(Addresses {
            client: address(&self.client)?,
            peer: address(&self.peer)?,
            health: address(&self.health)?,
        })
    }
}

/// Without TLS and tokens, only programs on this machine may connect.
fn require_security(options: &ServeOptions) -> Result<(), ServeError> {
    let missing = if options.tls.is_none() {
        "TLS is"
    } else if options.tokens.admin.is_none() || options.tokens.client.is_none() {
        "token files are"
    } else {
        return Ok(());
    };
    let addresses = [options.client_listen, options.peer_listen];
    let exposed = addresses
        .into_iter()
        .find(|address| !address.ip().is_loopback());
    match exposed {
        Some(address) if !options.insecure => Err(ServeError::Insecure { address, missing }),
        _ => Ok(()),
    }
}

/// Formats an empty data directory. One with this identity stays as it is.
async fn format_if_empty(member: &Member, identity: Identity) -> Result<(), ServeError> {
    match member.format(identity).await {
        Ok(()) => Ok(()),
        Err(error) => Err(ServeError::Format(error)),
    }
}

/// The settings of the member.
fn config(options: &ServeOptions) -> MemberConfig {
    let mut config = MemberConfig::new(rand::make_rng::<StdRng>().next_u64());
    if let Some(bytes) = options.snapshot_log_bytes {
        config.snapshot_log_bytes = bytes;
    }
    if let Some(revisions) = options.history_revisions {
        config.history_revisions = revisions;
    }
    config
}

/// Reads certificates and tokens again until the member stops.
async fn reload(tls: Option<Arc<Tls>>, tokens: Arc<Tokens>, close: CancellationToken) {
    let mut ticks = interval(RELOAD_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while close.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Some(tls) = &tls {
            match tls.reload() {
                Ok(Reloaded::Changed) => info!("new certificates are in effect"),
                Ok(Reloaded::Unchanged) => {}
                Err(error) => warn!(%error, "the last certificates stay in effect"),
            }
        }
        if let Err(error) = tokens.reload() {
            warn!(%error, "the last tokens stay in effect");
        }
    }
}
