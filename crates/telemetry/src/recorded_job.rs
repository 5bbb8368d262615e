//! A job as its folder tells it: over, killed, or run by another process.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::history::RecordedHistory;
use crate::summary::{Summary, SummaryState};
use crate::view::{
    ActionResult, AlarmRow, BatchRow, BiasReport, JobInfo, JobState, JobView, Overview, RunDetail,
    RunKey, RunPage, RunQuery, RunnerRow, Timeline, ViewFuture,
};

/// What is written about a job beside its history.
const SUMMARY: &str = "summary.json";

/// Returns the view of a job whose history is read from its folder.
///
/// # Errors
/// If the folder has no history, or it cannot be read.
pub fn open(job_dir: &Path) -> io::Result<Arc<dyn JobView>> {
    Ok(Arc::new(RecordedJob::open(job_dir)?))
}

/// A job as its folder tells it.
#[derive(Debug)]
struct RecordedJob {
    past: RecordedHistory,
    summary: Option<Summary>,
    /// Whether a process writes to it at the moment.
    is_written: bool,
}

impl RecordedJob {
    fn open(job_dir: &Path) -> io::Result<Self> {
        let folders = RecordedHistory::find(job_dir)?;
        let Some(dir) = folders.first() else {
            let what = format!(
                "{} has no history of runs: the job was run with `dashboard: {{history: false}}`, \
                 or this is not the folder of a job",
                job_dir.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        };
        let summary = fs::read(job_dir.join(SUMMARY)).ok();
        let summary = summary.and_then(|text| serde_json::from_slice(&text).ok());
        let lock = File::open(dir.join("lock"));
        let is_written = lock.is_ok_and(|lock| lock.try_lock().is_err());
        Ok(Self { past: RecordedHistory::open(dir)?, summary, is_written })
    }
}

impl JobView for RecordedJob {
    fn job(&self) -> JobInfo {
        let mut job = self.past.job();
        if let Some(summary) = &self.summary {
            job.state = match summary.state {
                SummaryState::Finished => JobState::Finished,
                SummaryState::Failed => JobState::Failed,
                SummaryState::Stopped => JobState::Stopped,
                SummaryState::Running => JobState::Unknown,
            };
            job.message = summary.error.clone().or(job.message);
            job.step = job.step.max(summary.steps);
            job.version = job.version.max(summary.version);
            job.total_steps = summary.total_steps.or(job.total_steps);
        }
        if self.is_written {
            (job.state, job.ended) = (JobState::Running, None);
        }
        job
    }

    fn overview(&self) -> Overview {
        self.past.overview()
    }

    fn timeline(&self) -> Timeline {
        self.past.timeline()
    }

    fn batches(&self) -> Vec<BatchRow> {
        self.past.batches()
    }

    fn runners(&self) -> ViewFuture<'_, Vec<RunnerRow>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    fn runs(&self, query: &RunQuery) -> RunPage {
        self.past.runs(query)
    }

    fn run(&self, key: &RunKey) -> Option<RunDetail> {
        self.past.run(key)
    }

    fn bias(&self) -> BiasReport {
        self.past.bias()
    }

    fn alarms(&self) -> Vec<AlarmRow> {
        self.past.alarms()
    }

    fn cancel_run<'a>(&'a self, _: &'a RunKey) -> ViewFuture<'a, ActionResult> {
        Box::pin(std::future::ready(elsewhere()))
    }

    fn abort_batch<'a>(&'a self, _: &'a str, _: bool) -> ViewFuture<'a, ActionResult> {
        Box::pin(std::future::ready(elsewhere()))
    }
}

fn elsewhere() -> ActionResult {
    let message = "the job does not run here: only what it wrote down is shown".to_owned();
    ActionResult { done: false, message }
}
