//! `bellerophon hello`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command};

use crate::running::{Lines, TIMEOUT, command};

/// A running server, killed on drop.
struct Hello {
    process: Child,
    lines: Lines,
    address: String,
}

impl Hello {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = command(&directory)
            .args(["hello", "--listen", "127.0.0.1:0", "--message", "Hi"])
            .env("POD_NAME", "web-0")
            .env("NODE_NAME", "node-1")
            .spawn()
            .expect("the binary starts");
        let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
        let line = lines.next_matching(|line| line.starts_with("listening on "));
        let address = line.trim_start_matches("listening on ").to_owned();
        Self {
            process,
            lines,
            address,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream
    }
}

impl Drop for Hello {
    fn drop(&mut self) {
        // It may have exited already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn response_names_pod_node_and_client() {
    let hello = Hello::start();
    let mut stream = hello.connect();
    let client = stream.local_addr().expect("an address");
    let request = b"GET /a HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("a request");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    let (head, body) = response.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let expected = format!("Hi\npod: web-0\nnode: node-1\nclient: {client}\n");
    assert_eq!(body, expected);
    let line = hello.lines.next_matching(|line| line.starts_with("GET"));
    assert_eq!(line, format!("GET /a from {client}"));
}

#[cfg(unix)]
#[test]
fn request_that_was_received_is_answered_after_sigterm() {
    let mut hello = Hello::start();
    let mut stream = hello.connect();
    let head = b"POST /echo HTTP/1.1\r\nHost: web\r\nContent-Length: 3\r\n\r\na";
    stream.write_all(head).expect("a request");
    hello.lines.next_matching(|line| line.starts_with("POST"));
    let kill = Command::new("kill")
        .args(["-s", "TERM", &hello.process.id().to_string()])
        .status();
    assert!(kill.expect("kill starts").success());
    hello.lines.next_matching(|line| line == "shutting down");
    stream.write_all(b"bc").expect("the connection is open");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.ends_with("\r\n\r\nabc"), "{response}");
    let ended = hello.process.wait().expect("it ends");
    assert_eq!(ended.code(), Some(0));
}
