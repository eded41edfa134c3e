//! etcd as processes. The load generator speaks gRPC by itself: a length-prefixed protobuf message
//! in an HTTP/2 request.

use std::{env, io, net::SocketAddr, path::PathBuf, process::Stdio};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::Request;
use http_body_util::Full;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{
    processes::Usage,
    target::{BenchError, Target, counter, eventually, free_port},
};

pub(crate) struct EtcdCluster {
    /// Killed when they are dropped.
    processes: Vec<Child>,
    _directory: TempDir,
    leader: SocketAddr,
}

struct Ports {
    client: u16,
    peer: u16,
}

impl EtcdCluster {
    /// A cluster of N members, or none without an etcd binary.
    pub(crate) async fn start(count: usize) -> Result<Option<Self>, BenchError> {
        let program = env::var_os("ETCD").map_or(PathBuf::from("etcd"), PathBuf::from);
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let mut ports = Vec::new();
        for _ in 0..count {
            ports.push(Ports {
                client: free_port().await?,
                peer: free_port().await?,
            });
        }
        let urls: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(index, ports)| format!("m{index}=http://127.0.0.1:{}", ports.peer))
            .collect();
        let mut processes = Vec::new();
        for (index, ports) in ports.iter().enumerate() {
            let client = format!("http://127.0.0.1:{}", ports.client);
            let peer = format!("http://127.0.0.1:{}", ports.peer);
            let process = Command::new(&program)
                .args(["--name", &format!("m{index}")])
                .arg("--data-dir")
                .arg(directory.path().join(index.to_string()))
                .args([
                    "--listen-client-urls",
                    &client,
                    "--advertise-client-urls",
                    &client,
                ])
                .args([
                    "--listen-peer-urls",
                    &peer,
                    "--initial-advertise-peer-urls",
                    &peer,
                ])
                .args(["--initial-cluster", &urls.join(",")])
                .args([
                    "--quota-backend-bytes",
                    "8589934592",
                    "--log-level",
                    "error",
                ])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn();
            match process {
                Ok(process) => processes.push(process),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        let candidates: Vec<SocketAddr> = ports
            .iter()
            .map(|ports| SocketAddr::from(([127, 0, 0, 1], ports.client)))
            .collect();
        let mut leader = None;
        eventually("etcd has a leader", async || {
            for address in &candidates {
                // The leader counts itself; its other metrics are those of every member.
                let leads = counter(*address, "etcd_server_is_leader").await;
                if leads.is_ok_and(|leads| leads == 1) {
                    leader = Some(*address);
                    return true;
                }
            }
            false
        })
        .await?;
        Ok(Some(Self {
            processes,
            _directory: directory,
            leader: leader.expect("the condition holds"),
        }))
    }

    fn request(&self, method: &str, message: BytesMut) -> Request<Full<Bytes>> {
        let mut body = BytesMut::with_capacity(message.len() + 5);
        body.put_u8(0);
        body.put_u32(message.len() as u32);
        body.extend_from_slice(&message);
        Request::post(format!("http://{}/etcdserverpb.KV/{method}", self.leader))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(body.freeze()))
            .expect("the path is fixed")
    }
}

/// A protobuf field of bytes.
fn field(to: &mut BytesMut, number: u8, bytes: &[u8]) {
    to.put_u8(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        to.put_u8(length as u8 | 0x80);
        length >>= 7;
    }
    to.put_u8(length as u8);
    to.extend_from_slice(bytes);
}

impl Target for EtcdCluster {
    fn address(&self) -> SocketAddr {
        self.leader
    }

    fn put(&self, key: &str, value: &Bytes) -> Request<Full<Bytes>> {
        let mut message = BytesMut::new();
        field(&mut message, 1, key.as_bytes());
        field(&mut message, 2, value);
        self.request("Put", message)
    }

    fn get(&self, key: &str) -> Request<Full<Bytes>> {
        let mut message = BytesMut::new();
        field(&mut message, 1, key.as_bytes());
        self.request("Range", message)
    }

    async fn syncs(&self) -> Result<u64, BenchError> {
        counter(self.leader, "etcd_disk_wal_fsync_duration_seconds_count").await
    }

    fn usage(&self) -> io::Result<Usage> {
        Usage::of(&self.processes)
    }
}
