//! Experiences on their way from finished runs to the trainer.
//!
//! [`pipeline`] turns the payloads of a batch into experiences for training, [`buffer`] stores them
//! until the trainer has read them, [`reader`] serves a buffer to trainers in any process and on
//! any machine. Durable queues write through `rollway_ledger::log`. Everything blocks; the engine
//! calls it from its own threads.

pub mod arrow;
pub mod buffer;
pub mod pipeline;
pub mod reader;
mod sample;

pub use self::sample::{Sample, WriteBatch, model_version};
