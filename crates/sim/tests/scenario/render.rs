//! Text of actions, one line each; results follow on their own lines.

use rollway_core::{
    Action, AttemptCancelReason, CollectOutcome, CollectedResults, LedgerRecord, Refusal, Response,
    RunEnd, RunFailure, RunOutput, RunRange, StopReport,
};

use super::labels::{self, ScenarioLabels, batch_id, seconds};
use super::results;

pub(super) fn action(action: &Action, names: &ScenarioLabels, lines: &mut Vec<String>) {
    match action {
        Action::StartRunner { runner, incarnation, isolated } => {
            let alone = if *isolated { " isolated" } else { "" };
            lines.push(format!("start {}{alone}", labels::runner(*runner, *incarnation)));
        }
        Action::StopRunner { runner, incarnation } => {
            lines.push(format!("stop {}", labels::runner(*runner, *incarnation)));
        }
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
            let (runner, batch) = (labels::runner(*runner, *incarnation), names.batch(*batch));
            let (runs, timeout) = (run_ranges(runs), seconds(*timeout));
            let suspect = match suspected_losses {
                0 => String::new(),
                suspected_losses => format!(", suspected of {suspected_losses} lost"),
            };
            let attempt = labels::attempt(*attempt);
            lines.push(format!(
                "run {attempt} on {runner}: {batch}/{task} {runs} within {timeout}{suspect}"
            ));
        }
        Action::CancelAttempt { runner, incarnation, attempt, reason } => {
            let (runner, reason) = (labels::runner(*runner, *incarnation), cancel(*reason));
            let attempt = labels::attempt(*attempt);
            lines.push(format!("cancel {attempt} on {runner}: {reason}"));
        }
        Action::DropPayload { payload, reason } => {
            lines.push(format!("drop {} ({} B): {reason}", payload.id, payload.bytes));
        }
        // Follows from the acknowledgement.
        Action::ReleasePayloads(_) => {}
        Action::Deliver { lease, batch, results } => {
            let (lease, batch) = (labels::lease(*lease), names.batch(*batch));
            lines.push(format!("deliver {lease} of {batch}"));
            results::tasks(results, lines);
        }
        Action::Respond { request, answer } => {
            let at = lines.len();
            self::answer(answer, names, lines, &names.request_label(*request));
            lines[at] = format!("{request}: {}", lines[at]);
        }
        Action::AppendRecord(record) => {
            lines.push(format!("record {}", self::record(record, names)))
        }
        Action::DropTasks { batch } => lines.push(format!("forget {}", names.batch(*batch))),
    }
}

fn record(record: &LedgerRecord, names: &ScenarioLabels) -> String {
    let batch = names.batch(record.batch());
    match record {
        LedgerRecord::Submitted { id, kind, tasks, .. } => {
            format!("submitted {}: {kind}, tasks {}", batch_id(id), tasks.len())
        }
        LedgerRecord::RunEnded { task, run, ending, .. } => {
            let ending = match ending {
                RunEnd::Succeeded(RunOutput { payload: Some(payload), .. }) => {
                    format!("ok {}", payload.id)
                }
                RunEnd::Succeeded(RunOutput { payload: None, .. }) => "ok".to_owned(),
                RunEnd::Failed(RunFailure { kind, message }) => format!("{kind}: {message}"),
                RunEnd::Cancelled(reason) => format!("cancelled {reason}"),
            };
            format!("{batch}/{task} {run} {ending}")
        }
        LedgerRecord::Truncated { reason, keep, .. } => {
            let keep = if *keep { ", good runs kept" } else { "" };
            format!("cut {batch}: {reason}{keep}")
        }
        LedgerRecord::Aborting { reason, .. } => format!("given up {batch}: {reason}"),
        LedgerRecord::DeliveryStarted { .. } => format!("offered {batch}"),
        LedgerRecord::Closed(result) => format!("ended {batch}: {}", result.state),
    }
}

fn cancel(reason: AttemptCancelReason) -> String {
    match reason {
        AttemptCancelReason::Runs(reason) => reason.to_string(),
        AttemptCancelReason::Timeout => "timeout".to_owned(),
        AttemptCancelReason::BeginTimeout => "not begun".to_owned(),
    }
}

fn run_ranges(runs: &RunRange) -> String {
    let all: Vec<u32> = runs.iter().map(|run| run.0).collect();
    let mut parts: Vec<String> = Vec::new();
    for part in all.chunk_by(|a, b| a + 1 == *b) {
        parts.push(match part {
            [first, .., last] => format!("r{first}-{last}"),
            _ => part.iter().map(|run| format!("r{run}")).collect(),
        });
    }
    parts.join(" ")
}

fn answer(answer: &Response, names: &ScenarioLabels, lines: &mut Vec<String>, asked: &str) {
    let line = match answer {
        Response::Scheduled { batch: None, .. } => "scheduled nothing".to_owned(),
        Response::Scheduled { batch: Some(batch), first } => {
            format!("scheduled {} from {first}", names.batch(*batch))
        }
        Response::Submitted { batch } => format!("submitted {}", names.batch(*batch)),
        Response::Collected(collected) => return self::collected(collected, asked, lines),
        Response::Discarded => format!("discarded {asked}"),
        Response::Finalized(result) | Response::Aborted(Some(result)) => {
            return results::batch(result, names, lines);
        }
        Response::RunCancelled(true) => format!("cancelled a run of {asked}"),
        Response::RunCancelled(false) => format!("no run of {asked} to cancel"),
        Response::Aborted(None) => format!("aborted {asked}, no result"),
        Response::AllEnded => "all ended".to_owned(),
        Response::Started { ready, wanted } => format!("started {ready} of {wanted}"),
        Response::Stopped(report) => stopped(report),
        Response::Refused(refusal) => format!("refused: {}", self::refusal(refusal)),
    };
    lines.push(line);
}

fn collected(collected: &CollectedResults, asked: &str, lines: &mut Vec<String>) {
    let CollectedResults { outcome, lease, expected, results } = collected;
    let outcome = match outcome {
        CollectOutcome::Complete => "complete".to_owned(),
        CollectOutcome::Minimum => "minimum".to_owned(),
        CollectOutcome::TimedOut => "timed out".to_owned(),
        CollectOutcome::Aborted => "aborted".to_owned(),
        CollectOutcome::BatchFailed(kind) => format!("batch failed ({kind})"),
        CollectOutcome::Polled => "polled".to_owned(),
    };
    let lease = lease.map_or_else(String::new, |lease| format!(" as {}", labels::lease(lease)));
    let have = results.len();
    lines.push(format!("collected {asked}: {outcome}, {have} of {expected}{lease}"));
    results::tasks(results, lines);
}

fn stopped(report: &StopReport) -> String {
    let StopReport { pending_runs, running_runs, undelivered, batches } = report;
    let mut parts = Vec::new();
    for (count, what) in [
        (pending_runs, "runs not begun"),
        (running_runs, "runs cut off"),
        (undelivered, "payloads not delivered"),
    ] {
        if *count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    if !batches.is_empty() {
        let batches: Vec<String> = batches.iter().map(batch_id).collect();
        parts.push(format!("batches {}", batches.join(" ")));
    }
    if parts.is_empty() {
        return "stopped".to_owned();
    }
    format!("stopped: {}", parts.join(", "))
}

fn refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::AlreadyActive { batch } => format!("{} is already active", batch_id(batch)),
        Refusal::NotRegistered { batch } => format!("{} is not registered", batch_id(batch)),
        Refusal::WrongBatchType { batch, kind, expected } => {
            format!("{} is {kind}, expected {expected}", batch_id(batch))
        }
        Refusal::NotCollectable { batch } => {
            format!("{} was submitted, not scheduled", batch_id(batch))
        }
        Refusal::NoRuns { task } => format!("task {task} wants no runs"),
        Refusal::Limit { limit, value, max } => format!("{limit} {value}, at most {max}"),
        Refusal::NotStarted => "not started".to_owned(),
        Refusal::Stopped => "stopped".to_owned(),
        Refusal::TimedOut { batch, state, finished, needed, expected, serving } => {
            let batch = batch_id(batch);
            format!(
                "{batch} timed out while {state}: finished {finished}, needed {needed} of \
                 {expected}, {serving} runners"
            )
        }
        Refusal::TasksCancelled { batch, finished, needed, expected } => {
            let batch = batch_id(batch);
            format!("{batch} was cut short: finished {finished}, needed {needed} of {expected}")
        }
        Refusal::WaitAllTimedOut { pending, running } => {
            format!("still busy: {pending} pending, {running} running")
        }
        Refusal::Aborted { batch, reason } => {
            format!("{} was aborted: {reason}", batch_id(batch))
        }
        Refusal::BatchFailed { batch, kind, message } => {
            format!("{} failed: {kind}: {message}", batch_id(batch))
        }
        Refusal::SinkFailed { batch, message } => {
            format!("the sink did not take {}: {message}", batch_id(batch))
        }
        Refusal::TooFewSucceeded { batch, succeeded, needed } => {
            let batch = batch_id(batch);
            format!("too few of {batch} succeeded: {succeeded}, needed {needed}")
        }
    }
}
