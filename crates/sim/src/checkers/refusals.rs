//! Every refusal has a reason that the model confirms, and every request that must be refused is.

use rollway_core::{Action, BatchId, BatchType, Input, Request, RequestId, Response, TaskSpec};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::Pool;
use crate::trace::answer_kind;

#[derive(Debug)]
pub(super) struct Refusals;

impl Checker for Refusals {
    fn input(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let Input::Requested { request, what } = ctx.input else { return Ok(()) };
        if !ctx.accepted {
            return Ok(());
        }
        let ExpectedRefusals { required, allowed } = expected_refusals(ctx, what);
        let refusal = answer_to(ctx, *request).filter(|answer| answer.starts_with("refused:"));
        let Some(refusal) = refusal else {
            require!(required.is_empty(), "{what:?} is accepted although {required:?}");
            return Ok(());
        };
        let known =
            required.contains(&refusal) || allowed.contains(&refusal) || follows_a_wait(refusal);
        require!(known, "{what:?} is {refusal}, not {required:?} or {allowed:?}");
        Ok(())
    }

    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        let Action::Respond { request, answer: answer @ Response::Refused(_) } = action else {
            return Ok(());
        };
        let now = matches!(ctx.input, Input::Requested { request: asked, .. } if asked == request);
        if now {
            return Ok(());
        }
        let refusal = answer_kind(answer);
        let batch = ctx
            .model
            .requests
            .get(request)
            .and_then(|asked| ctx.model.latest_batch(asked.batch()?));
        let right = match refusal {
            "refused:stopped" => ctx.model.pool != Pool::Running,
            "refused:aborted" => batch.is_none_or(|batch| batch.given_up),
            refusal => follows_a_wait(refusal),
        };
        require!(right, "{request} waited and is {refusal}");
        Ok(())
    }
}

/// Reasons to refuse a request.
#[derive(Default)]
struct ExpectedRefusals {
    /// It must be refused, for one of these.
    required: Vec<&'static str>,
    allowed: Vec<&'static str>,
}

fn expected_refusals(ctx: &CheckContext<'_>, what: &Request) -> ExpectedRefusals {
    let mut found = ExpectedRefusals::default();
    let ExpectedRefusals { required, allowed } = &mut found;
    let active = |id: &BatchId| ctx.model.batches.get(ctx.model.active.get(id)?);
    match what {
        Request::Submit { batch, tasks, .. } => {
            match ctx.model.pool {
                Pool::New => required.push("refused:not_started"),
                Pool::Stopped => required.push("refused:stopped"),
                Pool::Running => {}
            }
            if active(batch).is_some() {
                required.push("refused:already_active");
            }
            tasks_object(ctx, tasks, &mut found);
        }
        Request::Schedule { batch, kind, tasks } if !tasks.is_empty() => {
            if ctx.model.pool == Pool::Stopped {
                required.push("refused:stopped");
            }
            match active(batch) {
                Some(batch) if batch.submitted => required.push("refused:already_active"),
                Some(batch) if batch.kind != *kind => required.push("refused:wrong_kind"),
                _ => {}
            }
            tasks_object(ctx, tasks, &mut found);
        }
        Request::Finalize { batch, kind, .. } => {
            known_objects(ctx, batch, *kind, &mut found);
            waiters_object(ctx, &mut found);
        }
        Request::Collect { batch, .. } | Request::Drain { batch } | Request::Discard { batch } => {
            if active(batch).is_some_and(|batch| batch.submitted) {
                required.push("refused:not_collectable");
            }
            if matches!(what, Request::Collect { .. }) {
                waiters_object(ctx, &mut found);
            }
        }
        Request::WaitAll { .. } => waiters_object(ctx, &mut found),
        Request::Start if ctx.model.pool == Pool::Stopped => allowed.push("refused:stopped"),
        Request::Schedule { .. }
        | Request::Start
        | Request::Stop { .. }
        | Request::CancelRun { .. }
        | Request::Abort { .. } => {}
    }
    found
}
fn tasks_object(
    ctx: &CheckContext<'_>,
    tasks: &[TaskSpec],
    ExpectedRefusals { required, allowed }: &mut ExpectedRefusals,
) {
    let limits = &ctx.model.config.limits;
    if tasks.iter().any(|task| task.repeat_times == 0) {
        required.push("refused:no_runs");
    }
    if tasks.iter().any(|task| task.repeat_times > limits.runs_per_task) {
        required.push("refused:limit");
    }
    // The limits checker decides whether these are exceeded; here they are possible reasons.
    let open: u64 = ctx.core.batches().map(|view| view.open_tasks).sum();
    let full = ctx.model.active.len() as u64 >= u64::from(limits.batches);
    if full || open + tasks.len() as u64 > limits.open_tasks {
        allowed.push("refused:limit");
    }
}

fn waiters_object(ctx: &CheckContext<'_>, ExpectedRefusals { allowed, .. }: &mut ExpectedRefusals) {
    if ctx.model.open.len() as u64 >= u64::from(ctx.model.config.limits.waiters) {
        allowed.push("refused:limit");
    }
    if ctx.model.pool == Pool::Stopped {
        allowed.push("refused:stopped");
    }
}

fn known_objects(
    ctx: &CheckContext<'_>,
    id: &BatchId,
    kind: BatchType,
    found: &mut ExpectedRefusals,
) {
    let ExpectedRefusals { required, allowed } = found;
    let Some(batch) = ctx.model.latest_batch(id).filter(|batch| batch.submitted) else {
        return required.push("refused:not_registered");
    };
    if batch.forgotten {
        allowed.push("refused:not_registered");
    }
    if batch.kind != kind {
        // The type of a removed batch is unknown.
        let to = if batch.forgotten { allowed } else { required };
        return to.push("refused:wrong_kind");
    }
    if batch.given_up {
        allowed.push("refused:aborted");
    }
}

fn answer_to(ctx: &CheckContext<'_>, request: RequestId) -> Option<&'static str> {
    ctx.actions.iter().find_map(|action| match action {
        Action::Respond { request: to, answer } if *to == request => Some(answer_kind(answer)),
        _ => None,
    })
}

/// Returns whether a refusal ends a wait; the other checkers look at it.
fn follows_a_wait(refusal: &str) -> bool {
    matches!(
        refusal,
        "refused:timed_out"
            | "refused:cut_short"
            | "refused:batch_failed"
            | "refused:sink_failed"
            | "refused:too_few_succeeded"
            | "refused:still_busy"
    )
}
