//! Options of a client: endpoints, credentials and bounds.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    dial::{Dial, TcpDialer},
    endpoint::Endpoint,
    tls::ClientTls,
};

/// Options of a [`Client`](crate::Client).
#[derive(Clone)]
pub struct ClientOptions {
    /// The members, in order of preference. The client stays with the last one that answered.
    pub endpoints: Vec<Endpoint>,
    /// Certificate authority and client certificate for `https` endpoints.
    pub tls: Option<ClientTls>,
    /// The bearer token.
    pub token: Option<Token>,
    /// How byte streams to endpoints are opened.
    pub dialer: Arc<dyn Dial>,
    /// From dialing to the end of the TLS handshake.
    pub dial_timeout: Duration,
    /// One attempt of a request, until its response is complete.
    pub attempt_timeout: Duration,
    /// All attempts of a request.
    pub request_timeout: Duration,
}

impl ClientOptions {
    /// Default bounds, for endpoints that are dialed by TCP.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            tls: None,
            token: None,
            dialer: Arc::new(TcpDialer),
            // A member on another continent answers within 1 s.
            dial_timeout: Duration::from_secs(3),
            // An election takes up to 3 s, during which a member lets writes wait.
            attempt_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("endpoints", &self.endpoints)
            .field("tls", &self.tls.is_some())
            .field("token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

/// A bearer token. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, without white space around it.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    pub(crate) fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_not_printed() {
        let token = Token::new(" secret\n");
        assert_eq!(token.authorization(), "Bearer secret");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
