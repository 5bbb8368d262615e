//! The trainer's side: readers of buffers in this process, in another and on another machine.
//!
//! [`open()`] gives a reader for any address. [`serve`] offers a buffer to others, [`connect`] is
//! their end of it: an [`ExperienceReader`](crate::buffer::ExperienceReader) like any other, which
//! goes on after a cut of the connection and after a restart of the server. `group` decides who
//! gets what when several read under one name or one is lost; [`read_until`] can be interrupted.

mod group;
mod interruptible;
mod open;
mod remote;
mod server;
mod session;

pub use self::interruptible::read_until;
pub use self::open::{ReaderTarget, SECRET, open, storage};
pub use self::remote::{RemoteReader, RetryTimeouts, connect};
pub use self::server::{ReaderServer, ReaderServerError, ReaderServerOptions, serve};

/// Returns threads for connections, which go on while their owner blocks or computes.
fn runtime(name: &str, threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name(name).enable_all().build()
}
