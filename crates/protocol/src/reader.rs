//! The reader protocol: [`ReaderListener`] is the buffer's end, [`ReaderLink`] the trainer's.
//! Authenticates peers and limits memory; `rollway_data` decides what is served. The schema is
//! `proto/reader.proto`.

mod client;
mod server;

pub use self::client::{ReaderConnectError, ReaderDisconnected, ReaderLink};
pub use self::server::{
    ReaderConnection, ReaderConnections, ReaderLimits, ReaderListener, ReplySender, SamplePart,
    TrainerDisconnected,
};

const CONNECT_PATH: &str = "/rollway.reader.v1.Reader/Connect";

/// Protocol version.
const VERSION: u32 = 2;

/// Wire messages, generated from the schema.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::proto;

    proptest! {
        /// Both ends decode bytes of a peer that may be hostile.
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = proto::TrainerMessage::decode(&*bytes);
            let _ = proto::BufferMessage::decode(&*bytes);
        }
    }
}
