//! The write task of a SPDY connection.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt, BufWriter},
    sync::mpsc,
    time::{Instant, Interval, interval_at},
};

use super::{
    codec::Encoder,
    connection::Shared,
    frame::{Control, FrameHeader, reset},
};
use crate::{
    activity::Activity,
    mux::{Mux, Output},
};

/// The buffer of a connection, in bytes: two pieces of output.
const BUFFER_BYTES: usize = 64 << 10;

/// Writes control frames and the output of streams.
pub(super) struct Writer<W> {
    pub(super) io: BufWriter<W>,
    pub(super) encoder: Encoder,
    pub(super) mux: Arc<Mux>,
    pub(super) activity: Arc<Activity>,
    pub(super) shared: Arc<Shared>,
    pub(super) control: mpsc::Receiver<Control>,
    pub(super) ping_interval: Option<Duration>,
}

enum Next {
    Control(Control),
    Output(Output),
    Finished,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(super) fn buffered(io: W) -> BufWriter<W> {
        BufWriter::with_capacity(BUFFER_BYTES, io)
    }

    /// Runs until the mux has finished and all its output is written, then sends GOAWAY.
    pub(super) async fn run(mut self) -> io::Result<()> {
        let mut pings = self.ping_interval.map(|period| {
            let first = Instant::now() + period;
            interval_at(first, period)
        });
        loop {
            let next = match self.next_now() {
                Some(next) => next,
                None => {
                    self.io.flush().await?;
                    self.next(pings.as_mut()).await
                }
            };
            if matches!(next, Next::Finished) {
                break;
            }
            self.write(next).await?;
            self.activity.touch();
        }
        self.write_queued_control().await?;
        let last_id = self.shared.last_accepted_id();
        let status = self.shared.goaway_status.load(Ordering::Relaxed);
        self.write_control(&Control::GoAway { last_id, status })
            .await?;
        self.io.shutdown().await
    }

    /// What can be written now.
    fn next_now(&mut self) -> Option<Next> {
        if let Some(output) = self.mux.output_now() {
            return Some(Next::Output(output));
        }
        self.control.try_recv().ok().map(Next::Control)
    }

    async fn next(&mut self, pings: Option<&mut Interval>) -> Next {
        let ping = async {
            match pings {
                Some(interval) => interval.tick().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(control) = self.control.recv() => Next::Control(control),
            output = self.mux.output() => output.map_or(Next::Finished, Next::Output),
            _ = ping => Next::Control(Control::Ping(self.shared.next_ping())),
        }
    }

    async fn write(&mut self, next: Next) -> io::Result<()> {
        match next {
            Next::Control(control) => self.write_control(&control).await,
            Next::Output(output) => {
                // A SYN_REPLY is queued before its data is written to the mux. It precedes the data
                // only if control frames are taken after the data.
                self.write_queued_control().await?;
                self.write_output(output).await
            }
            Next::Finished => Ok(()),
        }
    }

    async fn write_queued_control(&mut self) -> io::Result<()> {
        while let Ok(control) = self.control.try_recv() {
            self.write_control(&control).await?;
        }
        Ok(())
    }

    async fn write_control(&mut self, control: &Control) -> io::Result<()> {
        let mut frame = BytesMut::new();
        let encoded = self.encoder.encode(control, &mut frame);
        encoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.io.write_all(&frame).await
    }

    async fn write_output(&mut self, output: Output) -> io::Result<()> {
        match output {
            Output::Data { id, bytes, last } => {
                let header = FrameHeader::data(id, last, bytes.len());
                self.io.write_all(&header).await?;
                self.io.write_all(&bytes).await
            }
            Output::Reset { id } => {
                let status = reset::CANCEL;
                self.write_control(&Control::RstStream { id, status }).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spdy::connection::Role;
    use crate::spdy::headers::Headers;

    /// Data was taken from the mux after the queue of control frames was seen to be empty. If the
    /// stream was accepted in between, its data overtook the SYN_REPLY.
    #[tokio::test]
    async fn syn_reply_precedes_the_data_of_its_stream() {
        let mux = Mux::new(crate::mux::Limits::default());
        let (control, queued) = mpsc::channel(1);
        let mut writer = Writer {
            io: Writer::buffered(Vec::new()),
            encoder: Encoder::new(),
            mux: mux.clone(),
            activity: Arc::new(Activity::new()),
            shared: Arc::new(Shared::new(Role::Server)),
            control: queued,
            ping_interval: None,
        };
        assert!(writer.next_now().is_none());
        let mut stream = mux.open(1).expect("a stream");
        let reply = Control::SynReply {
            id: 1,
            headers: Headers::default(),
            fin: false,
        };
        control.try_send(reply).expect("the queue is empty");
        stream.write_all(b"data").await.expect("it is written");
        let output = mux.output_now().expect("the data");
        writer
            .write(Next::Output(output))
            .await
            .expect("it is written");
        writer.io.flush().await.expect("it is written");
        let written = writer.io.get_ref();
        // Control frames begin with a bit that is 1, data frames with one that is 0.
        assert_eq!(written[0] & 0x80, 0x80, "the first frame is the SYN_REPLY");
        assert!(written.ends_with(b"data"));
    }
}
