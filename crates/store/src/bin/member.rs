//! One member of a store, for tests and benchmarks: `bellerophon store serve` without the rest of
//! the `bellerophon` binary.
//!
//! In: `--name value` pairs. Out: one line of JSON with the addresses, then logs on stderr. Exit
//! codes as `bellerophon store serve`.

use std::{collections::HashMap, error::Error, io::Write as _, path::PathBuf, process::ExitCode};

use bellerophon_store::{ServeOptions, Server, TlsFiles, TokenFiles};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let served = bellerophon_store::runtime()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run()));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("member: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let server = Server::start(options()?).await?;
    let addresses = server.addresses();
    let mut out = std::io::stdout();
    writeln!(
        out,
        r#"{{"client":"{}","peer":"{}","health":"{}"}}"#,
        addresses.client, addresses.peer, addresses.health
    )?;
    out.flush()?;
    let stop = async {
        terminate.recv().await;
    };
    server.run(stop).await?;
    Ok(())
}

fn options() -> Result<ServeOptions, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut values = HashMap::new();
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("{} has no value", pair[0]).into());
        };
        values.insert(name.trim_start_matches("--").to_owned(), value.clone());
    }
    let mut take = |name: &str| values.remove(name);
    let any = || "127.0.0.1:0".to_owned();
    let path = |value: Option<String>| value.map(PathBuf::from);
    let tls = match (
        path(take("tls-cert")),
        path(take("tls-key")),
        path(take("tls-ca")),
    ) {
        (Some(certificate), Some(key), Some(ca)) => Some(TlsFiles {
            certificate,
            key,
            ca,
        }),
        _ => None,
    };
    let options = ServeOptions {
        data: path(take("data")).ok_or("--data is missing")?,
        client_listen: take("client-listen").unwrap_or_else(any).parse()?,
        peer_listen: take("peer-listen").unwrap_or_else(any).parse()?,
        health_listen: take("health-listen").unwrap_or_else(any).parse()?,
        tls,
        tokens: TokenFiles {
            admin: path(take("admin-token-file")),
            client: path(take("client-token-file")),
        },
        snapshot_log_bytes: take("snapshot-log-bytes")
            .map(|text| text.parse())
            .transpose()?,
        history_revisions: take("history-revisions")
            .map(|text| text.parse())
            .transpose()?,
        format_if_empty: None,
        insecure: false,
    };
    match values.keys().next() {
        None => Ok(options),
        Some(name) => Err(format!("--{name} is unknown").into()),
    }
}
