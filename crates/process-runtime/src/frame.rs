//! Frames on a Unix stream socket, with file descriptors.
//!
//! A frame is a length, the number of file descriptors, and a JSON body. The descriptors travel as
//! `SCM_RIGHTS` with the first bytes of their frame.
//!
//! Guarantees: frames keep their order; received descriptors are close-on-exec, and closed if not
//! taken.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest accepted body. Environment variables are limited by the kernel to less.
const BODY_MAX: usize = 64 << 20;
const HEADER_LEN: usize = 5;
#[cfg(target_os = "linux")]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_os = "linux")]
const RECV_FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const SEND_FLAGS: SendFlags = SendFlags::empty();
#[cfg(not(target_os = "linux"))]
const RECV_FLAGS: RecvFlags = RecvFlags::empty();
/// Bytes read with one call.
const READ_LEN: usize = 16 << 10;
/// File descriptors in one frame.
const FDS_MAX: usize = 8;

/// A frame to send.
pub(crate) struct Frame {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    written: usize,
}

impl Frame {
    pub(crate) fn new<T: Serialize>(body: &T, fds: Vec<OwnedFd>) -> io::Result<Self> {
        debug_assert!(fds.len() <= FDS_MAX);
        let body = serde_json::to_vec(body)?;
        let len = u32::try_from(body.len())
            .ok()
            .filter(|_| body.len() <= BODY_MAX)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "message too large"))?;
        let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
        bytes.extend(len.to_le_bytes());
        bytes.push(fds.len() as u8);
        bytes.extend(body);
        Ok(Self {
            bytes,
            fds,
            written: 0,
        })
    }

    /// Writes as much as the socket takes; returns whether the frame is complete.
    pub(crate) fn write_to(&mut self, socket: impl AsFd) -> io::Result<bool> {
        while self.written < self.bytes.len() {
            let rest = [IoSlice::new(&self.bytes[self.written..])];
            let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if self.written == 0 && !fds.is_empty() {
                let pushed = control.push(SendAncillaryMessage::ScmRights(&fds));
                debug_assert!(pushed, "the buffer has space for FDS_MAX descriptors");
            }
            match rustix::net::sendmsg(&socket, &rest, &mut control, SEND_FLAGS) {
                Ok(n) => self.written += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

/// Sends one message on a blocking socket. A socket with a write timeout may fail with `TimedOut`.
pub(crate) fn send<T: Serialize>(socket: impl AsFd, body: &T, fds: Vec<OwnedFd>) -> io::Result<()> {
    match Frame::new(body, fds)?.write_to(socket)? {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// What is received and not yet taken.
#[derive(Default)]
pub(crate) struct Receiver {
    bytes: Vec<u8>,
    /// Invariant: descriptors of frames that are complete or begin in `bytes`, in order.
    fds: VecDeque<OwnedFd>,
}

impl Receiver {
    /// Reads once; returns the number of bytes, 0 at the end of the stream.
    pub(crate) fn read_from(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let mut buffer = [0; READ_LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut buffer)];
            match rustix::net::recvmsg(&socket, &mut slices, &mut control, RECV_FLAGS) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        self.bytes.extend(&buffer[..received.bytes]);
        Ok(received.bytes)
    }

    /// Takes the next complete frame.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let Some((header, rest)) = self.bytes.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let [a, b, c, d, fds_len] = *header;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > BODY_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "frame too large",
            ));
        }
        let Some(body) = rest.get(..len) else {
            return Ok(None);
        };
        let body = serde_json::from_slice(body)?;
        let fds_len = usize::from(fds_len).min(self.fds.len());
        let fds = self.fds.drain(..fds_len).collect();
        self.bytes.drain(..HEADER_LEN + len);
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
        Ok(Some((body, fds)))
    }

    /// Receives one message on a blocking socket; `None` at the end of the stream.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        socket: impl AsFd,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        loop {
            if let Some(message) = self.next()? {
                return Ok(Some(message));
            }
            if self.read_from(&socket)? == 0 {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_arrive_with_their_frames_in_order() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(&left, &"a".repeat(100_000), Vec::new()).unwrap();
        send(&left, &"b", vec![writer.into()]).unwrap();
        send(&left, &"c", Vec::new()).unwrap();
        drop(left);
        let mut receiver = Receiver::default();
        let (body, fds) = receiver.receive::<String>(&right).unwrap().unwrap();
        assert_eq!(body.len(), 100_000);
        assert!(fds.is_empty());
        let (body, mut fds) = receiver.receive::<String>(&right).unwrap().unwrap();
        assert_eq!(body, "b");
        std::fs::File::from(fds.remove(0)).write_all(b"x").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x", "the sender's copy is closed");
        let (body, _) = receiver.receive::<String>(&right).unwrap().unwrap();
        assert_eq!(body, "c");
        assert!(receiver.receive::<String>(&right).unwrap().is_none());
    }
}
