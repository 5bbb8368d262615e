//! Experiences on their way from finished runs to the trainer: pipeline, buffers, readers.
//!
//! [`pipeline`] turns the payloads of a batch into experiences worth training on, [`buffer`] keeps
//! them until the trainer has read them, [`reader`] serves a buffer to a trainer in any process and
//! on any machine. Durable queues write through `rollway_ledger::log`.
//! Everything here blocks; the engine calls it from threads of its own.

pub mod arrow;
pub mod buffer;
pub mod pipeline;
pub mod reader;
mod sample;

pub use self::sample::{Sample, WriteBatch, model_version};
