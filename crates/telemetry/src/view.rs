//! What can be seen of a job, whether it runs or is over: the questions that pages ask, and the
//! shapes of the answers. `docs/history.md` says where the answers come from.
//!
//! ```text
//! pages, `rollway top` ──► Scene ──► a live job (history, core, gateway) | a job's folder | a test
//! ```
//!
//! All times are seconds since 1970; what is not known is absent (`null`).

mod bias;
mod job;
mod overview;
mod run;
mod run_state;
mod runner;
mod timeline;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

pub use rollway_core::RunState;

pub use self::bias::{BiasGroup, BiasReport, FieldBias, HistogramBin};
pub use self::job::{JobInfo, JobState};
pub use self::overview::{
    AlarmRow, EvalPoint, Overview, RewardPoint, RunCounts, RunnerCounts, StatsSample, TaskCounts,
    WasteReport,
};
pub use self::run::{
    AttemptDetail, BatchRow, BatchRuns, CallDetail, ExperienceDetail, RunDetail, RunKey, RunPage,
    RunQuery, RunRow, RunSort,
};
pub use self::runner::RunnerRow;
pub use self::timeline::{Timeline, TimelineLane, TimelineSpan};

/// Seconds since 1970.
pub type UnixSeconds = f64;

/// An answer that takes a moment.
pub type ViewFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What became of something that a person asked for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ActionResult {
    /// Whether anything was changed.
    pub done: bool,
    /// What happened, or why nothing did, in words.
    pub message: String,
}

/// A job to look at.
pub trait JobView: Debug + Send + Sync + 'static {
    /// The job as a whole.
    fn job(&self) -> JobInfo;

    /// Its numbers.
    fn overview(&self) -> Overview;

    /// Steps, evaluations, exchanges of weights and training, in time.
    fn timeline(&self) -> Timeline;

    /// Its batches, the newest first.
    fn batches(&self) -> Vec<BatchRow>;

    /// Its runners: those that are stuck first, then the ones that are longest at it.
    fn runners(&self) -> ViewFuture<'_, Vec<RunnerRow>>;

    /// One page of its runs.
    fn runs(&self, query: &RunQuery) -> RunPage;

    /// One run in detail; none: it is not known, or was dropped.
    fn run(&self, key: &RunKey) -> Option<RunDetail>;

    /// How the work that was given out differs from the work that is trained on.
    fn bias(&self) -> BiasReport;

    /// Alarms, the newest first.
    fn alarms(&self) -> Vec<AlarmRow>;

    /// Cancels a run, and has nobody try it again.
    fn cancel_run<'a>(&'a self, key: &'a RunKey) -> ViewFuture<'a, ActionResult>;

    /// Gives a batch up; what it has finished is kept if asked for.
    fn abort_batch<'a>(
        &'a self,
        batch: &'a str,
        keep_partial: bool,
    ) -> ViewFuture<'a, ActionResult>;
}
