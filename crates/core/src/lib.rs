//! Decisions of Rollway: the scheduler with its batches, the explorer's plan and the synchronizer.
//!
//! Has no clock, randomness, I/O, threads or dependencies, so that the simulator replays every
//! decision from a seed. [`Core`] takes [`Input`]s and returns [`Action`]s; [`explore`] plans the
//! loop of an explorer, [`sync`] decides about weights and members, [`metrics`] aggregates.

#![warn(clippy::wildcard_enum_match_arm)]

mod batch_id;
pub mod explore;
mod failure;
mod ids;
pub mod metrics;
mod run;
mod scheduler;
pub mod sync;
mod time;

pub use crate::batch_id::{BatchId, BatchPriority, BatchStep};
pub use crate::failure::{
    ByCancelReason, ByFailureKind, CancelReason, FailureClass, FailureKind, FailurePolicy,
    FailureRule, GroupPolicy, OnExhausted,
};
pub use crate::ids::{
    AttemptId, BatchKey, Incarnation, LeaseId, PayloadId, RequestId, RunId, RunnerId, TaskId,
    WorkflowId,
};
pub use crate::run::{
    ByRunState, Payload, RunEnd, RunFailure, RunOutcome, RunOutput, RunState, RunnerReport,
    Suspicion,
};
pub use crate::scheduler::{
    Action, AttemptCancelReason, BatchPolicy, BatchResult, BatchState, BatchType, BatchTypeTally,
    BatchView, ByDropReason, ByIgnoreReason, CollectOutcome, CollectedResults, Core, CoreConfig,
    CoreEvent, CoreLimits, Counters, Deadline, DeadlineReason, DeliveryOutcome, DropReason,
    DynamicTimeout, FailedRun, IgnoreReason, Input, LedgerRecord, OverRollout, PoolLoad, Refusal,
    Request, Response, RunRange, RunTally, RunnerState, RunnerView, Scaler, ScalingBounds,
    StartDelay, Status, StopReport, Supervision, TaskCount, TaskResult, TaskSpec, TaskTally,
    TaskView, UnresponsivePolicy,
};
pub use crate::time::Time;
