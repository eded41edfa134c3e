//! Client of a shim: requests, replies and the ends of processes on its control socket.
//!
//! Guarantees: dropping the client closes the socket, which ends the shim and its processes. When
//! the shim ends, pending requests fail and its processes count as killed.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::frame::{Frame, Receiver};
use crate::protocol::{Call, Failure, Message, Request, WaitStatus};
use crate::sys::ShimProcess;
use crate::usage::Usage;

/// Requests that wait for the socket. Further callers wait.
const CALLS_MAX: usize = 32;

struct Outgoing {
    request: Request,
    fds: Vec<OwnedFd>,
    reply: oneshot::Sender<Result<Reply, Failure>>,
}

/// The answer of a shim.
struct Reply {
    fds: Vec<OwnedFd>,
    usage: Option<Usage>,
}

type Exits = Arc<Mutex<HashMap<u64, oneshot::Sender<WaitStatus>>>>;

/// A connection to a shim.
pub(crate) struct ShimClient {
    calls: mpsc::Sender<Outgoing>,
    exits: Exits,
    processes: AtomicU64,
    process: ShimProcess,
    ended: watch::Receiver<bool>,
    driver: JoinHandle<()>,
}

impl Drop for ShimClient {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl ShimClient {
    pub(crate) fn new(process: ShimProcess, socket: UnixStream, receiver: Receiver) -> Self {
        let (calls, requests) = mpsc::channel(CALLS_MAX);
        let exits = Exits::default();
        let (ended_sender, ended) = watch::channel(false);
        let driver = Driver {
            socket,
            receiver,
            requests,
            exits: exits.clone(),
            pending: HashMap::new(),
            frame: None,
            next_id: 0,
        };
        let end = ConnectionEnd {
            exits: exits.clone(),
            ended: ended_sender,
        };
        let driver = tokio::spawn(async move {
            // Dropped with the task, also if it is aborted.
            let _end = end;
            if let Err(error) = driver.run().await {
                tracing::debug!(%error, "connection to a shim failed");
            }
        });
        Self {
            calls,
            exits,
            processes: AtomicU64::new(1),
            process,
            ended,
            driver,
        }
    }

    /// The process ID of the shim.
    pub(crate) fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Sends a request; returns the descriptors of the reply.
    pub(crate) async fn call(
        &self,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<OwnedFd>, Error> {
        Ok(self.send(request, fds).await?.fds)
    }

    /// Measures the processes of a container.
    pub(crate) async fn usage(&self, container: u64) -> Result<Usage, Error> {
        let reply = self.send(Request::Usage { container }, Vec::new()).await?;
        let missing = || Error::Sandbox("the shim sent no usage".to_owned());
        reply.usage.ok_or_else(missing)
    }

    async fn send(&self, request: Request, fds: Vec<OwnedFd>) -> Result<Reply, Error> {
        let (reply, result) = oneshot::channel();
        let outgoing = Outgoing {
            request,
            fds,
            reply,
        };
        self.calls.send(outgoing).await.map_err(|_| Error::Ended)?;
        result.await.map_err(|_| Error::Ended)?.map_err(Error::from)
    }

    /// Sends a request and does not wait for it; `false` if too many requests are waiting.
    pub(crate) fn try_send(&self, request: Request) -> bool {
        let (reply, _) = oneshot::channel();
        let outgoing = Outgoing {
            request,
            fds: Vec::new(),
            reply,
        };
        self.calls.try_send(outgoing).is_ok()
    }

    /// Starts a process; returns its ID, the descriptors of the reply, and its wait status. If the
    /// future is dropped, the process is killed: its start may already be requested.
    pub(crate) async fn start(
        self: &Arc<Self>,
        request: impl FnOnce(u64) -> Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(u64, Vec<OwnedFd>, oneshot::Receiver<WaitStatus>), Error> {
        let (process, exit) = self.register();
        let mut starting = Starting {
            shim: self,
            process: Some(process),
        };
        let started = self.call(request(process), fds).await;
        starting.process = None;
        let fds = started.inspect_err(|_| self.unregister(process))?;
        Ok((process, fds, exit))
    }

    /// Registers a process; the receiver gets its wait status, or an error if the shim has ended.
    fn register(&self) -> (u64, oneshot::Receiver<WaitStatus>) {
        let process = self.processes.fetch_add(1, Ordering::Relaxed);
        let (sender, exit) = oneshot::channel();
        lock(&self.exits).insert(process, sender);
        if *self.ended.borrow() {
            lock(&self.exits).clear();
        }
        (process, exit)
    }

    /// Removes a process that could not be started.
    fn unregister(&self, process: u64) {
        lock(&self.exits).remove(&process);
    }

    /// Waits until the connection is closed.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.clone();
        // The sender is dropped only after the driver has ended.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Closes the connection and waits until the shim has ended.
    pub(crate) async fn shut_down(&self) -> io::Result<()> {
        self.driver.abort();
        self.process.ended().await
    }

    /// Kills the shim.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }
}

/// A process whose start is requested. Dropping it kills the process.
struct Starting<'a> {
    shim: &'a ShimClient,
    /// `None` once the reply is received.
    process: Option<u64>,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let Some(container) = self.process else {
            return;
        };
        self.shim.unregister(container);
        // Requests are handled in order. If the queue is full, the process ends with its sandbox.
        if !self.shim.try_send(Request::Kill { container }) {
            tracing::warn!("a process was not killed whose start was cancelled");
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Start(error) => Self::Start(error),
            Failure::System {
                errno: Some(errno),
                message,
            } => Self::Io(io::Error::new(
                io::Error::from_raw_os_error(errno).kind(),
                message,
            )),
            Failure::System { message, .. } => Self::Sandbox(message),
        }
    }
}

fn lock(exits: &Exits) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<WaitStatus>>> {
    exits.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports the end of the connection when it is dropped.
struct ConnectionEnd {
    exits: Exits,
    ended: watch::Sender<bool>,
}

impl Drop for ConnectionEnd {
    fn drop(&mut self) {
        // A process that registers now sees the end.
        self.ended.send_replace(true);
        lock(&self.exits).clear();
    }
}

struct Driver {
    socket: UnixStream,
    receiver: Receiver,
    requests: mpsc::Receiver<Outgoing>,
    exits: Exits,
    pending: HashMap<u64, oneshot::Sender<Result<Reply, Failure>>>,
    /// The frame that is being written. The next request is taken when it is complete.
    frame: Option<Frame>,
    next_id: u64,
}

impl Driver {
    async fn run(mut self) -> io::Result<()> {
        while let Some((message, fds)) = self.receiver.next()? {
            self.deliver(message, fds);
        }
        loop {
            tokio::select! {
                outgoing = self.requests.recv(), if self.frame.is_none() => {
                    let Some(outgoing) = outgoing else { return Ok(()) };
                    self.next_id += 1;
                    let call = Call { id: self.next_id, request: outgoing.request };
                    self.frame = Some(Frame::new(&call, outgoing.fds)?);
                    self.pending.insert(self.next_id, outgoing.reply);
                }
                ready = self.socket.writable(), if self.frame.is_some() => {
                    ready?;
                    self.write()?;
                }
                ready = self.socket.readable() => {
                    ready?;
                    if let Some(0) = self.read()? {
                        return Ok(());
                    }
                    while let Some((message, fds)) = self.receiver.next()? {
                        self.deliver(message, fds);
                    }
                }
            }
        }
    }

    /// Writes the current frame as far as the socket takes it.
    fn write(&mut self) -> io::Result<()> {
        let Some(frame) = &mut self.frame else {
            return Ok(());
        };
        let socket = &self.socket;
        let written = socket.try_io(Interest::WRITABLE, || match frame.write_to(socket)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        });
        if ready(written)?.is_some() {
            self.frame = None;
        }
        Ok(())
    }

    /// Reads once; `None` if there was nothing to read.
    fn read(&mut self) -> io::Result<Option<usize>> {
        let socket = &self.socket;
        let receiver = &mut self.receiver;
        ready(socket.try_io(Interest::READABLE, || receiver.read_from(socket)))
    }

    fn deliver(&mut self, message: Message, fds: Vec<OwnedFd>) {
        // Receivers that have gone do not need the message.
        match message {
            Message::Reply { id, result } => {
                if let Some(reply) = self.pending.remove(&id) {
                    let _ = reply.send(result.map(|usage| Reply { fds, usage }));
                }
            }
            Message::Exited { process, status } => {
                let exit = lock(&self.exits).remove(&process);
                if let Some(exit) = exit {
                    let _ = exit.send(status);
                }
            }
            Message::Launched { .. } | Message::LaunchFailed { .. } => {}
        }
    }
}

/// `None` if an operation would block.
fn ready<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}
