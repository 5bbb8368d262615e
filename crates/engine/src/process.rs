//! Child processes: their output, the file descriptors that they need, the Python interpreter.

pub(crate) mod fd_limit;
mod lines;
pub mod python;

pub use self::lines::lines;
