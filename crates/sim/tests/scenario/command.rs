//! Commands of a scenario, parsed from tokens.

use std::sync::Arc;
use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchId, BatchKey, BatchType, CancelReason, CoreConfig, DeliveryOutcome,
    FailureKind, Incarnation, LeaseId, LedgerRecord, Request, RequestId, RunEnd, RunId, RunnerId,
    RunnerReport, TaskId, TaskSpec, Time, UnresponsivePolicy, WorkflowId,
};

use super::tokens::{BadScript, CommandTokens};
use super::{config, labels};

pub(super) enum ScenarioCommand {
    /// Restart with a new core.
    Config(Box<CoreConfig>),
    /// A new core whose pool is started and ready.
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

/// Report about an attempt.
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
    Usual,
    Nothing,
    Payload {
        id: Option<u64>,
        bytes: u64,
    },
}

/// Payload size where the scenario does not name one.
pub(super) const USUAL_BYTES: u64 = 100;

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
pub(super) fn read(mut words: CommandTokens) -> Result<ScenarioCommand, BadScript> {
    let name = words.name().to_owned();
    let asker = match words.following("as")? {
        Some(word) => Some(RequestId(words.number('q', &word)?)),
        None => None,
    };
    let command = if let Some(what) = request(&name, &mut words)? {
        ScenarioCommand::Request(asker, what)
    } else if asker.is_some() {
        return Err(words.bad("not a request, so it has no name", &name));
    } else if let Some((runner, life, report)) = report(&name, &mut words)? {
        ScenarioCommand::Report(runner, life, report)
    } else if let Some(command) = attempt(&name, &mut words)? {
        command
    } else {
        other(&name, &mut words)?
    };
    words.end()?;
    Ok(command)
}

fn request(name: &str, words: &mut CommandTokens) -> Result<Option<Request>, BadScript> {
    Ok(Some(match name {
        "start" => Request::Start,
        "stop" => Request::Stop { timeout: duration(words)? },
        "submit" => Request::Submit {
            min_wait_num: words.get("min")?,
            tasks: tasks(words)?,
            batch: words.batch()?,
            kind: kind(words)?,
        },
        "schedule" => {
            Request::Schedule { tasks: tasks(words)?, batch: words.batch()?, kind: kind(words)? }
        }
        "collect" => Request::Collect {
            min_num: words.get("min")?,
            timeout: words.get("timeout")?,
            clear_timeout_tasks: words.flag("clear"),
            return_partial_tasks: words.flag("partial"),
            batch: words.batch()?,
        },
        "drain" => Request::Drain { batch: words.batch()? },
        "discard" => Request::Discard { batch: words.batch()? },
        "finalize" => Request::Finalize {
            timeout: words.get("timeout")?,
            batch: words.batch()?,
            kind: kind(words)?,
        },
        "abort" => Request::Abort {
            keep_partial_results: words.flag("keep"),
            unresponsive: if words.flag("wait") {
                UnresponsivePolicy::Wait
            } else {
                UnresponsivePolicy::Replace
            },
            batch: words.batch()?,
            reason: words.quoted().unwrap_or_default().into(),
        },
        "cancel-run" => Request::CancelRun {
            batch: words.batch()?,
            task: numbered(words, 't').map(TaskId)?,
            run: numbered(words, 'r').map(RunId)?,
        },
        "wait-all" => Request::WaitAll {
            timeout: words.get("timeout")?,
            clear_timeout_tasks: words.flag("clear"),
        },
        _ => return Ok(None),
    }))
}

/// Parses a letter with a number.
fn numbered(words: &mut CommandTokens, letter: char) -> Result<u32, BadScript> {
    let word = words.next("a number")?;
    words.number(letter, &word)
}

fn kind(words: &mut CommandTokens) -> Result<BatchType, BadScript> {
    match words.next("`train` or `eval`")?.as_str() {
        "train" => Ok(BatchType::Train),
        "eval" => Ok(BatchType::Eval),
        word => Err(words.bad("neither `train` nor `eval`", word)),
    }
}

fn duration(words: &mut CommandTokens) -> Result<Duration, BadScript> {
    let word = words.next("a duration")?;
    words.read("duration", &word)
}

/// Parses `tasks=3 runs=2`, or `runs=2,1,4` for tasks that differ.
fn tasks(words: &mut CommandTokens) -> Result<Vec<TaskSpec>, BadScript> {
    let workflow = WorkflowId(words.get("workflow")?.unwrap_or(0));
    let count = words.get::<u32>("tasks")?;
    let runs = words.value("runs").unwrap_or_else(|| "1".to_owned());
    let mut each = Vec::new();
    for word in runs.split(',') {
        each.push(words.read("number of runs", word)?);
    }
    if let [one] = each[..] {
        each = vec![one; count.unwrap_or(1) as usize];
    } else if count.is_some_and(|count| count as usize != each.len()) {
        return Err(words.bad("not as many as `tasks` says", &runs));
    }
    let task = |repeat_times| TaskSpec { repeat_times, workflow };
    Ok(each.into_iter().map(task).collect())
}

type ReportToken = (RunnerId, Option<Incarnation>, RunnerReport);

fn report(name: &str, words: &mut CommandTokens) -> Result<Option<ReportToken>, BadScript> {
    let message = |words: &mut CommandTokens| words.quoted().unwrap_or_default().into();
    let report = match name {
        "ready" => {
            let after = match words.following("after")? {
                Some(word) => Some(AttemptId(words.numbered('a', &word, labels::BITS)?)),
                None => None,
            };
            RunnerReport::Ready { after }
        }
        "alive" => RunnerReport::Heartbeat,
        "lost" => RunnerReport::Lost { message: message(words), suspect: words.flag("suspect") },
        "waits" => RunnerReport::Waits { why: words.quoted().map(Into::into) },
        "start-failed" => RunnerReport::StartFailed { message: message(words) },
        _ => return Ok(None),
    };
    let word = words.next("a runner")?;
    let (runner, life) = runner(words, &word)?;
    Ok(Some((runner, life, report)))
}

/// Parses `w0`, or `w0/l2` for a certain incarnation.
fn runner(words: &CommandTokens, word: &str) -> Result<(RunnerId, Option<Incarnation>), BadScript> {
    let (slot, life) = match word.split_once('/') {
        Some((slot, life)) => {
            let life = words.numbered('l', life, labels::LIFE_BITS)?;
            (slot, Some(Incarnation(life as u32)))
        }
        None => (word, None),
    };
    Ok((RunnerId(words.number('w', slot)?), life))
}

fn attempt(name: &str, words: &mut CommandTokens) -> Result<Option<ScenarioCommand>, BadScript> {
    if !["began", "ok", "fail", "ended", "done"].contains(&name) {
        return Ok(None);
    }
    let on = match words.following("on")? {
        Some(word) => Some(runner(words, &word)?),
        None => None,
    };
    let word = words.next("an attempt")?;
    let attempt = AttemptId(words.numbered('a', &word, labels::BITS)?);
    let about = match name {
        "began" => ReportAbout::Began,
        "ended" => ReportAbout::Ended,
        "done" => ReportAbout::Done(yields(words)?),
        "ok" => {
            let yields = yields(words)?;
            ReportAbout::Ok(runs(words, &mut None)?, yields)
        }
        _ => {
            let message = words.quoted().unwrap_or_default().into();
            let mut kind = None;
            let runs = runs(words, &mut kind)?;
            let word = kind.ok_or_else(|| words.bad("a failure kind is missing after", name))?;
            ReportAbout::Fail(runs, failure_kind(words, &word)?, message)
        }
    };
    Ok(Some(ScenarioCommand::Attempt(attempt, on, about)))
}

fn failure_kind(words: &CommandTokens, word: &str) -> Result<FailureKind, BadScript> {
    let kind = FailureKind::ALL.iter().find(|kind| kind.name() == word);
    kind.copied().ok_or_else(|| words.bad("no failure kind", word))
}

/// Parses `r0`, `r0-3` and so on; the first other token is returned in `other`.
fn runs(words: &mut CommandTokens, other: &mut Option<String>) -> Result<Vec<u32>, BadScript> {
    let mut runs = Vec::new();
    while let Some(word) = words.next_bare() {
        let named = word.strip_prefix('r');
        if !named.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
            if other.is_some() || !matches!(words.name(), "fail") {
                return Err(words.bad("no run", &word));
            }
            *other = Some(word);
            continue;
        }
        let one = (word.as_str(), &word[1..]);
        let (first, last) = word.split_once('-').unwrap_or(one);
        let last: u32 = words.read("run", last)?;
        runs.extend(words.number('r', first)?..=last);
    }
    Ok(runs)
}

fn yields(words: &mut CommandTokens) -> Result<Yield, BadScript> {
    let payload = match words.value("payload") {
        None if words.flag("bare") => Brings::Nothing,
        None => Brings::Usual,
        Some(word) => {
            let (name, bytes) = match (word.split_once(':'), word.starts_with('p')) {
                (Some((name, bytes)), _) => (Some(name), Some(bytes)),
                (None, true) => (Some(word.as_str()), None),
                (None, false) => (None, Some(word.as_str())),
            };
            let id = name.map(|name| words.number('p', name)).transpose()?;
            let bytes = bytes.map(|bytes| words.read("size", bytes)).transpose()?;
            Brings::Payload { id, bytes: bytes.unwrap_or(USUAL_BYTES) }
        }
    };
    let metrics = metrics(words)?;
    Ok(Yield { payload, metrics })
}

fn metrics(words: &mut CommandTokens) -> Result<Metrics, BadScript> {
    let mut metrics = Metrics::new();
    while let Some(word) = words.value("metric") {
        let pair = word.rsplit_once(':');
        let (key, value) = pair.ok_or_else(|| words.bad("no `key:number`", &word))?;
        metrics.set(key, words.read::<f64>("number", value)?);
    }
    Ok(metrics)
}

fn other(name: &str, words: &mut CommandTokens) -> Result<ScenarioCommand, BadScript> {
    Ok(match name {
        "config" => ScenarioCommand::Config(Box::new(config::read(words)?)),
        "started-pool" => ScenarioCommand::StartedPool(Box::new(config::read(words)?)),
        "withdraw" => {
            let word = words.next("a request")?;
            ScenarioCommand::Withdraw(RequestId(words.number('q', &word)?))
        }
        "pool" => match words.next("`ready`")?.as_str() {
            "ready" => ScenarioCommand::PoolReady,
            word => return Err(words.bad("`pool` knows no such word", word)),
        },
        "crash" => ScenarioCommand::Crash(words.get::<u32>("lose")?.unwrap_or(0) as usize),
        "recorded" => ScenarioCommand::Recorded(record(words)?),
        "ack" => {
            let metrics = metrics(words)?;
            ScenarioCommand::Delivered(lease(words)?, DeliveryOutcome::Acknowledged { metrics })
        }
        "nack" => {
            let message = words.quoted().unwrap_or_default().into();
            ScenarioCommand::Delivered(lease(words)?, DeliveryOutcome::Failed { message })
        }
        "at" => ScenarioCommand::Move(TimeMove::At(Time::ZERO.after(duration(words)?))),
        "after" => ScenarioCommand::Move(TimeMove::After(duration(words)?)),
        "reach" => ScenarioCommand::Move(TimeMove::Reach(Time::ZERO.after(duration(words)?))),
        "show" => ScenarioCommand::Show(view(words)?),
        name => return Err(words.bad("no such command", name)),
    })
}

fn record(words: &mut CommandTokens) -> Result<LedgerRecord, BadScript> {
    let what = words.next("a record")?;
    let word = words.next("a batch such as `b0`")?;
    let batch = BatchKey(words.number('b', &word)?);
    Ok(match what.as_str() {
        "submitted" => LedgerRecord::Submitted {
            min_wait_num: words.get("min")?,
            tasks: tasks(words)?,
            batch,
            id: words.batch()?,
            kind: kind(words)?,
        },
        "cancelled" => {
            let (task, run) = (words.next("a task")?, words.next("a run")?);
            let (task, run) = (words.number('t', &task)?, words.number('r', &run)?);
            let ending = RunEnd::Cancelled(CancelReason::Stopped);
            LedgerRecord::RunEnded { batch, task: TaskId(task), run: RunId(run), ending }
        }
        "cut" => LedgerRecord::Truncated {
            batch,
            reason: CancelReason::Aborted,
            keep: words.flag("keep"),
        },
        "offered" => LedgerRecord::DeliveryStarted { batch },
        word => return Err(words.bad("no such record", word)),
    })
}

fn lease(words: &mut CommandTokens) -> Result<LeaseId, BadScript> {
    let word = words.next("a delivery")?;
    Ok(LeaseId(words.numbered('d', &word, labels::BITS)?))
}

fn view(words: &mut CommandTokens) -> Result<ScenarioView, BadScript> {
    Ok(match words.next("what to show")?.as_str() {
        "batch" => ScenarioView::Batch(words.batch()?),
        "step" => ScenarioView::Step(words.batch()?),
        "runners" => ScenarioView::Runners,
        "counters" => ScenarioView::Counters,
        "deadline" => ScenarioView::Deadline,
        "timeout" => ScenarioView::Timeout,
        word => return Err(words.bad("nothing that can be shown", word)),
    })
}
