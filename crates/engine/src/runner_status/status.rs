//! One runner as it is now, put together from everybody who knows something about it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollway_core::{
    AttemptId, BatchId, Core, Incarnation, RunId, RunnerId, RunnerState, RunnerView, TaskId, Time,
};

use super::RunnerStatusTable;

/// How long a run may be at one thing before it counts as stuck, if others are not.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// How many times as long as usual a run that is stuck has been at one thing.
const STUCK_FACTOR: u32 = 3;

/// What takes less is as good as nothing: nobody hears of it.
const MIN_TYPICAL: Duration = Duration::from_secs(1);

/// How long a cancel may take before a runner counts as stuck.
const CANCEL_AFTER: Duration = Duration::from_secs(5);

/// A runner, and what it does now.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerStatus {
    pub runner: RunnerId,
    /// Its current or last life.
    pub life: Incarnation,
    /// Where it stands.
    pub state: RunnerState,
    /// Since how long it has stood there.
    pub age: Duration,
    /// The batch it works for.
    pub batch: Option<BatchId>,
    pub task: Option<TaskId>,
    /// The runs that it was given and that have not ended.
    pub runs: Vec<RunId>,
    /// The run that `stage` is about.
    pub run: Option<RunId>,
    pub attempt: Option<AttemptId>,
    /// What it is at, in words. Of several runs, the one that has been at it for longest.
    pub stage: Option<String>,
    /// Since how long.
    pub stage_for: Option<Duration>,
    /// How long attempts like its own have taken lately; none: none has succeeded yet.
    pub typical_duration: Option<Duration>,
    /// Where in the user's code that is, if it has lasted a while: `file:line function`.
    pub code_location: Option<String>,
    /// The model that it waits for.
    pub model: Option<String>,
    /// The server that it waits for.
    pub server: Option<String>,
    /// How many model calls it has under way.
    pub calls: u32,
    /// Since how long it has said nothing.
    pub since_report: Duration,
    /// The machine or process it is in.
    pub node: Option<String>,
    /// Why it was last lost or could not be started, or is not started yet.
    pub message: Option<Arc<str>>,
    /// Whether it has been at one thing for much longer than others, or than it may be.
    pub stuck: bool,
    /// What else it says about itself.
    pub said: BTreeMap<String, String>,
}

/// Returns every runner: those that are stuck first, then those that have been at one thing for
/// longest, measured by what their attempts usually take.
///
/// So a run that hangs stands before all that only take long, from when it has been at it for a
/// moment, and long before it can be called stuck.
pub(crate) fn all(core: &Core, states: &RunnerStatusTable, now: Time) -> Vec<RunnerStatus> {
    let mut timeouts = BTreeMap::new();
    let mut all: Vec<RunnerStatus> = core
        .runners()
        .map(|view| {
            timeouts.insert(view.runner, view.timeout);
            one(core, states, view, now)
        })
        .collect();
    let half = half_of(all.iter().filter(|status| busy(status)).filter_map(|it| it.stage_for));
    for status in &mut all {
        let timeout = timeouts.get(&status.runner).copied().flatten();
        status.stuck = stuck(status, half, timeout);
    }
    sort(&mut all);
    all
}

/// Returns the time that half of these do not exceed.
fn half_of(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn sort(all: &mut [RunnerStatus]) {
    // Of work that nobody has seen end yet as much is expected as of the rest.
    let rest = half_of(all.iter().filter_map(|status| status.typical_duration));
    all.sort_by_key(|status| {
        let rank = match status.state {
            RunnerState::Busy(_) | RunnerState::Cancelling(_) => 0,
            RunnerState::Broken => 1,
            RunnerState::Starting => 2,
            RunnerState::Stopped => 3,
            RunnerState::Idle => 4,
        };
        let lasts = status.stage_for.unwrap_or(status.age);
        let usual = status.typical_duration.unwrap_or(rest).max(MIN_TYPICAL);
        let times = status.attempt.map(|_| lasts.as_nanos() * 1000 / usual.as_nanos());
        (!status.stuck, rank, Reverse(times), Reverse(lasts), status.runner)
    });
}

fn busy(status: &RunnerStatus) -> bool {
    matches!(status.state, RunnerState::Busy(_))
}

/// Tells whether nobody would expect it to be at this for so long: it usually takes much less, or
/// if that is not known, others take less; or it has had half of its time.
fn stuck(status: &RunnerStatus, half: Duration, timeout: Option<Duration>) -> bool {
    match status.state {
        RunnerState::Cancelling(_) => status.age >= CANCEL_AFTER,
        RunnerState::Busy(_) => {
            let stage_for = status.stage_for.unwrap_or(status.age);
            let late = timeout.is_some_and(|timeout| stage_for >= timeout / 2);
            let usual = status.typical_duration.unwrap_or(half);
            stage_for >= STUCK_AFTER && (late || stage_for >= usual * STUCK_FACTOR)
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
    let mut said = states.record_report(view.runner, view.life, attempt);
    let batch = view.work.and_then(|(key, ..)| core.batch_by_key(key)).map(|view| view.batch);
    let since = view.work.and_then(|(.., began)| began).unwrap_or(view.since);
    let (waits, message) = (said.get("waiting").cloned(), view.message);
    let mut status = RunnerStatus {
        runner: view.runner,
        life: view.life,
        state: view.state,
        age: now.since(since),
        batch,
        task: view.work.map(|(_, task, _)| task),
        run: said.remove("run").and_then(|run| run.parse().ok()).map(RunId),
        runs: view.runs,
        attempt,
        stage: said.remove("stage"),
        stage_for: said.remove("stage_since").and_then(|since| ago(&since)),
        typical_duration: view.typical_duration,
        code_location: said.remove("place"),
        model: None,
        server: None,
        calls: 0,
        since_report: now.since(view.last_report),
        node: said.remove("node"),
        message: waits.map(Arc::from).or(message),
        stuck: false,
        said,
    };
    if let Some(attempt) = attempt {
        add_calls(&mut status, states, attempt);
        if status.stage.is_none() {
            // Nothing was heard of this attempt yet.
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

/// Says which model a run waits for, if the gateway has a call of it and the run itself says
/// nothing of the kind.
fn add_calls(status: &mut RunnerStatus, states: &RunnerStatusTable, attempt: AttemptId) {
    let calls = states.calls(attempt);
    status.calls = calls.len() as u32;
    let Some(oldest) = calls.first() else { return };
    let name = oldest.model.as_deref().unwrap_or_default();
    status.model = Some(name.to_owned());
    status.server = oldest.server.as_deref().map(str::to_owned);
    let says = status.stage.as_deref().unwrap_or(super::RUNNING);
    if says == super::RUNNING {
        status.stage = Some(format!("waiting for model {name}").trim_end().to_owned());
        status.stage_for = Some(oldest.since.elapsed());
        status.run = Some(RunId(oldest.run));
    }
}

/// Returns how long ago a moment was, which is given in seconds since 1970.
fn ago(since: &str) -> Option<Duration> {
    let since = Duration::try_from_secs_f64(since.parse().ok()?).ok()?;
    let since = UNIX_EPOCH.checked_add(since)?;
    // Clocks of other machines may be ahead.
    Some(SystemTime::now().duration_since(since).unwrap_or_default())
}
