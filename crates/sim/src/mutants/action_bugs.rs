//! Bugs in what the core orders.

use std::sync::Arc;

use rollway_core::{
    Action, AttemptCancelReason, BatchResult, CancelReason, DropReason, Input, LeaseId,
    LedgerRecord, Refusal, Request, RequestId, Response, RunEnd, RunRange, RunnerReport,
    RunnerState, Status,
};

use super::PendingActions;

pub(super) fn stop_forgotten(PendingActions { actions, .. }: PendingActions<'_>) {
    actions.retain(|action| !matches!(action, Action::StopRunner { .. }));
}

pub(super) fn start_swallowed(PendingActions { actions, .. }: PendingActions<'_>) {
    actions.retain(|action| !matches!(action, Action::StartRunner { .. }));
}

/// Stops a busy runner whenever time passes.
pub(super) fn busy_stopped(PendingActions { core, input, actions, .. }: PendingActions<'_>) {
    let busy = core.runners().find(|view| matches!(view.state, RunnerState::Busy(_)));
    if let (Input::TimePassed, Some(busy)) = (input, busy) {
        actions.push(Action::StopRunner { runner: busy.runner, life: busy.life });
    }
}

/// Gives an attempt to somebody who is busy.
pub(super) fn second_attempt(PendingActions { core, actions, .. }: PendingActions<'_>) {
    let busy = core.runners().find(|view| matches!(view.state, RunnerState::Busy(_)));
    let Some(busy) = busy else { return };
    let last = actions.iter_mut().rev().find_map(|action| match action {
        Action::StartAttempt { runner, life, .. } if *runner != busy.runner => Some((runner, life)),
        _ => None,
    });
    if let Some((runner, life)) = last {
        *runner = busy.runner;
        *life = busy.life;
    }
}

pub(super) fn cancel_twice(PendingActions { actions, .. }: PendingActions<'_>) {
    let again = actions.iter().find(|action| matches!(action, Action::CancelAttempt { .. }));
    actions.extend(again.cloned());
}

pub(super) fn task_too_many(PendingActions { actions, .. }: PendingActions<'_>) {
    spoil_results(actions, |result| result.tasks.ok += 1);
}

pub(super) fn run_too_few(PendingActions { actions, .. }: PendingActions<'_>) {
    spoil_results(actions, |result| {
        result.runs.submitted = result.runs.submitted.saturating_sub(1);
    });
}

pub(super) fn tasks_reversed(PendingActions { actions, .. }: PendingActions<'_>) {
    spoil_results(actions, |result| result.statuses.reverse());
}

pub(super) fn metrics_reversed(PendingActions { actions, .. }: PendingActions<'_>) {
    spoil_results(actions, |result| {
        for (_, status) in &mut result.statuses {
            let mut spoiled = Status::clone(status);
            spoiled.run_metrics.reverse();
            *status = Arc::new(spoiled);
        }
    });
}

pub(super) fn ends_twice(PendingActions { actions, .. }: PendingActions<'_>) {
    let end = actions.iter().find(|action| matches!(action, Action::DropTasks { .. }));
    actions.extend(end.cloned());
}

pub(super) fn answer_lost(PendingActions { memory, actions, .. }: PendingActions<'_>) {
    actions.retain(|action| {
        let answer = matches!(action, Action::Respond { .. });
        memory.count += u64::from(answer);
        !answer || !memory.count.is_multiple_of(7)
    });
}

pub(super) fn answer_twice(PendingActions { actions, .. }: PendingActions<'_>) {
    let answer = actions.iter().find(|action| matches!(action, Action::Respond { .. }));
    actions.extend(answer.cloned());
}

/// Lets those who wait for what is given up wait for one more step.
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

pub(super) fn attempts_reversed(PendingActions { actions, .. }: PendingActions<'_>) {
    actions.reverse();
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

/// Tells those whose time is up that all is stopped.
pub(super) fn stopped_for_no_reason(PendingActions { actions, .. }: PendingActions<'_>) {
    for action in actions {
        if let Action::Respond { answer: Response::Refused(refusal), .. } = action
            && matches!(refusal, Refusal::TimedOut { .. } | Refusal::AlreadyActive { .. })
        {
            *refusal = Refusal::Stopped;
        }
    }
}

pub(super) fn wrong_cancel(PendingActions { actions, .. }: PendingActions<'_>) {
    for action in actions {
        if let Action::CancelAttempt { reason: reason @ AttemptCancelReason::Timeout, .. } = action
        {
            *reason = AttemptCancelReason::BeginTimeout;
        }
    }
}

pub(super) fn stop_hides(PendingActions { actions, .. }: PendingActions<'_>) {
    for action in actions {
        if let Action::Respond { answer: Response::Stopped(report), .. } = action {
            report.undelivered = 0;
        }
    }
}

/// Sends runs back to the runner they were last on, if it is idle.
pub(super) fn same_runner(PendingActions { memory, core, actions, .. }: PendingActions<'_>) {
    for action in actions {
        let Action::StartAttempt { runner, life, batch, task, runs, .. } = action else { continue };
        let place = (*batch, *task, runs.first);
        let last = memory.last_on.insert(place, *runner).and_then(|last| core.runner(last));
        if let Some(last) = last.filter(|last| last.state == RunnerState::Idle) {
            (*runner, *life) = (last.runner, last.life);
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

pub(super) fn task_left_out(PendingActions { actions, .. }: PendingActions<'_>) {
    for action in actions {
        if let Action::Deliver { results, .. } = action {
            results.pop();
        }
    }
}

pub(super) fn never_released(PendingActions { actions, .. }: PendingActions<'_>) {
    actions.retain(|action| !matches!(action, Action::ReleasePayloads(_)));
}

pub(super) fn late_kept(PendingActions { actions, .. }: PendingActions<'_>) {
    actions
        .retain(|action| !matches!(action, Action::DropPayload { reason: DropReason::Late, .. }));
}

/// Sends runs out again instead of others of their task.
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
        let good = memory.succeeded.range((*batch, *task, 0)..=(*batch, *task, u32::MAX)).next();
        if let Some((.., run)) = good {
            *runs = RunRange { first: *run, count: 1 };
        }
    }
}

/// Sends runs out again that were cancelled, instead of others of their task.
pub(super) fn cancelled_run_again(
    PendingActions { memory, core, input, actions }: PendingActions<'_>,
) {
    if let Input::Requested { what: Request::CancelRun { batch, task, run }, .. } = input
        && actions.iter().any(says_cancelled)
        && let Some(view) = core.batch(batch)
    {
        memory.cancelled.insert((view.key, *task, run.0));
    }
    for action in actions {
        let Action::StartAttempt { batch, task, runs, .. } = action else { continue };
        let gone = memory.cancelled.range((*batch, *task, 0)..=(*batch, *task, u32::MAX)).next();
        if let Some((.., run)) = gone {
            *runs = RunRange { first: *run, count: 1 };
        }
    }
}

/// Leaves out of deliveries what a task yielded some of whose runs were cancelled.
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

pub(super) fn cancel_denied(PendingActions { actions, .. }: PendingActions<'_>) {
    for action in actions {
        if let Action::Respond { answer: Response::RunCancelled(told), .. } = action {
            *told = false;
        }
    }
}

pub(super) fn cancel_unrecorded(PendingActions { actions, .. }: PendingActions<'_>) {
    let requested = RunEnd::Cancelled(CancelReason::Requested);
    actions.retain(|action| match action {
        Action::AppendRecord(LedgerRecord::RunEnded { ending, .. }) => *ending != requested,
        _ => true,
    });
}

fn says_cancelled(action: &Action) -> bool {
    matches!(action, Action::Respond { answer: Response::RunCancelled(true), .. })
}

pub(super) fn ending_unrecorded(PendingActions { memory, actions, .. }: PendingActions<'_>) {
    actions.retain(|action| {
        let ending = matches!(action, Action::AppendRecord(LedgerRecord::RunEnded { .. }));
        memory.count += u64::from(ending);
        !ending || !memory.count.is_multiple_of(5)
    });
}

pub(super) fn cut_unrecorded(PendingActions { actions, .. }: PendingActions<'_>) {
    actions
        .retain(|action| !matches!(action, Action::AppendRecord(LedgerRecord::Truncated { .. })));
}

pub(super) fn offer_unrecorded(PendingActions { actions, .. }: PendingActions<'_>) {
    actions.retain(|action| {
        !matches!(action, Action::AppendRecord(LedgerRecord::DeliveryStarted { .. }))
    });
}

pub(super) fn records_last(PendingActions { actions, .. }: PendingActions<'_>) {
    actions.sort_by_key(|action| matches!(action, Action::AppendRecord(_)));
}

fn spoil_results(actions: &mut [Action], spoil: impl Fn(&mut BatchResult)) {
    for action in actions {
        if let Action::Respond { answer: Response::Finalized(result), .. } = action {
            let mut spoiled = BatchResult::clone(result);
            spoil(&mut spoiled);
            *result = Arc::new(spoiled);
        }
    }
}
