//! The scheduler and the batches of the coordinator as one state machine.
//!
//! ```text
//! schedule (work is admitted) -> dispatch (attempts start) -> attempt (runners report)
//!   -> completion (runs and tasks end) -> collect, finalize, abort (results leave by `lease`)
//! ```
//!
//! `pool` and `runner_slot` own the runners, `lifecycle` the start and the stop, `ledger_record`
//! the facts that survive a crash. `core` applies one input at a time.

mod abort;
mod action;
mod attempt;
mod batch;
mod batch_table;
mod cancel;
mod collect;
mod completion;
mod config;
mod core;
mod counters;
mod dispatch;
mod durations;
mod event;
mod finalize;
mod input;
mod invariants;
mod isolation;
mod lease;
mod ledger_record;
mod lifecycle;
mod pool;
mod result_metrics;
mod runner_slot;
mod scaling;
mod schedule;
mod status;
mod task;
mod task_view;
mod timers;
mod view;
mod wait_all;

pub use self::action::{
    Action, AttemptCancelReason, CollectOutcome, CollectedResults, Refusal, Response, RunRange,
    StopReport,
};
use self::batch::{
    AbortSpec, BatchOwner, BatchWaiter, CoreBatch, PendingRetry, WaitGoal, WaitTimeout, slices,
};
use self::batch_table::BatchTable;
use self::collect::waiter_mut;
pub use self::config::{
    BatchPolicy, CoreConfig, CoreLimits, DynamicTimeout, OverRollout, Supervision,
};
pub use self::core::Core;
use self::core::WaiterLocation;
pub use self::counters::{
    BatchTypeTally, ByIgnoreReason, Counters, IgnoreReason, RunTally, TaskCount,
};
use self::durations::DurationStats;
pub use self::event::CoreEvent;
pub use self::input::{DeliveryOutcome, Input, Request, TaskSpec, UnresponsivePolicy};
use self::lease::{Lease, LeaseRecipient};
pub use self::ledger_record::LedgerRecord;
use self::lifecycle::{CorePhase, StopProgress};
use self::runner_slot::{RunnerPhase, RunnerSlot, SlotAttempt};
pub use self::scaling::{PoolLoad, Scaler, ScalingBounds};
pub use self::status::{
    BatchResult, BatchState, BatchType, ByDropReason, DropReason, FailedRun, Status, TaskResult,
    TaskTally,
};
use self::task::{CoreTask, EndedTask, RunPhase, TaskPhase, TaskRuns};
pub use self::task_view::TaskView;
use self::timers::Timers;
pub use self::view::{BatchView, Deadline, DeadlineReason, RunnerState, RunnerView, StartDelay};
use self::wait_all::WaitAllWaiter;
