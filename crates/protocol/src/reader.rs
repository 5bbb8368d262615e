//! What a trainer and a buffer say to each other, and how.
//!
//! [`ReaderListener`] is the buffer's end, [`ReaderLink`] the trainer's. The schema is
//! `proto/reader.proto`. What is read, acknowledged and kept is decided elsewhere; here messages
//! arrive, from peers that know the secret, and large ones within a budget.

mod client;
mod server;

pub use self::client::{ReaderConnectError, ReaderDisconnected, ReaderLink};
pub use self::server::{
    ReaderConnection, ReaderConnections, ReaderLimits, ReaderListener, ReplySender, SamplePart,
    TrainerDisconnected,
};

/// The path of the one call that there is.
const CONNECT_PATH: &str = "/rollway.reader.v1.Reader/Connect";

/// The one version of the protocol that there is.
const VERSION: u32 = 1;

/// The messages as they travel, generated from the schema.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::use_self,
    reason = "generated code follows the generator's habits"
)]
pub mod proto {
    include!("../proto/reader.prost.inc");

    impl std::fmt::Debug for Hello {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Hello").field("name", &self.name).finish_non_exhaustive()
        }
    }
}
