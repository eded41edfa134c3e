//! Standard streams of a container: pipes, attached clients, and the log.
//!
//! Guarantees: everything that a container writes is in its log; attached clients receive what it
//! writes after they have attached. A client that accepts nothing for [`STALL_MAX`] is detached;
//! until then the container waits for it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use crate::config::Streams;
use crate::logs::{ContainerLog, Stream};
use crate::terminal::Terminal;

/// Chunks that wait for an attached client.
const CHUNKS_MAX: usize = 64;
/// How long the container waits for an attached client that does not read.
pub const STALL_MAX: Duration = Duration::from_secs(10);
const CHUNK_LEN: usize = 32 << 10;

/// A readable stream of a process.
pub type Output = Box<dyn AsyncRead + Send + Unpin>;
/// A writable stream of a process.
pub type Input = Box<dyn AsyncWrite + Send + Unpin>;

/// Output of a container.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Stdout or stderr.
    pub stream: Stream,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// The node's ends of the streams of a process.
pub(crate) struct NodeStreams {
    pub(crate) stdin: Option<Input>,
    pub(crate) stdout: Option<Output>,
    pub(crate) stderr: Option<Output>,
    pub(crate) terminal: Option<Terminal>,
}

/// Creates the pipes of a process; returns its ends. With a terminal there are none.
pub(crate) fn create_pipes(streams: Streams) -> io::Result<(NodeStreams, Vec<OwnedFd>)> {
    let mut node = NodeStreams {
        stdin: None,
        stdout: None,
        stderr: None,
        terminal: None,
    };
    if streams.tty {
        return Ok((node, Vec::new()));
    }
    let mut fds: Vec<OwnedFd> = Vec::new();
    if streams.stdin {
        let (reader, writer) = io::pipe()?;
        node.stdin = Some(Box::new(pipe::Sender::from_owned_fd(writer.into())?));
        fds.push(reader.into());
    } else {
        fds.push(File::open("/dev/null")?.into());
    }
    let mut output = || -> io::Result<Option<Output>> {
        let (reader, writer) = io::pipe()?;
        fds.push(writer.into());
        let reader = pipe::Receiver::from_owned_fd(reader.into())?;
        Ok(Some(Box::new(reader)))
    };
    node.stdout = output()?;
    node.stderr = output()?;
    Ok((node, fds))
}

impl NodeStreams {
    /// Takes the terminal of the reply, if the process has one.
    pub(crate) fn set_terminal(&mut self, fds: Vec<OwnedFd>, streams: Streams) -> io::Result<()> {
        let Some(master) = fds.into_iter().next() else {
            return Ok(());
        };
        let (terminal, output, input) = Terminal::new(master)?;
        if streams.stdin {
            self.stdin = Some(Box::new(input));
        }
        self.stdout = Some(Box::new(output));
        self.terminal = Some(terminal);
        Ok(())
    }
}

/// Stdin of a container, shared by attached clients.
#[derive(Clone)]
pub struct SharedInput {
    input: Arc<tokio::sync::Mutex<Option<Input>>>,
    close_with_client: bool,
}

impl SharedInput {
    /// Writes all bytes; writes of several clients are not mixed.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match &mut *self.input.lock().await {
            Some(input) => input.write_all(bytes).await,
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// A client has no more input. With `stdinOnce`, the container reads the end of its stdin.
    pub async fn end(&self) {
        if self.close_with_client {
            self.input.lock().await.take();
        }
    }
}

/// A client that is attached to a container.
pub struct Attachment {
    /// What the container writes, until it ends.
    pub output: mpsc::Receiver<Chunk>,
    /// Its stdin, if it has one.
    pub stdin: Option<SharedInput>,
    /// Its terminal, if it has one.
    pub terminal: Option<Terminal>,
}

/// The streams of a running container.
pub(crate) struct ContainerStreams {
    /// `None` after the container has ended.
    clients: Mutex<Option<Vec<mpsc::Sender<Chunk>>>>,
    stdin: Option<SharedInput>,
    terminal: Option<Terminal>,
    log: Arc<ContainerLog>,
}

impl ContainerStreams {
    pub(crate) fn new(node: &mut NodeStreams, streams: Streams, log: Arc<ContainerLog>) -> Self {
        let stdin = node.stdin.take().map(|input| SharedInput {
            input: Arc::new(tokio::sync::Mutex::new(Some(input))),
            close_with_client: streams.stdin_once,
        });
        Self {
            clients: Mutex::new(Some(Vec::new())),
            stdin,
            terminal: node.terminal.clone(),
            log,
        }
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, Option<Vec<mpsc::Sender<Chunk>>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attach(&self) -> Attachment {
        let (sender, output) = mpsc::channel(CHUNKS_MAX);
        if let Some(clients) = &mut *self.clients() {
            clients.push(sender);
        }
        Attachment {
            output,
            stdin: self.stdin.clone(),
            terminal: self.terminal.clone(),
        }
    }

    /// Copies a stream to the log and to attached clients until its end.
    pub(crate) async fn copy(&self, stream: Stream, output: Option<Output>) {
        let Some(mut output) = output else {
            return;
        };
        let mut buffer = vec![0; CHUNK_LEN];
        loop {
            match output.read(&mut buffer).await {
                Ok(0) => return,
                Ok(len) => {
                    self.log.write(stream, &buffer[..len]);
                    self.send(stream, &buffer[..len]).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read the output of a container");
                    return;
                }
            }
        }
    }

    async fn send(&self, stream: Stream, bytes: &[u8]) {
        let clients = self.clients().clone().unwrap_or_default();
        if clients.is_empty() {
            return;
        }
        let chunk = Chunk {
            stream,
            bytes: bytes.into(),
        };
        let mut detached = Vec::new();
        for client in clients {
            let sent = tokio::time::timeout(STALL_MAX, client.send(chunk.clone())).await;
            if !matches!(sent, Ok(Ok(()))) {
                detached.push(client);
            }
        }
        if let Some(clients) = &mut *self.clients() {
            clients.retain(|client| !detached.iter().any(|other| client.same_channel(other)));
        }
    }

    /// Writes what is left of the last lines and detaches all clients.
    pub(crate) fn close(&self) {
        self.log.close();
        self.clients().take();
    }
}
