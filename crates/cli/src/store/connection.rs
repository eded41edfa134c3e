//! Endpoints and credentials of a store, from flags and environment variables.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use bellerophon_store_client::{Client, ClientOptions, ClientTls, Endpoint, Token};
use clap::Args;

use crate::error::CliError;

/// Environment variables that replace flags.
const ENDPOINTS: &str = "BELLEROPHON_STORE_ENDPOINTS";
const TOKEN_FILE: &str = "BELLEROPHON_STORE_TOKEN_FILE";
const CA: &str = "BELLEROPHON_STORE_CA";

/// The client API of a member on this machine.
const DEFAULT_ENDPOINT: &str = "https://127.0.0.1:7070";

/// How to reach a store.
#[derive(Clone, Debug, Args)]
pub(super) struct Connection {
    /// The members, comma-separated; default: BELLEROPHON_STORE_ENDPOINTS, or
    /// https://127.0.0.1:7070
    #[arg(long, value_name = "URL,…", value_delimiter = ',', value_parser = endpoint)]
    endpoints: Vec<Endpoint>,

    /// The file of the bearer token; default: BELLEROPHON_STORE_TOKEN_FILE
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// The certificate authority of the members, in PEM; default: BELLEROPHON_STORE_CA
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Seconds until the command gives up
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    text.parse()
}

impl Connection {
    /// A client with these options.
    ///
    /// # Errors
    /// A file cannot be read, or an environment variable is invalid.
    pub(super) fn client(&self) -> Result<Client, CliError> {
        let mut options = ClientOptions::new(self.endpoints()?);
        options.request_timeout = Duration::from_secs(self.timeout);
        if let Some(path) = or_environment(&self.token_file, TOKEN_FILE) {
            let text = fs::read_to_string(&path).map_err(cannot_read(&path))?;
            options.token = Some(Token::new(&text));
        }
        if let Some(path) = or_environment(&self.ca, CA) {
            let pem = fs::read(&path).map_err(cannot_read(&path))?;
            let tls = ClientTls::with_ca(&pem);
            let step = format!("cannot use {}", path.display());
            options.tls = Some(tls.map_err(CliError::context(&step))?);
        }
        if options.tls.is_none() && options.endpoints.iter().any(|endpoint| endpoint.is_https) {
            return Err(CliError::Usage(
                "an https endpoint needs a certificate authority".to_owned(),
            )
            .with_hint("set --ca, or use http://… for a member that is started --insecure"));
        }
        Ok(Client::new(options))
    }

    fn endpoints(&self) -> Result<Vec<Endpoint>, CliError> {
        if !self.endpoints.is_empty() {
            return Ok(self.endpoints.clone());
        }
        let text = env::var(ENDPOINTS).unwrap_or_else(|_| DEFAULT_ENDPOINT.to_owned());
        text.split(',')
            .map(|part| part.trim().parse())
            .collect::<Result<_, String>>()
            .map_err(|error| CliError::Usage(format!("{ENDPOINTS}: {error}")))
    }
}

fn or_environment(flag: &Option<PathBuf>, name: &str) -> Option<PathBuf> {
    flag.clone()
        .or_else(|| env::var_os(name).map(PathBuf::from))
}

/// The error of a file that cannot be read.
pub(super) fn cannot_read(path: &Path) -> impl FnOnce(io::Error) -> CliError {
    let step = format!("cannot read {}", path.display());
    move |cause| CliError::context(&step)(cause)
}
