//! Options of a listener.

use std::time::Duration;

use rollway_base::listener::{ListenerKind, ListenerLimits};

use crate::tls::TlsIdentity;

/// Versions of HTTP that a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/1.1, and HTTP/2 with prior knowledge.
    Http1And2,
    /// HTTP/2 alone, with these windows: gRPC.
    Http2 { stream_window: u32, connection_window: u32, max_streams: u32, keepalive: Duration },
}

impl HttpVersions {
    /// Names of the protocols for the negotiation of TLS.
    pub(crate) fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http1And2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Self::Http2 { .. } => vec![b"h2".to_vec()],
        }
    }
}

#[derive(Clone, Debug)]
pub struct ListenerOptions {
    pub kind: ListenerKind,
    pub versions: HttpVersions,
    pub limits: ListenerLimits,
    /// Certificate of a TCP listener. `None`: clear text.
    pub tls: Option<TlsIdentity>,
    /// Peers prove a secret after they are accepted
    /// ([`Connection::set_proven`](crate::Connection::set_proven)). Those that have not are closed
    /// for others, the oldest first, also while a request is in flight.
    pub needs_proof: bool,
}

impl ListenerOptions {
    /// Returns the options of a listener for HTTP/1.1 and HTTP/2, in clear text.
    pub const fn new(kind: ListenerKind, limits: ListenerLimits) -> Self {
        Self { kind, versions: HttpVersions::Http1And2, limits, tls: None, needs_proof: false }
    }
}
