//! Text of a trace: kind and details of inputs and actions.

use std::fmt;

use rollway_core::{
    Action, AttemptCancelReason, BatchResult, CollectedResults, DeliveryOutcome, Input,
    LedgerRecord, Payload, Refusal, Request, Response, RunEnd, RunFailure, RunOutput, RunRange,
    RunnerReport, TaskResult,
};

/// Details of an input or action.
pub(super) enum TraceSubject<'a> {
    Input(&'a Input),
    Action(&'a Action),
}

impl fmt::Display for TraceSubject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceSubject::Input(input) => about_input(f, input),
            TraceSubject::Action(action) => about_action(f, action),
        }
    }
}

pub fn input_kind(input: &Input) -> &'static str {
    match input {
        Input::Requested { .. } => "requested",
        Input::RequestAbandoned { .. } => "withdrawn",
        Input::Report { .. } => "reported",
        Input::DeliveryDone { .. } => "delivered",
        Input::Restore(_) => "recorded",
        Input::TimePassed => "time_passed",
    }
}

pub fn record_kind(record: &LedgerRecord) -> &'static str {
    match record {
        LedgerRecord::Submitted { .. } => "submitted",
        LedgerRecord::RunEnded { .. } => "run_ended",
        LedgerRecord::Truncated { .. } => "cut",
        LedgerRecord::Aborting { .. } => "given_up",
        LedgerRecord::DeliveryStarted { .. } => "offered",
        LedgerRecord::Closed(_) => "ended",
    }
}

pub fn action_kind(action: &Action) -> &'static str {
    match action {
        Action::StartRunner { .. } => "start_runner",
        Action::StopRunner { .. } => "stop_runner",
        Action::StartAttempt { .. } => "start_attempt",
        Action::CancelAttempt { .. } => "cancel_attempt",
        Action::DropPayload { .. } => "drop_payload",
        Action::ReleasePayloads(_) => "release_payloads",
        Action::Deliver { .. } => "deliver",
        Action::Respond { .. } => "answer",
        Action::AppendRecord(_) => "record",
        Action::DropTasks { .. } => "forget_tasks",
    }
}

pub fn report_kind(report: &RunnerReport) -> &'static str {
    match report {
        RunnerReport::Ready { .. } => "ready",
        RunnerReport::Heartbeat => "alive",
        RunnerReport::StartBlocked { .. } => "waits",
        RunnerReport::StartFailed { .. } => "start_failed",
        RunnerReport::Lost { .. } => "lost",
        RunnerReport::AttemptBegan { .. } => "began",
        RunnerReport::RunFinished { .. } => "finished",
        RunnerReport::AttemptEnded { .. } => "ended",
    }
}

pub(super) fn request_kind(what: &Request) -> &'static str {
    match what {
        Request::Schedule { .. } => "schedule",
        Request::Collect { .. } => "collect",
        Request::Drain { .. } => "drain",
        Request::Discard { .. } => "discard",
        Request::Submit { .. } => "submit",
        Request::Finalize { .. } => "finalize",
        Request::Abort { .. } => "abort",
        Request::CancelRun { .. } => "cancel_run",
        Request::WaitAll { .. } => "wait_all",
        Request::Start => "start",
        Request::Stop { .. } => "stop",
    }
}

pub fn answer_kind(answer: &Response) -> &'static str {
    match answer {
        Response::Scheduled { .. } => "scheduled",
        Response::Submitted { .. } => "submitted",
        Response::Collected(_) => "collected",
        Response::Discarded => "discarded",
        Response::Finalized(_) => "finalized",
        Response::Aborted(_) => "aborted",
        Response::RunCancelled(true) => "run_cancelled",
        Response::RunCancelled(false) => "no_run_cancelled",
        Response::AllEnded => "all_ended",
        Response::Started { .. } => "started",
        Response::Stopped(_) => "stopped",
        Response::Refused(refusal) => refusal_kind(refusal),
    }
}

fn refusal_kind(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::AlreadyActive { .. } => "refused:already_active",
        Refusal::NotRegistered { .. } => "refused:not_registered",
        Refusal::WrongBatchType { .. } => "refused:wrong_kind",
        Refusal::NotCollectable { .. } => "refused:not_collectable",
        Refusal::NoRuns { .. } => "refused:no_runs",
        Refusal::Limit { .. } => "refused:limit",
        Refusal::NotStarted => "refused:not_started",
        Refusal::Stopped => "refused:stopped",
        Refusal::TimedOut { .. } => "refused:timed_out",
        Refusal::TasksCancelled { .. } => "refused:cut_short",
        Refusal::WaitAllTimedOut { .. } => "refused:still_busy",
        Refusal::Aborted { .. } => "refused:aborted",
        Refusal::BatchFailed { .. } => "refused:batch_failed",
        Refusal::SinkFailed { .. } => "refused:sink_failed",
        Refusal::TooFewSucceeded { .. } => "refused:too_few_succeeded",
    }
}

fn about_input(f: &mut fmt::Formatter<'_>, input: &Input) -> fmt::Result {
    match input {
        Input::Requested { request, what } => {
            write!(f, "{request} {}", request_kind(what))?;
            about_request(f, what)
        }
        Input::RequestAbandoned { request } => write!(f, "{request}"),
        Input::Report { runner, incarnation, report } => {
            write!(f, "{runner} {incarnation} {}", report_kind(report))?;
            about_report(f, report)
        }
        Input::DeliveryDone { lease, delivery } => match delivery {
            DeliveryOutcome::Acknowledged { .. } => write!(f, "{lease} acknowledged"),
            DeliveryOutcome::Failed { message } => write!(f, "{lease} failed {message:?}"),
        },
        Input::Restore(record) => about_record(f, record),
        Input::TimePassed => Ok(()),
    }
}

fn about_request(f: &mut fmt::Formatter<'_>, what: &Request) -> fmt::Result {
    match what {
        Request::Schedule { batch, kind, tasks } => {
            write!(f, " {batch} {kind} ")?;
            about_tasks(f, tasks)
        }
        Request::Submit { batch, kind, tasks, min_wait_num } => {
            write!(f, " {batch} {kind} min={min_wait_num:?} ")?;
            about_tasks(f, tasks)
        }
        Request::Collect { batch, min_num, timeout, clear_timeout_tasks, return_partial_tasks } => {
            write!(
                f,
                " {batch} min={min_num:?} timeout={timeout:?} clear={clear_timeout_tasks} \
             partial={return_partial_tasks}"
            )
        }
        Request::Drain { batch } | Request::Discard { batch } => write!(f, " {batch}"),
        Request::Finalize { batch, kind, timeout } => {
            write!(f, " {batch} {kind} timeout={timeout:?}")
        }
        Request::Abort { batch, reason, keep_partial_results, unresponsive } => {
            write!(f, " {batch} {reason:?} keep={keep_partial_results} {unresponsive:?}")
        }
        Request::CancelRun { batch, task, run } => write!(f, " {batch} {task} {run}"),
        Request::WaitAll { timeout, clear_timeout_tasks } => {
            write!(f, " timeout={timeout:?} clear={clear_timeout_tasks}")
        }
        Request::Stop { timeout } => write!(f, " timeout={timeout:?}"),
        Request::Start => Ok(()),
    }
}

fn about_tasks(f: &mut fmt::Formatter<'_>, tasks: &[rollway_core::TaskSpec]) -> fmt::Result {
    f.write_str("tasks=")?;
    for (at, task) in tasks.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        write!(f, "{comma}{}x{}", task.workflow, task.repeat_times)?;
    }
    Ok(())
}

fn about_report(f: &mut fmt::Formatter<'_>, report: &RunnerReport) -> fmt::Result {
    match report {
        RunnerReport::Ready { after: Some(attempt) }
        | RunnerReport::AttemptBegan { attempt }
        | RunnerReport::AttemptEnded { attempt } => write!(f, " {attempt}"),
        RunnerReport::Ready { after: None }
        | RunnerReport::Heartbeat
        | RunnerReport::StartBlocked { reason: None } => Ok(()),
        RunnerReport::StartBlocked { reason: Some(message) }
        | RunnerReport::StartFailed { message } => {
            write!(f, " {message:?}")
        }
        RunnerReport::Lost { message, suspicion } => {
            write!(f, " {suspicion:?} {message:?}")
        }
        RunnerReport::RunFinished { attempt, run, outcome } => {
            write!(f, " {attempt} {run}")?;
            match outcome {
                Ok(RunOutput { payload: Some(payload), .. }) => {
                    f.write_str(" ")?;
                    about_payload(f, payload)
                }
                Ok(RunOutput { payload: None, .. }) => f.write_str(" ok"),
                Err(RunFailure { kind, message }) => write!(f, " {kind} {message:?}"),
            }
        }
    }
}

fn about_payload(f: &mut fmt::Formatter<'_>, payload: &Payload) -> fmt::Result {
    write!(f, "{} {}B", payload.id, payload.bytes)
}

fn about_action(f: &mut fmt::Formatter<'_>, action: &Action) -> fmt::Result {
    match action {
        Action::StartRunner { runner, incarnation, isolated } => {
            write!(f, "{runner} {incarnation} isolated={isolated}")
        }
        Action::StopRunner { runner, incarnation } => write!(f, "{runner} {incarnation}"),
        Action::StartAttempt {
            runner,
            incarnation,
            attempt,
            batch,
            task,
            runs,
            timeout,
            suspected_losses,
        } => {
            write!(f, "{runner} {incarnation} {attempt} {batch} {task} ")?;
            let RunRange { first, count } = runs;
            write!(f, "r{first}+{count} timeout={timeout:?} kills={suspected_losses}")
        }
        Action::CancelAttempt { runner, incarnation, attempt, reason } => {
            write!(f, "{runner} {incarnation} {attempt} ")?;
            match reason {
                AttemptCancelReason::Runs(reason) => write!(f, "{reason}"),
                AttemptCancelReason::Timeout => f.write_str("timeout"),
                AttemptCancelReason::BeginTimeout => f.write_str("not_begun"),
            }
        }
        Action::DropPayload { payload, reason } => {
            about_payload(f, payload)?;
            write!(f, " {reason}")
        }
        Action::ReleasePayloads(payloads) => {
            write!(f, "{}", payloads.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        }
        Action::Deliver { lease, batch, results } => {
            write!(f, "{lease} {batch}")?;
            about_results(f, results)
        }
        Action::Respond { request, answer } => {
            write!(f, "{request} {}", answer_kind(answer))?;
            about_answer(f, answer)
        }
        Action::AppendRecord(record) => about_record(f, record),
        Action::DropTasks { batch } => write!(f, "{batch}"),
    }
}

fn about_record(f: &mut fmt::Formatter<'_>, record: &LedgerRecord) -> fmt::Result {
    write!(f, "{} {}", record_kind(record), record.batch())?;
    match record {
        LedgerRecord::Submitted { id, kind, min_wait_num, tasks, .. } => {
            write!(f, " {id} {kind} tasks={} min={min_wait_num:?}", tasks.len())
        }
        LedgerRecord::RunEnded { task, run, ending, .. } => match ending {
            RunEnd::Succeeded(RunOutput { payload: Some(payload), .. }) => {
                write!(f, " {task} {run} ")?;
                about_payload(f, payload)
            }
            RunEnd::Succeeded(RunOutput { payload: None, .. }) => write!(f, " {task} {run} ok"),
            RunEnd::Failed(RunFailure { kind, message }) => {
                write!(f, " {task} {run} {kind} {message:?}")
            }
            RunEnd::Cancelled(reason) => write!(f, " {task} {run} {reason}"),
        },
        LedgerRecord::Truncated { reason, keep, .. } => write!(f, " {reason} keep={keep}"),
        LedgerRecord::Aborting { reason, .. } => write!(f, " {reason:?}"),
        LedgerRecord::DeliveryStarted { .. } => Ok(()),
        LedgerRecord::Closed(result) => about_batch(f, result),
    }
}

fn about_results(f: &mut fmt::Formatter<'_>, results: &[TaskResult]) -> fmt::Result {
    for TaskResult { task, status, payloads } in results {
        write!(f, " {task}:{}/{}", status.completed_runs, status.total_runs)?;
        for payload in payloads {
            write!(f, "+{}", payload.id)?;
        }
    }
    Ok(())
}

fn about_answer(f: &mut fmt::Formatter<'_>, answer: &Response) -> fmt::Result {
    match answer {
        Response::Scheduled { batch, first } => match batch {
            Some(batch) => write!(f, " {batch} {first}"),
            None => Ok(()),
        },
        Response::Submitted { batch } => write!(f, " {batch}"),
        Response::Collected(CollectedResults { outcome, lease, expected, results }) => {
            write!(f, " {outcome:?} expected={expected}")?;
            if let Some(lease) = lease {
                write!(f, " {lease}")?;
            }
            about_results(f, results)
        }
        Response::Finalized(result) | Response::Aborted(Some(result)) => about_batch(f, result),
        Response::Started { ready, wanted } => write!(f, " {ready}/{wanted}"),
        Response::Stopped(report) => write!(
            f,
            " pending={} running={} undelivered={}",
            report.pending_runs, report.running_runs, report.undelivered
        ),
        Response::Refused(refusal) => write!(f, " {refusal:?}"),
        Response::Discarded
        | Response::Aborted(None)
        | Response::RunCancelled(_)
        | Response::AllEnded => Ok(()),
    }
}

fn about_batch(f: &mut fmt::Formatter<'_>, result: &BatchResult) -> fmt::Result {
    let BatchResult { batch, key, tasks, delivered, uncertain, .. } = result;
    write!(
        f,
        " {batch} {key} ok={} partial={} failed={} cancelled={} delivered={delivered} \
         dropped={} uncertain={uncertain}",
        tasks.ok,
        tasks.partial,
        tasks.failed,
        tasks.cancelled,
        result.dropped.total()
    )
}
