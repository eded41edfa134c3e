//! TLS of a member: certificates from files, read again when they change.
//!
//! In: PEM files of a certificate, its key and the certificate authority. Out: configurations of
//! the client listener, the peer listener and the connections to peers.
//! Guarantees: peers present certificates of the authority; the name in a certificate proves
//! cluster and member. Files that cannot be used leave the last configuration in effect.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use crate::api::{ClusterId, MemberId};

/// The protocols that the client listener offers; peers use HTTP/2 only.
const CLIENT_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
const PEER_PROTOCOLS: [&[u8]; 1] = [b"h2"];

/// The files of a member's certificate.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The certificate authority of all members.
    pub ca: PathBuf,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// A file has no usable certificate or key.
    #[error("cannot use {path}: {cause}; expected PEM")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// Key and certificate do not belong together, or are of an unknown type.
    #[error("cannot use {path} and its key: {cause}")]
    Certificate {
        /// The file of the certificate.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
}

/// The configurations made from one version of the files.
pub(crate) struct TlsConfigs {
    /// Of the client listener: clients present no certificate.
    pub(crate) client_listener: Arc<ServerConfig>,
    /// Of the peer listener: peers present a certificate of the authority.
    pub(crate) peer_listener: Arc<ServerConfig>,
    /// Of connections to peers.
    pub(crate) peer_client: Arc<ClientConfig>,
}

/// The configurations in effect.
pub(crate) struct Tls {
    files: TlsFiles,
    current: RwLock<(Contents, Arc<TlsConfigs>)>,
}

/// The bytes of the files.
#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

/// Whether new files are in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reloaded {
    Changed,
    Unchanged,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let contents = Contents::read(&files)?;
        let configs = Arc::new(contents.configs(&files)?);
        Ok(Self {
            files,
            current: RwLock::new((contents, configs)),
        })
    }

    /// Reads the files again.
    pub(crate) fn reload(&self) -> Result<Reloaded, TlsError> {
        let contents = Contents::read(&self.files)?;
        if self
            .current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .0
            == contents
        {
            return Ok(Reloaded::Unchanged);
        }
        let configs = Arc::new(contents.configs(&self.files)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (contents, configs);
        Ok(Reloaded::Changed)
    }

    /// The configurations in effect.
    pub(crate) fn configs(&self) -> Arc<TlsConfigs> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.1.clone()
    }
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            fs::read(path).map_err(|cause| TlsError::Read {
                path: path.to_owned(),
                cause,
            })
        };
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            ca: read(&files.ca)?,
        })
    }

    fn configs(&self, files: &TlsFiles) -> Result<TlsConfigs, TlsError> {
        let certificate_error = |cause: String| TlsError::Certificate {
            path: files.certificate.clone(),
            cause,
        };
        let chain = certificates(&self.certificate, &files.certificate)?;
        let key = || {
            PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| TlsError::Pem {
                path: files.key.clone(),
                cause: error.to_string(),
            })
        };
        let roots = Arc::new(self.roots(files)?);
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| TlsError::Pem {
                path: files.ca.clone(),
                cause: error.to_string(),
            })?;
        let mut client_listener = server_builder(&provider)
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key()?)
            .map_err(|error| certificate_error(error.to_string()))?;
        client_listener.alpn_protocols = CLIENT_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let mut peer_listener = server_builder(&provider)
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key()?)
            .map_err(|error| certificate_error(error.to_string()))?;
        peer_listener.alpn_protocols = PEER_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let mut peer_client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring supports TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key()?)
            .map_err(|error| certificate_error(error.to_string()))?;
        peer_client.alpn_protocols = PEER_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        Ok(TlsConfigs {
            client_listener: Arc::new(client_listener),
            peer_listener: Arc::new(peer_listener),
            peer_client: Arc::new(peer_client),
        })
    }

    fn roots(&self, files: &TlsFiles) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca, &files.ca)? {
            roots.add(certificate).map_err(|error| TlsError::Pem {
                path: files.ca.clone(),
                cause: error.to_string(),
            })?;
        }
        Ok(roots)
    }
}

fn server_builder(
    provider: &Arc<CryptoProvider>,
) -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("ring supports TLS 1.2 and 1.3")
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem_error = |cause: String| TlsError::Pem {
        path: path.to_owned(),
        cause,
    };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| pem_error(error.to_string()))?;
    if certificates.is_empty() {
        return Err(pem_error("no certificate in it".to_owned()));
    }
    Ok(certificates)
}

/// The DNS name in the certificate of a member: what proves its identity to its peers.
pub fn member_name(member: MemberId, cluster: &ClusterId) -> String {
    format!("m-{member}.{cluster}.store.bellerophon.io")
}

/// Whether a certificate is that of a member.
pub(crate) fn is_member(
    certificate: &CertificateDer<'_>,
    member: MemberId,
    cluster: &ClusterId,
) -> bool {
    let Ok((_, parsed)) = parse_x509_certificate(certificate) else {
        return false;
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return false;
    };
    let expected = member_name(member, cluster);
    let mut names = names.value.general_names.iter();
    names.any(|name| matches!(name, GeneralName::DNSName(name) if *name == expected))
}
