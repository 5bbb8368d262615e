//! The checks, step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use rollway_core::{AttemptId, BatchType, Incarnation, RunFailure, RunOutput};
use rollway_protocol::RefusalCode;
use rollway_protocol::proto;
use rollway_protocol::worker_server::DisconnectReason;
use rollway_protocol::{EngineMessage, VersionRange};

use super::report::{Check, CheckResult, ConformanceReport};
use super::session::{ConformanceSession, Stage, Twist, disconnect_message};
use super::target::{ConformanceTarget, TargetEnd};
use super::{ConformanceOptions, FAIL, SUCCEED, WAIT};

/// Reason of checks that need the exit of a manual worker.
/// Interval of looks at the counters of the server.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

const UNKNOWN_END: &str = "its exit cannot be observed";
/// Field 1999, reserved for ever, with a number.
const UNKNOWN_FIELD: [u8; 3] = [0xf8, 0x7c, 0x2a];
/// Field 1998 with an empty message.
const UNKNOWN_MESSAGE: [u8; 3] = [0xf2, 0x7c, 0x00];

enum StepError {
    Failed(String),
    Skipped(String),
}

impl From<String> for StepError {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

type StepResult = Result<(), StepError>;

/// All checks against one worker.
pub(super) struct StepRun<'a> {
    target: &'a ConformanceTarget,
    options: &'a ConformanceOptions,
    stages: u32,
    session: Option<ConformanceSession>,
    /// The worker cannot connect: later steps are skipped.
    unreachable: bool,
    results: BTreeMap<Check, CheckResult>,
}

impl<'a> StepRun<'a> {
    pub(super) fn new(target: &'a ConformanceTarget, options: &'a ConformanceOptions) -> Self {
        let results = BTreeMap::new();
        Self { target, options, stages: 0, session: None, unreachable: false, results }
    }

    pub(super) async fn all(mut self) -> ConformanceReport {
        self.step(Check::Success, &[Check::Began, Check::Runs], async |s| Ok(succeed(s, 0).await?))
            .await;
        self.step(Check::Define, &[Check::Ended], define_once).await;
        self.step(Check::Failure, &[], failure).await;
        self.step(Check::Eval, &[], eval).await;
        self.step(Check::Cancel, &[], cancel).await;
        self.step(Check::LateCancel, &[Check::AfterCancel], late_cancel).await;
        let interval = self.options.heartbeat_interval;
        self.step(Check::Heartbeat, &[], async |s| heartbeat(s, interval).await).await;
        self.step(Check::Parallel, &[], parallel).await;
        self.step(Check::Restart, &[], restart).await;
        self.step(Check::Unknown, &[], unknown).await;
        let options = self.options;
        self.step(Check::Goodbye, &[], async |s| goodbye(s, options).await).await;
        self.close();
        self.refusal(Check::Secret, RefusalCode::BadSecret).await;
        self.refusal(Check::Version, RefusalCode::Version).await;
        self.step(Check::EngineGone, &[], async |s| Ok(wait(s, 0).await.map(drop)?)).await;
        self.engine_gone().await;
        let skipped = || CheckResult::Skipped("not reached".to_owned());
        let results = Check::ALL.iter().map(|check| {
            let result = self.results.remove(check).unwrap_or_else(skipped);
            (*check, result)
        });
        ConformanceReport { results: results.collect() }
    }

    /// Runs a step with a connected worker. `others` pass with it, unless the log has a fault.
    async fn step(
        &mut self,
        check: Check,
        others: &[Check],
        step: impl AsyncFnOnce(&mut ConformanceSession) -> StepResult,
    ) {
        if self.session.is_none() {
            if self.unreachable {
                return;
            }
            if self.stages > 0 && !self.target.is_restartable() {
                let reason = "needs a restart of the manual worker".to_owned();
                return self.record(check, CheckResult::Skipped(reason));
            }
            if let Err((check, reason)) = self.open().await {
                // It would fail the same way every time.
                self.unreachable = true;
                return self.record(check, CheckResult::Failed(reason));
            }
        }
        let Some(session) = &mut self.session else { return };
        match step(session).await {
            Ok(()) => {
                for passed in others.iter().chain([&check]) {
                    self.record(*passed, CheckResult::Passed);
                }
            }
            Err(StepError::Skipped(reason)) => self.record(check, CheckResult::Skipped(reason)),
            Err(StepError::Failed(reason)) => {
                self.record(check, CheckResult::Failed(reason));
                self.close();
            }
        }
        self.collect_faults();
    }

    /// Records a result. A failure is final.
    fn record(&mut self, check: Check, result: CheckResult) {
        let noted = self.results.entry(check).or_insert_with(|| result.clone());
        if !matches!(noted, CheckResult::Failed(_)) {
            *noted = result;
        }
    }

    fn collect_faults(&mut self) {
        let faults = self.session.iter_mut().flat_map(|session| session.log.faults.drain(..));
        for (check, message) in faults.collect::<Vec<_>>() {
            self.record(check, CheckResult::Failed(message));
        }
    }

    /// Ends a session and the worker.
    fn close(&mut self) {
        self.collect_faults();
        self.session = None;
    }

    async fn stage(&mut self, twist: Twist) -> Result<Stage, String> {
        self.stages += 1;
        Stage::set(self.target, self.options, self.stages, twist).await
    }

    async fn open(&mut self) -> Result<(), (Check, String)> {
        let stage = self.stage(Twist::default()).await.map_err(|reason| (Check::Hello, reason))?;
        let session = ConformanceSession::open(stage, self.options).await?;
        self.session = Some(session);
        self.record(Check::Hello, CheckResult::Passed);
        self.record(Check::Ready, CheckResult::Passed);
        Ok(())
    }

    /// Refuses a worker permanently: it must exit.
    async fn refusal(&mut self, check: Check, code: RefusalCode) {
        if self.unreachable {
            return;
        }
        if !self.target.is_restartable() {
            let reason = UNKNOWN_END.to_owned();
            return self.record(check, CheckResult::Skipped(reason));
        }
        let unknown_versions = VersionRange { min: 1_000_000, max: 1_000_000 };
        let twist = Twist {
            versions: (code == RefusalCode::Version).then_some(unknown_versions),
            wrong_secret: code == RefusalCode::BadSecret,
        };
        let result = match self.stage(twist).await {
            Err(reason) => CheckResult::Failed(reason),
            Ok(mut stage) => {
                let end = stage.running.ended(self.options.timeout).await;
                let is_counted = async {
                    while !stage.server.refused().iter().any(|(refused, _)| *refused == code) {
                        // The server has no event for the end of a refused worker.
                        tokio::time::sleep(POLL_INTERVAL).await;
                    }
                };
                let refused = tokio::time::timeout(self.options.grace, is_counted).await;
                match end {
                    _ if refused.is_err() => {
                        CheckResult::Failed(format!("it did not connect: {end:?}"))
                    }
                    TargetEnd::Success => CheckResult::Failed("it exited with success".to_owned()),
                    end => exited(end),
                }
            }
        };
        self.record(check, result);
    }

    /// Drops the server while the worker is busy.
    async fn engine_gone(&mut self) {
        let Some(session) = self.session.take() else { return };
        let ConformanceSession { stage: Stage { server, mut running, .. }, connection, .. } =
            session;
        drop((server, connection));
        let result = exited(running.ended(self.options.timeout).await);
        self.results.insert(Check::EngineGone, result);
    }
}

/// Result of a check that the worker exits, with or without success.
fn exited(end: TargetEnd) -> CheckResult {
    match end {
        TargetEnd::Success | TargetEnd::Failure(_) => CheckResult::Passed,
        TargetEnd::StillRunning => CheckResult::Failed("it is still running".to_owned()),
        TargetEnd::Unknown => CheckResult::Skipped(UNKNOWN_END.to_owned()),
    }
}

/// Executes an attempt to its end.
async fn execute(
    session: &mut ConformanceSession,
    at: usize,
    workflow: &str,
    kind: BatchType,
) -> Result<AttemptId, String> {
    let attempt = session.start(at, workflow, kind)?;
    session.wait_for("the attempt ended", |log| log.ended(attempt)).await?;
    Ok(attempt)
}

/// Executes an attempt whose runs must succeed with experiences.
async fn succeed(session: &mut ConformanceSession, at: usize) -> Result<(), String> {
    let attempt = execute(session, at, SUCCEED, BatchType::Train).await?;
    succeeded(session, attempt)
}

fn succeeded(session: &ConformanceSession, attempt: AttemptId) -> Result<(), String> {
    for (run, outcome) in &session.log.attempts[&attempt].results {
        match outcome {
            Ok(RunOutput { payload: Some(payload), .. }) if !payload.is_empty() => {}
            Ok(_) => {
                return Err(format!("run {run} has no experiences"));
            }
            Err(RunFailure { kind, message }) => {
                return Err(format!("run {run} failed: {kind}: {message}"));
            }
        }
    }
    Ok(())
}

async fn define_once(session: &mut ConformanceSession) -> StepResult {
    for at in 0..session.runners.len() {
        succeed(session, at).await?;
    }
    // Other workflows evict this one from the worker; it is defined again.
    execute(session, 0, FAIL, BatchType::Train).await?;
    let attempt = wait(session, 0).await?;
    session.cancel(0, attempt)?;
    session.wait_for("the attempt ended", |log| log.ended(attempt)).await?;
    Ok(succeed(session, 0).await?)
}

async fn failure(session: &mut ConformanceSession) -> StepResult {
    let attempt = execute(session, 0, FAIL, BatchType::Train).await?;
    for (run, outcome) in &session.log.attempts[&attempt].results {
        match outcome {
            Err(RunFailure { kind: rollway_core::FailureKind::Workflow, message })
                if !message.is_empty() => {}
            other => return Err(format!("run {run} raised, and was reported as {other:?}").into()),
        }
    }
    Ok(())
}

async fn eval(session: &mut ConformanceSession) -> StepResult {
    let attempt = execute(session, 0, SUCCEED, BatchType::Eval).await?;
    for (run, outcome) in &session.log.attempts[&attempt].results {
        if !matches!(outcome, Ok(RunOutput { payload: None, .. })) {
            return Err(format!("run {run} of an eval was reported as {outcome:?}").into());
        }
    }
    Ok(())
}

async fn wait(session: &mut ConformanceSession, at: usize) -> Result<AttemptId, String> {
    let attempt = session.start(at, WAIT, BatchType::Train)?;
    session.wait_for("the attempt began", |log| log.began(attempt)).await?;
    Ok(attempt)
}

async fn cancel_attempt(
    session: &mut ConformanceSession,
    at: usize,
    attempt: AttemptId,
) -> Result<(), String> {
    session.cancel(at, attempt)?;
    session.in_grace("the cancel was acknowledged", |log| log.ended(attempt)).await
}

async fn cancel(session: &mut ConformanceSession) -> StepResult {
    let attempt = wait(session, 0).await?;
    cancel_attempt(session, 0, attempt).await?;
    // And immediately, possibly before it began.
    let attempt = session.start(0, WAIT, BatchType::Train)?;
    Ok(cancel_attempt(session, 0, attempt).await?)
}

async fn late_cancel(session: &mut ConformanceSession) -> StepResult {
    let attempt = execute(session, 0, SUCCEED, BatchType::Train).await?;
    session.cancel(0, attempt)?;
    Ok(succeed(session, 0).await?)
}

async fn heartbeat(session: &mut ConformanceSession, interval: Duration) -> StepResult {
    const HEARTBEATS: usize = 4;
    let attempt = wait(session, 0).await?;
    session.log.heartbeats.clear();
    session.wait_for("some heartbeats came", |log| log.heartbeats.len() >= HEARTBEATS).await?;
    let heartbeats = &session.log.heartbeats;
    let took = heartbeats[HEARTBEATS - 1].at - heartbeats[0].at;
    let mean = took / (HEARTBEATS as u32 - 1);
    // Generous, for machines under load.
    if mean > interval * 4 {
        return Err(format!("every {mean:?} instead of every {interval:?}").into());
    }
    if mean < interval / 4 {
        return Err(format!("every {mean:?}, too often for {interval:?}").into());
    }
    let last = &heartbeats[HEARTBEATS - 1].states;
    for (at, (runner, incarnation)) in session.runners.iter().enumerate() {
        let Some(state) =
            last.iter().find(|state| (state.runner, state.incarnation) == (*runner, *incarnation))
        else {
            return Err(format!("{runner} is missing").into());
        };
        let expected = (at == 0).then_some(attempt);
        if state.attempt != expected {
            let reported = state.attempt;
            return Err(format!("{runner} reports {reported:?}, expected {expected:?}").into());
        }
    }
    Ok(cancel_attempt(session, 0, attempt).await?)
}

async fn parallel(session: &mut ConformanceSession) -> StepResult {
    if session.runners.len() < 2 {
        return Err(StepError::Skipped("it offers one runner".to_owned()));
    }
    let first = session.start(0, WAIT, BatchType::Train)?;
    let second = session.start(1, WAIT, BatchType::Train)?;
    session.wait_for("both attempts began", |log| log.began(first) && log.began(second)).await?;
    cancel_attempt(session, 1, second).await?;
    // The other attempt is not affected.
    succeed(session, 1).await?;
    if session.log.ended(first) {
        return Err("an attempt ended with that of another runner".to_owned().into());
    }
    Ok(cancel_attempt(session, 0, first).await?)
}

async fn restart(session: &mut ConformanceSession) -> StepResult {
    wait(session, 0).await?;
    let (runner, incarnation) = session.runners[0];
    session.send(EngineMessage::StopRunner { runner, incarnation })?;
    session.in_grace("the runner stopped", |log| log.is_stopped(runner, incarnation)).await?;
    let next = Incarnation(incarnation.0 + 1);
    session.send(EngineMessage::StartRunner { runner, incarnation: next })?;
    session.wait_for("the new incarnation is ready", |log| log.is_ready(runner, next)).await?;
    session.runners[0] = (runner, next);
    Ok(succeed(session, 0).await?)
}

async fn unknown(session: &mut ConformanceSession) -> StepResult {
    // The next attempt refers to this definition.
    succeed(session, 0).await?;
    let send = |session: &ConformanceSession, bytes: Vec<u8>| {
        session.connection.send_raw(Bytes::from(bytes)).map_err(|error| error.to_string())
    };
    send(session, UNKNOWN_MESSAGE.to_vec())?;
    let start = session.prepare(0, SUCCEED, BatchType::Train);
    let attempt = start.attempt;
    let mut inner = proto::StartAttempt::from(start).encode_to_vec();
    inner.extend(UNKNOWN_FIELD);
    // Field 4 of the outer message, followed by an unknown one.
    let mut outer = vec![0x22];
    prost::encode_length_delimiter(inner.len(), &mut outer)
        .map_err(|error| StepError::Failed(error.to_string()))?;
    outer.extend(inner);
    outer.extend(UNKNOWN_FIELD);
    send(session, outer)?;
    session.wait_for("the attempt ended", |log| log.ended(attempt)).await?;
    Ok(succeeded(session, attempt)?)
}

async fn goodbye(session: &mut ConformanceSession, options: &ConformanceOptions) -> StepResult {
    wait(session, 0).await?;
    session.send(EngineMessage::Shutdown { deadline: options.grace })?;
    session.in_grace("the worker left", |log| log.left.is_some()).await?;
    if let Some(reason) = &session.log.left
        && !matches!(reason, DisconnectReason::Goodbye)
    {
        return Err(format!("it disconnected: {}", disconnect_message(reason)).into());
    }
    match session.stage.running.ended(options.timeout).await {
        TargetEnd::Success | TargetEnd::Unknown => Ok(()),
        TargetEnd::Failure(end) => Err(format!("it sent `Goodbye` and failed: {end}").into()),
        TargetEnd::StillRunning => Err("it sent `Goodbye` and is still running".to_owned().into()),
    }
}
