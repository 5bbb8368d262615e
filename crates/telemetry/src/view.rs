//! View of a job for the dashboard, `rollway top` and trace export: queries and response types.
//!
//! All times are seconds since 1970; unknown values are absent (`null`). `docs/history.md` has the
//! sources.

mod bias;
mod config;
mod failure;
mod job;
mod metric;
mod overview;
mod run;
mod run_state;
mod runner;
mod server;
mod task;
mod timeline;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

pub use rollway_core::RunState;
use serde_json::{Value, json};

pub use self::bias::{BiasGroup, BiasReport, FieldBias, HistogramBin};
pub use self::config::ConfigReport;
pub use self::failure::FailureRow;
pub use self::job::{JobInfo, JobState};
pub use self::metric::{MetricRow, MetricSeries};
pub use self::overview::{
    AlarmRow, EvalPoint, Overview, RewardPoint, RunCounts, RunnerCounts, StatsSample, TaskCounts,
    WaitRow, WasteReport,
};
pub use self::run::{
    AttemptDetail, BatchRow, BatchRuns, CallDetail, ExperienceDetail, RunDetail, RunKey, RunPage,
    RunQuery, RunRow, RunSort,
};
pub use self::runner::RunnerRow;
pub use self::server::{ServerErrorRow, ServerReport, ServerRow, ServerSummary};
pub use self::task::{
    ComparedRun, MessageText, TaskDetail, TaskPage, TaskQuery, TaskSort, TaskSummary,
};
pub use self::timeline::{Timeline, TimelineLane, TimelineSpan};

/// Seconds since 1970.
pub type UnixSeconds = f64;

pub type ViewFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Result of a requested action.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ActionResult {
    pub done: bool,
    pub message: String,
}

/// A query without parameters: its path below `/api`, and its JSON response.
pub type NamedQuery = (&'static str, fn(&dyn JobView) -> Value);

/// Declares [`JobView`]: queries without parameters with the types of their responses, then the
/// other methods.
macro_rules! job_view {
    ({ $($(#[$doc:meta])* $query:ident: $response:ty,)+ } $($methods:tt)+) => {
        /// All queries without parameters. The dashboard serves each of them.
        pub const QUERIES: [NamedQuery; [$(stringify!($query)),+].len()] =
            [$((stringify!($query), |view| json!(view.$query())),)+];

        /// Read model of a job, live or recorded. The defaults are empty.
        pub trait JobView: Debug + Send + Sync + 'static {
            $($(#[$doc])* fn $query(&self) -> $response {
                Default::default()
            })+

            $($methods)+
        }
    };
}

job_view! {
    {
        job: JobInfo,
        overview: Overview,
        timeline: Timeline,
        /// Batches, newest first.
        batches: Vec<BatchRow>,
        bias: BiasReport,
        /// Alarms, newest first.
        alarms: Vec<AlarmRow>,
        /// Inference servers, or their last known state.
        servers: ServerReport,
        /// Failed runs by message, the most frequent first.
        failures: Vec<FailureRow>,
        /// Metrics by name.
        metrics: Vec<MetricRow>,
        config: ConfigReport,
    }

    /// Runners: stuck ones first, then by time in the current stage.
    fn runners(&self) -> ViewFuture<'_, Vec<RunnerRow>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    fn runs(&self, query: &RunQuery) -> RunPage {
        let _ = query;
        RunPage::default()
    }

    /// One run in detail. `None`: unknown or dropped.
    fn run(&self, key: &RunKey) -> Option<RunDetail> {
        let _ = key;
        None
    }

    /// Values of the metrics with these names.
    fn series(&self, names: &[String]) -> Vec<MetricSeries> {
        let _ = names;
        Vec::new()
    }

    /// Tasks of a batch. `None`: unknown or dropped.
    fn tasks(&self, query: &TaskQuery) -> Option<TaskPage> {
        let _ = query;
        None
    }

    /// A task with its runs. `None`: unknown or dropped.
    fn task(&self, batch: &str, task: u32) -> Option<TaskDetail> {
        let _ = (batch, task);
        None
    }

    /// Cancels a run without retry.
    fn cancel_run<'a>(&'a self, key: &'a RunKey) -> ViewFuture<'a, ActionResult>;

    /// Aborts a batch; `keep_partial` keeps its finished runs.
    fn abort_batch<'a>(
        &'a self,
        batch: &'a str,
        keep_partial: bool,
    ) -> ViewFuture<'a, ActionResult>;
}
