//! The main function of a program that is one operator.
//!
//! In: the command line of the process. Out: the operator runs until SIGTERM, or its manifests are on
//! stdout.
//!
//! Guarantee: the command line in the manifests of the operator is understood.

use std::{
    env,
    error::Error,
    future::Future,
    io::{self, Write},
    net::SocketAddr,
    pin::Pin,
    process::ExitCode,
};

use bellerophon::{
    client::connect,
    leader::LeaderElectionOptions,
    manager::{Manager, ManagerOptions},
    trace::{Trace, TraceEvent, TraceReader},
};
use kube::Config;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    Installation, Operator, Switches, WEBHOOKS,
    json::to_json,
    manifests::manifests,
    operator::manager,
    webhooks::{webhook_options, webhooks_name},
};

type Failure = Box<dyn Error + Send + Sync>;

/// How many trace records are kept until they are printed.
const TRACE_RECORDS_MAX: usize = 10_000;

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    Run(RunOptions),
    Manifests { image: Option<String> },
    Crds,
    Help,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct RunOptions {
    leader_elect: bool,
    metrics: Option<SocketAddr>,
    /// Prints reconciles with their causes and writes.
    trace: bool,
    /// Where the API server finds the webhooks; `None` if they are not served.
    webhooks: Option<String>,
}

impl Command {
    fn parse(operator: &str, arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut arguments = arguments.into_iter();
        let command = arguments.next();
        let mut run = RunOptions::default();
        let mut image = None;
        let value = |flag: &str, arguments: &mut dyn Iterator<Item = String>| {
            arguments
                .next()
                .ok_or_else(|| format!("{flag} needs a value"))
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--leader-elect" => run.leader_elect = true,
                "--trace" => run.trace = true,
                "--webhooks" => run.webhooks = Some(String::new()),
                "--metrics" => {
                    let address = value("--metrics", &mut arguments)?;
                    let parsed = address.parse();
                    run.metrics = Some(parsed.map_err(|_| format!("{address} is no IP:PORT"))?);
                }
                "--image" => image = Some(value("--image", &mut arguments)?),
                // The program chooses the format of its logs.
                "--log-format" => drop(value("--log-format", &mut arguments)?),
                name if name == operator => {}
                other => match other.strip_prefix("--webhooks=") {
                    Some(location) => run.webhooks = Some(location.to_owned()),
                    None => return Err(format!("unknown argument {other}")),
                },
            }
        }
        match command.as_deref() {
            None | Some("run") => Ok(Self::Run(run)),
            Some("manifests") => Ok(Self::Manifests { image }),
            Some("crds") => Ok(Self::Crds),
            Some("help" | "--help" | "-h") => Ok(Self::Help),
            Some(other) => Err(format!("unknown command {other}")),
        }
    }
}

/// Runs the command line of this process for one operator: `run` (default), `manifests` or `crds`.
///
/// ```
/// use std::process::ExitCode;
///
/// use bellerophon_operator::Operator;
///
/// async fn run(operator: Operator) -> ExitCode {
///     bellerophon_operator::main(operator).await
/// }
/// ```
pub fn main(operator: Operator) -> Pin<Box<dyn Future<Output = ExitCode> + Send>> {
    // Boxed: a future is compiled in the crate that polls it.
    Box::pin(async move {
        let command = match Command::parse(operator.name, env::args().skip(1)) {
            Ok(command) => command,
            Err(why) => {
                eprintln!("{}: {why}; see `{0} help`", operator.name);
                return ExitCode::from(2);
            }
        };
        match execute(operator, command).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", operator.name);
                ExitCode::FAILURE
            }
        }
    })
}

async fn execute(operator: Operator, command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(options) => run(operator, options).await,
        Command::Manifests { image } => {
            let default = Installation::default();
            let installation = Installation {
                namespace: format!("{}-system", operator.name),
                image: image.unwrap_or_else(|| format!("{}:latest", operator.name)),
                webhooks: true,
                ..default
            };
            print(manifests(&operator, &installation))
        }
        Command::Crds => print((operator.crds)().iter().map(to_json).collect()),
        Command::Help => {
            let name = operator.name;
            let text = format!(
                "{name}: {}\n\nUsage:\n  {name} [run] [--leader-elect] [--metrics IP:PORT] \
                 [--trace] [--webhooks[=LOCATION]]\n  {name} manifests [--image IMAGE]   # | \
                 kubectl apply -f -\n  {name} crds\n\nLOCATION of webhooks: https://HOST:PORT, \
                 which they are registered with, or NAMESPACE/SERVICE of the manifests;\n\
                 default: https://127.0.0.1:9443\n",
                operator.summary
            );
            Ok(io::stdout().write_all(text.as_bytes())?)
        }
    }
}

/// Prints objects as a List, which `kubectl apply -f -` takes.
fn print(objects: Vec<Value>) -> Result<(), Failure> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let text = serde_json::to_string_pretty(&list)?;
    Ok(writeln!(io::stdout(), "{text}")?)
}

async fn run(operator: Operator, options: RunOptions) -> Result<(), Failure> {
    let webhooks = options.webhooks.as_deref().unwrap_or_default();
    let webhooks = webhook_options(&webhooks_name(&operator), webhooks)?;
    let config = Config::infer().await?;
    let leader_election = options.leader_elect.then(|| LeaderElectionOptions {
        lease_namespace: config.default_namespace.clone(),
        ..LeaderElectionOptions::new(operator.name)
    });
    let trace = match options.trace {
        true => Trace::new(TRACE_RECORDS_MAX),
        false => Trace::off(),
    };
    let manager_options = ManagerOptions {
        trace: trace.clone(),
        metrics_bind_address: options.metrics,
        health_probe_bind_address: options.metrics,
        leader_election,
        webhooks,
        ..ManagerOptions::default()
    };
    let client = connect(config)?;
    let switches: Switches = options.webhooks.iter().map(|_| WEBHOOKS).collect();
    let mut mgr = manager(client, &[operator], &switches, manager_options);
    if options.trace {
        add_printer(&mut mgr, trace.subscribe());
    }
    Ok(mgr.run().await?)
}

/// Prints reconciles with their causes, writes and errors.
fn add_printer(mgr: &mut Manager, mut reader: TraceReader) {
    mgr.add("trace printer", async move |stop: CancellationToken| {
        while let Some(batch) = stop.run_until_cancelled(reader.next()).await {
            for record in batch.records {
                print_event(&record.event);
            }
        }
        Ok(())
    });
}

fn print_event(event: &TraceEvent) {
    let is_shown = match event {
        TraceEvent::Started { .. }
        | TraceEvent::Wrote { .. }
        | TraceEvent::SubresourceWritten { .. } => true,
        TraceEvent::Finished { error, .. } => error.is_some(),
        _ => false,
    };
    if is_shown {
        // A closed stdout is no reason to stop.
        let _printed = writeln!(io::stdout(), "{event}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        let words = line.split_whitespace().map(str::to_owned);
        Command::parse("hero", words)
    }

    #[test]
    fn command_line_of_the_manifests_is_understood() {
        let options = RunOptions {
            leader_elect: true,
            metrics: Some(([0, 0, 0, 0], 8080).into()),
            trace: false,
            webhooks: Some("hero-system/hero-webhooks".to_owned()),
        };
        let line = "run hero --metrics 0.0.0.0:8080 --log-format json \
                    --webhooks=hero-system/hero-webhooks --leader-elect";
        assert_eq!(parse(line), Ok(Command::Run(options)));
        assert_eq!(parse(""), Ok(Command::Run(RunOptions::default())));
        assert_eq!(parse("crds"), Ok(Command::Crds));
        let image = Some("i".to_owned());
        assert_eq!(
            parse("manifests --image i"),
            Ok(Command::Manifests { image })
        );
    }

    #[test]
    fn unknown_words_are_usage_errors() {
        for (line, why) in [
            ("walk", "unknown command walk"),
            ("run other", "unknown argument other"),
            ("run --metrics", "--metrics needs a value"),
            ("run --metrics here", "here is no IP:PORT"),
        ] {
            assert_eq!(parse(line), Err(why.to_owned()), "{line}");
        }
    }
}
