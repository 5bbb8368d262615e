//! What is tried with a worker, step by step.

use std::collections::BTreeMap;

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

/// Field 1999, which nobody will ever assign, with a number in it.
const UNKNOWN_FIELD: [u8; 3] = [0xf8, 0x7c, 0x2a];
/// Field 1998 with an empty message in it.
const UNKNOWN_MESSAGE: [u8; 3] = [0xf2, 0x7c, 0x00];

/// A step says what went wrong, or that it could not be tried.
enum StepError {
    Failed(String),
    Skipped(String),
}

impl From<String> for StepError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

type Tried = Result<(), StepError>;

/// All checks against one worker.
pub(super) struct StepRun<'a> {
    target: &'a ConformanceTarget,
    options: &'a ConformanceOptions,
    stages: u32,
    session: Option<ConformanceSession>,
    /// Whether the worker cannot even be taken in.
    hopeless: bool,
    verdicts: BTreeMap<Check, CheckResult>,
}

impl<'a> StepRun<'a> {
    pub(super) fn new(target: &'a ConformanceTarget, options: &'a ConformanceOptions) -> Self {
        Self {
            target,
            options,
            stages: 0,
            session: None,
            hopeless: false,
            verdicts: BTreeMap::new(),
        }
    }

    pub(super) async fn all(mut self) -> ConformanceReport {
        self.step(Check::Success, &[Check::Began, Check::Runs], async |s| work(s).await).await;
        self.step(Check::Define, &[Check::Ended], async |s| define_once(s).await).await;
        self.step(Check::Failure, &[], async |s| failure(s).await).await;
        self.step(Check::Eval, &[], async |s| eval(s).await).await;
        self.step(Check::Cancel, &[], async |s| cancel(s).await).await;
        self.step(Check::LateCancel, &[Check::AfterCancel], async |s| late_cancel(s).await).await;
        let interval = self.options.heartbeat_interval;
        self.step(Check::Heartbeat, &[], async |s| heartbeat(s, interval).await).await;
        self.step(Check::Parallel, &[], async |s| parallel(s).await).await;
        self.step(Check::Restart, &[], async |s| restart(s).await).await;
        self.step(Check::Unknown, &[], async |s| unknown(s).await).await;
        let options = self.options;
        self.step(Check::Goodbye, &[], async |s| goodbye(s, options).await).await;
        self.close();
        self.refusal(Check::Secret, RefusalCode::BadSecret).await;
        self.refusal(Check::Version, RefusalCode::Version).await;
        self.step(Check::EngineGone, &[], async |s| {
            let attempt = s.start(0, WAIT, BatchType::Train)?;
            Ok(s.until("the attempt began", |watch| watch.began(attempt)).await?)
        })
        .await;
        self.engine_gone().await;
        let skipped = || CheckResult::Skipped("not reached".to_owned());
        let verdicts = Check::ALL.iter().map(|check| {
            let verdict = self.verdicts.remove(check).unwrap_or_else(skipped);
            (*check, verdict)
        });
        ConformanceReport { verdicts: verdicts.collect() }
    }

    /// Tries one thing, with a worker that is well. Besides its own check, others are passed
    /// unless the watch has seen a fault.
    async fn step(
        &mut self,
        check: Check,
        others: &[Check],
        step: impl AsyncFnOnce(&mut ConformanceSession) -> Tried,
    ) {
        if self.session.is_none() {
            if self.hopeless {
                return;
            }
            if self.stages > 0 && !self.target.is_ours() {
                let why = "the worker would have to be started again".to_owned();
                return self.judge(check, CheckResult::Skipped(why));
            }
            if let Err((check, why)) = self.open().await {
                // It would be the same every time.
                self.hopeless = true;
                return self.judge(check, CheckResult::Failed(why));
            }
        }
        let Some(session) = &mut self.session else { return };
        match step(session).await {
            Ok(()) => {
                for passed in others.iter().chain([&check]) {
                    self.judge(*passed, CheckResult::Passed);
                }
            }
            Err(StepError::Skipped(why)) => self.judge(check, CheckResult::Skipped(why)),
            Err(StepError::Failed(why)) => {
                self.judge(check, CheckResult::Failed(why));
                self.close();
            }
        }
        self.collect_faults();
    }

    /// Notes a verdict. A failure is not taken back.
    fn judge(&mut self, check: Check, verdict: CheckResult) {
        let noted = self.verdicts.entry(check).or_insert_with(|| verdict.clone());
        if !matches!(noted, CheckResult::Failed(_)) {
            *noted = verdict;
        }
    }

    fn collect_faults(&mut self) {
        let faults = self.session.iter_mut().flat_map(|session| session.watch.faults.drain(..));
        for (check, what) in faults.collect::<Vec<_>>() {
            self.judge(check, CheckResult::Failed(what));
        }
    }

    /// Ends a session, and with it the worker.
    fn close(&mut self) {
        self.collect_faults();
        self.session = None;
    }

    async fn stage(&mut self, twist: Twist) -> Result<Stage, String> {
        self.stages += 1;
        Stage::set(self.target, self.options, self.stages, twist).await
    }

    async fn open(&mut self) -> Result<(), (Check, String)> {
        let stage = self.stage(Twist::default()).await.map_err(|why| (Check::Hello, why))?;
        let session = ConformanceSession::open(stage, self.options).await?;
        self.session = Some(session);
        self.judge(Check::Hello, CheckResult::Passed);
        self.judge(Check::Ready, CheckResult::Passed);
        Ok(())
    }

    /// Refuses a worker for good: it has to give up.
    async fn refusal(&mut self, check: Check, code: RefusalCode) {
        if self.hopeless {
            return;
        }
        if !self.target.is_ours() {
            let why = "its end cannot be seen".to_owned();
            return self.judge(check, CheckResult::Skipped(why));
        }
        let alien = VersionRange { min: 1_000_000, max: 1_000_000 };
        let twist = Twist {
            versions: (code == RefusalCode::Version).then_some(alien),
            wrong_secret: code == RefusalCode::BadSecret,
        };
        let verdict = match self.stage(twist).await {
            Err(why) => CheckResult::Failed(why),
            Ok(mut stage) => {
                let end = stage.running.ended(self.options.patience).await;
                let tried = stage.server.refused().iter().any(|(refused, _)| *refused == code);
                match end {
                    _ if !tried => CheckResult::Failed(format!("it was never refused: {end:?}")),
                    TargetEnd::Badly(_) => CheckResult::Passed,
                    TargetEnd::Well => {
                        CheckResult::Failed("it ended as if all were well".to_owned())
                    }
                    TargetEnd::StillRunning => {
                        CheckResult::Failed("it does not give up".to_owned())
                    }
                    TargetEnd::Unseen => CheckResult::Skipped("its end cannot be seen".to_owned()),
                }
            }
        };
        self.judge(check, verdict);
    }

    /// Drops the server under a busy worker.
    async fn engine_gone(&mut self) {
        let Some(session) = self.session.take() else { return };
        let ConformanceSession { stage: Stage { server, mut running, .. }, connection, .. } =
            session;
        drop((server, connection));
        let verdict = match running.ended(self.options.patience).await {
            TargetEnd::Well | TargetEnd::Badly(_) => CheckResult::Passed,
            TargetEnd::StillRunning => {
                CheckResult::Failed("it goes on without an engine".to_owned())
            }
            TargetEnd::Unseen => CheckResult::Skipped("its end cannot be seen".to_owned()),
        };
        self.verdicts.insert(Check::EngineGone, verdict);
    }
}

/// Executes an attempt and returns when it is over.
async fn execute(
    session: &mut ConformanceSession,
    at: usize,
    workflow: &str,
    kind: BatchType,
) -> Result<AttemptId, String> {
    let attempt = session.start(at, workflow, kind)?;
    session.until("the attempt ended", |watch| watch.ended(attempt)).await?;
    Ok(attempt)
}

/// Executes an attempt whose runs have to succeed, with experiences.
async fn succeed(session: &mut ConformanceSession, at: usize) -> Result<(), String> {
    let attempt = execute(session, at, SUCCEED, BatchType::Train).await?;
    succeeded(session, attempt)
}

fn succeeded(session: &ConformanceSession, attempt: AttemptId) -> Result<(), String> {
    for (run, outcome) in &session.watch.attempts[&attempt].results {
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

async fn work(session: &mut ConformanceSession) -> Tried {
    Ok(succeed(session, 0).await?)
}

async fn define_once(session: &mut ConformanceSession) -> Tried {
    for at in 0..session.runners.len() {
        succeed(session, at).await?;
    }
    // Other workflows push this one out of the worker's memory; it is defined again.
    execute(session, 0, FAIL, BatchType::Train).await?;
    let attempt = session.start(0, WAIT, BatchType::Train)?;
    session.until("the attempt began", |watch| watch.began(attempt)).await?;
    session.cancel(0, attempt)?;
    session.until("the attempt ended", |watch| watch.ended(attempt)).await?;
    Ok(succeed(session, 0).await?)
}

async fn failure(session: &mut ConformanceSession) -> Tried {
    let attempt = execute(session, 0, FAIL, BatchType::Train).await?;
    for (run, outcome) in &session.watch.attempts[&attempt].results {
        match outcome {
            Err(RunFailure { kind: rollway_core::FailureKind::Workflow, message })
                if !message.is_empty() => {}
            other => return Err(format!("run {run} raised, and was reported as {other:?}").into()),
        }
    }
    Ok(())
}

async fn eval(session: &mut ConformanceSession) -> Tried {
    let attempt = execute(session, 0, SUCCEED, BatchType::Eval).await?;
    for (run, outcome) in &session.watch.attempts[&attempt].results {
        if !matches!(outcome, Ok(RunOutput { payload: None, .. })) {
            return Err(format!("run {run} of an eval was reported as {outcome:?}").into());
        }
    }
    Ok(())
}

async fn wait(session: &mut ConformanceSession, at: usize) -> Result<AttemptId, String> {
    let attempt = session.start(at, WAIT, BatchType::Train)?;
    session.until("the attempt began", |watch| watch.began(attempt)).await?;
    Ok(attempt)
}

async fn give_up(
    session: &mut ConformanceSession,
    at: usize,
    attempt: AttemptId,
) -> Result<(), String> {
    session.cancel(at, attempt)?;
    session.in_grace("the cancel was acknowledged", |watch| watch.ended(attempt)).await
}

async fn cancel(session: &mut ConformanceSession) -> Tried {
    let attempt = wait(session, 0).await?;
    give_up(session, 0, attempt).await?;
    // And at once, when it may not even have begun.
    let attempt = session.start(0, WAIT, BatchType::Train)?;
    Ok(give_up(session, 0, attempt).await?)
}

async fn late_cancel(session: &mut ConformanceSession) -> Tried {
    let attempt = execute(session, 0, SUCCEED, BatchType::Train).await?;
    session.cancel(0, attempt)?;
    Ok(succeed(session, 0).await?)
}

async fn heartbeat(session: &mut ConformanceSession, interval: std::time::Duration) -> Tried {
    const HEARTBEATS: usize = 4;
    let attempt = wait(session, 0).await?;
    session.watch.beats.clear();
    session.until("some heartbeats came", |watch| watch.beats.len() >= HEARTBEATS).await?;
    let beats = &session.watch.beats;
    let took = beats[HEARTBEATS - 1].at - beats[0].at;
    let mean = took / (HEARTBEATS as u32 - 1);
    // Generous: a machine under load is no fault of the worker.
    if mean > interval * 4 {
        return Err(format!("every {mean:?} instead of every {interval:?}").into());
    }
    if mean < interval / 4 {
        return Err(format!("every {mean:?}, which is far too often for {interval:?}").into());
    }
    let last = &beats[HEARTBEATS - 1].states;
    for (at, (runner, life)) in session.runners.iter().enumerate() {
        let Some(state) = last.iter().find(|state| (state.runner, state.life) == (*runner, *life))
        else {
            return Err(format!("{runner} is not mentioned").into());
        };
        let expected = (at == 0).then_some(attempt);
        if state.attempt != expected {
            let (said, expected) = (state.attempt, expected);
            return Err(format!("{runner} is said to execute {said:?}, not {expected:?}").into());
        }
    }
    Ok(give_up(session, 0, attempt).await?)
}

async fn parallel(session: &mut ConformanceSession) -> Tried {
    if session.runners.len() < 2 {
        return Err(StepError::Skipped("it offers one runner".to_owned()));
    }
    let first = session.start(0, WAIT, BatchType::Train)?;
    let second = session.start(1, WAIT, BatchType::Train)?;
    let both = "both attempts began";
    session.until(both, |watch| watch.began(first) && watch.began(second)).await?;
    give_up(session, 1, second).await?;
    // The other one is not disturbed.
    succeed(session, 1).await?;
    if session.watch.ended(first) {
        return Err("an attempt ended with that of another runner".to_owned().into());
    }
    Ok(give_up(session, 0, first).await?)
}

async fn restart(session: &mut ConformanceSession) -> Tried {
    wait(session, 0).await?;
    let (runner, life) = session.runners[0];
    session.send(EngineMessage::StopRunner { runner, life })?;
    session.in_grace("the runner stopped", |watch| watch.is_stopped(runner, life)).await?;
    let next = Incarnation(life.0 + 1);
    session.send(EngineMessage::StartRunner { runner, life: next })?;
    session.until("the new life is ready", |watch| watch.is_ready(runner, next)).await?;
    session.runners[0] = (runner, next);
    Ok(succeed(session, 0).await?)
}

async fn unknown(session: &mut ConformanceSession) -> Tried {
    // So that the worker has the definition that the next attempt refers to.
    succeed(session, 0).await?;
    let send = |session: &ConformanceSession, bytes: Vec<u8>| {
        session.connection.send_raw(Bytes::from(bytes)).map_err(|error| error.to_string())
    };
    send(session, UNKNOWN_MESSAGE.to_vec())?;
    let start = session.prepare(0, SUCCEED, BatchType::Train);
    let attempt = start.attempt;
    let mut inner = proto::StartAttempt::from(start).encode_to_vec();
    inner.extend(UNKNOWN_FIELD);
    // Field 4 of the outer message, and an unknown one behind it.
    let mut outer = vec![0x22];
    prost::encode_length_delimiter(inner.len(), &mut outer)
        .map_err(|error| StepError::Failed(error.to_string()))?;
    outer.extend(inner);
    outer.extend(UNKNOWN_FIELD);
    send(session, outer)?;
    session.until("the attempt ended", |watch| watch.ended(attempt)).await?;
    Ok(succeeded(session, attempt)?)
}

async fn goodbye(session: &mut ConformanceSession, options: &ConformanceOptions) -> Tried {
    wait(session, 0).await?;
    session.send(EngineMessage::Shutdown { deadline: options.grace })?;
    session.in_grace("the worker left", |watch| watch.left.is_some()).await?;
    match &session.watch.left {
        Some(DisconnectReason::Goodbye) => {}
        Some(reason) => {
            return Err(format!("it left otherwise: {}", disconnect_message(reason)).into());
        }
        None => {}
    }
    match session.stage.running.ended(options.patience).await {
        TargetEnd::Well | TargetEnd::Unseen => Ok(()),
        TargetEnd::Badly(how) => Err(format!("it said goodbye and ended badly: {how}").into()),
        TargetEnd::StillRunning => Err("it said goodbye and did not end".to_owned().into()),
    }
}
