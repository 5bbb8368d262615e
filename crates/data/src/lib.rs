//! The way of experiences from finished runs to the trainer, and what must survive on that way.
//!
//! [`pipeline`] turns the payloads of a batch into experiences worth training on, [`buffer`] keeps
//! them until the trainer has read them, [`ledger`] remembers what was submitted, finished and
//! finalized, so that a coordinator that dies at any moment goes on where it was. Both write
//! through [`log`]. [`reader`] is how a trainer gets at a buffer, from any process and machine.
//! Everything here blocks; the engine calls it from threads of its own.

pub mod arrow;
pub mod buffer;
pub mod ledger;
pub mod log;
pub mod pipeline;
pub mod reader;
mod sample;

pub use self::sample::{Sample, WriteBatch, model_version};
