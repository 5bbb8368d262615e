//! Timeouts of attempts, starts, cancels and deliveries are handled in time.

use std::time::Duration;

use rollway_core::{Action, AttemptCancelReason, BatchType, Input, Time};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::{AttemptState, Phase};

#[derive(Debug)]
pub(super) struct DeadlinesChecker;

impl Checker for DeadlinesChecker {
    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        let Action::StartAttempt { batch, timeout, .. } = action else { return Ok(()) };
        let (most, learns) = (ctx.model.config.max_timeout, ctx.model.config.dynamic_timeout);
        let kind = ctx.model.batches.get(batch).map(|batch| batch.kind);
        let learns_from = learns.enable && kind == Some(BatchType::Train);
        let least = if learns_from { learns.floor.min(most) } else { most };
        require!(
            *timeout >= least && *timeout <= most,
            "an attempt of {batch} gets {timeout:?}, not {least:?} to {most:?}"
        );
        if *timeout < most {
            learned(ctx, action)?;
        }
        Ok(())
    }

    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let next = ctx.core.next_deadline();
        if *ctx.input == Input::TimePassed {
            let due = next.filter(|deadline| deadline.at <= ctx.now);
            require!(due.is_none(), "time has passed, and {due:?} is still due");
        }
        let next = next.map_or(Time::MAX, |deadline| deadline.at);
        let in_time = |what: &str, since: Time, lasts: Duration| {
            let latest = since.after(lasts);
            require!(next <= latest, "{what} is noticed at {next}, not by {latest}");
            Ok(())
        };
        let supervision = &ctx.model.config.supervision;
        for view in ctx.core.runners() {
            let Some(slot) = ctx.model.slots.get(&view.runner) else { continue };
            match slot.phase {
                Phase::Starting => {
                    in_time("a slow start", view.since, supervision.start_timeout)?;
                }
                Phase::Given(attempt) => {
                    let Some(attempt) = ctx.model.attempts.get(&attempt) else { continue };
                    let (since, begun) = (attempt.since, attempt.begun);
                    match attempt.state {
                        AttemptState::Current if begun => {
                            in_time("a long attempt", since, attempt.timeout)?;
                        }
                        AttemptState::Current => {
                            in_time("a late begin", since, supervision.begin_timeout)?;
                        }
                        AttemptState::Cancelling(
                            AttemptCancelReason::Timeout | AttemptCancelReason::BeginTimeout,
                        ) => {
                            in_time("an unresponsive runner", since, supervision.cancel_grace)?;
                        }
                        // An abort may allow as much time as the attempt could have taken.
                        AttemptState::Cancelling(AttemptCancelReason::Runs(_)) => {
                            let most = attempt.timeout + supervision.begin_timeout;
                            in_time(
                                "an unresponsive runner",
                                since,
                                most + supervision.cancel_grace,
                            )?;
                        }
                        AttemptState::Over => {}
                    }
                }
                Phase::Over if ctx.model.fitted() => {
                    in_time("a rest", slot.ended, slot.rest(supervision))?;
                }
                Phase::Idle | Phase::Over => {}
            }
            let watched = matches!(slot.phase, Phase::Idle | Phase::Given(_));
            if let Some(silence) = supervision.heartbeat_timeout.filter(|_| watched) {
                in_time("a silent runner", view.last_report, silence)?;
            }
        }
        for lease in ctx.model.leases.values().filter(|lease| lease.open && lease.to_sink) {
            in_time("a slow sink", lease.since, ctx.model.config.delivery_timeout)?;
        }
        Ok(())
    }
}

/// A learned timeout follows from the durations of attempts at the same workflow, with as many runs
/// or more, after the warm-up.
fn learned(ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
    let Action::StartAttempt { batch, task, runs, timeout, .. } = action else { return Ok(()) };
    let Some(workflow) = ctx.model.task(*batch, *task).map(|task| task.spec.workflow) else {
        return Ok(());
    };
    let learns = ctx.model.config.dynamic_timeout;
    let steps = ctx.model.train_batches;
    require!(steps >= learns.warmup_min_steps, "{timeout:?} for {batch} after {steps} batches");
    let enough = learns.min_samples.clamp(1, learns.window.max(1)) as usize;
    let known = ctx.model.durations.range((workflow, runs.count)..=(workflow, u32::MAX));
    let known = known.map(|(_, durations)| durations).filter(|known| known.len() >= enough);
    let known: Vec<Duration> = known.flatten().copied().collect();
    let allowed = |took: Option<&Duration>| took.map(|took| took.mul_f64(learns.ratio));
    let (least, most) = (allowed(known.iter().min()), allowed(known.iter().max()));
    let slack = Duration::from_micros(1);
    let right = least.is_some_and(|least| *timeout + slack >= least.max(learns.floor))
        && most.is_some_and(|most| *timeout <= most.max(learns.floor) + slack);
    require!(right, "{timeout:?} for {batch} {task}, attempts allow {least:?} to {most:?}");
    Ok(())
}
