//! Caches and controllers, measured: `cargo bench -p bellerophon --bench informer`.
//!
//! A server with objects runs in its own process, and each client in another one, so that CPU and
//! memory are measured separately. Clients of this toolkit, of kube-runtime and, if Go is
//! installed, of client-go run one after the other on the same server. Shapes without a server,
//! those of client-go's own benchmarks, run in this process. Prints tables; a word after `--`
//! selects one of them: `sync`, `reconcile`, `readers`, `updates`. `serve FILE` keeps a server
//! running and writes its kubeconfig to the file, for measurements of other clients.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and measures real time"
)]

#[path = "../common/mod.rs"]
mod common; // the client-go program, and the processor time of this process

mod clients; // clients, one per process
mod objects; // cached objects
mod process; // servers and clients as processes, and their cost
mod shapes; // caches without a server

use std::path::Path;
use std::time::Duration;

use process::{Cost, Server, run_client};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How often each client runs.
const ROUNDS: usize = 3;

fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words {
        ["client", name, kubeconfig] => return clients::run(name, kubeconfig),
        ["serve", kubeconfig] => return process::serve(kubeconfig),
        _ => {}
    }
    let selected = |name: &str| words.is_empty() || words.contains(&name);
    if selected("sync") || selected("reconcile") {
        let server = Server::start()?;
        let go = common::client_go();
        println!("{}\n", server.content);
        if selected("sync") {
            table(
                "initial sync, 50,000 pods",
                &clients::SYNCS,
                &clients::GO_SYNCS,
                go.as_deref(),
                &server,
                objects::PODS,
            )?;
        }
        if selected("reconcile") {
            let title = "10,000 config maps reconciled once, 4 workers";
            table(
                title,
                &clients::RECONCILES,
                &clients::GO_RECONCILES,
                go.as_deref(),
                &server,
                objects::CONFIG_MAPS,
            )?;
        }
    }
    if selected("readers") {
        shapes::readers()?;
    }
    if selected("updates") {
        shapes::updates()?;
    }
    Ok(())
}

/// Runs clients one after the other, those of Go if it is installed, and prints the median of each.
fn table(
    title: &str,
    ours: &[&str],
    of_go: &[&str],
    go: Option<&Path>,
    server: &Server,
    objects: usize,
) -> Result<(), BoxError> {
    let of_go = of_go
        .iter()
        .filter(|_| go.is_some())
        .map(|name| (*name, go));
    let clients: Vec<(&str, Option<&Path>)> =
        ours.iter().map(|name| (*name, None)).chain(of_go).collect();
    println!("{title}\n");
    println!(
        "| client | wall s | CPU s | peak MiB | settled MiB | bytes an object |\n|---|---|---|---|---|---|"
    );
    let mut costs: Vec<Vec<Cost>> = clients.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for ((client, go), costs) in clients.iter().zip(&mut costs) {
            costs.push(run_client(client, *go, &server.kubeconfig)?);
        }
    }
    for ((client, _), costs) in clients.iter().zip(&costs) {
        println!("| {client} | {} |", Cost::row(costs, objects));
    }
    println!();
    Ok(())
}

/// The median of several measurements, and the extremes.
fn median(mut figures: Vec<f64>, decimals: usize) -> String {
    figures.sort_by(f64::total_cmp);
    let least = figures[0];
    let median = figures[figures.len() / 2];
    let most = figures[figures.len() - 1];
    format!("{median:.decimals$} ({least:.decimals$}–{most:.decimals$})")
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
