//! Tasksets: rows of files, formats that turn rows into tasks, and selectors that order them.
//!
//! [`TasksetOpener`] opens the tasksets of a configuration. [`TaskStream`] yields batches, takes
//! the pass rates of tasks as feedback, and can be saved and restored. The user guide is
//! `docs/tasksets.md`.
//!
//! Must not know how tasks are executed: no scheduler, no buffers, no async. Rows are read by index
//! and never all at once, so that a taskset may be larger than memory. Reading blocks; asynchronous
//! callers use a blocking thread.

mod error;
mod open;
mod rng;
mod row_format;
mod rows;
mod schedule;
mod selector;
mod set;
mod state;
mod tasks;

pub use self::error::{TasksetError, TasksetErrorKind};
pub use self::open::TasksetOpener;
pub use self::row_format::{DatasetRow, SelectedTask, TaskDefaults, TaskRef};
pub use self::selector::FeedbackResult;
pub use self::state::{EstimateState, SelectorState, SetState, TasksetState};
pub use self::tasks::TaskStream;

type Result<T> = std::result::Result<T, TasksetError>;

/// The fields of a task.
type Fields = serde_json::Map<String, serde_json::Value>;

/// Maximum rows of one taskset: a position takes four bytes.
const MAX_ROWS: u64 = u32::MAX as u64;
