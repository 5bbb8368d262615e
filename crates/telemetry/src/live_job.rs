//! A job that runs in this process.

use std::sync::Arc;

use rollway_core::{BatchId, RunId, TaskId};
use rollway_engine::{RolloutCoordinator, RunnerStatus};

use crate::history::RunHistory;
use crate::view::{
    ActionResult, AlarmRow, BatchRow, BiasReport, JobInfo, JobView, Overview, RunDetail, RunKey,
    RunPage, RunQuery, RunnerCounts, RunnerRow, Timeline, ViewFuture,
};

/// Why whatever is asked for by a button was done.
const REASON: &str = "a person asked for it on the dashboard";

/// Returns the view of a job that runs in this process.
pub fn live(history: Arc<RunHistory>) -> Arc<dyn JobView> {
    Arc::new(LiveJob(history))
}

/// A job that runs in this process.
#[derive(Debug)]
struct LiveJob(Arc<RunHistory>);

impl JobView for LiveJob {
    fn job(&self) -> JobInfo {
        self.0.job()
    }

    fn overview(&self) -> Overview {
        self.0.overview()
    }

    fn timeline(&self) -> Timeline {
        self.0.timeline()
    }

    fn batches(&self) -> Vec<BatchRow> {
        self.0.batches()
    }

    fn runners(&self) -> ViewFuture<'_, Vec<RunnerRow>> {
        Box::pin(async {
            let Some(coordinator) = self.coordinator() else { return Vec::new() };
            let statuses = coordinator.runner_states().await.unwrap_or_default();
            self.0.runners_are(RunnerCounts::of(statuses.iter().map(|status| status.state)));
            let attempts: Vec<_> = statuses.iter().map(|status| status.attempt).collect();
            let calls = self.0.calls(&attempts);
            let now = self.0.job().now;
            statuses.into_iter().zip(calls).map(|(one, calls)| runner(one, calls, now)).collect()
        })
    }

    fn runs(&self, query: &RunQuery) -> RunPage {
        self.0.runs(query)
    }

    fn run(&self, key: &RunKey) -> Option<RunDetail> {
        self.0.run(key)
    }

    fn bias(&self) -> BiasReport {
        self.0.bias()
    }

    fn alarms(&self) -> Vec<AlarmRow> {
        self.0.alarms()
    }

    fn cancel_run<'a>(&'a self, key: &'a RunKey) -> ViewFuture<'a, ActionResult> {
        Box::pin(async move {
            let Some(coordinator) = self.coordinator() else { return over() };
            let (task, run) = (TaskId(key.task), RunId(key.run));
            for batch in ids(&key.batch) {
                match coordinator.cancel_run(batch, task, run, REASON).await {
                    Ok(true) => return done(true, "the run is cancelled"),
                    // Of that name there is none, or it has ended.
                    Ok(false) => {}
                    Err(error) => return done(false, &error.to_string()),
                }
            }
            done(false, "the run had ended already")
        })
    }

    fn abort_batch<'a>(
        &'a self,
        batch: &'a str,
        keep_partial: bool,
    ) -> ViewFuture<'a, ActionResult> {
        Box::pin(async move {
            let Some(coordinator) = self.coordinator() else { return over() };
            for id in ids(batch) {
                if !matches!(coordinator.batch_state(id.clone()).await, Ok(Some(_))) {
                    continue;
                }
                return match coordinator.abort_batch(id, REASON, keep_partial).await {
                    Ok(Some(_)) => done(true, "the batch is aborted"),
                    Ok(None) => done(false, "there was nothing left to abort"),
                    Err(error) => done(false, &error.to_string()),
                };
            }
            done(false, &format!("there is no batch {batch} under way"))
        })
    }
}

impl LiveJob {
    fn coordinator(&self) -> Option<RolloutCoordinator> {
        self.0.coordinator()
    }
}

/// A name may be that of a number or of a text; numbers are usual.
fn ids(name: &str) -> impl Iterator<Item = BatchId> {
    name.parse::<i64>().ok().map(BatchId::from).into_iter().chain([BatchId::from(name)])
}

fn done(done: bool, message: &str) -> ActionResult {
    ActionResult { done, message: message.to_owned() }
}

fn over() -> ActionResult {
    done(false, "the job does not run any more")
}

fn runner(status: RunnerStatus, calls: u64, now: f64) -> RunnerRow {
    RunnerRow {
        runner: status.runner.0,
        life: status.life.0,
        state: status.state.name().to_owned(),
        node: status.node,
        stage: status.stage,
        stage_for: status.stage_for.map(|it| it.as_secs_f64()),
        usual: status.typical_duration.map(|it| it.as_secs_f64()),
        place: status.code_location,
        age: status.age.as_secs_f64(),
        batch: status.batch.map(|batch| batch.to_string()),
        task: status.task.map(|task| task.0),
        run: status.run.map(|run| run.0),
        attempt: status.attempt.map(|attempt| attempt.0),
        model: status.model,
        server: status.server,
        calls: calls.max(status.calls.into()),
        last_heartbeat: Some(now - status.since_report.as_secs_f64()),
        message: status.message.map(|message| message.to_string()),
        stuck: status.stuck,
    }
}
