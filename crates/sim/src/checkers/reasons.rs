//! Every cancellation, drop and stop has a true reason, and none comes too early.

use rollway_core::{
    Action, AttemptCancelReason, AttemptId, BatchKey, CancelReason, CollectOutcome, DropReason,
    GroupPolicy, Incarnation, Input, LedgerRecord, OnExhausted, Payload, Request, Response,
    RunnerId,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::{AttemptState, ModelRun, ModelSlot, Phase, Pool, RunState};

#[derive(Debug)]
pub(super) struct Reasons;

impl Checker for Reasons {
    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::CancelAttempt { attempt, reason, .. } => cancelled(ctx, *attempt, *reason),
            Action::DropPayload { payload, reason } => dropped(ctx, *payload, *reason),
            Action::StopRunner { runner, incarnation } => stopped(ctx, *runner, *incarnation),
            _ => Ok(()),
        }
    }
}

fn cancelled(ctx: &CheckContext<'_>, id: AttemptId, reason: AttemptCancelReason) -> CheckVerdict {
    let Some(attempt) = ctx.model.attempts.get(&id) else { return Ok(()) };
    let begin_timeout = ctx.model.config.supervision.begin_timeout;
    let right = match reason {
        AttemptCancelReason::Timeout => {
            attempt.begun && ctx.now >= attempt.since.after(attempt.timeout)
        }
        AttemptCancelReason::BeginTimeout => {
            !attempt.begun && ctx.now >= attempt.since.after(begin_timeout)
        }
        AttemptCancelReason::Runs(CancelReason::Requested) => requested(ctx, id),
        AttemptCancelReason::Runs(reason) => cut(ctx, attempt.batch, reason),
    };
    require!(right, "{id} is cancelled by {reason:?}: {attempt:?}");
    partial_is_kept(ctx, id, reason)
}

/// Returns whether a batch may be truncated for this reason.
fn cut(ctx: &CheckContext<'_>, key: BatchKey, reason: CancelReason) -> bool {
    let Some(batch) = ctx.model.batches.get(&key) else { return false };
    let policy = &ctx.model.config.failures;
    match reason {
        CancelReason::Aborted => batch.given_up,
        CancelReason::OverRollout | CancelReason::TimedOut => {
            let grace = ctx.model.config.over_rollout.wait_after_min;
            ctx.model.waiting().any(|(_, asked)| {
                let enough = match &asked.what {
                    Request::Finalize { batch: id, .. } if *id == batch.id => batch.min_wait_num,
                    Request::Collect { batch: id, min_num, .. } if *id == batch.id => *min_num,
                    Request::WaitAll { clear_timeout_tasks: true, .. } => None,
                    _ => return false,
                };
                let grace_over = enough.is_some() && ctx.now >= asked.at.after(grace);
                let time_up = ctx.now >= asked.time_up(ctx.model);
                time_up || (grace_over && reason == CancelReason::OverRollout)
            })
        }
        CancelReason::BatchFailed => {
            policy.rules.iter().any(|rule| rule.then == OnExhausted::FailBatch)
        }
        // `NoRoom` and `Stopped` cancel waiting runs only, `Requested` a single run.
        CancelReason::NoRoom | CancelReason::Stopped | CancelReason::Requested => false,
    }
}

/// Returns whether the input is a request to cancel a run of the attempt.
fn requested(ctx: &CheckContext<'_>, id: AttemptId) -> bool {
    let Input::Requested { what: Request::CancelRun { batch, task, run }, .. } = ctx.input else {
        return false;
    };
    let key = ctx.model.active.get(batch);
    let run = key.and_then(|key| ctx.model.run(*key, *task, run.0));
    run.is_some_and(|run| run.last == Some(id))
}

/// A truncated task yields its successful runs if the request wanted them, and only then.
fn partial_is_kept(
    ctx: &CheckContext<'_>,
    id: AttemptId,
    reason: AttemptCancelReason,
) -> CheckVerdict {
    let Some(attempt) = ctx.model.attempts.get(&id) else { return Ok(()) };
    if !matches!(
        reason,
        AttemptCancelReason::Runs(CancelReason::OverRollout | CancelReason::TimedOut)
    ) {
        return Ok(());
    }
    let (key, task) = (attempt.batch, attempt.task);
    if ctx.actions.iter().any(|action| clears(ctx, action)) {
        return Ok(());
    }
    let good = ctx.model.task(key, task);
    let good = good.is_some_and(|task| task.runs.iter().any(|run| run.succeeded()));
    let this =
        |action: &Action| matches!(action, Action::CancelAttempt { attempt, .. } if *attempt == id);
    // The first response after the truncation is the one that wanted it.
    let after = ctx.actions.iter().skip_while(|action| !this(action));
    for action in after {
        let (results, partial) = match action {
            Action::Deliver { batch, results, .. } if *batch == key => {
                (results, ctx.model.config.over_rollout.return_partial_tasks)
            }
            Action::Respond { request, answer: Response::Collected(collected) }
                if matches!(
                    collected.outcome,
                    CollectOutcome::TimedOut | CollectOutcome::Minimum
                ) =>
            {
                match ctx.model.requests.get(request).map(|asked| &asked.what) {
                    Some(Request::Collect { batch, return_partial_tasks, .. })
                        if ctx.model.latest.get(batch) == Some(&key) =>
                    {
                        (&collected.results, *return_partial_tasks)
                    }
                    _ => continue,
                }
            }
            _ => continue,
        };
        let there = results.iter().any(|result| result.task == task);
        require!(
            there == (good && partial),
            "{key} {task} was truncated with partial={partial}, good={good}, and there={there}"
        );
        break;
    }
    Ok(())
}

fn dropped(ctx: &CheckContext<'_>, payload: Payload, reason: DropReason) -> CheckVerdict {
    let origin = ctx.model.payloads.get(&payload.id).and_then(|kept| kept.origin);
    let Some(batch) = origin.and_then(|(key, ..)| ctx.model.batches.get(&key)) else {
        return Ok(());
    };
    let right = match reason {
        DropReason::Late | DropReason::Duplicate | DropReason::TooLarge | DropReason::Eval => true,
        DropReason::IncompleteGroup => ctx.model.config.failures.groups == GroupPolicy::Whole,
        DropReason::PartialTask => {
            let before =
                matches!(ctx.input, Input::Restore(LedgerRecord::Truncated { keep: false, .. }));
            before || ctx.actions.iter().any(|action| cuts(ctx, action))
        }
        DropReason::Aborted => batch.forgone,
        DropReason::Discarded => {
            matches!(ctx.input, Input::Requested { what: Request::Discard { .. }, .. })
        }
        DropReason::Stopped => ctx.model.pool == Pool::Stopped && batch.submitted,
    };
    require!(right, "payload {} of {} is dropped as {reason}", payload.id, batch.id);
    Ok(())
}

/// Returns whether an action answers a request that did not want unfinished tasks.
fn cuts(ctx: &CheckContext<'_>, action: &Action) -> bool {
    let keeps = ctx.model.config.over_rollout.return_partial_tasks;
    let Action::Respond { request, .. } = action else {
        return !keeps && matches!(action, Action::Deliver { .. });
    };
    match ctx.model.requests.get(request).map(|asked| &asked.what) {
        Some(Request::Collect { clear_timeout_tasks, return_partial_tasks, .. }) => {
            *clear_timeout_tasks && !return_partial_tasks
        }
        Some(Request::Finalize { .. }) => !keeps,
        _ => clears(ctx, action),
    }
}

/// Returns whether an action answers a request that cleared everything.
fn clears(ctx: &CheckContext<'_>, action: &Action) -> bool {
    let Action::Respond { request, answer: Response::Refused(_) } = action else { return false };
    let asked = ctx.model.requests.get(request).map(|asked| &asked.what);
    matches!(asked, Some(Request::WaitAll { clear_timeout_tasks: true, .. }))
}

/// A runner is stopped when it is lost, surplus, or has exceeded a timeout.
/// Returns whether an idle runner may be started again: in a process of its own for a suspect, or
/// in a shared one afterwards.
fn isolates(ctx: &CheckContext<'_>, slot: &ModelSlot) -> bool {
    let mut runs = ctx
        .model
        .active
        .values()
        .filter_map(|key| ctx.model.batches.get(key))
        .flat_map(|batch| batch.tasks.iter().flat_map(|task| &task.runs));
    let suspected = |run: &ModelRun| run.suspect && run.state == RunState::Back;
    slot.phase == Phase::Idle && (slot.isolated || runs.any(suspected))
}

fn stopped(ctx: &CheckContext<'_>, runner: RunnerId, incarnation: Incarnation) -> CheckVerdict {
    let Some(slot) = ctx.model.slots.get(&runner) else { return Ok(()) };
    let supervision = &ctx.model.config.supervision;
    let right = match ctx.input {
        _ if ctx.model.pool == Pool::Stopped => true,
        _ if isolates(ctx, slot) => true,
        Input::Report { runner: about, .. } => *about == runner,
        Input::TimePassed => {
            let silence = supervision.heartbeat_timeout;
            let silent = silence.is_some_and(|silence| ctx.now >= slot.last_report.after(silence));
            let late = match slot.phase {
                Phase::Starting => ctx.now >= slot.since.after(supervision.start_timeout),
                Phase::Given(attempt) => {
                    let grace = supervision.cancel_grace;
                    ctx.model.attempts.get(&attempt).is_some_and(|attempt| {
                        matches!(attempt.state, AttemptState::Cancelling(_))
                            && ctx.now >= attempt.since.after(grace)
                    })
                }
                Phase::Idle | Phase::Over => false,
            };
            let starting = slot.phase == Phase::Starting;
            // An idle runner may be surplus.
            let idle = !matches!(slot.phase, Phase::Given(_));
            let scaled = idle && ctx.model.config.scaling.is_some();
            late || scaled || (silent && !starting)
        }
        Input::Requested { what: Request::Stop { .. }, .. } => true,
        Input::Requested { .. }
        | Input::RequestAbandoned { .. }
        | Input::DeliveryDone { .. }
        | Input::Restore(_) => false,
    };
    require!(right, "{runner} {incarnation} is stopped: {slot:?}");
    Ok(())
}
