//! The server of the page: plain HTTP on loopback.
//!
//! In: connections. Out: assets, and to holders of the token lines, diffs and objects.
//! Guarantees: those of [`serve_http`], with at most [`CONNECTIONS_MAX`] connections; only loopback
//! addresses are bound; the token is in no log.

mod act; // actions that write
mod assets; // files of the page
mod guard; // access control
mod query; // parameters of requests
mod routes; // paths to responses
mod stream; // records as server-sent events

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bellerophon::clock::Rng;
use bellerophon::manager::serve_http;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::source::Source;
pub use act::{ActError, Action, Actor};
use guard::{Guard, Token};
use routes::Routes;

/// Open connections: a browser opens six per page, and a stream keeps one of them.
const CONNECTIONS_MAX: usize = 128;

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// Other machines could reach it.
    #[error("cannot serve the page on {0}: it is not a loopback address; use 127.0.0.1:0")]
    NotLoopback(SocketAddr),
    /// The address cannot be bound.
    #[error("cannot serve the page on {address}: {source}; use 127.0.0.1:0")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
}

/// Responds to the query of a request with a stream of text.
pub type TextEndpoint = Arc<dyn Fn(&str) -> BoxStream<'static, Bytes> + Send + Sync>;

/// What a page shows and where.
pub struct PageOptions {
    /// The address to bind; port 0 selects a free port.
    pub address: SocketAddr,
    /// Where its data comes from.
    pub source: Source,
    /// Executes actions; `None` for a page that only reads.
    pub actor: Option<Arc<dyn Actor>>,
    /// A path outside of `/api/` with data for other clients than the page. It needs the token too.
    pub endpoint: Option<(&'static str, TextEndpoint)>,
    /// The source of the token.
    pub rng: Rng,
}

/// A bound page.
pub struct Page {
    listener: TcpListener,
    address: SocketAddr,
    token: Token,
    source: Source,
    actor: Option<Arc<dyn Actor>>,
    endpoint: Option<(&'static str, TextEndpoint)>,
}

impl Page {
    /// Binds the address of the page.
    ///
    /// # Errors
    /// The address is not a loopback address, or it is in use.
    pub async fn bind(options: PageOptions) -> Result<Self, PageError> {
        let address = options.address;
        if !address.ip().is_loopback() {
            return Err(PageError::NotLoopback(address));
        }
        let failed = |source| PageError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            listener,
            address,
            token: Token::generate(&options.rng),
            source: options.source,
            actor: options.actor,
            endpoint: options.endpoint,
        })
    }

    /// The URL for a browser. It has the token in its fragment, which a browser does not send and a
    /// server does not log. Print it only for the user who started the process.
    pub fn url(&self) -> String {
        format!("http://{}/#token={}", self.address, self.token.text())
    }

    /// Serves until `stop`. Open connections are dropped then.
    pub async fn serve(self, stop: CancellationToken) {
        let guard = Guard::new(self.address, self.token);
        let routes = Arc::new(Routes {
            guard,
            source: self.source,
            actor: self.actor,
            endpoint: self.endpoint,
        });
        let respond = move |request| {
            let routes = routes.clone();
            async move { routes.respond(request).await }
        };
        serve_http(self.listener, CONNECTIONS_MAX, respond, stop).await;
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
