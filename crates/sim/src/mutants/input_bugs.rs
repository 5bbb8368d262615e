//! Bugs in what the core hears.

use std::sync::atomic::{AtomicU64, Ordering};

use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchId, Core, DeliveryOutcome, FailureKind, Input, LedgerRecord, Request,
    RequestId, RunFailure, RunId, RunOutcome, RunOutput, RunnerId, RunnerReport, RunnerState,
    RunnerView,
};

use super::Memory;

pub(super) fn late_result(_: &mut Memory, core: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Report { runner, report: RunnerReport::RunFinished { attempt, .. }, .. } =
        &mut input
        && let Some(current) = current(core, *runner)
    {
        *attempt = current;
    }
    vec![input]
}

pub(super) fn earlier_life(_: &mut Memory, core: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Report { runner, life, .. } = &mut input
        && let Some(view) = core.runner(*runner)
    {
        *life = view.life;
    }
    vec![input]
}

/// Hears a second report about a run as if it were about another one.
pub(super) fn result_twice(memory: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Report { report: RunnerReport::RunFinished { attempt, run, .. }, .. } = &mut input
        && !memory.reported.insert((*attempt, run.0))
    {
        run.0 ^= 1;
    }
    vec![input]
}

/// Takes an attempt for ended as soon as it is told to end.
pub(super) fn cancel_taken_for_end(_: &mut Memory, core: &Core, input: Input) -> Vec<Input> {
    let cancelling = core.runners().find_map(|view| match view.state {
        RunnerState::Cancelling(attempt) => Some((view.runner, view.life, attempt)),
        _ => None,
    });
    let Some((runner, life, attempt)) = cancelling else { return vec![input] };
    let report = RunnerReport::AttemptEnded { attempt };
    vec![Input::Report { runner, life, report }, input]
}

pub(super) fn withdrawal_ignored(_: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    match input {
        Input::RequestAbandoned { .. } => Vec::new(),
        input => vec![input],
    }
}

pub(super) fn timeout_ignored(_: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Requested {
        what: Request::Finalize { timeout, .. } | Request::Collect { timeout, .. },
        ..
    } = &mut input
    {
        *timeout = None;
    }
    vec![input]
}

pub(super) fn timeout_halved(_: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Requested {
        what:
            Request::Finalize { timeout: Some(timeout), .. }
            | Request::Collect { timeout: Some(timeout), .. }
            | Request::WaitAll { timeout: Some(timeout), .. },
        ..
    } = &mut input
    {
        *timeout /= 2;
    }
    vec![input]
}

pub(super) fn minimum_doubled(_: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Requested {
        what:
            Request::Submit { min_wait_num: Some(min), .. }
            | Request::Collect { min_num: Some(min), .. },
        ..
    } = &mut input
    {
        *min = *min * 2 + 1;
    }
    vec![input]
}

pub(super) fn minimum_ignored(_: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Requested { what: Request::Submit { min_wait_num, .. }, .. } = &mut input {
        *min_wait_num = min_wait_num.map(|min| min / 2);
    }
    vec![input]
}

/// Takes results for safe once they are on their way.
pub(super) fn self_acknowledged(_: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::DeliveryDone { delivery, .. } = &mut input {
        *delivery = DeliveryOutcome::Acknowledged { metrics: Metrics::new() };
    }
    vec![input]
}

pub(super) fn payload_vanishes(_: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Report { report: RunnerReport::RunFinished { outcome, .. }, .. } = &mut input {
        *outcome = without_payload(outcome);
    }
    vec![input]
}

/// Takes what arrived for lost.
pub(super) fn handed_again(_: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::DeliveryDone { delivery, .. } = &mut input {
        *delivery = DeliveryOutcome::Failed { message: "so it is said".into() };
    }
    vec![input]
}

pub(super) fn always_suspect(_: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Report { report: RunnerReport::Lost { suspect, .. }, .. } = &mut input {
        *suspect = true;
    }
    vec![input]
}

/// Takes every batch in under a name of its own, so that a name that is taken can be used again.
pub(super) fn names_mixed_up(memory: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Requested { what: Request::Submit { batch, .. }, .. } = &mut input {
        memory.count += 1;
        *batch = BatchId::from(format!("{batch}~{}", memory.count).as_str());
    }
    vec![input]
}

/// Takes a batch for what it is asked for.
pub(super) fn kind_ignored(_: &mut Memory, core: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Requested { what: Request::Finalize { batch, kind, .. }, .. } = &mut input
        && let Some(view) = core.batch(batch)
    {
        *kind = view.kind;
    }
    vec![input]
}

pub(super) fn abort_keeps_nothing(_: &mut Memory, _: &Core, mut input: Input) -> Vec<Input> {
    if let Input::Requested { what: Request::Abort { keep_partial_results, .. }, .. } = &mut input {
        *keep_partial_results = false;
    }
    vec![input]
}

pub(super) fn clock_ignored(_: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    if input == Input::TimePassed { Vec::new() } else { vec![input] }
}

pub(super) fn alive_twice(_: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    match input {
        Input::Report { report: RunnerReport::Heartbeat, .. } => vec![input.clone(), input],
        input => vec![input],
    }
}

pub(super) fn never_ready(_: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    match input {
        Input::Report { runner: RunnerId(0), report: RunnerReport::Ready { .. }, .. } => Vec::new(),
        input => vec![input],
    }
}

pub(super) fn sink_unheard(_: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    match input {
        Input::DeliveryDone { .. } => Vec::new(),
        input => vec![input],
    }
}

/// Ignores signs of life now and then, depending on what other worlds did.
pub(super) fn outside_chance(_: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    static INPUTS_SEEN: AtomicU64 = AtomicU64::new(0);
    let lucky = INPUTS_SEEN.fetch_add(1, Ordering::Relaxed).is_multiple_of(7);
    match input {
        Input::Report { report: RunnerReport::AttemptBegan { .. }, .. } if lucky => Vec::new(),
        input => vec![input],
    }
}

fn current(core: &Core, runner: RunnerId) -> Option<AttemptId> {
    match core.runner(runner)?.state {
        RunnerState::Busy(attempt) => Some(attempt),
        _ => None,
    }
}

fn without_payload(outcome: &RunOutcome) -> RunOutcome {
    match outcome.clone() {
        Ok(RunOutput { metrics, .. }) => Ok(RunOutput { payload: None, metrics }),
        failed @ Err(_) => failed,
    }
}

pub(super) fn submitted_forgotten(memory: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    forget(memory, input, |record| matches!(record, LedgerRecord::Submitted { .. }))
}

pub(super) fn ending_forgotten(memory: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    forget(memory, input, |record| matches!(record, LedgerRecord::RunEnded { .. }))
}

pub(super) fn end_forgotten(memory: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    forget(memory, input, |record| matches!(record, LedgerRecord::Closed(_)))
}

/// Forgets every third record of a sort.
fn forget(memory: &mut Memory, input: Input, sort: fn(&LedgerRecord) -> bool) -> Vec<Input> {
    if let Input::Restore(record) = &input
        && sort(record)
    {
        memory.count += 1;
        if memory.count.is_multiple_of(3) {
            return Vec::new();
        }
    }
    vec![input]
}

pub(super) fn recorded_twice(_: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    match input {
        Input::Restore(_) => vec![input.clone(), input],
        input => vec![input],
    }
}

/// Hears, when a run is cancelled, that another one of its attempt has failed.
pub(super) fn sibling_charged(_: &mut Memory, core: &Core, input: Input) -> Vec<Input> {
    let Some((view, sibling)) = beside(core, &input) else { return vec![input] };
    let RunnerState::Busy(attempt) = view.state else { return vec![input] };
    let outcome = Err(RunFailure { kind: FailureKind::Workflow, message: "beside".into() });
    let report = RunnerReport::RunFinished { attempt, run: sibling, outcome };
    vec![Input::Report { runner: view.runner, life: view.life, report }, input]
}

/// Takes another run of its attempt along when one is cancelled.
pub(super) fn sibling_cancelled(memory: &mut Memory, core: &Core, input: Input) -> Vec<Input> {
    let beside = beside(core, &input).map(|(_, sibling)| sibling);
    let (Some(sibling), Input::Requested { what, .. }) = (beside, &input) else {
        return vec![input];
    };
    let mut what = what.clone();
    if let Request::CancelRun { run, .. } = &mut what {
        *run = sibling;
    }
    memory.count += 1;
    let request = RequestId(1_000_000 + memory.count);
    vec![Input::Requested { request, what }, input]
}

/// Finds a run that is under way together with one that is to be cancelled.
fn beside(core: &Core, input: &Input) -> Option<(RunnerView, RunId)> {
    let Input::Requested { what: Request::CancelRun { batch, task, run }, .. } = input else {
        return None;
    };
    let key = core.batch(batch)?.key;
    core.runners().find_map(|view| {
        let (of, about, _) = view.work?;
        let here = (of, about) == (key, *task) && view.runs.contains(run);
        let other = view.runs.iter().copied().find(|other| other != run)?;
        here.then_some((view, other))
    })
}
