//! `bellerophon store serve`: one member until a signal.

use std::{io::Write, net::SocketAddr, path::PathBuf};

use bellerophon_store::{
    ServeOptions, Server, TlsFiles, TokenFiles,
    api::{ClusterId, Identity, MemberId},
};
use clap::Args;
use serde::Serialize;

use super::{print_json, print_line};
use crate::{
    error::CliError,
    flags::{OutputFormat, address},
    signals::Signals,
};

#[derive(Debug, Args)]
pub(super) struct ServeArguments {
    /// The data directory of the member
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// The address of the client API and the admin API
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7070", value_parser = address)]
    client_listen: SocketAddr,

    /// The address for other members
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7071", value_parser = address)]
    peer_listen: SocketAddr,

    /// The address of /livez, /readyz and /metrics, over plain HTTP
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7072", value_parser = address)]
    health_listen: SocketAddr,

    /// The certificate of the member, in PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,

    /// The private key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// The certificate authority of all members
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    /// The file of the bearer token of the admin API; read again when it changes
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,

    /// The file of the bearer token of the client API; read again when it changes
    #[arg(long, value_name = "FILE")]
    client_token_file: Option<PathBuf>,

    /// Take a snapshot and drop the log when it has this size
    #[arg(long, value_name = "BYTES")]
    snapshot_log_bytes: Option<u64>,

    /// The number of revisions from which watches can begin
    #[arg(long, value_name = "N")]
    history_revisions: Option<u64>,

    /// Format an empty data directory; unsafe after the loss of a disk, since a member id must not
    /// be used twice
    #[arg(long, value_name = "CLUSTER_ID:MEMBER_ID", value_parser = identity)]
    format_if_empty: Option<Identity>,

    /// Serve without TLS or without tokens on addresses that are not loopback
    #[arg(long)]
    insecure: bool,

    /// The format of stdout: text, or one JSON object when the member serves
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

fn identity(text: &str) -> Result<Identity, String> {
    let (cluster, member) = text
        .split_once(':')
        .ok_or("not a cluster id and a member id, such as 6f1c2f6e:1")?;
    let cluster_id: ClusterId = cluster.parse().map_err(|error| format!("{error}"))?;
    let member_id: MemberId = member.parse().map_err(|error| format!("{error}"))?;
    Ok(Identity {
        cluster_id,
        member_id,
    })
}

/// What is printed when the member serves.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ready {
    event: &'static str,
    client_address: SocketAddr,
    peer_address: SocketAddr,
    health_address: SocketAddr,
}

pub(super) async fn serve(arguments: ServeArguments, out: &mut impl Write) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
    let output = arguments.output;
    let server = Server::start(options(arguments))
        .await
        .map_err(CliError::new)?;
    let addresses = server.addresses();
    let ready = Ready {
        event: "serving",
        client_address: addresses.client,
        peer_address: addresses.peer,
        health_address: addresses.health,
    };
    match output {
        OutputFormat::Json => print_json(out, &ready)?,
        OutputFormat::Text => print_line(
            out,
            &format!(
                "clients: {}, peers: {}, health: {}",
                ready.client_address, ready.peer_address, ready.health_address
            ),
        )?,
    }
    out.flush()
        .map_err(CliError::context("cannot write to stdout"))?;
    let stop = async {
        // Without signals, only the end of the process stops the member.
        if signals.next().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    server.run(stop).await.map_err(CliError::new)
}

fn options(arguments: ServeArguments) -> ServeOptions {
    let files = (arguments.tls_cert, arguments.tls_key, arguments.tls_ca);
    let tls = match files {
        (Some(certificate), Some(key), Some(ca)) => Some(TlsFiles {
            certificate,
            key,
            ca,
        }),
        _ => None,
    };
    ServeOptions {
        data: arguments.data,
        client_listen: arguments.client_listen,
        peer_listen: arguments.peer_listen,
        health_listen: arguments.health_listen,
        tls,
        tokens: TokenFiles {
            admin: arguments.admin_token_file,
            client: arguments.client_token_file,
        },
        snapshot_log_bytes: arguments.snapshot_log_bytes,
        history_revisions: arguments.history_revisions,
        format_if_empty: arguments.format_if_empty,
        insecure: arguments.insecure,
    }
}
