//! Serves exec with commands of this machine, and port-forward to its ports.
//!
//! Run: `cargo run -p bellerophon-streaming --example local_commands`, then open an upgrade to
//! `/exec?command=ls&stdout=true` or to `/portforward` on the address that it logs. It serves
//! everyone who can connect: it listens on the loopback interface only.

use std::{convert::Infallible, io, process::Stdio};

use bellerophon_streaming::{
    ByteWriter, ConnectionOptions, port_forward,
    remote_command::{self, Outcome, RemoteCommand, StreamOptions},
};
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, copy},
    net::{TcpListener, TcpStream},
    process::Command,
};

#[tokio::main]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("http://{}", listener.local_addr()?);
    loop {
        let (connection, _) = listener.accept().await?;
        // Streams are opened by small frames; without this each waits for an acknowledgement.
        connection.set_nodelay(true)?;
        let service = service_fn(|request| async { Ok::<_, Infallible>(respond(request)) });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(connection), service);
        tokio::spawn(connection.with_upgrades());
    }
}

fn respond(mut request: Request<Incoming>) -> Response<String> {
    let options = ConnectionOptions::default();
    if request.uri().path().ends_with("/portforward") {
        let upgrade = port_forward::upgrade(&mut request, &options);
        if let Some(upgraded) = upgrade.upgraded {
            tokio::spawn(async move {
                match upgraded.connections().await {
                    Ok(forward) => forward.run("this machine", dial).await,
                    Err(error) => eprintln!("{error}"),
                }
            });
        }
        return upgrade.response;
    }
    let streams = StreamOptions::from_query(request.uri().query().unwrap_or_default());
    let arguments = streams.command.clone();
    let upgrade = remote_command::upgrade(&mut request, streams, &options);
    if let Some(upgraded) = upgrade.upgraded {
        tokio::spawn(async move {
            match upgraded.streams().await {
                Ok(command) => exec(command, arguments).await,
                Err(error) => eprintln!("{error}"),
            }
        });
    }
    upgrade.response
}

async fn dial(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", port)).await
}

async fn exec(mut command: RemoteCommand, arguments: Vec<String>) {
    let outcome = match run(&mut command, &arguments).await {
        Ok(code) => Outcome::Exited(code),
        Err(error) => Outcome::Failed(format!("error executing command in container: {error}")),
    };
    command.finish(outcome).await;
}

async fn run(command: &mut RemoteCommand, arguments: &[String]) -> io::Result<i32> {
    let (program, arguments) = arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut to) = child.stdin.take()
        && let Some(mut from) = command.stdin.take()
    {
        tokio::spawn(async move { copy(&mut from, &mut to).await });
    }
    let stdout = relay(child.stdout.take(), command.stdout.take());
    let stderr = relay(child.stderr.take(), command.stderr.take());
    tokio::try_join!(stdout, stderr)?;
    let status = child.wait().await?;
    Ok(status.code().unwrap_or(-1))
}

async fn relay<R>(from: Option<R>, to: Option<ByteWriter>) -> io::Result<u64>
where
    R: AsyncRead + Unpin,
{
    match (from, to) {
        (Some(mut from), Some(mut to)) => copy(&mut from, &mut to).await,
        _ => Ok(0),
    }
}
