//! Options of a listener.

use std::time::Duration;

use rollway_base::listener::{ListenerKind, ListenerLimits};

/// Versions of HTTP that a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/1.1, and HTTP/2 with prior knowledge.
    Http1And2,
    /// HTTP/2 alone, with these windows: gRPC.
    Http2 { stream_window: u32, connection_window: u32, max_streams: u32, keepalive: Duration },
}

#[derive(Clone, Debug)]
pub struct ListenerOptions {
    pub kind: ListenerKind,
    pub versions: HttpVersions,
    pub limits: ListenerLimits,
}

impl ListenerOptions {
    /// Returns the options of a listener for HTTP/1.1 and HTTP/2.
    pub const fn new(kind: ListenerKind, limits: ListenerLimits) -> Self {
        Self { kind, versions: HttpVersions::Http1And2, limits }
    }
}
