//! The listeners of Rollway: workers, readers, gateway, dashboard, metrics, synchronizer, embedded
//! model and mock server.
//!
//! ```text
//! bind ─► accept ─► registry (limit, eviction) ─► TLS ─► connection ─► HTTP/1.1, HTTP/2 ─► service
//!                        └─ counters by reason                └─ timeouts, framing check
//! ```
//!
//! A listener accepts at most `ListenerLimits::connections`, and no more of a TCP address than its
//! share of the file descriptors of the process. If there are that many, an idle
//! connection is closed in favour of a new one; without an idle one the new one is refused. Idle
//! connections and connections that do not send the head of a request in time are closed. All of
//! them are counted by reason, for each listener and for the process.

mod activity;
mod bind;
mod body;
mod connection;
mod connections;
mod counters;
mod framing;
mod http_server;
mod io;
mod json;
mod options;
mod registry;
mod server;
pub mod tls;

pub use rollway_base::listener::{ListenerKind, ListenerLimits};

pub use self::bind::{BindError, BoundListener};
pub use self::body::{BodyTimedOut, RequestBody, ResponseBody};
pub use self::connection::{Connection, Peer};
pub use self::counters::{CloseReason, ConnectionCounters, CounterRow, counter_rows};
pub use self::http_server::{ConnectionService, OutgoingBody};
pub use self::json::JsonBody;
pub use self::options::{HttpVersions, ListenerOptions};
pub use self::server::RunningListener;
