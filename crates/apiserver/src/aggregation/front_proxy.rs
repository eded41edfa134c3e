//! The front proxy: the client certificate and headers by which aggregated API servers authenticate
//! this server and the users of its requests.
//!
//! Guarantees: the key stays in memory; the authority signs nothing else, so that its certificate
//! can be trusted to state any user. It is in the ConfigMap
//! `kube-system/extension-apiserver-authentication`.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bellerophon_apimachinery::time::Time;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject as _,
    },
    version::{TLS12, TLS13},
};

use crate::{
    auth::User,
    connect::{TlsPeer, accept_any_certificate},
    registry::RemoteVersion,
    tls::{self, TlsError},
};

/// The common name of the client certificate.
pub(crate) const COMMON_NAME: &str = "front-proxy-client";

/// The headers of an identity.
pub(crate) const USER_HEADER: &str = "X-Remote-User";
pub(crate) const UID_HEADER: &str = "X-Remote-Uid";
pub(crate) const GROUP_HEADER: &str = "X-Remote-Group";
pub(crate) const EXTRA_HEADER_PREFIX: &str = "X-Remote-Extra-";

/// The bytes of a header name that are not escaped in the name of an extra. Mirrors
/// `headerKeyEscape`.
const EXTRA_KEY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// TLS configurations that are kept. Further ones replace all of them.
const CONFIGS_MAX: usize = 64;

/// The client certificate of this server, and the authority that signed it.
pub(crate) struct FrontProxy {
    ca_pem: String,
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
    /// By what makes them differ. A configuration has the sessions of its servers, which are
    /// resumed by the next requests.
    configs: Mutex<HashMap<Trust, Arc<ClientConfig>>>,
}

/// Which certificates of a server are accepted.
#[derive(PartialEq, Eq, Hash)]
struct Trust {
    ca_bundle: Vec<u8>,
    insecure_skip_tls_verify: bool,
}

impl fmt::Debug for FrontProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontProxy").finish_non_exhaustive()
    }
}

impl FrontProxy {
    /// A new authority and a certificate that it signed.
    ///
    /// # Errors
    /// The cryptographic library cannot make a key.
    pub(crate) fn issue(now: Time) -> Result<Self, TlsError> {
        let client = tls::issue_client("front-proxy-ca", COMMON_NAME, now)?;
        Ok(Self {
            ca_pem: client.ca_pem,
            certificate: client.certificate,
            key: client.key,
            configs: Mutex::default(),
        })
    }

    /// The authority, in PEM.
    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The server of a version of a group, as `spec.caBundle` and `spec.insecureSkipTLSVerify` of
    /// its APIService have it. Mirrors `BuildTransportConfig`.
    pub(super) fn peer(&self, remote: &RemoteVersion) -> Result<TlsPeer, String> {
        let name = format!("{}.{}.svc", remote.service, remote.namespace);
        Ok(TlsPeer {
            name: ServerName::try_from(name).map_err(|error| error.to_string())?,
            config: self.config(remote)?,
        })
    }

    fn config(&self, remote: &RemoteVersion) -> Result<Arc<ClientConfig>, String> {
        let trust = Trust {
            ca_bundle: remote.ca_bundle.clone(),
            insecure_skip_tls_verify: remote.insecure_skip_tls_verify,
        };
        if let Some(config) = self.lock_configs().get(&trust) {
            return Ok(config.clone());
        }
        let config = Arc::new(self.new_config(&trust)?);
        let mut configs = self.lock_configs();
        if configs.len() >= CONFIGS_MAX {
            configs.clear();
        }
        configs.insert(trust, config.clone());
        Ok(config)
    }

    fn lock_configs(&self) -> MutexGuard<'_, HashMap<Trust, Arc<ClientConfig>>> {
        self.configs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_config(&self, trust: &Trust) -> Result<ClientConfig, String> {
        let builder = ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| error.to_string())?;
        let builder = if trust.insecure_skip_tls_verify {
            builder
                .dangerous()
                .with_custom_certificate_verifier(accept_any_certificate())
        } else {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(&trust.ca_bundle) {
                let certificate = certificate.map_err(|error| error.to_string())?;
                roots.add(certificate).map_err(|error| error.to_string())?;
            }
            builder.with_root_certificates(roots)
        };
        let mut config = builder
            .with_client_auth_cert(
                vec![self.certificate.clone()],
                PrivateKeyDer::Pkcs8(self.key.clone_key()),
            )
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// The headers that state who makes a request. Mirrors `SetAuthProxyHeaders`.
pub(super) fn identity_headers(user: &User) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str| {
        let name = HeaderName::try_from(name);
        let value = HeaderValue::try_from(value);
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    };
    add(USER_HEADER, &user.name);
    if !user.uid.is_empty() {
        add(UID_HEADER, &user.uid);
    }
    for group in &user.groups {
        add(GROUP_HEADER, group);
    }
    for (key, values) in &user.extra {
        let key = utf8_percent_encode(key, EXTRA_KEY);
        let name = format!("{EXTRA_HEADER_PREFIX}{key}");
        for value in values {
            add(&name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_stated_in_headers() {
        let user = User {
            name: "ann".into(),
            uid: "u1".into(),
            groups: vec!["a".into(), "b".into()],
            extra: [("scopes/x".to_owned(), vec!["1".to_owned(), "2".to_owned()])].into(),
        };
        let headers = identity_headers(&user);
        let all = |name: &str| -> Vec<&str> {
            let values = headers.get_all(name).iter();
            values.map(|value| value.to_str().expect("text")).collect()
        };
        assert_eq!(all("x-remote-user"), ["ann"]);
        assert_eq!(all("x-remote-uid"), ["u1"]);
        assert_eq!(all("x-remote-group"), ["a", "b"]);
        assert_eq!(all("x-remote-extra-scopes%2fx"), ["1", "2"]);
    }
}
