//! Checks and labels the output of runs before the driver receives it.
//!
//! An output that is not valid is a failure of its run alone, of kind `invalid_output`. The work is
//! done by the task or thread that sends the report, never by the driver.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rollway_core::{AttemptId, BatchType, FailureKind, Incarnation, RunId, RunnerId};
use rollway_experience::{
    Eid, Experience, IdPart, PayloadError, deserialize_many, is_finite_reward, serialize_many,
};
use serde_json::Value;

use crate::run::{RunFailure, RunOutput, RunnerReport};
use crate::runner_status::RunnerStatusTable;
use crate::workers::backend::{RunnerInbox, RunnerMessage};
use crate::workers::model_access::RecordedVersionsFn;
use crate::workers::{AttemptSpec, Reporter, RunnerBackend, RunnerCommand};

/// Attempts of a runner whose reports can still arrive: the current one, and those that were
/// cancelled before it.
const ATTEMPTS_PER_RUNNER: usize = 4;

/// Maximum length of the suffix of an experience id in bytes; databases index ids.
const MAX_SUFFIX_BYTES: usize = 256;

/// Default of the maximum length of the name of a metric.
const METRIC_NAME_BYTES: usize = 256;

/// Bytes of a metric's name in a message.
const SHOWN_NAME_BYTES: usize = 40;

/// Entry of `info` with the sub-task that a workflow named in `eid.task`.
const SUB_TASK: &str = "sub_task";

/// Checks the outputs of another backend and labels them with batch, task and run of the attempt.
pub struct WithOutputCheck<W> {
    workers: W,
    attempts: Arc<AttemptTable>,
}

impl<W: RunnerBackend> WithOutputCheck<W> {
    pub fn new(workers: W) -> Self {
        Self { workers, attempts: Arc::default() }
    }

    /// Sets the maximum length of the name of a metric in bytes.
    #[must_use]
    pub fn metric_name_bytes(self, max: usize) -> Self {
        let recorded = self.attempts.recorded.clone();
        let attempts = AttemptTable { metric_name_bytes: max, recorded, ..AttemptTable::default() };
        Self { attempts: Arc::new(attempts), ..self }
    }

    /// Compares the model versions of experiences with those that were recorded for their run.
    #[must_use]
    pub fn recorded_versions(self, lookup: RecordedVersionsFn) -> Self {
        let metric_name_bytes = self.attempts.metric_name_bytes;
        let recorded = Some(lookup);
        let attempts = AttemptTable { metric_name_bytes, recorded, ..AttemptTable::default() };
        Self { attempts: Arc::new(attempts), ..self }
    }
}

impl<W: RunnerBackend> RunnerBackend for WithOutputCheck<W> {
    fn start(&mut self, reporter: Reporter) {
        self.attempts.by_runner.lock().remove(&reporter.runner());
        let attempts = Arc::clone(&self.attempts);
        self.workers.start(reporter.map_inbox(|inbox| Arc::new(CheckedInbox { inbox, attempts })));
    }

    fn send(&mut self, runner: RunnerId, incarnation: Incarnation, command: RunnerCommand) -> bool {
        if let RunnerCommand::Start(attempt) = &command {
            self.attempts.add(runner, attempt);
        }
        self.workers.send(runner, incarnation, command)
    }

    fn stop(&mut self, runner: RunnerId, incarnation: Incarnation) {
        self.workers.stop(runner, incarnation);
    }

    fn shut_down_workers(&mut self) -> Option<BoxFuture<'static, ()>> {
        self.workers.shut_down_workers()
    }

    fn on_report(&mut self, runner: RunnerId, incarnation: Incarnation, report: &RunnerReport) {
        self.workers.on_report(runner, incarnation, report);
    }

    fn states(&self) -> RunnerStatusTable {
        self.workers.states()
    }
}

impl<W: fmt::Debug> fmt::Debug for WithOutputCheck<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithOutputCheck").field("workers", &self.workers).finish_non_exhaustive()
    }
}

/// Labels of the latest attempts of each runner.
struct AttemptTable {
    metric_name_bytes: usize,
    recorded: Option<RecordedVersionsFn>,
    by_runner: Mutex<HashMap<RunnerId, VecDeque<Arc<AttemptLabel>>>>,
}

impl Default for AttemptTable {
    fn default() -> Self {
        let (metric_name_bytes, by_runner) = (METRIC_NAME_BYTES, Mutex::default());
        Self { metric_name_bytes, recorded: None, by_runner }
    }
}

impl fmt::Debug for AttemptTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptTable").field("by_runner", &self.by_runner).finish_non_exhaustive()
    }
}

/// Facts about an attempt that its runs cannot change.
#[derive(Debug)]
struct AttemptLabel {
    attempt: AttemptId,
    batch: IdPart,
    task: IdPart,
    needs_experiences: bool,
}

impl AttemptTable {
    fn add(&self, runner: RunnerId, spec: &AttemptSpec) {
        let label = AttemptLabel {
            attempt: spec.id,
            batch: IdPart::from(&spec.batch),
            task: IdPart::Number(spec.task_id.0.into()),
            needs_experiences: spec.kind == BatchType::Train && !spec.task.is_eval,
        };
        let mut table = self.by_runner.lock();
        let attempts = table.entry(runner).or_default();
        if attempts.len() == ATTEMPTS_PER_RUNNER {
            attempts.pop_front();
        }
        attempts.push_back(Arc::new(label));
    }

    fn label(&self, runner: RunnerId, attempt: AttemptId) -> Option<Arc<AttemptLabel>> {
        let table = self.by_runner.lock();
        table.get(&runner)?.iter().find(|label| label.attempt == attempt).cloned()
    }

    fn check(&self, message: RunnerMessage) -> RunnerMessage {
        let runner = message.runner;
        let check = |report: RunnerReport| match report {
            RunnerReport::RunFinished { attempt, run, outcome: Ok(output) } => {
                let outcome = match self.label(runner, attempt) {
                    Some(label) => check_metric_names(&output, self.metric_name_bytes)
                        .and_then(|()| label.check(run, output, self.recorded.as_ref())),
                    // The core ignores reports about other attempts.
                    None => Err(format!("attempt {attempt} was not sent to runner {runner}")),
                };
                let invalid = |message| RunFailure::new(FailureKind::InvalidOutput, message);
                RunnerReport::RunFinished { attempt, run, outcome: outcome.map_err(invalid) }
            }
            other => other,
        };
        let reports = message.reports.into_iter().map(check).collect();
        RunnerMessage { reports, ..message }
    }
}

impl AttemptLabel {
    /// Returns the labelled output, or the problem.
    fn check(
        &self,
        run: RunId,
        output: RunOutput,
        recorded: Option<&RecordedVersionsFn>,
    ) -> Result<RunOutput, String> {
        check_reward("metric `reward`", output.metrics.get("reward"))?;
        let payload = match output.payload.filter(|payload| !payload.is_empty()) {
            Some(payload) => payload,
            None if self.needs_experiences => return Err(no_experience()),
            None => return Ok(RunOutput { payload: None, ..output }),
        };
        let recorded = recorded.and_then(|lookup| lookup(self.attempt, run));
        let payload = self.labelled(run, payload, recorded.as_ref())?;
        Ok(RunOutput { payload: Some(payload), ..output })
    }

    /// Checks the experiences of a payload. Encodes them again only if a label was wrong.
    fn labelled(
        &self,
        run: RunId,
        payload: Bytes,
        recorded: Option<&BTreeSet<u64>>,
    ) -> Result<Bytes, String> {
        let unreadable = |error: PayloadError| {
            format!("the payload of {} bytes is not readable: {error}", payload.len())
        };
        let mut experiences = deserialize_many(payload.clone()).map_err(unreadable)?;
        if experiences.is_empty() {
            return Err(no_experience());
        }
        let mut is_changed = false;
        for (position, experience) in experiences.iter_mut().enumerate() {
            let versions = || check_versions(experience, recorded);
            check_experience(experience).and_then(|()| versions()).map_err(|problem| {
                format!("experience {position} ({}): {problem}", experience.kind().name())
            })?;
            is_changed |= self.stamp(run, experience)?;
        }
        if !is_changed {
            return Ok(payload);
        }
        serialize_many(&experiences).map_err(|error| format!("the labelled output: {error}"))
    }

    /// Sets batch, task and run; returns whether one was different. Another task that the workflow
    /// named becomes the sub-task.
    fn stamp(&self, run: RunId, experience: &mut Experience) -> Result<bool, String> {
        let Eid { batch, task, run: own, .. } = &experience.eid;
        if *batch == self.batch && *task == self.task && *own == u64::from(run.0) {
            return Ok(false);
        }
        let sub_task = match task {
            named if *named == self.task => None,
            IdPart::Number(number) => Some(Value::from(*number)),
            IdPart::Text(text) if text.is_empty() => None,
            IdPart::Text(text) => Some(Value::from(text.as_str())),
        };
        if let Some(sub_task) = sub_task
            && experience.info.get(SUB_TASK).is_none()
        {
            let entry = [(SUB_TASK.to_owned(), sub_task)];
            experience.info.insert(entry).map_err(|error| format!("info: {error}"))?;
        }
        experience.eid.batch = self.batch.clone();
        experience.eid.task = self.task.clone();
        experience.eid.run = run.0.into();
        Ok(true)
    }
}

/// Names of metrics are kept with the result, in monitors and in summaries.
fn check_metric_names(output: &RunOutput, max: usize) -> Result<(), String> {
    match output.metrics.iter().find(|(name, _)| name.len() > max) {
        None => Ok(()),
        Some((name, _)) => {
            let start = &name[..name.floor_char_boundary(SHOWN_NAME_BYTES)];
            let bytes = name.len();
            Err(format!(
                "the name of metric `{start}…` has {bytes} bytes, the limit is {max} \
                 (`explorer.limits.metric_name_bytes`)"
            ))
        }
    }
}

/// Refuses model versions that were not recorded for the run. The version of a token is absent if
/// it is unknown, or if the trained model did not generate the token.
fn check_versions(experience: &Experience, recorded: Option<&BTreeSet<u64>>) -> Result<(), String> {
    let Some(recorded) = recorded else { return Ok(()) };
    let versions = experience.model_versions.iter().flat_map(|versions| versions.spans());
    match versions.filter_map(|tokens| tokens.version).find(|it| !recorded.contains(it)) {
        None => Ok(()),
        Some(version) => Err(format!(
            "model version {version} is not among those that the gateway recorded for this run: \
             {recorded:?}"
        )),
    }
}

fn no_experience() -> String {
    "the run returned no experiences; a training run calls a recorded model or returns experiences"
        .to_owned()
}

fn check_experience(experience: &Experience) -> Result<(), String> {
    check_reward("reward", experience.reward)?;
    if let Some((place, reward)) = experience.invalid_token_reward() {
        return Err(format!("token_level_reward is {reward} at {place}: it is not finite"));
    }
    let suffix = &experience.eid.suffix;
    if suffix.len() > MAX_SUFFIX_BYTES {
        let found = suffix.len();
        return Err(format!("eid.suffix of {found} bytes exceeds {MAX_SUFFIX_BYTES}"));
    }
    if suffix.contains(char::is_control) {
        return Err(format!("eid.suffix {suffix:?} contains a control character"));
    }
    Ok(())
}

fn check_reward(name: &str, reward: Option<f64>) -> Result<(), String> {
    match reward {
        Some(reward) if !is_finite_reward(reward) => {
            Err(format!("{name} {reward:e} is not a finite 32-bit number"))
        }
        _ => Ok(()),
    }
}

/// Checks messages on their way to the driver.
#[derive(Debug)]
struct CheckedInbox {
    inbox: Arc<dyn RunnerInbox>,
    attempts: Arc<AttemptTable>,
}

impl RunnerInbox for CheckedInbox {
    fn send(&self, message: RunnerMessage) -> BoxFuture<'_, ()> {
        self.inbox.send(self.attempts.check(message))
    }

    fn blocking_send(&self, message: RunnerMessage) {
        self.inbox.blocking_send(self.attempts.check(message));
    }
}
