//! Status of one runner, combined from core, heartbeats and gateway.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollway_core::{
    AttemptId, BatchId, Core, Incarnation, RunId, RunnerId, RunnerState, RunnerView, TaskId, Time,
};

use super::RunnerStatusTable;

/// Minimum time in one stage before a run counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// Multiple of the typical duration after which a run counts as stuck.
const STUCK_FACTOR: u32 = 3;

/// Lower bound of typical durations for sorting.
const MIN_TYPICAL: Duration = Duration::from_secs(1);

/// Duration of a cancel after which a runner counts as stuck.
const CANCEL_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq)]
pub struct RunnerStatus {
    pub runner: RunnerId,
    /// Current or last incarnation.
    pub incarnation: Incarnation,
    pub state: RunnerState,
    /// Time since the attempt began, or else in the current state.
    pub age: Duration,
    pub batch: Option<BatchId>,
    pub task: Option<TaskId>,
    /// Runs of the attempt that have not ended.
    pub runs: Vec<RunId>,
    /// Run that `stage` belongs to.
    pub run: Option<RunId>,
    pub attempt: Option<AttemptId>,
    /// Current stage: that of the run which has been longest in its stage.
    pub stage: Option<String>,
    /// Time in the stage.
    pub stage_for: Option<Duration>,
    /// Typical duration of such attempts. `None`: none has succeeded yet.
    pub typical_duration: Option<Duration>,
    /// Code location (`file:line function`) of a stage that lasts long.
    pub code_location: Option<String>,
    /// Model of the oldest model call.
    pub model: Option<String>,
    /// Server of the oldest model call.
    pub server: Option<String>,
    /// Number of model calls in flight.
    pub calls: u32,
    /// Time since the last report.
    pub since_report: Duration,
    /// Host and process id.
    pub node: Option<String>,
    /// Reason of the last loss or failed start, or for waiting.
    pub message: Option<Arc<str>>,
    /// In one stage much longer than typical, or than half of the timeout.
    pub stuck: bool,
    /// Other labels of its heartbeats.
    pub labels: BTreeMap<String, String>,
}

/// Returns the status of every runner: stuck ones first, then by time in the current stage relative
/// to the typical duration, so that hanging runs come before long ones.
pub(crate) fn all(core: &Core, states: &RunnerStatusTable, now: Time) -> Vec<RunnerStatus> {
    let mut timeouts = BTreeMap::new();
    let mut all: Vec<RunnerStatus> = core
        .runners()
        .map(|view| {
            timeouts.insert(view.runner, view.timeout);
            one(core, states, view, now)
        })
        .collect();
    let half = median(all.iter().filter(|status| busy(status)).filter_map(|it| it.stage_for));
    for status in &mut all {
        let timeout = timeouts.get(&status.runner).copied().flatten();
        status.stuck = stuck(status, half, timeout);
    }
    sort(&mut all);
    all
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn sort(all: &mut [RunnerStatus]) {
    // Workflows without a typical duration are compared with the median of the others.
    let rest = median(all.iter().filter_map(|status| status.typical_duration));
    all.sort_by_key(|status| {
        let rank = match status.state {
            RunnerState::Busy(_) | RunnerState::Cancelling(_) => 0,
            RunnerState::Broken => 1,
            RunnerState::Starting => 2,
            RunnerState::Stopped => 3,
            RunnerState::Idle => 4,
        };
        let lasts = status.stage_for.unwrap_or(status.age);
        let typical = status.typical_duration.unwrap_or(rest).max(MIN_TYPICAL);
        let times = status.attempt.map(|_| lasts.as_nanos() * 1000 / typical.as_nanos());
        (!status.stuck, rank, Reverse(times), Reverse(lasts), status.runner)
    });
}

fn busy(status: &RunnerStatus) -> bool {
    matches!(status.state, RunnerState::Busy(_))
}

/// Tells whether a runner is in its stage much longer than typical (or, if unknown, than `half`),
/// or for half of its timeout.
fn stuck(status: &RunnerStatus, half: Duration, timeout: Option<Duration>) -> bool {
    match status.state {
        RunnerState::Cancelling(_) => status.age >= CANCEL_AFTER,
        RunnerState::Busy(_) => {
            let stage_for = status.stage_for.unwrap_or(status.age);
            let late = timeout.is_some_and(|timeout| stage_for >= timeout / 2);
            let typical = status.typical_duration.unwrap_or(half);
            stage_for >= STUCK_AFTER && (late || stage_for >= typical * STUCK_FACTOR)
        }
        RunnerState::Starting | RunnerState::Idle | RunnerState::Broken | RunnerState::Stopped => {
            false
        }
    }
}

fn one(core: &Core, states: &RunnerStatusTable, view: RunnerView, now: Time) -> RunnerStatus {
    let attempt = match view.state {
        RunnerState::Busy(attempt) | RunnerState::Cancelling(attempt) => Some(attempt),
        _ => None,
    };
    let mut labels = states.labels(view.runner, view.incarnation, attempt);
    let batch = view.work.and_then(|(key, ..)| core.batch_by_key(key)).map(|view| view.batch);
    let since = view.work.and_then(|(.., began)| began).unwrap_or(view.since);
    let waits = labels.get("waiting").map(|reason| Arc::from(reason.as_str()));
    let mut status = RunnerStatus {
        runner: view.runner,
        incarnation: view.incarnation,
        state: view.state,
        age: now.since(since),
        batch,
        task: view.work.map(|(_, task, _)| task),
        run: labels.remove("run").and_then(|run| run.parse().ok()).map(RunId),
        runs: view.runs,
        attempt,
        stage: labels.remove("stage"),
        stage_for: labels.remove("stage_since").and_then(|since| age(&since)),
        typical_duration: view.typical_duration,
        code_location: labels.remove("place"),
        model: None,
        server: None,
        calls: 0,
        since_report: now.since(view.last_report),
        node: labels.remove("node"),
        message: waits.or(view.message),
        stuck: false,
        labels,
    };
    if let Some(attempt) = attempt {
        add_calls(&mut status, states, attempt);
        if status.stage.is_none() {
            // No heartbeat of this attempt yet.
            let stage = if view.work.is_some_and(|(.., began)| began.is_some()) {
                super::RUNNING
            } else {
                "beginning"
            };
            status.stage = Some(stage.to_owned());
            status.stage_for = Some(status.age);
        }
        let known = status.run.filter(|run| status.runs.contains(run));
        status.run = known.or_else(|| status.runs.first().copied());
    } else {
        (status.stage, status.stage_for, status.code_location, status.run) =
            (None, None, None, None);
    }
    status
}

/// Adds the model calls of a run; they set its stage unless the workflow has set one.
fn add_calls(status: &mut RunnerStatus, states: &RunnerStatusTable, attempt: AttemptId) {
    let calls = states.calls(attempt);
    status.calls = calls.len() as u32;
    let Some(oldest) = calls.first() else { return };
    let name = oldest.model.as_deref().unwrap_or_default();
    status.model = Some(name.to_owned());
    status.server = oldest.server.as_deref().map(str::to_owned);
    let stage = status.stage.as_deref().unwrap_or(super::RUNNING);
    if stage == super::RUNNING {
        status.stage = Some(format!("waiting for model {name}").trim_end().to_owned());
        status.stage_for = Some(oldest.since.elapsed());
        status.run = Some(RunId(oldest.run));
    }
}

/// Returns the age of a time in seconds since 1970.
fn age(since: &str) -> Option<Duration> {
    let since = Duration::try_from_secs_f64(since.parse().ok()?).ok()?;
    let since = UNIX_EPOCH.checked_add(since)?;
    // Clocks of other machines may be ahead.
    Some(SystemTime::now().duration_since(since).unwrap_or_default())
}
