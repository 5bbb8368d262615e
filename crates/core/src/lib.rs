//! Rollway's decisions: which run goes where and when, and what becomes of a batch.
//!
//! Start with [`Core`]: it takes [`Input`]s and gives [`Action`]s. The way of the data through the
//! files: `schedule` (work comes in) → `dispatch` (it goes out) → `attempt` (runners report) →
//! `ending` (runs and tasks end) → `collect`, `finalize`, `abort` (somebody takes the results),
//! with `lease` as the only door out, `pool` and `stop` for the runners and for everything, and
//! `record` for what must survive a crash. Beside it stand the loop of an explorer, [`explore`],
//! and the board at which explorers and the trainer meet, [`rendezvous`].

#![warn(missing_docs, clippy::wildcard_enum_match_arm)]

mod abort;
mod action;
mod attempt;
mod batch;
mod batch_id;
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
pub mod explore;
mod failure;
mod finalize;
mod ids;
mod input;
mod invariants;
mod lease;
mod ledger_record;
mod lifecycle;
pub mod metrics;
mod pool;
mod result_metrics;
mod runner_slot;
mod scaling;
mod schedule;
mod status;
pub mod sync;
mod task;
mod time;
mod timers;
mod view;
mod wait_all;

pub use crate::action::{
    Action, AttemptCancelReason, CollectOutcome, CollectedResults, Refusal, Response, RunRange,
    StopReport,
};
pub use crate::batch_id::{BatchId, BatchPriority, BatchStep};
pub use crate::config::{
    BatchPolicy, CoreConfig, CoreLimits, DynamicTimeout, OverRollout, Supervision,
};
pub use crate::core::Core;
pub use crate::counters::{
    BatchTypeTally, ByIgnoreReason, Counters, IgnoreReason, RunTally, TaskCount,
};
pub use crate::event::{CoreEvent, RunEnd};
pub use crate::failure::{
    ByCancelReason, ByFailureKind, CancelReason, FailureKind, FailurePolicy, FailureRule,
    GroupPolicy, OnExhausted,
};
pub use crate::ids::{
    AttemptId, BatchKey, Incarnation, LeaseId, PayloadId, RequestId, RunId, RunnerId, TaskId,
    WorkflowId,
};
pub use crate::input::{
    DeliveryOutcome, Input, Request, RunOutcome, RunnerReport, TaskSpec, UnresponsivePolicy,
};
pub use crate::ledger_record::{LedgerRecord, RecordedEnd};
pub use crate::scaling::{PoolLoad, Scaler, ScalingBounds};
pub use crate::status::{
    BatchResult, BatchState, BatchType, ByDropReason, DropReason, FailedRun, Payload, Status,
    TaskResult, TaskTally,
};
pub use crate::time::Time;
pub use crate::view::{BatchView, Deadline, DeadlineReason, RunnerState, RunnerView};
