//! Commands of a scenario, parsed from tokens.

use std::sync::Arc;
use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchId, BatchKey, BatchType, CancelReason, CoreConfig, DeliveryOutcome,
    FailureKind, Incarnation, LeaseId, LedgerRecord, Request, RequestId, RunEnd, RunId, RunnerId,
    RunnerReport, Suspicion, TaskId, TaskSpec, Time, UnresponsivePolicy, WorkflowId,
};

use super::tokens::{BadScript, CommandTokens};
use super::{config, labels};

pub(super) enum ScenarioCommand {
    /// Restart with a new core.
    Config(Box<CoreConfig>),
    StartedPool(Box<CoreConfig>),
    Request(Option<RequestId>, Request),
    Withdraw(RequestId),
    /// Every starting runner reports that it is ready.
    PoolReady,
    Report(RunnerId, Option<Incarnation>, RunnerReport),
    Attempt(AttemptId, Option<(RunnerId, Option<Incarnation>)>, ReportAbout),
    Delivered(LeaseId, DeliveryOutcome),
    /// The core is lost with the last records; a new one restores the others.
    Crash(usize),
    Recorded(LedgerRecord),
    Move(TimeMove),
    Show(ScenarioView),
}

pub(super) enum ReportAbout {
    Began,
    Ok(Vec<u32>, Yield),
    Fail(Vec<u32>, FailureKind, Arc<str>),
    Ended,
    /// All its runs succeeded, and it ended.
    Done(Yield),
}

/// Output of a successful run.
pub(super) struct Yield {
    pub(super) payload: Brings,
    pub(super) metrics: Metrics,
}

pub(super) enum Brings {
    /// A payload with the next free id if its batch is for training, else none.
    Default,
    /// No payload.
    Nothing,
    /// A payload with an optional id.
    Payload { id: Option<u64>, bytes: u64 },
}

/// Payload size where the scenario does not name one.
pub(super) const DEFAULT_BYTES: u64 = 100;

/// Change of the virtual time.
pub(super) enum TimeMove {
    /// To this time, including deadlines at it.
    At(Time),
    After(Duration),
    /// To this time, excluding deadlines at it.
    Reach(Time),
}

pub(super) enum ScenarioView {
    Batch(BatchId),
    Step(BatchId),
    Runners,
    Counters,
    Deadline,
    Timeout,
}

/// Parses one command; every token must be used.
pub(super) fn read(mut tokens: CommandTokens) -> Result<ScenarioCommand, BadScript> {
    let name = tokens.name().to_owned();
    let asker = match tokens.following("as")? {
        Some(token) => Some(RequestId(tokens.number('q', &token)?)),
        None => None,
    };
    let command = if let Some(what) = request(&name, &mut tokens)? {
        ScenarioCommand::Request(asker, what)
    } else if asker.is_some() {
        return Err(tokens.bad("not a request, so it has no name", &name));
    } else if let Some((runner, incarnation, report)) = report(&name, &mut tokens)? {
        ScenarioCommand::Report(runner, incarnation, report)
    } else if let Some(command) = attempt(&name, &mut tokens)? {
        command
    } else {
        other(&name, &mut tokens)?
    };
    tokens.end()?;
    Ok(command)
}

fn request(name: &str, tokens: &mut CommandTokens) -> Result<Option<Request>, BadScript> {
    Ok(Some(match name {
        "start" => Request::Start,
        "stop" => Request::Stop { timeout: duration(tokens)? },
        "submit" => Request::Submit {
            min_wait_num: tokens.get("min")?,
            tasks: tasks(tokens)?,
            batch: tokens.batch()?,
            kind: kind(tokens)?,
        },
        "schedule" => {
            Request::Schedule { tasks: tasks(tokens)?, batch: tokens.batch()?, kind: kind(tokens)? }
        }
        "collect" => Request::Collect {
            min_num: tokens.get("min")?,
            timeout: tokens.get("timeout")?,
            clear_timeout_tasks: tokens.flag("clear"),
            return_partial_tasks: tokens.flag("partial"),
            batch: tokens.batch()?,
        },
        "drain" => Request::Drain { batch: tokens.batch()? },
        "discard" => Request::Discard { batch: tokens.batch()? },
        "finalize" => Request::Finalize {
            timeout: tokens.get("timeout")?,
            batch: tokens.batch()?,
            kind: kind(tokens)?,
        },
        "abort" => Request::Abort {
            keep_partial_results: tokens.flag("keep"),
            unresponsive: if tokens.flag("wait") {
                UnresponsivePolicy::Wait
            } else {
                UnresponsivePolicy::Replace
            },
            batch: tokens.batch()?,
            reason: tokens.quoted().unwrap_or_default().into(),
        },
        "cancel-run" => Request::CancelRun {
            batch: tokens.batch()?,
            task: numbered(tokens, 't').map(TaskId)?,
            run: numbered(tokens, 'r').map(RunId)?,
        },
        "wait-all" => Request::WaitAll {
            timeout: tokens.get("timeout")?,
            clear_timeout_tasks: tokens.flag("clear"),
        },
        _ => return Ok(None),
    }))
}

/// Parses a letter with a number.
fn numbered(tokens: &mut CommandTokens, letter: char) -> Result<u32, BadScript> {
    let token = tokens.next("a number")?;
    tokens.number(letter, &token)
}

fn kind(tokens: &mut CommandTokens) -> Result<BatchType, BadScript> {
    match tokens.next("`train` or `eval`")?.as_str() {
        "train" => Ok(BatchType::Train),
        "eval" => Ok(BatchType::Eval),
        token => Err(tokens.bad("neither `train` nor `eval`", token)),
    }
}

fn duration(tokens: &mut CommandTokens) -> Result<Duration, BadScript> {
    let token = tokens.next("a duration")?;
    tokens.read("duration", &token)
}

/// Parses `tasks=3 runs=2`, or `runs=2,1,4` for tasks that differ.
fn tasks(tokens: &mut CommandTokens) -> Result<Vec<TaskSpec>, BadScript> {
    let workflow = WorkflowId(tokens.get("workflow")?.unwrap_or(0));
    let count = tokens.get::<u32>("tasks")?;
    let runs = tokens.value("runs").unwrap_or_else(|| "1".to_owned());
    let mut each = Vec::new();
    for token in runs.split(',') {
        each.push(tokens.read("number of runs", token)?);
    }
    if let [one] = each[..] {
        each = vec![one; count.unwrap_or(1) as usize];
    } else if count.is_some_and(|count| count as usize != each.len()) {
        return Err(tokens.bad("not as many as `tasks` says", &runs));
    }
    let task = |repeat_times| TaskSpec { repeat_times, workflow };
    Ok(each.into_iter().map(task).collect())
}

type ReportToken = (RunnerId, Option<Incarnation>, RunnerReport);

fn report(name: &str, tokens: &mut CommandTokens) -> Result<Option<ReportToken>, BadScript> {
    let message = |tokens: &mut CommandTokens| tokens.quoted().unwrap_or_default().into();
    let report = match name {
        "ready" => {
            let after = match tokens.following("after")? {
                Some(token) => Some(AttemptId(tokens.numbered('a', &token, labels::BITS)?)),
                None => None,
            };
            RunnerReport::Ready { after }
        }
        "alive" => RunnerReport::Heartbeat,
        "lost" => RunnerReport::Lost { message: message(tokens), suspicion: suspicion(tokens) },
        "waits" => RunnerReport::StartBlocked { reason: tokens.quoted().map(Into::into) },
        "start-failed" => RunnerReport::StartFailed { message: message(tokens) },
        _ => return Ok(None),
    };
    let token = tokens.next("a runner")?;
    let (runner, incarnation) = runner(tokens, &token)?;
    Ok(Some((runner, incarnation, report)))
}

/// Parses `w0`, or `w0/l2` for a certain incarnation.
fn runner(
    tokens: &CommandTokens,
    token: &str,
) -> Result<(RunnerId, Option<Incarnation>), BadScript> {
    let (slot, incarnation) = match token.split_once('/') {
        Some((slot, incarnation)) => {
            let incarnation = tokens.numbered('l', incarnation, labels::LIFE_BITS)?;
            (slot, Some(Incarnation(incarnation as u32)))
        }
        None => (token, None),
    };
    Ok((RunnerId(tokens.number('w', slot)?), incarnation))
}

fn attempt(name: &str, tokens: &mut CommandTokens) -> Result<Option<ScenarioCommand>, BadScript> {
    if !["began", "ok", "fail", "ended", "done"].contains(&name) {
        return Ok(None);
    }
    let on = match tokens.following("on")? {
        Some(token) => Some(runner(tokens, &token)?),
        None => None,
    };
    let token = tokens.next("an attempt")?;
    let attempt = AttemptId(tokens.numbered('a', &token, labels::BITS)?);
    let about = match name {
        "began" => ReportAbout::Began,
        "ended" => ReportAbout::Ended,
        "done" => ReportAbout::Done(yields(tokens)?),
        "ok" => {
            let yields = yields(tokens)?;
            ReportAbout::Ok(runs(tokens, &mut None)?, yields)
        }
        _ => {
            let message = tokens.quoted().unwrap_or_default().into();
            let mut kind = None;
            let runs = runs(tokens, &mut kind)?;
            let token = kind.ok_or_else(|| tokens.bad("a failure kind is missing after", name))?;
            ReportAbout::Fail(runs, failure_kind(tokens, &token)?, message)
        }
    };
    Ok(Some(ScenarioCommand::Attempt(attempt, on, about)))
}

fn failure_kind(tokens: &CommandTokens, token: &str) -> Result<FailureKind, BadScript> {
    let kind = FailureKind::ALL.iter().find(|kind| kind.name() == token);
    kind.copied().ok_or_else(|| tokens.bad("no failure kind", token))
}

/// Parses `r0`, `r0-3` and so on; the first other token is returned in `other`.
fn runs(tokens: &mut CommandTokens, other: &mut Option<String>) -> Result<Vec<u32>, BadScript> {
    let mut runs = Vec::new();
    while let Some(token) = tokens.next_bare() {
        let named = token.strip_prefix('r');
        if !named.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
            if other.is_some() || !matches!(tokens.name(), "fail") {
                return Err(tokens.bad("no run", &token));
            }
            *other = Some(token);
            continue;
        }
        let one = (token.as_str(), &token[1..]);
        let (first, last) = token.split_once('-').unwrap_or(one);
        let last: u32 = tokens.read("run", last)?;
        runs.extend(tokens.number('r', first)?..=last);
    }
    Ok(runs)
}

fn yields(tokens: &mut CommandTokens) -> Result<Yield, BadScript> {
    let payload = match tokens.value("payload") {
        None if tokens.flag("bare") => Brings::Nothing,
        None => Brings::Default,
        Some(token) => {
            let (name, bytes) = match (token.split_once(':'), token.starts_with('p')) {
                (Some((name, bytes)), _) => (Some(name), Some(bytes)),
                (None, true) => (Some(token.as_str()), None),
                (None, false) => (None, Some(token.as_str())),
            };
            let id = name.map(|name| tokens.number('p', name)).transpose()?;
            let bytes = bytes.map(|bytes| tokens.read("size", bytes)).transpose()?;
            Brings::Payload { id, bytes: bytes.unwrap_or(DEFAULT_BYTES) }
        }
    };
    let metrics = metrics(tokens)?;
    Ok(Yield { payload, metrics })
}

fn metrics(tokens: &mut CommandTokens) -> Result<Metrics, BadScript> {
    let mut metrics = Metrics::new();
    while let Some(token) = tokens.value("metric") {
        let pair = token.rsplit_once(':');
        let (key, value) = pair.ok_or_else(|| tokens.bad("no `key:number`", &token))?;
        metrics.set(key, tokens.read::<f64>("number", value)?);
    }
    Ok(metrics)
}

fn other(name: &str, tokens: &mut CommandTokens) -> Result<ScenarioCommand, BadScript> {
    Ok(match name {
        "config" => ScenarioCommand::Config(Box::new(config::read(tokens)?)),
        "started-pool" => ScenarioCommand::StartedPool(Box::new(config::read(tokens)?)),
        "withdraw" => {
            let token = tokens.next("a request")?;
            ScenarioCommand::Withdraw(RequestId(tokens.number('q', &token)?))
        }
        "pool" => match tokens.next("`ready`")?.as_str() {
            "ready" => ScenarioCommand::PoolReady,
            token => return Err(tokens.bad("`pool` knows no such word", token)),
        },
        "crash" => ScenarioCommand::Crash(tokens.get::<u32>("lose")?.unwrap_or(0) as usize),
        "recorded" => ScenarioCommand::Recorded(record(tokens)?),
        "ack" => {
            let metrics = metrics(tokens)?;
            ScenarioCommand::Delivered(lease(tokens)?, DeliveryOutcome::Acknowledged { metrics })
        }
        "nack" => {
            let message = tokens.quoted().unwrap_or_default().into();
            ScenarioCommand::Delivered(lease(tokens)?, DeliveryOutcome::Failed { message })
        }
        "at" => ScenarioCommand::Move(TimeMove::At(Time::ZERO.after(duration(tokens)?))),
        "after" => ScenarioCommand::Move(TimeMove::After(duration(tokens)?)),
        "reach" => ScenarioCommand::Move(TimeMove::Reach(Time::ZERO.after(duration(tokens)?))),
        "show" => ScenarioCommand::Show(view(tokens)?),
        name => return Err(tokens.bad("no such command", name)),
    })
}

fn record(tokens: &mut CommandTokens) -> Result<LedgerRecord, BadScript> {
    let what = tokens.next("a record")?;
    let token = tokens.next("a batch such as `b0`")?;
    let batch = BatchKey(tokens.number('b', &token)?);
    Ok(match what.as_str() {
        "submitted" => LedgerRecord::Submitted {
            min_wait_num: tokens.get("min")?,
            tasks: tasks(tokens)?,
            batch,
            id: tokens.batch()?,
            kind: kind(tokens)?,
        },
        "cancelled" => {
            let (task, run) = (tokens.next("a task")?, tokens.next("a run")?);
            let (task, run) = (tokens.number('t', &task)?, tokens.number('r', &run)?);
            let ending = RunEnd::Cancelled(CancelReason::Stopped);
            LedgerRecord::RunEnded { batch, task: TaskId(task), run: RunId(run), ending }
        }
        "cut" => LedgerRecord::Truncated {
            batch,
            reason: CancelReason::Aborted,
            keep: tokens.flag("keep"),
        },
        "offered" => LedgerRecord::DeliveryStarted { batch },
        token => return Err(tokens.bad("no such record", token)),
    })
}

fn lease(tokens: &mut CommandTokens) -> Result<LeaseId, BadScript> {
    let token = tokens.next("a delivery")?;
    Ok(LeaseId(tokens.numbered('d', &token, labels::BITS)?))
}

fn view(tokens: &mut CommandTokens) -> Result<ScenarioView, BadScript> {
    Ok(match tokens.next("what to show")?.as_str() {
        "batch" => ScenarioView::Batch(tokens.batch()?),
        "step" => ScenarioView::Step(tokens.batch()?),
        "runners" => ScenarioView::Runners,
        "counters" => ScenarioView::Counters,
        "deadline" => ScenarioView::Deadline,
        "timeout" => ScenarioView::Timeout,
        token => return Err(tokens.bad("nothing that can be shown", token)),
    })
}

fn suspicion(tokens: &mut CommandTokens) -> Suspicion {
    match (tokens.flag("suspect"), tokens.flag("shared"), tokens.flag("neighbour")) {
        (true, ..) => Suspicion::Sole,
        (_, true, _) => Suspicion::Shared,
        (.., true) => Suspicion::Neighbour,
        _ => Suspicion::None,
    }
}
