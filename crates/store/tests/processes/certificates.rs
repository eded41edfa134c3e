//! A certificate authority and the certificates of members, as files.

use std::{fs, path::PathBuf};

use bellerophon_store::{TlsFiles, api::ClusterId, member_name};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

/// A certificate authority whose certificates are in a directory.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl Authority {
    pub(crate) fn new(directory: PathBuf) -> Self {
        fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        fs::write(directory.join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    pub(crate) fn ca_pem(&self) -> String {
        self.issuer.pem()
    }

    /// The certificate of a member; 0 is no member of the cluster.
    pub(crate) fn issue(&self, file: &str, cluster: &ClusterId, member: u64) -> TlsFiles {
        let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        names.push(member_name(member, cluster));
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = TlsFiles {
            certificate: self.directory.join(format!("{file}.pem")),
            key: self.directory.join(format!("{file}.key")),
            ca: self.directory.join("ca.pem"),
        };
        fs::write(&files.certificate, certificate.pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}
