//! Flags and values of several commands.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};

use crate::page_client::PageUrl;

/// The format of logs and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Text,
    Json,
}

/// Where trace records come from.
#[derive(Debug, Args)]
pub(crate) struct TraceSource {
    /// The kubeconfig that `bellerophon up` wrote
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    pub(crate) kubeconfig: PathBuf,

    /// The URL that `bellerophon run --page` printed, for operators on any cluster; replaces
    /// --kubeconfig
    #[arg(long, value_name = "URL")]
    pub(crate) page: Option<PageUrl>,
}

/// Accepts only characters that need no escaping in a URL.
pub(crate) fn object(text: &str) -> Result<String, &'static str> {
    // Names of Kubernetes objects have no other characters, except in RBAC, so nothing needs
    // escaping.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-./:".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("not a name, such as web or deployment/web")
    }
}

/// An IP address and a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "not an IP address and a port, such as 127.0.0.1:6443 or [::1]:0")
}
