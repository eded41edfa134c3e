//! Writes the kubeconfig of the server.
//! In: address and credentials. Out: a kubeconfig that only its owner can read.
//! Guarantees: the file is replaced atomically, is never readable by others, and never replaces a
//! file that this program did not write.

use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use crate::{
    entropy::Entropy,
    tls::{ADMIN, Identity},
};

/// How the first line begins; a file that starts otherwise is not ours.
const MARK: &str = "# Written by bellerophon:";

/// Everything a client needs.
pub(crate) struct Kubeconfig<'a> {
    /// `https://127.0.0.1:6443`.
    pub(crate) server: &'a str,
    /// The CA of the server.
    pub(crate) ca_pem: &'a str,
    /// The administrator's certificate and key.
    pub(crate) identity: &'a Identity,
    /// The administrator's token.
    pub(crate) token: &'a str,
}

/// Why a kubeconfig was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeconfigError {
    /// Something else is there.
    #[error("will not replace {path}: {what}")]
    Occupied { path: PathBuf, what: &'static str },
    /// The file system returned an error.
    #[error("cannot write kubeconfig {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

impl Kubeconfig<'_> {
    /// The file's text: plain YAML, one `key: value` a line.
    pub(crate) fn text(&self) -> String {
        let data = |pem: &str| BASE64_STANDARD.encode(pem);
        format!(
            "{MARK} the keys of an administrator, created at every start.\n\
             apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: bellerophon\n\
             \x20 cluster:\n\
             \x20   server: {server}\n\
             \x20   certificate-authority-data: {ca}\n\
             users:\n\
             - name: {ADMIN}\n\
             \x20 user:\n\
             \x20   client-certificate-data: {certificate}\n\
             \x20   client-key-data: {key}\n\
             \x20   token: {token}\n\
             contexts:\n\
             - name: bellerophon\n\
             \x20 context:\n\
             \x20   cluster: bellerophon\n\
             \x20   user: {ADMIN}\n\
             current-context: bellerophon\n\
             preferences: {{}}\n",
            server = self.server,
            ca = data(self.ca_pem),
            certificate = data(&self.identity.certificate_pem),
            key = data(&self.identity.key_pem),
            token = self.token,
        )
    }

    /// Replaces the file atomically, and creates its directory if needed. A kubeconfig of an
    /// earlier start is replaced.
    ///
    /// # Errors
    /// When the path is anything but a kubeconfig that this program wrote, or cannot be written.
    pub(crate) fn write(&self, path: &Path, entropy: &Entropy) -> Result<(), KubeconfigError> {
        let failed = |source| KubeconfigError::Io {
            path: path.to_owned(),
            source,
        };
        if let Some(what) = occupant(path).map_err(failed)? {
            return Err(KubeconfigError::Occupied {
                path: path.to_owned(),
                what,
            });
        }
        let directory = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let is_new = !directory.exists();
        make_directory(directory).map_err(failed)?;
        let draft = directory.join(format!(".kubeconfig-{}", entropy.suffix(10)));
        let written = write_private(&draft, &self.text()).and_then(|()| fs::rename(&draft, path));
        written.map_err(|source| {
            // The draft may not exist; the first error is returned.
            drop(fs::remove_file(&draft));
            if is_new {
                drop(fs::remove_dir(directory));
            }
            failed(source)
        })
    }
}

/// What is at `path` and must not be replaced: `None` if the path is free or a kubeconfig that this
/// program wrote.
fn occupant(path: &Path) -> io::Result<Option<&'static str>> {
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if kind.is_symlink() {
        return Ok(Some("it is a symbolic link"));
    }
    if !kind.is_file() {
        return Ok(Some("it is not a regular file"));
    }
    let ours = fs::read(path)?.starts_with(MARK.as_bytes());
    Ok((!ours).then_some("it was not written by bellerophon"))
}

#[cfg(unix)]
fn make_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

#[cfg(not(unix))]
fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn write(path: &Path) -> Result<(), KubeconfigError> {
        let identity = Identity {
            certificate_pem: "CERT".into(),
            key_pem: "KEY".into(),
        };
        let config = Kubeconfig {
            server: "https://127.0.0.1:6443",
            ca_pem: "CA",
            identity: &identity,
            token: "t",
        };
        config.write(path, &Entropy::from_os())
    }

    #[test]
    fn file_names_server_and_credentials() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new/kubeconfig");
        write(&path).expect("written");
        write(&path).expect("written again");
        let read: Value =
            serde_saphyr::from_str(&fs::read_to_string(&path).expect("readable")).expect("YAML");
        assert_eq!(read["current-context"], "bellerophon");
        assert_eq!(
            read["clusters"][0]["cluster"]["server"],
            "https://127.0.0.1:6443"
        );
        assert_eq!(
            read["clusters"][0]["cluster"]["certificate-authority-data"],
            "Q0E="
        );
        assert_eq!(read["users"][0]["name"], "admin");
        assert_eq!(read["users"][0]["user"]["token"], "t");
        assert_eq!(
            fs::read_dir(directory.path().join("new"))
                .expect("readable")
                .count(),
            1,
            "no draft is left"
        );
    }

    #[cfg(unix)]
    #[test]
    fn file_is_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new/kubeconfig");
        write(&path).expect("written");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().expect("a directory")), 0o700);
    }

    #[test]
    fn files_of_others_are_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::write(at("config"), "apiVersion: v1\nkind: Config\n").expect("written");
        fs::create_dir(at("folder")).expect("made");
        let refused = |path: &Path| write(path).expect_err("refused").to_string();
        assert!(refused(&at("config")).contains("it was not written by bellerophon"));
        assert!(refused(&at("folder")).contains("it is not a regular file"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("elsewhere"), at("link")).expect("linked");
            assert!(refused(&at("link")).contains("it is a symbolic link"));
            assert!(!at("elsewhere").exists());
        }
    }
}
