//! Tasksets: where tasks come from, and in which order.
//!
//! [`Opener`] opens what a configuration names; [`Tasks`] is what the explorer then asks for
//! batches, tells how tasks went, and saves and restores. `docs/tasksets.md` says it for people.
//!
//! Rows are read by index and never all at once, so that a set may be larger than memory. Reading
//! blocks; asynchronous callers give it a thread of its own.

mod error;
mod format;
mod open;
mod rng;
mod rows;
mod schedule;
mod selector;
mod set;
mod state;
mod tasks;

pub use self::error::{TasksetError, TasksetErrorKind};
pub use self::format::{Drawn, Pick, Source, TaskRow};
pub use self::open::Opener;
pub use self::selector::Learned;
pub use self::state::{EstimateState, SelectorState, SetState, TasksetState};
pub use self::tasks::{All, Tasks};

type Result<T> = std::result::Result<T, TasksetError>;

/// The fields of a task.
type Fields = serde_json::Map<String, serde_json::Value>;

/// Rows of one taskset at most: a place in an order takes four bytes.
const MAX_ROWS: u64 = u32::MAX as u64;
