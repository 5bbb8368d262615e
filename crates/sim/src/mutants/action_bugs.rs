//! Bugs in the actions of the core.

use std::collections::BTreeSet;

use rollway_core::{
    Action, BatchKey, CancelReason, DropReason, FailureKind, Input, LeaseId, LedgerRecord, Request,
    RequestId, Response, RunFailure, RunRange, RunnerReport, RunnerState, TaskId,
};

use super::PendingActions;

/// Stops a busy runner at every deadline.
pub(super) fn busy_stopped(PendingActions { core, input, actions, .. }: PendingActions<'_>) {
    let busy = core.runners().find(|view| matches!(view.state, RunnerState::Busy(_)));
    if let (Input::TimePassed, Some(busy)) = (input, busy) {
        actions.push(Action::StopRunner { runner: busy.runner, incarnation: busy.incarnation });
    }
}

/// Gives an attempt to a busy runner.
pub(super) fn second_attempt(PendingActions { core, actions, .. }: PendingActions<'_>) {
    let busy = core.runners().find(|view| matches!(view.state, RunnerState::Busy(_)));
    let Some(busy) = busy else { return };
    let last = actions.iter_mut().rev().find_map(|action| match action {
        Action::StartAttempt { runner, incarnation, .. } if *runner != busy.runner => {
            Some((runner, incarnation))
        }
        _ => None,
    });
    if let Some((runner, incarnation)) = last {
        *runner = busy.runner;
        *incarnation = busy.incarnation;
    }
}

pub(super) fn answer_lost(PendingActions { memory, actions, .. }: PendingActions<'_>) {
    actions.retain(|action| {
        let answer = matches!(action, Action::Respond { .. });
        memory.count += u64::from(answer);
        !answer || !memory.count.is_multiple_of(7)
    });
}

/// Answers the waiters of an abort or a stop one step later.
pub(super) fn answer_late(PendingActions { memory, input, actions, .. }: PendingActions<'_>) {
    let given_up: Option<RequestId> = match input {
        Input::Requested { request, what: Request::Abort { .. } | Request::Stop { .. } } => {
            Some(*request)
        }
        _ => None,
    };
    let before = std::mem::take(&mut memory.held_back);
    if let Some(asked) = given_up {
        let other = |action: &Action| match action {
            Action::Respond { request, .. } => *request != asked,
            _ => false,
        };
        memory.held_back = actions.extract_if(.., |action| other(action)).collect();
    }
    actions.extend(before);
}

pub(super) fn attempts_exchanged(PendingActions { actions, .. }: PendingActions<'_>) {
    let starts = |action: &Action| matches!(action, Action::StartAttempt { .. });
    let first = actions.iter().position(starts);
    let second = first
        .and_then(|first| actions[first + 1..].iter().position(starts).map(|at| first + 1 + at));
    if let (Some(first), Some(second)) = (first, second) {
        actions.swap(first, second);
    }
}

/// Returns runs to their last runner, if it is idle.
pub(super) fn same_runner(PendingActions { memory, core, actions, .. }: PendingActions<'_>) {
    for action in actions {
        let Action::StartAttempt { runner, incarnation, batch, task, runs, .. } = action else {
            continue;
        };
        let place = (*batch, *task, runs.first);
        let last = memory.last_on.insert(place, *runner).and_then(|last| core.runner(last));
        if let Some(last) = last.filter(|last| last.state == RunnerState::Idle) {
            (*runner, *incarnation) = (last.runner, last.incarnation);
        }
    }
}

pub(super) fn dropped_early(PendingActions { actions, .. }: PendingActions<'_>) {
    let payload = actions.iter().find_map(|action| match action {
        Action::Deliver { results, .. } => {
            results.iter().flat_map(|result| &result.payloads).next().copied()
        }
        _ => None,
    });
    let reason = DropReason::Discarded;
    actions.extend(payload.map(|payload| Action::DropPayload { payload, reason }));
}

pub(super) fn delivered_twice(PendingActions { memory, actions, .. }: PendingActions<'_>) {
    let delivery = actions.iter().find_map(|action| match action {
        Action::Deliver { batch, results, .. } => Some((*batch, results.clone())),
        _ => None,
    });
    if let Some((batch, results)) = delivery {
        memory.count += 1;
        let lease = LeaseId(2_000_000 + memory.count);
        actions.push(Action::Deliver { lease, batch, results });
    }
}

/// Dispatches successful runs instead of others of their task.
pub(super) fn good_run_again(PendingActions { memory, input, actions, .. }: PendingActions<'_>) {
    if let Input::Report { report: RunnerReport::RunFinished { attempt, run, outcome }, .. } = input
        && let Some((batch, task)) = memory.attempts.get(attempt)
        && outcome.is_ok()
    {
        memory.succeeded.insert((*batch, *task, run.0));
    }
    for action in actions {
        let Action::StartAttempt { attempt, batch, task, runs, .. } = action else { continue };
        memory.attempts.insert(*attempt, (*batch, *task));
        replace_runs(&memory.succeeded, (*batch, *task), runs);
    }
}

/// Dispatches cancelled runs instead of others of their task.
pub(super) fn cancelled_run_again(
    PendingActions { memory, core, input, actions }: PendingActions<'_>,
) {
    if let Input::Requested { what: Request::CancelRun { batch, task, run }, .. } = input
        && actions.iter().any(|action| {
            matches!(action, Action::Respond { answer: Response::RunCancelled(true), .. })
        })
        && let Some(view) = core.batch(batch)
    {
        memory.cancelled.insert((view.key, *task, run.0));
    }
    for action in actions {
        let Action::StartAttempt { batch, task, runs, .. } = action else { continue };
        replace_runs(&memory.cancelled, (*batch, *task), runs);
    }
}

/// Replaces the runs of an attempt by the first of `others` of the same task.
fn replace_runs(
    others: &BTreeSet<(BatchKey, TaskId, u32)>,
    (batch, task): (BatchKey, TaskId),
    runs: &mut RunRange,
) {
    if let Some((.., run)) = others.range((batch, task, 0)..=(batch, task, u32::MAX)).next() {
        *runs = RunRange { first: *run, count: 1 };
    }
}

/// Removes a payload of each task with a cancelled run from deliveries.
pub(super) fn sibling_result_lost(PendingActions { actions, .. }: PendingActions<'_>) {
    for action in actions {
        let Action::Deliver { results, .. } = action else { continue };
        for result in results {
            if result.status.cancelled_runs[CancelReason::Requested] > 0 {
                result.payloads.pop();
            }
        }
    }
}

pub(super) fn ending_unrecorded(PendingActions { memory, actions, .. }: PendingActions<'_>) {
    actions.retain(|action| {
        let ending = matches!(action, Action::AppendRecord(LedgerRecord::RunEnded { .. }));
        memory.count += u64::from(ending);
        !ending || !memory.count.is_multiple_of(5)
    });
}

/// Lets one invalid output keep every later delivery from the sink.
pub(super) fn blocked_after_invalid_output(it: PendingActions<'_>) {
    if let Input::Report {
        report:
            RunnerReport::RunFinished {
                outcome: Err(RunFailure { kind: FailureKind::InvalidOutput, .. }),
                ..
            },
        ..
    } = it.input
    {
        it.memory.count += 1;
    }
    if it.memory.count > 0 {
        it.actions.retain(|action| !matches!(action, Action::Deliver { .. }));
    }
}
