//! A runner is in exactly one state, changes it only in legal ways, is idle only after its own
//! report, and never has two attempts.

use std::collections::BTreeMap;

use rollway_core::{Action, Incarnation, Input, RunnerId, RunnerReport, RunnerState, RunnerView};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::ledger::SimLedger;
use crate::reference_model::{AttemptState, Phase};

#[derive(Debug, Default)]
pub(super) struct RunnerStatesChecker {
    seen: BTreeMap<RunnerId, (Incarnation, RunnerState)>,
}

impl Checker for RunnerStatesChecker {
    fn crashed(&mut self, _: &SimLedger) {
        self.seen.clear();
    }

    fn action(&mut self, ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        match action {
            Action::StartAttempt { runner, incarnation, attempt, .. } => {
                let phase = ctx.model.alive(*runner, *incarnation).map(|slot| slot.phase);
                require!(
                    phase == Some(Phase::Idle),
                    "{runner} {incarnation} gets {attempt} and is {phase:?}"
                );
                let process = ctx.processes.get((*runner, *incarnation));
                let work = process.and_then(|process| process.work.as_ref());
                require!(work.is_none(), "{runner} {incarnation} gets {attempt} and has {work:?}");
            }
            Action::CancelAttempt { runner, incarnation, attempt, .. } => {
                let phase = ctx.model.alive(*runner, *incarnation).map(|slot| slot.phase);
                let state = ctx.model.attempts.get(attempt).map(|attempt| attempt.state);
                require!(
                    phase == Some(Phase::Given(*attempt)) && state == Some(AttemptState::Current),
                    "{attempt} is cancelled on {runner} {incarnation}: {phase:?}, {state:?}"
                );
            }
            Action::StartRunner { runner, incarnation, .. } => {
                let before = ctx.model.slots.get(runner);
                require!(
                    before.is_none_or(
                        |slot| slot.phase == Phase::Over && slot.incarnation < *incarnation
                    ),
                    "{runner} {incarnation} is started while there is {before:?}"
                );
                let supervision = &ctx.model.config.supervision;
                let rests = before.filter(|_| ctx.model.fitted());
                let rests = rests.map(|slot| slot.ended.after(slot.rest(supervision)));
                require!(
                    rests.is_none_or(|until| ctx.now >= until),
                    "{runner} {incarnation} is started before {rests:?}: {before:?}"
                );
            }
            Action::StopRunner { runner, incarnation } => {
                let current = ctx.model.slots.get(runner).map(|slot| slot.incarnation);
                require!(
                    current == Some(*incarnation),
                    "{runner} {incarnation} is stopped, not {current:?}"
                );
            }
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        message_is_shown(ctx)?;
        for view in ctx.core.runners() {
            matches_model(ctx, &view)?;
            let now = (view.incarnation, view.state);
            let before = self.seen.insert(view.runner, now);
            if let Some(before) = before.filter(|before| *before != now) {
                let scales = ctx.model.config.scaling.is_some();
                require!(
                    legal(before, now, scales),
                    "{} went from {before:?} to {now:?}",
                    view.runner
                );
            }
        }
        Ok(())
    }
}

/// A lost runner, or one whose start failed, shows the reason.
fn message_is_shown(ctx: &CheckContext<'_>) -> CheckVerdict {
    let Input::Report { runner, incarnation, report } = ctx.input else { return Ok(()) };
    let (RunnerReport::Lost { message, .. } | RunnerReport::StartFailed { message }) = report
    else {
        return Ok(());
    };
    let Some(view) = ctx.core.runner(*runner).filter(|_| ctx.accepted) else { return Ok(()) };
    let shown = view.message.as_deref();
    // With scaling, another runner may use the slot at once.
    let another = ctx.model.config.scaling.is_some() && view.incarnation != *incarnation;
    let right = another || shown.is_some_and(|shown| message.starts_with(shown));
    require!(right, "{runner} was lost by {message:?} and shows {shown:?}");
    Ok(())
}

fn matches_model(ctx: &CheckContext<'_>, view: &RunnerView) -> CheckVerdict {
    let Some(slot) = ctx.model.slots.get(&view.runner) else {
        return Err(format!("{} was never started", view.runner));
    };
    let cancelling = |attempt| {
        let attempt = ctx.model.attempts.get(&attempt);
        attempt.is_some_and(|attempt| matches!(attempt.state, AttemptState::Cancelling(_)))
    };
    let right = match (view.state, slot.phase) {
        (RunnerState::Starting, Phase::Starting)
        | (RunnerState::Idle, Phase::Idle)
        | (RunnerState::Broken | RunnerState::Stopped, Phase::Over) => true,
        (RunnerState::Busy(attempt), Phase::Given(given)) => attempt == given && !cancelling(given),
        (RunnerState::Cancelling(attempt), Phase::Given(given)) => {
            attempt == given && cancelling(given)
        }
        _ => false,
    };
    // Slots of retired runners may be used again, and begin anew.
    let most = ctx.model.config.supervision.max_start_failures;
    let counts = ctx.model.fitted();
    let broken = slot.phase == Phase::Over && slot.start_failures >= most;
    require!(
        !counts || broken == (view.state == RunnerState::Broken),
        "{} is {:?} after {} failed starts in a row",
        view.runner,
        view.state,
        slot.start_failures
    );
    require!(
        right && slot.incarnation == view.incarnation,
        "{} {} is shown as {:?}, and is {slot:?}",
        view.runner,
        view.incarnation,
        view.state
    );
    Ok(())
}

/// Returns whether one step can lead from one state to the other, possibly through several: an
/// attempt ends, the next one begins and is cancelled; a runner is lost and started again.
fn legal(from: (Incarnation, RunnerState), to: (Incarnation, RunnerState), scales: bool) -> bool {
    use RunnerState::{Broken, Busy, Cancelling, Idle, Starting, Stopped};
    if to.0 > from.0 {
        // With scaling, it may retire in the same step.
        return (to.1 == Starting || (scales && to.1 == Stopped)) && to.0.0 == from.0.0 + 1;
    }
    if to.0 < from.0 {
        return false;
    }
    match (from.1, to.1) {
        (Starting, Idle | Busy(_) | Cancelling(_) | Broken | Stopped)
        | (Idle, Busy(_) | Cancelling(_) | Stopped)
        | (Busy(_) | Cancelling(_), Idle | Stopped)
        | (Broken, Stopped) => true,
        (Busy(before) | Cancelling(before), Busy(after))
        | (Cancelling(before), Cancelling(after)) => after > before,
        (Busy(before), Cancelling(after)) => after >= before,
        _ => false,
    }
}
