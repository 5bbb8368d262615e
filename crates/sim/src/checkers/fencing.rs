//! A result counts only while its attempt is current, and no run is executed by two runners.

use rollway_core::{
    Action, AttemptId, Incarnation, Input, Response, RunnerId, RunnerReport, TaskResult,
};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::{AttemptState, Phase, RunState};

#[derive(Debug)]
pub(super) struct Fencing;

impl Checker for Fencing {
    fn input(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let Input::Report { runner, incarnation, report } = ctx.input else { return Ok(()) };
        let right = must_accept(ctx, *runner, *incarnation, report);
        let accepted = if ctx.accepted { "accepted" } else { "ignored" };
        require!(
            ctx.accepted == right,
            "{runner} {incarnation} was {accepted} when it reported {report:?}"
        );
        Ok(())
    }

    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::StartAttempt { runner, incarnation, attempt, batch, task, runs, .. } => {
                require!(
                    !ctx.model.attempts.contains_key(attempt),
                    "attempt {attempt} is ordered twice"
                );
                for run in runs.iter() {
                    not_executed(ctx, (*runner, *incarnation), (*batch, *task, run.0))?;
                }
                Ok(())
            }
            Action::Deliver { results, .. } => come_from_current(ctx, results),
            Action::Respond { answer: Response::Collected(collected), .. } => {
                come_from_current(ctx, &collected.results)
            }
            _ => Ok(()),
        }
    }
}

fn must_accept(
    ctx: &CheckContext<'_>,
    runner: RunnerId,
    incarnation: Incarnation,
    report: &RunnerReport,
) -> bool {
    let Some(slot) = ctx.model.alive(runner, incarnation) else { return false };
    let standing = |attempt: &AttemptId| {
        let current = slot.phase == Phase::Given(*attempt);
        let attempt = ctx.model.attempts.get(attempt).filter(|_| current);
        attempt.filter(|attempt| attempt.state != AttemptState::Over)
    };
    match report {
        RunnerReport::RunFinished { attempt, run, .. } => {
            standing(attempt).is_some_and(|attempt| {
                attempt.state == AttemptState::Current && attempt.outstanding.contains(&run.0)
            })
        }
        RunnerReport::AttemptBegan { attempt } => standing(attempt)
            .is_some_and(|attempt| attempt.state == AttemptState::Current && !attempt.begun),
        RunnerReport::AttemptEnded { attempt } | RunnerReport::Ready { after: Some(attempt) } => {
            standing(attempt).is_some()
        }
        RunnerReport::Ready { after: None }
        | RunnerReport::StartFailed { .. }
        | RunnerReport::StartBlocked { .. } => slot.phase == Phase::Starting,
        RunnerReport::Lost { .. } | RunnerReport::Heartbeat => true,
    }
}

fn not_executed(
    ctx: &CheckContext<'_>,
    (runner, incarnation): (RunnerId, Incarnation),
    (batch, task, run): (rollway_core::BatchKey, rollway_core::TaskId, u32),
) -> CheckVerdict {
    let Some(record) = ctx.model.run(batch, task, run) else {
        return Err(format!("{batch} {task} has no run {run}"));
    };
    let last = record.last.and_then(|attempt| ctx.model.attempts.get(&attempt));
    let busy = last
        .is_some_and(|last| last.state != AttemptState::Over && last.outstanding.contains(&run));
    require!(!busy, "{batch} {task} run {run} is sent out while {:?} is not over", record.last);
    for ((other, at_incarnation), process) in ctx.processes.up() {
        let stopped = ctx.model.alive(other, at_incarnation).is_none();
        let works = process.work.as_ref().is_some_and(|work| {
            work.batch == batch && work.task == task && work.left.contains(&run)
        });
        require!(
            stopped || !works,
            "{batch} {task} {run} goes to {runner} {incarnation}, is at {other} {at_incarnation}"
        );
    }
    Ok(())
}

fn come_from_current(ctx: &CheckContext<'_>, results: &[TaskResult]) -> CheckVerdict {
    for result in results {
        for payload in &result.payloads {
            let Some(kept) = ctx.model.payloads.get(&payload.id) else {
                return Err(format!("payload {} was never received", payload.id));
            };
            let id = payload.id;
            require!(kept.accepted, "payload {id} goes out although its report did not count");
            let run = kept.origin.and_then(|(batch, task, run)| ctx.model.run(batch, task, run));
            let state = run.map(|run| run.state);
            let counted = matches!(
                state,
                Some(RunState::Succeeded { payload, .. }) if payload == Some(id)
            );
            require!(counted, "payload {id} goes out, its run is {state:?}");
        }
    }
    Ok(())
}
