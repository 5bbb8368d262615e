//! View of a job through its history: of the job in this process, or of one read from its folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollway_core::{BatchId, RunId, TaskId};
use rollway_engine::{RolloutCoordinator, RunnerStatus, events};

use super::state::{State, seconds};
use super::text_search::{TextMatches, TextSearches};
use super::{RunHistory, files};
use crate::summary::{self, Summary, SummaryState};
use crate::view::{
    ActionResult, AlarmRow, BatchRow, BiasReport, ConfigReport, FailureRow, JobInfo, JobState,
    JobView, MetricRow, MetricSeries, Overview, RunDetail, RunKey, RunPage, RunQuery, RunnerCounts,
    RunnerRow, ServerReport, TaskDetail, TaskPage, TaskQuery, Timeline, ViewFuture,
};

/// Reason of cancellations from the dashboard.
const REASON: &str = "requested on the dashboard";

/// Returns the view of a job that runs in this process.
pub fn live_view(history: Arc<RunHistory>) -> Arc<dyn JobView> {
    Arc::new(HistoryView::Live(history))
}

/// Returns the view of a job whose history is read from its folder.
///
/// # Errors
/// If the folder has no history, or it cannot be read.
pub fn recorded_view(job_dir: &Path) -> io::Result<Arc<dyn JobView>> {
    Ok(Arc::new(HistoryView::Recorded(Box::new(RecordedJob::open(job_dir)?))))
}

#[derive(Debug)]
enum HistoryView {
    Live(Arc<RunHistory>),
    Recorded(Box<RecordedJob>),
}

/// A job that has ended or runs in another process.
#[derive(Debug)]
struct RecordedJob {
    dir: PathBuf,
    state: State,
    summary: Option<Summary>,
    /// A process is writing the history.
    is_written: bool,
    searches: TextSearches,
}

impl RecordedJob {
    fn open(job_dir: &Path) -> io::Result<Self> {
        let Some(dir) = find(job_dir)?.into_iter().next() else {
            let message = format!(
                "{} has no history of runs: the job was run with `dashboard: {{history: false}}`, \
                 or this is not the folder of a job",
                job_dir.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        };
        let summary = fs::read(job_dir.join(summary::FILE)).ok();
        let summary = summary.and_then(|text| serde_json::from_slice(&text).ok());
        let is_written = File::open(dir.join("lock")).is_ok_and(|lock| lock.try_lock().is_err());
        let (state, searches) = (State::load(&dir, u64::MAX)?, TextSearches::default());
        Ok(Self { state, dir, summary, is_written, searches })
    }

    /// Completes the job's state from its summary.
    fn complete(&self, job: &mut JobInfo) {
        if let Some(summary) = &self.summary {
            job.state = match summary.state {
                SummaryState::Finished => JobState::Finished,
                SummaryState::Failed => JobState::Failed,
                SummaryState::Stopped => JobState::Stopped,
                SummaryState::Running => JobState::Unknown,
            };
            job.message = summary.error.clone().or_else(|| job.message.take());
            job.step = job.step.max(summary.steps);
            job.version = job.version.max(summary.version);
            job.total_steps = summary.total_steps.or(job.total_steps);
        }
        if self.is_written {
            (job.state, job.ended) = (JobState::Running, None);
        }
    }
}

/// Returns the histories in a job's folder, that of the first explorer first.
fn find(job_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(job_dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with("history") && files::exists(&path) {
            found.push(path);
        }
    }
    found.sort_by_key(|path| (!path.ends_with("history"), path.clone()));
    Ok(found)
}

impl HistoryView {
    fn query<T>(&self, query: impl FnOnce(&State, f64) -> T) -> T {
        match self {
            Self::Live(history) => history.query(query),
            Self::Recorded(job) => query(&job.state, seconds(events::now())),
        }
    }

    const fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// Returns the folder of the records, with all records until now.
    fn folder(&self) -> &Path {
        match self {
            Self::Live(history) => {
                history.shared.write();
                &history.shared.dir
            }
            Self::Recorded(job) => &job.dir,
        }
    }

    fn searches(&self) -> &TextSearches {
        match self {
            Self::Live(history) => &history.searches,
            Self::Recorded(job) => &job.searches,
        }
    }

    fn coordinator(&self) -> Result<RolloutCoordinator, ActionResult> {
        let message = match self {
            Self::Live(history) => match history.coordinator() {
                Some(coordinator) => return Ok(coordinator),
                None => "the job has ended",
            },
            Self::Recorded(_) => "the job does not run in this process: its record is read-only",
        };
        Err(result(false, message))
    }

    async fn cancel(&self, key: &RunKey) -> Result<(), ActionResult> {
        let coordinator = self.coordinator()?;
        for batch in ids(&key.batch) {
            let (task, run) = (TaskId(key.task), RunId(key.run));
            match coordinator.cancel_run(batch, task, run, REASON).await {
                Ok(true) => return Ok(()),
                // No such batch, or the run has ended.
                Ok(false) => {}
                Err(error) => return Err(result(false, &error.to_string())),
            }
        }
        Err(result(false, "the run has already ended"))
    }

    async fn abort(&self, batch: &str, keep_partial: bool) -> Result<(), ActionResult> {
        let coordinator = self.coordinator()?;
        for id in ids(batch) {
            if matches!(coordinator.batch_state(id.clone()).await, Ok(Some(_))) {
                return match coordinator.abort_batch(id, REASON, keep_partial).await {
                    Ok(Some(_)) => Ok(()),
                    Ok(None) => Err(result(false, "the batch has already ended")),
                    Err(error) => Err(result(false, &error.to_string())),
                };
            }
        }
        Err(result(false, &format!("no open batch {batch}")))
    }
}

impl JobView for HistoryView {
    fn job(&self) -> JobInfo {
        let mut job = self.query(|state, now| state.job(now, self.is_live()));
        if let Self::Recorded(recorded) = self {
            recorded.complete(&mut job);
        }
        job
    }

    fn overview(&self) -> Overview {
        let mut overview = self.query(|state, now| state.overview(now, self.is_live()));
        if let Self::Live(history) = self {
            overview.runners = *history.shared.runners.lock();
            overview.wait.clone_from(&history.shared.wait.lock());
        }
        overview
    }

    fn timeline(&self) -> Timeline {
        self.query(|state, now| Timeline { now, lanes: state.notes.lanes() })
    }

    fn batches(&self) -> Vec<BatchRow> {
        self.query(|state, _| state.batches(self.is_live()))
    }

    fn runners(&self) -> ViewFuture<'_, Vec<RunnerRow>> {
        Box::pin(async move {
            let (Self::Live(history), Ok(coordinator)) = (self, self.coordinator()) else {
                return Vec::new();
            };
            let statuses = coordinator.runner_states().await.unwrap_or_default();
            let states = statuses.iter().map(|status| status.state);
            *history.shared.runners.lock() = RunnerCounts::of(states);
            self.query(|state, now| {
                let row = |status: RunnerStatus| {
                    let attempt = status.attempt.and_then(|it| state.attempts.get(&it));
                    let calls = attempt.map_or(0, |attempt| attempt.calls);
                    let tries = attempt.and_then(|attempt| state.row(attempt.first));
                    let tries = tries.map(|row| u64::from(row.attempts));
                    RunnerRow { attempt: tries, ..runner(status, calls, now) }
                };
                statuses.into_iter().map(row).collect()
            })
        })
    }

    fn runs(&self, query: &RunQuery) -> RunPage {
        // Files are searched while the state is not locked.
        let matches = match query.searched() {
            Some(text) => self.searches().find(self.folder(), text),
            None => TextMatches::default(),
        };
        self.query(|state, now| state.runs(query, &matches, now))
    }

    fn run(&self, key: &RunKey) -> Option<RunDetail> {
        let dir = self.folder();
        self.query(|state, now| state.detail(dir, key, now))
    }

    fn bias(&self) -> BiasReport {
        self.query(|state, _| state.bias())
    }

    fn alarms(&self) -> Vec<AlarmRow> {
        self.query(|state, _| state.notes.alarms.iter().cloned().collect())
    }

    fn servers(&self) -> ServerReport {
        self.query(|state, _| state.servers.report.clone())
    }

    fn failures(&self) -> Vec<FailureRow> {
        self.query(|state, _| state.failures())
    }

    fn metrics(&self) -> Vec<MetricRow> {
        self.query(|state, _| state.notes.curves.rows())
    }

    fn series(&self, names: &[String]) -> Vec<MetricSeries> {
        self.query(|state, _| state.notes.curves.series(names))
    }

    fn config(&self) -> ConfigReport {
        self.query(|state, _| state.notes.config.clone())
    }

    fn tasks(&self, query: &TaskQuery) -> Option<TaskPage> {
        self.query(|state, _| state.tasks(query))
    }

    fn task(&self, batch: &str, task: u32) -> Option<TaskDetail> {
        let dir = self.folder();
        self.query(|state, now| state.task(dir, batch, task, now))
    }

    fn cancel_run<'a>(&'a self, key: &'a RunKey) -> ViewFuture<'a, ActionResult> {
        Box::pin(async move {
            self.cancel(key).await.err().unwrap_or_else(|| result(true, "run cancelled"))
        })
    }

    fn abort_batch<'a>(
        &'a self,
        batch: &'a str,
        keep_partial: bool,
    ) -> ViewFuture<'a, ActionResult> {
        Box::pin(async move {
            let failed = self.abort(batch, keep_partial).await.err();
            failed.unwrap_or_else(|| result(true, "batch aborted"))
        })
    }
}

/// Ids that a name may stand for: numbers are more common than texts.
fn ids(name: &str) -> impl Iterator<Item = BatchId> {
    name.parse::<i64>().ok().map(BatchId::from).into_iter().chain([BatchId::from(name)])
}

fn result(done: bool, message: &str) -> ActionResult {
    ActionResult { done, message: message.to_owned() }
}

fn runner(status: RunnerStatus, calls: u64, now: f64) -> RunnerRow {
    RunnerRow {
        runner: status.runner.0,
        incarnation: status.incarnation.0,
        state: status.state.name().to_owned(),
        location: status.node,
        stage: status.stage,
        stage_for: status.stage_for.map(|it| it.as_secs_f64()),
        typical_duration: status.typical_duration.map(|it| it.as_secs_f64()),
        code_location: status.code_location,
        age: status.age.as_secs_f64(),
        batch: status.batch.map(|batch| batch.to_string()),
        task: status.task.map(|task| task.0),
        run: status.run.map(|run| run.0),
        attempt: None,
        model: status.model,
        server: status.server,
        calls: calls.max(status.calls.into()),
        last_heartbeat: Some(now - status.since_report.as_secs_f64()),
        message: status.message.map(|message| message.to_string()),
        stuck: status.stuck,
    }
}
