//! The settings of a server that kube-apiserver takes as flags: external certificates and keys,
//! authorization, admission plugins.
//! Guarantee: the default of each is the behaviour without it.

use std::fmt;

/// A certificate chain and its private key, in PEM.
#[derive(Clone)]
pub struct ServingCertificate {
    /// The certificate of the server, followed by the intermediate certificates.
    pub certificate_pem: String,
    /// Its private key in PKCS#8, PKCS#1 or SEC1.
    pub key_pem: String,
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingCertificate").finish_non_exhaustive()
    }
}

/// How the server signs and verifies service-account tokens.
#[derive(Clone, Default)]
pub struct ServiceAccountKeys {
    /// The private key that signs tokens, in PEM: P-256 in PKCS#8, or RSA. Default: a new P-256 key.
    pub signing_key_pem: Option<String>,
    /// Files of certificates, public keys or private keys, in PEM, whose tokens are accepted.
    /// Default: the signing key.
    pub accepted_keys_pem: Vec<String>,
    /// The issuers of accepted tokens; the first one is that of new tokens. Default:
    /// `https://kubernetes.default.svc`.
    pub issuers: Vec<String>,
    /// The audiences of accepted tokens. Default: the issuers.
    pub audiences: Vec<String>,
}

impl fmt::Debug for ServiceAccountKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccountKeys")
            .field("issuers", &self.issuers)
            .field("audiences", &self.audiences)
            .finish_non_exhaustive()
    }
}

/// A bearer token that authenticates a user until the server stops.
#[derive(Clone)]
pub struct StaticToken {
    /// The token.
    pub token: String,
    /// The name of the user.
    pub user: String,
    /// The uid of the user; may be empty.
    pub uid: String,
    /// The groups of the user, in addition to `system:authenticated`.
    pub groups: Vec<String>,
}

impl fmt::Debug for StaticToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticToken")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The authorization mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// RBAC: the roles that are bound to a user.
    #[default]
    Rbac,
    /// Every request is allowed, also of unauthenticated clients.
    AlwaysAllow,
}

/// The settings of a server besides its address.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The serving certificate. Default: a certificate of a CA that is created at the start.
    pub serving_certificate: Option<ServingCertificate>,
    /// CA certificates, in PEM, whose client certificates are accepted. Default: the CA that is
    /// created at the start, which signs the administrator's.
    pub client_ca_pem: Option<String>,
    /// How service-account tokens are signed and verified.
    pub service_accounts: ServiceAccountKeys,
    /// Further bearer tokens.
    pub static_tokens: Vec<StaticToken>,
    /// Whether requests without credentials have the user `system:anonymous`, or are rejected.
    /// Default: true.
    pub anonymous: bool,
    /// The authorization mode.
    pub authorization: AuthorizationMode,
    /// Admission plugins that do not run, by the names of kube-apiserver.
    pub disabled_admission_plugins: Vec<String>,
    /// Whether `/api` and `/apis` are also served as `apidiscovery.k8s.io/v2`. Default: true.
    pub aggregated_discovery: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            serving_certificate: None,
            client_ca_pem: None,
            service_accounts: ServiceAccountKeys::default(),
            static_tokens: Vec::new(),
            anonymous: true,
            authorization: AuthorizationMode::default(),
            disabled_admission_plugins: Vec::new(),
            aggregated_discovery: true,
        }
    }
}
