//! Bugs in the inputs of the core.

use std::sync::atomic::{AtomicU64, Ordering};

use rollway_core::{
    BatchId, Core, FailureKind, Input, LedgerRecord, Request, RequestId, RunFailure, RunId,
    RunnerReport, RunnerState, RunnerView,
};

use super::Memory;

pub(super) fn late_result(_: &mut Memory, core: &Core, input: &mut Input) {
    if let Input::Report { runner, report: RunnerReport::RunFinished { attempt, .. }, .. } = input
        && let Some(RunnerState::Busy(current)) = core.runner_state(*runner)
    {
        *attempt = current;
    }
}

/// Ends an attempt as soon as it is cancelled.
pub(super) fn cancel_taken_for_end(_: &mut Memory, core: &Core, input: Input) -> Vec<Input> {
    let cancelling = core.runners().find_map(|view| match view.state {
        RunnerState::Cancelling(attempt) => Some((view.runner, view.incarnation, attempt)),
        _ => None,
    });
    let Some((runner, incarnation, attempt)) = cancelling else { return vec![input] };
    let report = RunnerReport::AttemptEnded { attempt };
    vec![Input::Report { runner, incarnation, report }, input]
}

pub(super) fn timeout_ignored(_: &mut Memory, _: &Core, input: &mut Input) {
    if let Input::Requested {
        what: Request::Finalize { timeout, .. } | Request::Collect { timeout, .. },
        ..
    } = input
    {
        *timeout = None;
    }
}

pub(super) fn timeout_halved(_: &mut Memory, _: &Core, input: &mut Input) {
    if let Input::Requested {
        what:
            Request::Finalize { timeout: Some(timeout), .. }
            | Request::Collect { timeout: Some(timeout), .. }
            | Request::WaitAll { timeout: Some(timeout), .. },
        ..
    } = input
    {
        *timeout /= 2;
    }
}

pub(super) fn minimum_doubled(_: &mut Memory, _: &Core, input: &mut Input) {
    if let Input::Requested {
        what:
            Request::Submit { min_wait_num: Some(min), .. }
            | Request::Collect { min_num: Some(min), .. },
        ..
    } = input
    {
        *min = *min * 2 + 1;
    }
}

/// Gives every batch a unique id, so that an active id can be used again.
pub(super) fn names_mixed_up(memory: &mut Memory, _: &Core, input: &mut Input) {
    if let Input::Requested { what: Request::Submit { batch, .. }, .. } = input {
        memory.count += 1;
        *batch = BatchId::from(format!("{batch}~{}", memory.count).as_str());
    }
}

/// Drops some reports, depending on the inputs of other worlds.
pub(super) fn outside_chance(_: &mut Memory, _: &Core, input: Input) -> Vec<Input> {
    static INPUTS_SEEN: AtomicU64 = AtomicU64::new(0);
    let spared = INPUTS_SEEN.fetch_add(1, Ordering::Relaxed).is_multiple_of(7);
    match input {
        Input::Report { report: RunnerReport::AttemptBegan { .. }, .. } if spared => Vec::new(),
        input => vec![input],
    }
}

/// Drops every third record of a kind.
pub(super) fn forget(
    memory: &mut Memory,
    input: Input,
    kind: fn(&LedgerRecord) -> bool,
) -> Vec<Input> {
    if let Input::Restore(record) = &input
        && kind(record)
    {
        memory.count += 1;
        if memory.count.is_multiple_of(3) {
            return Vec::new();
        }
    }
    vec![input]
}

/// Fails another run of the attempt when one is cancelled.
pub(super) fn sibling_charged(_: &mut Memory, core: &Core, input: Input) -> Vec<Input> {
    let Some((view, sibling)) = sibling_run(core, &input) else { return vec![input] };
    let RunnerState::Busy(attempt) = view.state else { return vec![input] };
    let outcome = Err(RunFailure { kind: FailureKind::Workflow, message: "beside".into() });
    let report = RunnerReport::RunFinished { attempt, run: sibling, outcome };
    vec![Input::Report { runner: view.runner, incarnation: view.incarnation, report }, input]
}

/// Cancels another run of the attempt when one is cancelled.
pub(super) fn sibling_cancelled(memory: &mut Memory, core: &Core, input: Input) -> Vec<Input> {
    let beside = sibling_run(core, &input).map(|(_, sibling)| sibling);
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

/// Returns another open run in the attempt of the run to cancel.
fn sibling_run(core: &Core, input: &Input) -> Option<(RunnerView, RunId)> {
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
