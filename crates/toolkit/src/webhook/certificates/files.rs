//! Certificate files, such as those of a mounted Secret.
//!
//! In: a directory. Out: the certificate that is served.
//! Guarantees: a new pair is served within [`POLL_PERIOD`] of being complete; a pair that does not
//! match, or of which one file is missing or half written, is never served. Polled, since a
//! kubelet swaps a symbolic link two levels above, of which no file event reports.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::authority::{CertificateError, certified_pem};
use crate::webhook::server::ServedCertificate;

/// How often the files are read.
pub(crate) const POLL_PERIOD: Duration = Duration::from_secs(5);

/// Follows the pair `tls.crt` and `tls.key` of a directory.
pub(crate) struct CertificateFiles {
    pub(crate) directory: PathBuf,
    pub(crate) served: ServedCertificate,
}

/// A pair as it was read.
#[derive(PartialEq, Eq)]
struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl CertificateFiles {
    /// Follows the files until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut last = None;
        let polling = async {
            loop {
                self.poll(&mut last);
                tokio::time::sleep(POLL_PERIOD).await;
            }
        };
        stop.run_until_cancelled(polling).await;
    }

    /// Serves the pair if it is new and complete.
    fn poll(&self, last: &mut Option<Pair>) {
        let pair = match read_pair(&self.directory) {
            Ok(pair) => pair,
            Err(error) => {
                let directory = self.directory.display();
                tracing::warn!(%directory, %error, "cannot read tls.crt and tls.key");
                return;
            }
        };
        if last.as_ref() == Some(&pair) {
            return;
        }
        match usable(&pair) {
            Ok(certified) => self.served.set(Some(certified)),
            Err(error) => {
                let directory = self.directory.display();
                tracing::warn!(%directory, %error, "the present certificate is kept");
            }
        }
        *last = Some(pair);
    }
}

/// Both files. They are read until they were the same twice, so that a swap in between is seen.
fn read_pair(directory: &Path) -> std::io::Result<Pair> {
    let read = || -> std::io::Result<Pair> {
        Ok(Pair {
            certificate: std::fs::read(directory.join("tls.crt"))?,
            key: std::fs::read(directory.join("tls.key"))?,
        })
    };
    let first = read()?;
    let second = read()?;
    match first == second {
        true => Ok(first),
        false => read(),
    }
}

fn usable(pair: &Pair) -> Result<Arc<rustls::sign::CertifiedKey>, CertificateError> {
    Ok(Arc::new(certified_pem(&pair.certificate, &pair.key)?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A certificate and its key in PEM, and the certificate in DER.
    fn pair() -> (String, String, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let der = certificate.der().to_vec();
        (certificate.pem(), key.serialize_pem(), der)
    }

    /// Swaps the content as a kubelet does: a new directory, and a symbolic link that is renamed
    /// over the old one.
    fn swap(directory: &Path, generation: usize, certificate: &str, key: &str) {
        let name = format!("..{generation}");
        let data = directory.join(&name);
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("tls.crt"), certificate).unwrap();
        std::fs::write(data.join("tls.key"), key).unwrap();
        symlink(&name, directory.join("..data_tmp")).unwrap();
        std::fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        if generation > 0 {
            let old = directory.join(format!("..{}", generation - 1));
            std::fs::remove_dir_all(old).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_swaps_with_half_written_pairs_are_served_in_time_and_never_half() {
        let directory = tempfile::tempdir().unwrap();
        for file in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{file}"), directory.path().join(file)).unwrap();
        }
        // Keys are expensive in a development build; each swap has another pair than the last.
        let pairs: Vec<_> = (0..7).map(|_| pair()).collect();
        let served = ServedCertificate::default();
        let files = CertificateFiles {
            directory: directory.path().to_owned(),
            served: served.clone(),
        };
        let stop = CancellationToken::new();
        let following = tokio::spawn(files.run(stop.clone()));
        let shown = || served.get().map(|pair| pair.cert[0].to_vec());
        let mut generation = 0;
        for round in 0..1_000 {
            let (certificate, key, der) = &pairs[round % pairs.len()];
            let other = &pairs[(round + 1) % pairs.len()];
            let before = shown();
            // Half written: the key of another pair, a cut certificate, no key at all.
            let halves: [(&str, &str); 3] = [
                (certificate, &other.1),
                (&certificate[..certificate.len() / 2], key),
                (certificate, ""),
            ];
            let (half_certificate, half_key) = halves[round % halves.len()];
            swap(directory.path(), generation, half_certificate, half_key);
            generation += 1;
            tokio::time::sleep(POLL_PERIOD).await;
            assert_eq!(shown(), before, "a half pair is not served");
            swap(directory.path(), generation, certificate, key);
            generation += 1;
            tokio::time::sleep(POLL_PERIOD + Duration::from_millis(1)).await;
            assert_eq!(shown().as_deref(), Some(der.as_slice()), "round {round}");
            let pair = served.get().unwrap();
            assert!(pair.keys_match().is_ok());
        }
        assert!(!following.is_finished(), "nothing panicked");
        stop.cancel();
        following.await.unwrap();
    }
}
