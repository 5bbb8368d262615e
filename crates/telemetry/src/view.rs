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
mod runner;
mod timeline;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

pub use self::bias::{Bias, Bin, FieldBias, Group};
pub use self::job::{Job, JobState};
pub use self::overview::{
    Alarm, Beat, EvalPoint, Overview, RewardPoint, RunCounts, RunnerCounts, TaskCounts, Waste,
};
pub use self::run::{
    Attempt, Batch, BatchRuns, Call, Experience, Run, RunDetail, RunKey, RunPage, RunQuery,
    RunState, Sort,
};
pub use self::runner::Runner;
pub use self::timeline::{Lane, Span, Timeline};

/// Seconds since 1970.
pub type Seconds = f64;

/// An answer that takes a moment.
pub type Soon<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What became of something that a person asked for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Done {
    /// Whether anything was changed.
    pub done: bool,
    /// What happened, or why nothing did, in words.
    pub message: String,
}

/// A job to look at.
pub trait Scene: Debug + Send + Sync + 'static {
    /// The job as a whole.
    fn job(&self) -> Job;

    /// Its numbers.
    fn overview(&self) -> Overview;

    /// Steps, evaluations, exchanges of weights and training, in time.
    fn timeline(&self) -> Timeline;

    /// Its batches, the newest first.
    fn batches(&self) -> Vec<Batch>;

    /// Its runners: those that are stuck first, then the ones that are longest at it.
    fn runners(&self) -> Soon<'_, Vec<Runner>>;

    /// One page of its runs.
    fn runs(&self, query: &RunQuery) -> RunPage;

    /// One run in detail; none: it is not known, or was dropped.
    fn run(&self, key: &RunKey) -> Option<RunDetail>;

    /// How the work that was given out differs from the work that is trained on.
    fn bias(&self) -> Bias;

    /// Alarms, the newest first.
    fn alarms(&self) -> Vec<Alarm>;

    /// Cancels a run, and has nobody try it again.
    fn cancel_run<'a>(&'a self, key: &'a RunKey) -> Soon<'a, Done>;

    /// Gives a batch up; what it has finished is kept if asked for.
    fn abort_batch<'a>(&'a self, batch: &'a str, keep_partial: bool) -> Soon<'a, Done>;
}
