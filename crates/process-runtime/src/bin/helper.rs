//! The shim of tests and benchmarks, and a program with many behaviors to run in containers.
//!
//! `node` is a node process that can be killed: it starts pods and prints `ready`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;

use bellerophon_process_runtime as runtime;

fn main() -> ExitCode {
    if let Some(code) = runtime::shim::main(std::env::args_os()) {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["serve", address] => serve(address),
        ["get", address] => get(address),
        ["lines", count] => lines(count.parse().unwrap_or(0)),
        ["open", count] => open(count.parse().unwrap_or(0)),
        ["node", tier, data_dir, pods] => node(tier, data_dir, pods.parse().unwrap_or(1)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "unknown arguments",
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("helper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Serves HTTP: the response is the host name and the address of the client.
fn serve(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    print("listening\n")?;
    let name = std::env::var("HOSTNAME").unwrap_or_default();
    loop {
        let (stream, client) = listener.accept()?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let body = format!("{name} {}\n", client.ip());
        let response = format!(
            "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        reader.get_mut().write_all(response.as_bytes())?;
    }
}

/// Prints the body of a response.
fn get(address: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let response = io::read_to_string(stream)?;
    print(response.split("\r\n\r\n").nth(1).unwrap_or_default())
}

/// Prints numbered lines.
fn lines(count: u64) -> io::Result<()> {
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    for number in 0..count {
        writeln!(stdout, "line {number}")?;
    }
    stdout.flush()
}

/// Opens files and prints their number.
fn open(count: usize) -> io::Result<()> {
    let files: io::Result<Vec<_>> = (0..count).map(|_| File::open("/dev/null")).collect();
    print(&format!("{} files\n", files?.len()))
}

/// A shell script whose processes do everything to outlive the node.
const ESCAPES: &str = "trap '' TERM HUP INT
(setsid sh -c 'trap \"\" TERM HUP INT; (setsid sleep 1000 &); sleep 1000' &)
echo started
while :; do sleep 1000; done";

fn node(tier: &str, data_dir: &str, pods: u8) -> io::Result<()> {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio
        .block_on(run_node(tier == "B", data_dir.into(), pods))
        .map_err(io::Error::other)
}

async fn run_node(force_tier_b: bool, data_dir: PathBuf, pods: u8) -> Result<(), runtime::Error> {
    let options = runtime::RuntimeOptions {
        force_tier_b,
        ..runtime::RuntimeOptions::new(&data_dir)
    };
    let runtime = runtime::Runtime::start(options).await?;
    let mut running = Vec::new();
    for number in 0..pods {
        let ip = match runtime.tier() {
            runtime::Tier::A => Ipv4Addr::new(10, 1, 0, number + 1).into(),
            runtime::Tier::B => runtime.allocate_ip(),
        };
        let config = runtime::SandboxConfig {
            id: format!("pod-{number}"),
            hostname: format!("pod-{number}"),
            ip,
            network: runtime::SandboxNetwork::Pod,
        };
        let sandbox = runtime.create_sandbox(config).await?;
        let argv = ["sh", "-c", ESCAPES].map(str::to_owned).to_vec();
        let config = runtime::ContainerConfig {
            name: "main".to_owned(),
            argv,
            env: Vec::new(),
            working_dir: None,
            user: None,
            streams: runtime::Streams::default(),
            mounts: Vec::new(),
            log_path: data_dir.join(format!("pod-{number}/0.log")),
            read_only_root: false,
            limits: runtime::Limits::default(),
            target: None,
        };
        let container = sandbox.start_container(config).await?;
        let log = runtime::logs::ReadOptions {
            follow: Some(container.log_updates()),
            ..runtime::logs::ReadOptions::default()
        };
        let path = data_dir.join(format!("pod-{number}/0.log"));
        runtime::logs::LogReader::open(&path, log)?
            .next_chunk()
            .await?;
        running.push((sandbox, container));
    }
    print("ready\n")?;
    std::future::pending().await
}
