//! Readers of buffers in this process, in another and on another machine.
//!
//! [`open()`] returns a reader for any address. [`serve`] serves a buffer over the network,
//! [`connect`] is the client: an [`ExperienceReader`](crate::buffer::ExperienceReader) that
//! survives lost connections and server restarts. `group` distributes samples among readers of one
//! name; [`read_until`] can be interrupted.

mod group;
mod interruptible;
mod open;
mod remote;
mod server;
mod session;

pub use self::interruptible::read_until;
pub use self::open::{ReaderTarget, SECRET, open, storage, with_table};
pub use self::remote::{RemoteReader, RetryTimeouts, connect};
pub use self::server::{ReaderServer, ReaderServerError, ReaderServerOptions, serve};
pub use rollway_protocol::reader::ReaderLimits;

/// Returns a runtime whose threads serve connections while their owner blocks.
fn runtime(name: &str, threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name(name).enable_all().build()
}
