//! WebSocket connections: messages with channels, and messages as a byte stream.
//!
//! Pings of the client are answered while the connection is read. Messages are bounded by
//! [`ConnectionOptions::message_bytes_max`] when they are received, and have at most 32 KiB of data
//! when they are sent.

mod channels;
mod tunnel;

pub(crate) use channels::{ChannelOptions, Channels, Codec};
pub(crate) use tunnel::Tunnel;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
};

use crate::ConnectionOptions;

/// The server's side of a WebSocket connection whose handshake is done.
pub(crate) async fn server<S>(io: S, options: &ConnectionOptions) -> WebSocketStream<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config = WebSocketConfig::default()
        .max_message_size(Some(options.message_bytes_max))
        .max_frame_size(Some(options.message_bytes_max));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// What a server sends at the end. Clients take another code, or none, as a failure.
fn normal_closure() -> CloseFrame {
    CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    }
}
