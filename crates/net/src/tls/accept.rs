//! The server's part of a TLS handshake, and the refusal of clear text.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::counters::CloseReason;

/// First byte of a TLS connection.
const HANDSHAKE: u8 = 0x16;

/// First bytes of an HTTP/2 connection.
const HTTP2: &[u8; 3] = b"PRI";

/// Time for a refused peer to read the reason and close, and bytes that it may send meanwhile.
const LINGER: Duration = Duration::from_secs(1);
const DISCARDED: u64 = 64 << 10;

const REASON: &str =
    "this port speaks TLS: use https://, or the address with a fingerprint from the job's files";

/// An empty SETTINGS frame.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// `INADEQUATE_SECURITY` of HTTP/2.
const INADEQUATE_SECURITY: u8 = 0xc;

/// Begins TLS on an accepted connection. A peer without TLS is told so. Returns the reason of a
/// failure; `None`: the peer left without a byte.
pub(crate) async fn accept(
    acceptor: &TlsAcceptor,
    mut stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Option<CloseReason>> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1) if first[0] == HANDSHAKE => {}
        Ok(1) => {
            let _ = tokio::time::timeout(LINGER, refuse_clear_text(&mut stream)).await;
            return Err(Some(CloseReason::ClearText));
        }
        Ok(_) | Err(_) => return Err(None),
    }
    acceptor.accept(stream).await.map_err(|error| {
        tracing::debug!(%error, "a TLS handshake failed");
        Some(CloseReason::TlsHandshake)
    })
}

async fn refuse_clear_text(stream: &mut TcpStream) -> io::Result<()> {
    let mut first = [0; 3];
    stream.read_exact(&mut first).await?;
    if first == *HTTP2 {
        stream.write_all(&http2_refusal()).await?;
    } else {
        stream.write_all(http1_refusal().as_bytes()).await?;
    }
    stream.shutdown().await?;
    // Unread data would reset the connection before the peer has read the reason.
    tokio::io::copy(&mut stream.take(DISCARDED), &mut tokio::io::sink()).await?;
    Ok(())
}

fn http1_refusal() -> String {
    let length = REASON.len() + 1;
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{REASON}\n"
    )
}

/// Returns SETTINGS and GOAWAY frames with the reason.
fn http2_refusal() -> Vec<u8> {
    let mut frames = SETTINGS.to_vec();
    let length = u8::try_from(8 + REASON.len()).unwrap_or(8);
    // Length, type, flags and stream; last stream, error.
    frames.extend([0, 0, length, 7, 0, 0, 0, 0, 0]);
    frames.extend([0, 0, 0, 0, 0, 0, 0, INADEQUATE_SECURITY]);
    frames.extend(REASON.as_bytes());
    frames
}
