//! Random histories of a ledger and their expected content.

use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use rollway_core::metrics::Metrics;
use rollway_core::{
    BatchId, BatchKey, BatchResult, BatchState, BatchType, ByDropReason, CancelReason, DropReason,
    FailedRun, FailureKind, RunEnd, RunFailure, RunId, RunOutput, RunTally, Status, TaskId,
    TaskTally,
};
use rollway_ledger::{
    BatchMark, Ledger, LedgerEntry, LedgerOptions, RecoveredBatch, RecoveredLedger, TaskEntry,
};

/// Small segments, and compaction on request only.
pub(crate) fn options() -> LedgerOptions {
    LedgerOptions {
        results_kept: 3,
        segment_bytes: 2000,
        compact_bytes_min: u64::MAX,
        ..LedgerOptions::new("job")
    }
}

pub(crate) fn task(repeat_times: u32, bytes: usize) -> TaskEntry {
    let bytes = Bytes::from(vec![b'x'; bytes]);
    TaskEntry { workflow: "math".into(), common: None, repeat_times, bytes }
}

pub(crate) fn submitted<'a>(
    key: BatchKey,
    batch: &'a BatchId,
    tasks: &'a [TaskEntry],
) -> LedgerEntry<'a> {
    LedgerEntry::Submitted { key, batch, kind: BatchType::Train, min_wait_num: None, tasks }
}

/// Returns a result with something in every field.
pub(crate) fn result(key: u64, batch: &BatchId, state: BatchState, tasks: u32) -> BatchResult {
    let aborted = state == BatchState::Aborted;
    let mut dropped = ByDropReason::default();
    dropped[DropReason::Late] = 3;
    let mut runs = RunTally { submitted: 7, succeeded: 4, ..RunTally::default() };
    runs.failed[FailureKind::Timeout] = 1;
    runs.cancelled[CancelReason::OverRollout] = 2;
    let kind = FailureKind::InvalidOutput;
    let status = Status {
        completed_runs: 1,
        total_runs: 2,
        failed_runs: runs.failed,
        cancelled_runs: runs.cancelled,
        first_error: Some(FailedRun { run: RunId(1), kind, message: "näh".into() }),
        run_metrics: vec![[("reward", -0.5), ("x", f64::INFINITY)].into_iter().collect()],
        attempt_seconds: vec![0.25, 1e300],
    };
    let status = Arc::new(status);
    BatchResult {
        batch: batch.clone(),
        key: BatchKey(key),
        kind: BatchType::Train,
        state,
        reason: aborted.then(|| "enough".into()),
        tasks: TaskTally { ok: 1, partial: 2, failed: 3, cancelled: 4 },
        runs,
        delivered: 300,
        dropped,
        uncertain: 1,
        statuses: (0..tasks).map(|task| (TaskId(task), Arc::clone(&status))).collect(),
        sink_metrics: [("sink/rows", 12.0)].into_iter().collect(),
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Submit(u8, Vec<TaskEntry>),
    EndRun(Index, Index, RunEnd<RunOutput<Bytes>>),
    EndBatch(Index, bool),
    Note(Index, BatchMark),
    Version(u64),
    Compact,
    Reopen,
}

fn end() -> impl Strategy<Value = RunEnd<RunOutput<Bytes>>> {
    let metrics = vec(("[a-c]", -1.0..1.0), 0..3)
        .prop_map(|pairs| pairs.iter().map(|(key, value)| (key.as_str(), *value)).collect());
    let bytes = prop_oneof![
        4 => vec(any::<u8>(), 0..200),
        1 => (16_000..20_000usize).prop_map(|length| vec![9; length]),
    ];
    let payload = proptest::option::of(bytes.prop_map(Bytes::from));
    prop_oneof![
        4 => (payload, metrics)
            .prop_map(|(payload, metrics): (_, Metrics)| {
                RunEnd::Succeeded(RunOutput { payload, metrics })
            }),
        1 => (proptest::sample::select(FailureKind::ALL), ".{0,9}")
            .prop_map(|(kind, message)| {
                RunEnd::Failed(RunFailure { kind, message: message.into() })
            }),
        1 => proptest::sample::select(CancelReason::ALL).prop_map(RunEnd::Cancelled),
    ]
}

fn note() -> impl Strategy<Value = BatchMark> {
    let cut = (proptest::sample::select(CancelReason::ALL), any::<bool>());
    prop_oneof![
        cut.prop_map(|(reason, keep)| BatchMark::Truncated { reason, keep }),
        Just(BatchMark::DeliveryStarted),
        ".{0,9}".prop_map(|reason| BatchMark::Aborting(reason.into())),
    ]
}

/// Returns the order of a mark among those of a batch.
fn order(note: &BatchMark) -> u8 {
    match note {
        BatchMark::Truncated { .. } => 0,
        BatchMark::DeliveryStarted => 1,
        BatchMark::Aborting(_) => 2,
    }
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let common = proptest::option::of((0..3u8).prop_map(|common| Bytes::from(vec![common; 5])));
    let task = ("[ab]", common, 1..4u32, vec(any::<u8>(), 0..30));
    let task = task.prop_map(|(workflow, common, repeat_times, bytes)| TaskEntry {
        workflow: workflow.into(),
        common,
        repeat_times,
        bytes: bytes.into(),
    });
    let step = prop_oneof![
        4 => (0..6u8, vec(task, 0..4)).prop_map(|(id, tasks)| Step::Submit(id, tasks)),
        10 => (any::<Index>(), any::<Index>(), end())
            .prop_map(|(batch, run, end)| Step::EndRun(batch, run, end)),
        3 => (any::<Index>(), any::<bool>()).prop_map(|(batch, done)| Step::EndBatch(batch, done)),
        2 => (any::<Index>(), note()).prop_map(|(batch, note)| Step::Note(batch, note)),
        1 => (0..9u64).prop_map(Step::Version),
        1 => Just(Step::Compact),
        1 => Just(Step::Reopen),
    ];
    vec(step, 0..most)
}

/// Expected content of a ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    keys: u64,
    version: u64,
    batches: Vec<RecoveredBatch>,
    results: Vec<(BatchId, Arc<BatchResult>)>,
}

impl Model {
    pub(crate) fn check(&self, recovered: &RecoveredLedger) {
        assert_eq!(recovered.batches, self.batches);
        let kept = self.results.len().saturating_sub(options().results_kept);
        assert_eq!(recovered.results, self.results[kept..]);
        assert_eq!(recovered.version, self.version);
    }
}

/// Applies a step to both, if possible.
pub(crate) fn apply(ledger: &Ledger, model: &mut Model, step: &Step) {
    match step {
        Step::Submit(id, tasks) => submit(ledger, model, *id, tasks),
        Step::EndRun(batch, run, end) => end_run(ledger, model, (*batch, *run), end),
        Step::EndBatch(at, done) => {
            if !model.batches.is_empty() {
                let batch = model.batches.remove(at.index(model.batches.len()));
                let state = if *done { BatchState::Finalized } else { BatchState::Aborted };
                let result = result(batch.key.0, &batch.batch, state, batch.tasks.len() as u32);
                ledger.append(LedgerEntry::BatchEnded(&result)).unwrap();
                model.results.push((batch.batch, Arc::new(result)));
            }
        }
        Step::Note(at, note) => {
            if model.batches.is_empty() {
                return;
            }
            let at = at.index(model.batches.len());
            let batch = &mut model.batches[at];
            if batch.notes.iter().any(|other| order(other) == order(note)) {
                return;
            }
            ledger.append(LedgerEntry::Noted { key: batch.key, note }).unwrap();
            batch.notes.push(note.clone());
            batch.notes.sort_by_key(order);
        }
        Step::Version(more) => {
            model.version += more;
            ledger.append(LedgerEntry::Version(model.version)).unwrap();
        }
        Step::Compact | Step::Reopen => {}
    }
}

fn submit(ledger: &Ledger, model: &mut Model, id: u8, tasks: &[TaskEntry]) {
    let batch = match id {
        0..3 => BatchId::from(i64::from(id) - 1),
        _ => BatchId::from(format!("{id}/eval").as_str()),
    };
    if model.batches.iter().any(|other| other.batch == batch) {
        return;
    }
    let kind = if id < 3 { BatchType::Train } else { BatchType::Eval };
    let min_wait_num = (id > 1).then_some(id.into());
    model.keys += 1;
    let key = BatchKey(model.keys);
    ledger
        .append(LedgerEntry::Submitted { key, batch: &batch, kind, min_wait_num, tasks })
        .unwrap();
    let (tasks, ended, notes) = (tasks.to_vec(), Vec::new(), Vec::new());
    model.batches.push(RecoveredBatch { key, batch, kind, min_wait_num, tasks, ended, notes });
}

fn end_run(
    ledger: &Ledger,
    model: &mut Model,
    (batch, run): (Index, Index),
    end: &RunEnd<RunOutput<Bytes>>,
) {
    if model.batches.is_empty() {
        return;
    }
    let at = batch.index(model.batches.len());
    let batch = &mut model.batches[at];
    let runs = batch.tasks.iter().enumerate().flat_map(|(task, record)| {
        (0..record.repeat_times).map(move |run| (TaskId(task as u32), RunId(run)))
    });
    let ended = |at: &(TaskId, RunId)| batch.ended.iter().any(|run| (run.0, run.1) == *at);
    let open: Vec<_> = runs.filter(|run| !ended(run)).collect();
    if open.is_empty() {
        return;
    }
    let (task, run) = open[run.index(open.len())];
    ledger.append(LedgerEntry::RunEnded { key: batch.key, task, run, end }).unwrap();
    batch.ended.push((task, run, end.clone()));
    batch.ended.sort_by_key(|run| (run.0, run.1));
}
